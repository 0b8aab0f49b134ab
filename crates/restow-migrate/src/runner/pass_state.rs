//! What is under way in a pass through all objects. Decides nothing.

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
    /// A server does not answer, so that nothing can be proven for now.
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
    /// A server has had too much to do for so long that others shall have their turn.
    Overloaded {
        words: String,
        continue_token: Option<String>,
    },
}

/// What is under way in a pass.
pub(super) struct PassState {
    pub(super) report: PassReport,
    pub(super) queue: VecDeque<RewriteTask>,
    pub(super) in_flight: FuturesUnordered<BoxFuture<'static, ObjectResult>>,
    pub(super) listing: ListState,
    pub(super) scope: ListScope,
    /// The token of the page that was listed last, and of the one before it.
    pub(super) tokens: [Option<String>; 2],
    pub(super) listed: u64,
    pub(super) sent: u64,
    /// How many objects should come from here on, as the last page said.
    pub(super) expected: Option<u64>,
    /// Objects that cannot be read were stepped over since the last page: so many.
    pub(super) stepped_over: u64,
    /// Whether any object was asked about and is in order now.
    pub(super) got_through: bool,
}

/// Which objects are listed at the moment. Usually all of them at once; where that fails for good, because of an object that
/// the server cannot read, those of one namespace after the other, so that the others do not suffer.
#[derive(Default)]
pub(super) struct ListScope {
    pub(super) namespace: String,
    /// The namespaces to come; nothing while all are listed at once.
    pub(super) to_come: Option<VecDeque<String>>,
    /// Why not all can be listed at once, until the object because of which that is so was come upon in its namespace.
    pub(super) unlisted: Option<RequestError>,
    pub(super) limit: u32,
}

/// What a request of the listing brought.
pub(super) enum ListResult {
    /// Some objects.
    Page(Page),
    /// Nothing, because of this object, for this reason.
    Unreadable(Unreadable, RequestError),
    /// Nothing, for this reason, and it cannot be found out because of which object.
    Nothing(RequestError),
    /// Nothing, for this reason, and these namespaces can be listed one after the other.
    Namespaces(Vec<String>, RequestError),
}

/// Where the listing is.
pub(super) enum ListState {
    /// The next page begins here.
    Next { token: Option<String>, tries: u32 },
    /// A page is on its way.
    Pending { token: Option<String>, tries: u32, found: BoxFuture<'static, Result<ListResult, RequestError>> },
    /// All pages have come.
    Done,
}

impl PassState {
    /// The end of a pass that cannot go on while a server does not answer.
    pub(super) fn unresponsive(&mut self, words: String) -> PassOutcome {
        PassOutcome::Unresponsive { words, continue_token: self.tokens[1].take() }
    }

    /// The end of a pass that cannot go on while a server does not serve the resource.
    pub(super) fn not_served(&mut self, words: String) -> PassOutcome {
        PassOutcome::NotServed { words, continue_token: self.tokens[1].take() }
    }

    /// The end of a pass that cannot go on while a webhook cannot be reached.
    pub(super) fn webhook_down(&mut self, words: String) -> PassOutcome {
        PassOutcome::WebhookDown { words, continue_token: self.tokens[1].take() }
    }

    /// The end of a pass that cannot go on while a server has too much to do.
    pub(super) fn overloaded(&mut self, words: String) -> PassOutcome {
        PassOutcome::Overloaded { words, continue_token: self.tokens[1].take() }
    }

    /// Counts the objects that lie between an object that cannot be read and the one that was found behind it: more were
    /// announced than are left.
    pub(super) fn count_unreached(&mut self, page: &Page) {
        let left = page.objects.len() as u64 + page.remaining.unwrap_or(0);
        if let (Some(expected), true) = (self.expected, self.stepped_over > 0) {
            self.report.unreached += expected.saturating_sub(self.stepped_over + left);
        }
        self.expected = page.continue_token.as_ref().and(page.remaining);
        self.stepped_over = 0;
    }

    /// Goes on with the next namespace, if one after the other is listed; else the listing is over.
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
