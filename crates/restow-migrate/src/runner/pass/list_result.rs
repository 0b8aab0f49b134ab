//! Handles the result of a list request, and finds a way past objects that make it fail.

use super::super::listing::{ListedObject, PageQuery, namespaces, page};
use super::super::pass_state::{ListResult, ListState, PassOutcome, PassState};
use super::super::rewrite::{ObjectOutcome, not_served, record, unresponsive};
use super::super::{RunError, unreadable};
use super::{Pass, others};
use crate::request::RequestError;
use futures::FutureExt;
use restow_rules::migrate::passes::Changed;
use restow_rules::migrate::response::{MAX_NO_RESPONSES, MAX_RETRIES, OtherObjects, ResponseClass, classify_listing};

impl Pass<'_> {
    /// Handles a page, or the failure to read one.
    pub(super) fn listed(
        &mut self,
        state: &mut PassState,
        found: Result<ListResult, RequestError>,
    ) -> Result<Option<PassOutcome>, RunError> {
        let (token, tries) = match std::mem::replace(&mut state.listing, ListState::Done) {
            ListState::Pending { token, tries, .. } => (token, tries),
            _ => (None, 0),
        };
        let failure = match found {
            Ok(ListResult::Page(page)) => {
                self.took(state, token, page);
                return Ok(None);
            }
            Ok(ListResult::Unreadable(unreadable, failure)) => {
                state.report.has_gaps |= unreadable.is_later;
                state.scope.limit = self.page_size;
                let mut message = format!("the server cannot read it: {}", failure.message);
                if state.expected.is_none() {
                    message += "; objects in front of it may not have been reached";
                }
                let failure = record(&unreadable.object, &RequestError { message, ..failure });
                state.stepped_over += 1;
                self.count(state, ObjectOutcome::Failed(failure), Changed::No);
                state.listing = ListState::Next { token: Some(unreadable.token), tries: 0 };
                return Ok(None);
            }
            Ok(ListResult::Nothing(failure)) => {
                self.stuck(state, failure);
                return Ok(None);
            }
            Ok(ListResult::Namespaces(names, failure)) => {
                // Namespaces are listed at different revisions, and objects in deleted namespaces are not listed, so such a
                // pass proves nothing.
                (state.report.has_gaps, state.report.by_namespace) = (true, true);
                state.scope.unlisted = Some(failure);
                state.scope.to_come = Some(names.into());
                state.next_namespace(self.page_size);
                return Ok(None);
            }
            Err(failure) => failure,
        };
        if failure.code == 410 && token.is_some() {
            // The token has expired. The rest may lack objects; the next pass has them.
            state.report.has_gaps = true;
            let token = failure.details.and_then(|details| details.continue_token);
            state.listing = ListState::Next { token, tries: 0 };
            return Ok(None);
        }
        if let (404, Some(server)) = (failure.code, self.servers.first()) {
            return Ok(Some(state.not_served(not_served(server, &failure))));
        }
        let is_lasting = failure.is_unresponsive || (failure.code == 0 && tries >= MAX_RETRIES);
        if let (true, Some(server)) = (is_lasting, self.servers.first()) {
            return Ok(Some(state.unresponsive(unresponsive(server, &failure))));
        }
        let token_of_failure = token.clone();
        state.listing = ListState::Next { token, tries: tries + 1 };
        match classify_listing(&failure.response()) {
            ResponseClass::Overloaded(wait) => return Ok(self.overloaded(state, wait)),
            ResponseClass::WebhookDown => return Ok(self.webhook_down(state, &failure.message)),
            ResponseClass::TryAgain if tries < MAX_RETRIES => {}
            ResponseClass::WebhookNoResponse if others(state) == OtherObjects::GotNothing && state.scope.limit == 1 => {
                return Ok(self.webhook_down(state, &failure.message));
            }
            ResponseClass::WebhookNoResponse if state.scope.limit == 1 && tries < MAX_NO_RESPONSES => {}
            response if failure.code == 500 && unreadable::is_unreadable(response) => {
                self.unlistable(state, token_of_failure, failure);
            }
            _ => return Err(RunError::List(failure)),
        }
        Ok(None)
    }

    /// The server cannot read some object, and no page that contains it. Smaller pages come closer to it. Then it is listed
    /// in the other served versions, because it need not be converted in the version that it is stored in. If that fails,
    /// the object is searched, and the list continues after it. If it cannot be found, the other namespaces are listed; the
    /// objects after it in its own namespace are not reached, which counts as a failure.
    fn unlistable(&mut self, state: &mut PassState, token: Option<String>, failure: RequestError) {
        if state.scope.limit > 1 {
            state.scope.limit = (state.scope.limit / 8).max(1);
            return;
        }
        if let (None, Some(server)) = (&state.scope.to_come, self.servers.first()) {
            let (client, resource) = (server.client.clone(), self.rewriting.resource.clone());
            let (wanted, is_namespaced) = (token.clone(), resource.is_namespaced);
            let (others, detail) = (self.rewriting.other_versions.clone(), self.rewriting.detail());
            let found = async move {
                for version in others {
                    let query = PageQuery { namespace: "", continue_token: wanted.as_deref(), limit: 1 };
                    if let Ok(page) = page(&client, &resource.in_version(&version), query, detail).await {
                        return Ok(ListResult::Page(page));
                    }
                }
                match unreadable::find(&client, &resource, wanted.as_deref()).await? {
                    Some(found) => Ok(ListResult::Unreadable(found, failure)),
                    None if is_namespaced => {
                        namespaces(&client).await.map(|names| ListResult::Namespaces(names, failure))
                    }
                    None => Ok(ListResult::Nothing(failure)),
                }
            };
            state.listing = ListState::Pending { token, tries: 0, found: found.boxed() };
            return;
        }
        self.stuck(state, failure);
    }

    /// The rest of this list cannot be read; its size is unknown.
    fn stuck(&mut self, state: &mut PassState, failure: RequestError) {
        state.report.has_gaps = true;
        state.scope.unlisted = None;
        let message = format!("an object from here on cannot be listed: {}", failure.message);
        let nameless = ListedObject { namespace: state.scope.namespace.clone(), ..ListedObject::default() };
        let failure = record(&nameless, &RequestError { message, ..failure });
        self.count(state, ObjectOutcome::Failed(failure), Changed::No);
        state.next_namespace(self.page_size);
    }

    /// If no namespace contains the object that cannot be listed, it is in a deleted namespace.
    pub(super) fn count_orphans(&mut self, state: &mut PassState) {
        let Some(failure) = state.scope.unlisted.take() else { return };
        let message = format!(
            "an object that lies in no namespace which exists cannot be listed, and perhaps there are more: {}",
            failure.message
        );
        let failure = record(&ListedObject::default(), &RequestError { message, ..failure });
        self.count(state, ObjectOutcome::Failed(failure), Changed::No);
    }
}
