//! One pass through all objects of a resource.

mod list_result;

use super::listing::{ListedObject, Page, PageQuery, page};
use super::pass_state::{ListResult, ListScope, ListState, PassOutcome, PassState};
use super::probe::{PAUSE, Probe, SHORT_PAUSE};
use super::progress::{Counted, Reached};
use super::rewrite::{
    AdmissionCheck, CHANGED_BY_ADMISSION, ObjectOutcome, ObjectResult, RewriteTask, Rewriting, WriteMode, record,
};
use super::{MOST_FAILURES, Progress, RunControl, RunError, VerifiedObjects};
use crate::backoff::request_delay;
use crate::cluster::Instance;
use crate::request::RequestError;
use crate::step::MigrationStep;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use restow_api::migration::MigrationFailure;
use restow_rules::migrate::pacer::Pacer;
use restow_rules::migrate::passes::{Changed, PassReport, is_written_since};
use restow_rules::migrate::response::{AfterNoResponse, OtherObjects, after_no_response};
use std::collections::VecDeque;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// The state of a run over all of its passes.
pub(super) struct Pass<'a> {
    pub(super) servers: Vec<Instance>,
    pub(super) rewriting: Rewriting,
    pub(super) page_size: u32,
    pub(super) pacer: Pacer,
    pub(super) began: Instant,
    pub(super) control: watch::Receiver<RunControl>,
    pub(super) progress: &'a watch::Sender<Progress>,
    pub(super) failures: Vec<MigrationFailure>,
    pub(super) verified: Option<VerifiedObjects>,
    /// The resource version of the first page of the current pass.
    pub(super) list_revision: String,
    /// The resource version at which the first pass began; empty if unknown.
    pub(super) began_at: String,
    /// Reads that measure the latency of other clients; none if there is too little work for that to matter.
    pub(super) probe: Option<Probe>,
    /// How to find out whether admission changes objects that were stored correctly.
    pub(super) admission_check: AdmissionCheck,
    /// Whether the settling time had passed when the current pass began.
    pub(super) is_after_settling: bool,
    /// How long to wait for a webhook that cannot be reached.
    pub(super) webhook_timeout: Duration,
    /// Since when a webhook cannot be reached and no object was rewritten.
    pub(super) webhook_down_since: Option<Instant>,
    /// How long to wait for an overloaded server.
    pub(super) overload_timeout: Duration,
    /// Since when a server is overloaded and no object was rewritten.
    pub(super) overloaded_since: Option<Instant>,
    /// How many calls in a row a webhook has left without an answer.
    pub(super) no_responses: u32,
}

/// Which servers rewrite an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Coverage {
    /// One server, which is enough to rewrite it.
    ServerResult,
    /// Every server, because each of them has to leave the object unchanged before it is proven to be current.
    EveryServer,
}

/// The reason that is shown while the run is paused.
const PAUSED: &str = "paused, or outside of the maintenance windows";
/// The delay before a webhook that cannot be reached is tried again.
const WEBHOOK_WAIT: Duration = Duration::from_secs(2);

impl Pass<'_> {
    /// Processes all objects from `token` on, on one server or on every server each.
    pub(super) async fn run(
        &mut self,
        token: Option<String>,
        coverage: Coverage,
    ) -> Result<(PassReport, PassOutcome), RunError> {
        let on_each = coverage == Coverage::EveryServer || self.servers.len() < 2;
        let is_after_settling = self.is_after_settling;
        let began_in_the_middle = token.is_some();
        let mut state = PassState {
            report: PassReport {
                has_gaps: began_in_the_middle,
                began_in_the_middle,
                on_each,
                is_after_settling,
                ..PassReport::default()
            },
            queue: VecDeque::new(),
            in_flight: FuturesUnordered::new(),
            listing: ListState::Next { token, tries: 0 },
            scope: ListScope { limit: self.page_size, ..ListScope::default() },
            tokens: [None, None],
            listed: 0,
            sent: 0,
            expected: None,
            stepped_over: 0,
            got_through: false,
        };
        loop {
            let command = *self.control.borrow_and_update();
            match command {
                RunControl::Run => self.send(&mut state),
                RunControl::Pause => self.say_paused(),
                RunControl::Stop => {}
            }
            if state.in_flight.is_empty() {
                if command == RunControl::Stop {
                    let continue_token = state.tokens[1].take();
                    return Ok((state.report, PassOutcome::Stopped { continue_token }));
                }
                if state.queue.is_empty() && matches!(state.listing, ListState::Done) {
                    self.count_orphans(&mut state);
                    return Ok((state.report, PassOutcome::Complete));
                }
            }
            if let Some(end) = self.wait(&mut state, command).await? {
                return Ok((state.report, end));
            }
        }
    }

    fn say_paused(&self) {
        self.progress.send_if_modified(|progress| {
            let is_news = progress.waiting.as_deref() != Some(PAUSED);
            progress.waiting = Some(PAUSED.to_owned());
            is_news
        });
    }

    /// Sends as many requests as allowed, and lists the next page in time.
    fn send(&mut self, state: &mut PassState) {
        let limit = self.pacer.limit();
        if self.pacer.blocked_until(self.began.elapsed()).is_none() {
            while state.in_flight.len() < limit {
                let Some(task) = state.queue.pop_front() else { break };
                let servers = self.servers_for(state);
                state.sent += 1;
                let rewriting = self.rewriting.clone();
                let task = RewriteTask { admission_check: task.admission_check.max(self.admission_check), ..task };
                state.in_flight.push(async move { rewriting.rewrite_on_each(servers, task).await }.boxed());
            }
        }
        // While the latency without our requests is measured, nothing may be sent, and no page is listed either.
        if state.queue.len() < 2 * limit && matches!(state.listing, ListState::Next { .. }) {
            state.listing = match std::mem::replace(&mut state.listing, ListState::Done) {
                ListState::Next { token, tries } => self.list(&state.scope, token, tries),
                other => other,
            };
        }
    }

    fn servers_for(&self, state: &PassState) -> Vec<Instance> {
        if state.report.on_each && self.rewriting.mode == WriteMode::Write {
            return self.servers.clone();
        }
        let index = usize::try_from(state.sent).unwrap_or(0) % self.servers.len().max(1);
        self.servers.get(index).cloned().into_iter().collect()
    }

    fn list(&self, scope: &ListScope, token: Option<String>, tries: u32) -> ListState {
        let client = self.servers.first().map(|server| server.client.clone());
        let (rewriting, limit, wanted) = (self.rewriting.clone(), scope.limit, token.clone());
        let namespace = scope.namespace.clone();
        let found = async move {
            let Some(client) = client else { return Err(RequestError::default()) };
            if tries > 0 {
                tokio::time::sleep(request_delay(tries)).await;
            }
            let query = PageQuery { namespace: &namespace, continue_token: wanted.as_deref(), limit };
            page(&client, &rewriting.resource, query, rewriting.detail()).await.map(ListResult::Page)
        };
        ListState::Pending { token, tries, found: found.boxed() }
    }

    /// Waits for the next event and handles it.
    async fn wait(&mut self, state: &mut PassState, command: RunControl) -> Result<Option<PassOutcome>, RunError> {
        let blocked = match self.pacer.blocked_until(self.began.elapsed()) {
            Some(until) if command == RunControl::Run => Some(until.saturating_sub(self.began.elapsed())),
            _ => None,
        };
        let listed = async {
            match &mut state.listing {
                ListState::Pending { found, .. } => found.await,
                _ => std::future::pending().await,
            }
        };
        let in_flight = state.in_flight.len();
        let pause = if self.pacer.limit() == 0 { SHORT_PAUSE } else { PAUSE };
        let probed = async {
            match &mut self.probe {
                Some(probe) => probe.next(pause).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            took = probed, if command == RunControl::Run => {
                let limit = self.pacer.limit();
                self.pacer.probed(took, in_flight, self.began.elapsed());
                if self.pacer.limit() != limit {
                    tracing::debug!(?took, limit, pacer = ?self.pacer, "what others wait decides how many are in flight");
                }
                Ok(())
            }
            Some(settled) = state.in_flight.next() => match settled {
                ObjectResult::Unresponsive(words) => return Ok(Some(state.unresponsive(words))),
                ObjectResult::NotServed(words) => return Ok(Some(state.not_served(words))),
                ObjectResult::WebhookDown(task, message) => {
                    state.queue.push_front(task);
                    return Ok(self.webhook_down(state, &message));
                }
                ObjectResult::WebhookNoResponse(task, failure) => return Ok(self.webhook_no_response(state, task, failure)),
                ObjectResult::Overloaded(task, wait) => {
                    state.queue.push_front(task);
                    return Ok(self.overloaded(state, wait));
                }
                settled => self.settled(state, settled),
            },
            found = listed => return self.listed(state, found),
            _ = tokio::time::sleep(blocked.unwrap_or_default()), if blocked.is_some() => Ok(()),
            () = next_order(&mut self.control) => Ok(()),
        }?;
        Ok(None)
    }

    fn took(&mut self, state: &mut PassState, token: Option<String>, page: Page) {
        (self.webhook_down_since, self.overloaded_since) = (None, None);
        self.progress.send_modify(|progress| {
            progress.saw_page(page.objects.len() as u64, page.remaining, state.listed);
            progress.continue_token = state.tokens[0].clone();
            progress.waiting = None;
        });
        if token.is_none() && state.scope.to_come.is_none() {
            self.list_revision.clone_from(&page.resource_version);
            if self.began_at.is_empty() {
                self.began_at.clone_from(&page.resource_version);
            }
        }
        let is_unwritten = |object: &&ListedObject| !is_written_since(&object.resource_version, &self.began_at);
        state.report.unwritten += page.objects.iter().filter(is_unwritten).count() as u64;
        if page.continue_token.is_some() {
            self.begin_to_probe(page.objects.first());
        }
        state.count_unreached(&page);
        // After an object that cannot be read, pages can be large again.
        state.scope.limit = self.page_size;
        // The token of one namespace cannot be used in a list of all.
        let token = token.filter(|_| state.scope.to_come.is_none());
        state.tokens = [token, state.tokens[0].take()];
        state.listed += page.objects.len() as u64;
        for object in page.objects {
            let verified = self.verified.as_ref();
            if verified.is_some_and(|verified| verified.covers(&object.uid, &object.resource_version)) {
                self.count(state, ObjectOutcome::Current, Changed::No);
            } else {
                let has_failed_before = verified.is_some_and(|verified| verified.has_failed(&object.uid));
                let admission_check = if has_failed_before { AdmissionCheck::Beforehand } else { AdmissionCheck::None };
                state.queue.push_back(RewriteTask { object, admission_check, ..RewriteTask::default() });
            }
        }
        match page.continue_token {
            Some(token) => state.listing = ListState::Next { token: Some(token), tries: 0 },
            None => state.next_namespace(self.page_size),
        }
    }

    /// With more than one page, the run is long enough to affect other clients.
    fn begin_to_probe(&mut self, first: Option<&ListedObject>) {
        if let (None, Some(server), Some(object)) = (&self.probe, self.servers.first(), first)
            && self.rewriting.mode == WriteMode::Write
            && !self.pacer.is_guarded()
        {
            self.pacer.protect();
            let probe = || Probe::new(server.client.clone(), self.rewriting.resource.clone(), object.clone());
            self.probe = self.pacer.is_guarded().then(probe);
        }
    }

    fn settled(&mut self, state: &mut PassState, settled: ObjectResult) -> Result<(), RunError> {
        let in_flight = state.in_flight.len() + 1;
        match settled {
            ObjectResult::NotAllowed(failure) => return Err(RunError::NotAllowed(failure)),
            ObjectResult::NoDryRun(failure) => return Err(RunError::NoDryRun(failure)),
            ObjectResult::Done(end, changed) => {
                self.no_responses = 0;
                state.got_through |= end == ObjectOutcome::Current;
                self.count(state, end, changed);
            }
            // The caller handles these.
            ObjectResult::Overloaded(..)
            | ObjectResult::Unresponsive(_)
            | ObjectResult::NotServed(_)
            | ObjectResult::WebhookDown(..)
            | ObjectResult::WebhookNoResponse(..) => {}
        }
        self.pacer.answered(in_flight, self.began.elapsed());
        Ok(())
    }

    fn count(&mut self, state: &mut PassState, end: ObjectOutcome, changed: Changed) {
        (self.webhook_down_since, self.overloaded_since) = (None, None);
        state.report.record(end.kind(), changed);
        let counted = match (end, changed) {
            (ObjectOutcome::Failed(failure), _) => {
                if failure.reason == CHANGED_BY_ADMISSION {
                    // Other objects will be changed too, so they are checked before they are written.
                    self.admission_check = AdmissionCheck::Beforehand;
                }
                if self.failures.len() < MOST_FAILURES {
                    self.failures.push(failure);
                }
                Counted::Refused
            }
            (_, Changed::Yes) => Counted::Rewritten,
            (_, Changed::No) => Counted::Skipped,
        };
        let pacer = &self.pacer;
        let mut is_half_done = false;
        self.progress.send_modify(|progress| {
            is_half_done = progress.count(counted) == Reached::Half;
            progress.waiting = None;
            progress.concurrency = pacer.limit();
            progress.overloads = pacer.overloads();
        });
        if is_half_done {
            MigrationStep::HalfRewritten.log(&self.rewriting.resource.resource.group_resource());
        }
    }

    /// The server sent a 429. If it keeps doing so, or asks for a longer delay than the timeout allows, the pass ends, so
    /// that other migrations need not wait for this server.
    fn overloaded(&mut self, state: &mut PassState, wait: Duration) -> Option<PassOutcome> {
        let since = self.overloaded_since.get_or_insert_with(Instant::now).elapsed();
        if since.saturating_add(wait) >= self.overload_timeout {
            let seconds = since.as_secs();
            return Some(state.overloaded(format!(
                "the API server is overloaded (429): it has asked to wait for {seconds} s, and asks for {} s more",
                wait.as_secs()
            )));
        }
        self.pacer.overloaded(wait, self.began.elapsed());
        let (limit, overloads) = (self.pacer.limit(), self.pacer.overloads());
        self.progress.send_modify(|progress| {
            progress.concurrency = limit;
            progress.overloads = overloads;
            progress.waiting = Some("the API server is overloaded and asked to wait".to_owned());
        });
        None
    }

    /// A webhook was reached and did not answer for this object. If it answers for others, the object is to blame and does
    /// not block them.
    fn webhook_no_response(
        &mut self,
        state: &mut PassState,
        task: RewriteTask,
        failure: RequestError,
    ) -> Option<PassOutcome> {
        self.no_responses += 1;
        match after_no_response(task.no_responses, self.no_responses, others(state)) {
            AfterNoResponse::Refused => {
                let failed = record(&task.object, &failure);
                self.count(state, ObjectOutcome::Failed(failed), task.changed);
                None
            }
            AfterNoResponse::TryAgain => {
                state.queue.push_front(task);
                self.pacer.overloaded(WEBHOOK_WAIT, self.began.elapsed());
                None
            }
            AfterNoResponse::WebhookDown => {
                state.queue.push_front(task);
                self.webhook_down(state, &failure.message)
            }
        }
    }

    /// Nothing can be rewritten until the webhook is back, and objects that others write meanwhile lose their
    /// managedFields; so nothing is sent for a while. If the webhook stays away, the pass ends, so that other migrations
    /// need not wait for it.
    fn webhook_down(&mut self, state: &mut PassState, message: &str) -> Option<PassOutcome> {
        let words = format!("a webhook cannot be reached: {message}");
        if self.webhook_down_since.get_or_insert_with(Instant::now).elapsed() >= self.webhook_timeout {
            return Some(state.webhook_down(words));
        }
        self.pacer.overloaded(WEBHOOK_WAIT, self.began.elapsed());
        self.progress.send_modify(|progress| progress.waiting = Some(words));
        None
    }
}

/// Whether any object was rewritten or found current in this pass.
fn others(state: &PassState) -> OtherObjects {
    if state.got_through { OtherObjects::GotThrough } else { OtherObjects::GotNothing }
}

/// Waits for the next control value. If the sender is dropped, the last value stays in force.
async fn next_order(control: &mut watch::Receiver<RunControl>) {
    if control.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}
