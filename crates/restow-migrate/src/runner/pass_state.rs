//! The state of one pass. It decides nothing.

use super::listing::Page;
use super::rewrite::{ObjectResult, RewriteTask};
use super::unreadable::Unreadable;
use crate::request::RequestError;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use restow_rules::migrate::passes::PassReport;
use std::collections::VecDeque;

/// How a pass ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum PassOutcome {
    Complete,
    Stopped {
        continue_token: Option<String>,
    },
    /// A server does not answer, so nothing can be proven for now.
    Unresponsive {
        words: String,
        continue_token: Option<String>,
    },
    /// A server does not serve the resource.
    NotServed {
        words: String,
        continue_token: Option<String>,
    },
    /// A webhook cannot be reached, and nothing else is left to do.
    WebhookDown {
        words: String,
        continue_token: Option<String>,
    },
    /// A server has been overloaded for too long.
    Overloaded {
        words: String,
        continue_token: Option<String>,
    },
}

/// The state of one pass.
pub(super) struct PassState {
    pub(super) report: PassReport,
    pub(super) queue: VecDeque<RewriteTask>,
    pub(super) in_flight: FuturesUnordered<BoxFuture<'static, ObjectResult>>,
    pub(super) listing: ListState,
    pub(super) scope: ListScope,
    /// The token of the last listed page, and of the page before it.
    pub(super) tokens: [Option<String>; 2],
    pub(super) listed: u64,
    pub(super) sent: u64,
    /// How many objects remain, according to the last page.
    pub(super) expected: Option<u64>,
    /// How many objects that cannot be read were skipped since the last page.
    pub(super) stepped_over: u64,
    /// Whether any object was rewritten or found current.
    pub(super) got_through: bool,
}

/// Which objects are listed. Usually those of all namespaces at once. If that fails permanently because of an object that
/// the server cannot read, the namespaces are listed one after the other.
#[derive(Default)]
pub(super) struct ListScope {
    pub(super) namespace: String,
    /// The remaining namespaces; `None` while all are listed at once.
    pub(super) to_come: Option<VecDeque<String>>,
    /// Why not all can be listed at once. `None` once the object that causes it was found in its namespace.
    pub(super) unlisted: Option<RequestError>,
    pub(super) limit: u32,
}

/// The result of a list request.
pub(super) enum ListResult {
    /// A page.
    Page(Page),
    /// No page, because of this object.
    Unreadable(Unreadable, RequestError),
    /// No page, and the object that causes it cannot be found.
    Nothing(RequestError),
    /// No page; these namespaces can be listed one after the other.
    Namespaces(Vec<String>, RequestError),
}

/// The state of the list.
pub(super) enum ListState {
    /// The next page has to be requested.
    Next { token: Option<String>, tries: u32 },
    /// A page was requested.
    Pending { token: Option<String>, tries: u32, found: BoxFuture<'static, Result<ListResult, RequestError>> },
    /// All pages were read.
    Done,
}

impl PassState {
    /// Ends the pass because a server does not answer.
    pub(super) fn unresponsive(&mut self, words: String) -> PassOutcome {
        PassOutcome::Unresponsive { words, continue_token: self.tokens[1].take() }
    }

    /// Ends the pass because a server does not serve the resource.
    pub(super) fn not_served(&mut self, words: String) -> PassOutcome {
        PassOutcome::NotServed { words, continue_token: self.tokens[1].take() }
    }

    /// Ends the pass because a webhook cannot be reached.
    pub(super) fn webhook_down(&mut self, words: String) -> PassOutcome {
        PassOutcome::WebhookDown { words, continue_token: self.tokens[1].take() }
    }

    /// Ends the pass because a server is overloaded.
    pub(super) fn overloaded(&mut self, words: String) -> PassOutcome {
        PassOutcome::Overloaded { words, continue_token: self.tokens[1].take() }
    }

    /// Counts the objects between an object that cannot be read and the next one that was found: fewer remain than were
    /// announced.
    pub(super) fn count_unreached(&mut self, page: &Page) {
        let left = page.objects.len() as u64 + page.remaining.unwrap_or(0);
        if let (Some(expected), true) = (self.expected, self.stepped_over > 0) {
            self.report.unreached += expected.saturating_sub(self.stepped_over + left);
        }
        self.expected = page.continue_token.as_ref().and(page.remaining);
        self.stepped_over = 0;
    }

    /// Continues with the next namespace, if namespaces are listed one after the other; else the list is complete.
    pub(super) fn next_namespace(&mut self, limit: u32) {
        self.listing = match self.scope.to_come.as_mut().and_then(VecDeque::pop_front) {
            Some(namespace) => {
                self.scope.namespace = namespace;
                self.scope.limit = limit;
                ListState::Next { token: None, tries: 0 }
            }
            None => ListState::Done,
        };
    }
}
