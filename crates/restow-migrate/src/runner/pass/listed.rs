//! What a listing brought, and how to get past objects because of which it brings nothing.

use super::super::listing::{ListedObject, PageQuery, namespaces, page};
use super::super::rewrite::{End, not_served, record, silent};
use super::super::under_way::{Found, Listing, PassEnd, Work};
use super::super::{RunError, unreadable};
use super::{Pass, others};
use crate::exchange::Failure;
use futures::FutureExt;
use restow_rules::migrate::passes::Changed;
use restow_rules::migrate::verdict::{MOST_LOSSES, MOST_TRIES, Others, Verdict, judge_listing};

impl Pass<'_> {
    /// Takes down what a listing brought, or makes up for what it did not.
    pub(super) fn listed(
        &mut self,
        work: &mut Work,
        found: Result<Found, Failure>,
    ) -> Result<Option<PassEnd>, RunError> {
        let (token, tries) = match std::mem::replace(&mut work.listing, Listing::Over) {
            Listing::Under { token, tries, .. } => (token, tries),
            _ => (None, 0),
        };
        let failure = match found {
            Ok(Found::Page(page)) => {
                self.took(work, token, page);
                return Ok(None);
            }
            Ok(Found::Unreadable(unreadable, failure)) => {
                work.report.has_gaps |= unreadable.is_later;
                work.place.limit = self.page_size;
                let mut message = format!("the server cannot read it: {}", failure.message);
                if work.expected.is_none() {
                    message += "; objects in front of it may not have been reached";
                }
                let failure = record(&unreadable.object, &Failure { message, ..failure });
                work.stepped_over += 1;
                self.count(work, End::Failed(failure), Changed::No);
                work.listing = Listing::Next { token: Some(unreadable.token), tries: 0 };
                return Ok(None);
            }
            Ok(Found::Nothing(failure)) => {
                self.stuck(work, failure);
                return Ok(None);
            }
            Ok(Found::Namespaces(names, failure)) => {
                // Namespaces are listed at different revisions, so that nothing can be said about all objects together, and
                // nothing about those in a namespace that does not exist any more.
                (work.report.has_gaps, work.report.by_namespace) = (true, true);
                work.place.unlisted = Some(failure);
                work.place.to_come = Some(names.into());
                work.next_namespace(self.page_size);
                return Ok(None);
            }
            Err(failure) => failure,
        };
        if failure.code == 410 && token.is_some() {
            // The history that the token relies on is gone. What follows may lack objects; the next pass has them.
            work.report.has_gaps = true;
            let token = failure.details.and_then(|details| details.continue_token);
            work.listing = Listing::Next { token, tries: 0 };
            return Ok(None);
        }
        if let (404, Some(server)) = (failure.code, self.servers.first()) {
            return Ok(Some(work.not_served(not_served(server, &failure))));
        }
        let is_lasting = failure.is_silent || (failure.code == 0 && tries >= MOST_TRIES);
        if let (true, Some(server)) = (is_lasting, self.servers.first()) {
            return Ok(Some(work.silent(silent(server, &failure))));
        }
        let token_of_failure = token.clone();
        work.listing = Listing::Next { token, tries: tries + 1 };
        match judge_listing(&failure.refusal()) {
            Verdict::Overloaded(wait) => return Ok(self.overloaded(work, wait)),
            Verdict::WebhookDown => return Ok(self.webhook_down(work, &failure.message)),
            Verdict::TryAgain if tries < MOST_TRIES => {}
            Verdict::WebhookLost if others(work) == Others::GotNothing && work.place.limit == 1 => {
                return Ok(self.webhook_down(work, &failure.message));
            }
            Verdict::WebhookLost if work.place.limit == 1 && tries < MOST_LOSSES => {}
            verdict if failure.code == 500 && unreadable::is_unreadable(verdict) => {
                self.unlistable(work, token_of_failure, failure);
            }
            _ => return Err(RunError::List(failure)),
        }
        Ok(None)
    }

    /// Some object cannot be read by the server, and with it no page that it is on. Smaller pages come up to it. Then it is
    /// listed in the other versions that are served: in the one that it is stored in, it need not be converted. If none of
    /// them works, it is looked for, and listed on behind it. Where it cannot be found, other namespaces come past it; what
    /// lies behind it in its own namespace is not reached then, which counts as a failure.
    fn unlistable(&mut self, work: &mut Work, token: Option<String>, failure: Failure) {
        if work.place.limit > 1 {
            work.place.limit = (work.place.limit / 8).max(1);
            return;
        }
        if let (None, Some(server)) = (&work.place.to_come, self.servers.first()) {
            let (client, resource) = (server.client.clone(), self.rewriting.resource.clone());
            let (wanted, is_namespaced) = (token.clone(), resource.is_namespaced);
            let (others, detail) = (self.rewriting.other_versions.clone(), self.rewriting.detail());
            let found = async move {
                for version in others {
                    let query = PageQuery { namespace: "", continue_token: wanted.as_deref(), limit: 1 };
                    if let Ok(page) = page(&client, &resource.in_version(&version), query, detail).await {
                        return Ok(Found::Page(page));
                    }
                }
                match unreadable::find(&client, &resource, wanted.as_deref()).await? {
                    Some(found) => Ok(Found::Unreadable(found, failure)),
                    None if is_namespaced => namespaces(&client).await.map(|names| Found::Namespaces(names, failure)),
                    None => Ok(Found::Nothing(failure)),
                }
            };
            work.listing = Listing::Under { token, tries: 0, found: found.boxed() };
            return;
        }
        self.stuck(work, failure);
    }

    /// What comes next cannot be listed: nobody knows how much it is.
    fn stuck(&mut self, work: &mut Work, failure: Failure) {
        work.report.has_gaps = true;
        work.place.unlisted = None;
        let message = format!("an object from here on cannot be listed: {}", failure.message);
        let nameless = ListedObject { namespace: work.place.namespace.clone(), ..ListedObject::default() };
        let failure = record(&nameless, &Failure { message, ..failure });
        self.count(work, End::Failed(failure), Changed::No);
        work.next_namespace(self.page_size);
    }

    /// An object because of which not all could be listed at once, and that lies in no namespace, is in one that is gone.
    pub(super) fn count_orphans(&mut self, work: &mut Work) {
        let Some(failure) = work.place.unlisted.take() else { return };
        let message = format!(
            "an object that lies in no namespace which exists cannot be listed, and perhaps there are more: {}",
            failure.message
        );
        let failure = record(&ListedObject::default(), &Failure { message, ..failure });
        self.count(work, End::Failed(failure), Changed::No);
    }
}
