//! One pass through all objects of a resource.

use super::listing::{ListedObject, Page, PageQuery, page};
use super::rewrite::{Mode, Rewriting, Settled};
use super::{MOST_FAILURES, Order, Progress, RunError};
use crate::exchange::Failure;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use kube::Client;
use restow_agreement::migrate::pacer::Pacer;
use restow_agreement::migrate::passes::PassReport;
use restow_agreement::migrate::verdict::{MOST_TRIES, Verdict, judge_listing, wait_after};
use restow_api::migration::MigrationFailure;
use std::collections::VecDeque;
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// What stays the same over all passes, and what is learned in them.
pub(super) struct Pass<'a> {
    pub(super) servers: Vec<Client>,
    pub(super) rewriting: Rewriting,
    pub(super) page_size: u32,
    pub(super) pacer: Pacer,
    pub(super) began: Instant,
    pub(super) orders: watch::Receiver<Order>,
    pub(super) progress: &'a watch::Sender<Progress>,
    pub(super) failures: Vec<MigrationFailure>,
}

/// How a pass ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum PassEnd {
    Complete,
    Stopped { continue_token: Option<String> },
    ResourceGone,
}

/// What is under way in a pass.
struct Work {
    report: PassReport,
    queue: VecDeque<ListedObject>,
    in_flight: FuturesUnordered<BoxFuture<'static, Settled>>,
    listing: Listing,
    /// The token of the page that was listed last, and of the one before it.
    tokens: [Option<String>; 2],
    listed: u64,
    sent: u64,
}

/// Where the listing is.
enum Listing {
    /// The next page begins here.
    Next { token: Option<String>, tries: u32 },
    /// A page is on its way.
    Under { token: Option<String>, tries: u32, page: BoxFuture<'static, Result<Page, Failure>> },
    /// All pages have come.
    Over,
}

/// The first objects are checked on every server, so that each of them is known to leave current objects alone.
const CHECKED_ON_EACH: u64 = 16;
/// How long to wait before a webhook that cannot be reached is tried again.
const WEBHOOK_WAIT: Duration = Duration::from_secs(2);

impl Pass<'_> {
    /// Goes through all objects, from `token` on.
    pub(super) async fn run(&mut self, token: Option<String>) -> Result<(PassReport, PassEnd), RunError> {
        let mut work = Work {
            report: PassReport { has_gaps: token.is_some(), ..PassReport::default() },
            queue: VecDeque::new(),
            in_flight: FuturesUnordered::new(),
            listing: Listing::Next { token, tries: 0 },
            tokens: [None, None],
            listed: 0,
            sent: 0,
        };
        loop {
            let order = *self.orders.borrow_and_update();
            if order == Order::Run {
                self.send(&mut work);
            }
            if work.in_flight.is_empty() {
                if order == Order::Stop {
                    let continue_token = work.tokens[1].take();
                    return Ok((work.report, PassEnd::Stopped { continue_token }));
                }
                if work.queue.is_empty() && matches!(work.listing, Listing::Over) {
                    return Ok((work.report, PassEnd::Complete));
                }
            }
            if let Some(end) = self.wait(&mut work, order).await? {
                return Ok((work.report, end));
            }
        }
    }

    /// Sends as much as may be sent, and asks for the next page in time.
    fn send(&mut self, work: &mut Work) {
        let limit = self.pacer.limit();
        if self.pacer.blocked_until(self.began.elapsed()).is_none() {
            while work.in_flight.len() < limit {
                let Some(object) = work.queue.pop_front() else { break };
                let servers = self.servers_for(work.sent);
                work.sent += 1;
                let rewriting = self.rewriting.clone();
                work.in_flight.push(async move { rewriting.settle_on_each(servers, object).await }.boxed());
            }
        }
        if work.queue.len() < 2 * limit && matches!(work.listing, Listing::Next { .. }) {
            work.listing = match std::mem::replace(&mut work.listing, Listing::Over) {
                Listing::Next { token, tries } => self.list(token, tries),
                other => other,
            };
        }
    }

    fn servers_for(&self, number: u64) -> Vec<Client> {
        if number < CHECKED_ON_EACH && self.rewriting.mode == Mode::Write {
            return self.servers.clone();
        }
        let index = usize::try_from(number).unwrap_or(0) % self.servers.len().max(1);
        self.servers.get(index).cloned().into_iter().collect()
    }

    fn list(&self, token: Option<String>, tries: u32) -> Listing {
        let client = self.servers.first().cloned();
        let (rewriting, limit, wanted) = (self.rewriting.clone(), self.page_size, token.clone());
        let page = async move {
            let Some(client) = client else { return Err(Failure::default()) };
            if tries > 0 {
                tokio::time::sleep(wait_after(tries)).await;
            }
            let query = PageQuery { continue_token: wanted.as_deref(), limit };
            page(&client, &rewriting.resource, query, rewriting.detail()).await
        };
        Listing::Under { token, tries, page: page.boxed() }
    }

    /// Waits until something happens, and takes it into account.
    async fn wait(&mut self, work: &mut Work, order: Order) -> Result<Option<PassEnd>, RunError> {
        let blocked = match self.pacer.blocked_until(self.began.elapsed()) {
            Some(until) if order == Order::Run => Some(until.saturating_sub(self.began.elapsed())),
            _ => None,
        };
        let listed = async {
            match &mut work.listing {
                Listing::Under { page, .. } => page.await,
                _ => std::future::pending().await,
            }
        };
        tokio::select! {
            Some(settled) = work.in_flight.next() => self.settled(work, settled),
            page = listed => return self.listed(work, page),
            _ = tokio::time::sleep(blocked.unwrap_or_default()), if blocked.is_some() => Ok(()),
            () = next_order(&mut self.orders) => Ok(()),
        }?;
        Ok(None)
    }

    fn listed(&mut self, work: &mut Work, page: Result<Page, Failure>) -> Result<Option<PassEnd>, RunError> {
        let (token, tries) = match std::mem::replace(&mut work.listing, Listing::Over) {
            Listing::Under { token, tries, .. } => (token, tries),
            _ => (None, 0),
        };
        let failure = match page {
            Ok(page) => {
                self.took(work, token, page);
                return Ok(None);
            }
            Err(failure) => failure,
        };
        if failure.code == 410 && token.is_some() {
            // The history that the token relies on is gone. What follows may lack objects; the next pass has them.
            work.report.has_gaps = true;
            work.listing = Listing::Next { token: failure.continue_token, tries: 0 };
            return Ok(None);
        }
        if failure.code == 404 {
            return Ok(Some(PassEnd::ResourceGone));
        }
        work.listing = Listing::Next { token, tries: tries + 1 };
        match judge_listing(&failure.refusal()) {
            Verdict::Overloaded(wait) => self.overloaded(wait),
            Verdict::WebhookDown => self.webhook_down(&failure.message),
            Verdict::TryAgain if tries < MOST_TRIES => {}
            _ => return Err(RunError::List(failure)),
        }
        Ok(None)
    }

    fn took(&mut self, work: &mut Work, token: Option<String>, page: Page) {
        self.progress.send_modify(|progress| {
            progress.saw_page(page.objects.len() as u64, page.remaining, work.listed);
            progress.continue_token = work.tokens[0].clone();
            progress.waiting = None;
        });
        work.tokens = [token, work.tokens[0].take()];
        work.listed += page.objects.len() as u64;
        work.queue.extend(page.objects);
        work.listing = match page.continue_token {
            Some(token) => Listing::Next { token: Some(token), tries: 0 },
            None => Listing::Over,
        };
    }

    fn settled(&mut self, work: &mut Work, settled: Settled) -> Result<(), RunError> {
        let in_flight = work.in_flight.len() + 1;
        match settled {
            Settled::Overloaded(object, wait) => {
                self.overloaded(wait);
                work.queue.push_front(object);
                return Ok(());
            }
            Settled::WebhookDown(object, message) => {
                self.webhook_down(&message);
                work.queue.push_front(object);
                return Ok(());
            }
            Settled::NotAllowed(failure) => return Err(RunError::NotAllowed(failure)),
            settled => self.count(work, settled),
        }
        self.pacer.answered(in_flight, self.began.elapsed());
        Ok(())
    }

    fn count(&mut self, work: &mut Work, settled: Settled) {
        let report = &mut work.report;
        let (pacer, failures) = (&self.pacer, &mut self.failures);
        self.progress.send_modify(|progress| {
            progress.done();
            progress.waiting = None;
            progress.concurrency = pacer.limit();
            progress.overloads = pacer.overloads();
            let is_first = progress.pass == 1;
            match settled {
                Settled::Rewritten => {
                    report.rewritten += 1;
                    progress.counts.rewritten += 1;
                }
                Settled::Current | Settled::Gone | Settled::Unsettled => {
                    match settled {
                        Settled::Current => report.current += 1,
                        Settled::Gone => report.gone += 1,
                        _ => report.unsettled += 1,
                    }
                    progress.counts.skipped += u64::from(is_first);
                }
                Settled::Failed(failure) => {
                    report.failed += 1;
                    progress.counts.failed += 1;
                    if failures.len() < MOST_FAILURES {
                        failures.push(failure);
                    }
                }
                // These say nothing about the object yet.
                Settled::Overloaded(..) | Settled::WebhookDown(..) | Settled::NotAllowed(_) => {}
            }
        });
    }

    fn overloaded(&mut self, wait: Duration) {
        self.pacer.overloaded(wait, self.began.elapsed());
        let (limit, overloads) = (self.pacer.limit(), self.pacer.overloads());
        self.progress.send_modify(|progress| {
            progress.concurrency = limit;
            progress.overloads = overloads;
            progress.waiting = Some("the API server has too much to do and asked to wait".to_owned());
        });
    }

    /// Nothing can be rewritten until the webhook is back, and what is written meanwhile by others loses its owners of
    /// fields; so nothing is sent for a while.
    fn webhook_down(&mut self, message: &str) {
        self.pacer.overloaded(WEBHOOK_WAIT, self.began.elapsed());
        self.progress.send_modify(|progress| {
            progress.waiting = Some(format!("a webhook cannot be reached: {message}"));
        });
    }
}

/// Waits for the next order. When nobody can give orders any more, the last one stays in force.
async fn next_order(orders: &mut watch::Receiver<Order>) {
    if orders.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}
