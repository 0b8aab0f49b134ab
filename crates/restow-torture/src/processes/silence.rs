//! Which writes a server may have made that does not report its storage versions.
//!
//! A process that is replaced has ended before the next one is started. So a request belongs to a silent process only if it was under way
//! while that process ran: it began meanwhile, or was open when the process was started.

use super::Reporting;
use crate::checks::OperationId;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// How long after the end of a process a write that nobody recorded may still be applied.
const LATEST_WRITE: Duration = Duration::from_secs(60);

/// The silent servers, and what was asked of them.
#[derive(Default)]
pub(crate) struct Silence {
    /// The servers whose process does not report.
    servers: BTreeSet<String>,
    /// The server and the token of each write that is under way.
    open: BTreeMap<OperationId, (String, String)>,
    /// The tokens of writes that a silent process may make.
    tokens: BTreeSet<String>,
    /// When the last silent process had ended.
    ended: Option<Instant>,
}

impl Silence {
    /// A server is about to be started; its process before that has ended.
    pub(crate) fn starts(&mut self, server: &str, reporting: Reporting, now: Instant) {
        if self.servers.remove(server) {
            self.ended = Some(now);
        }
        if reporting == Reporting::Off {
            self.servers.insert(server.to_owned());
            let open = self.open.values().filter(|(via, _)| via == server);
            self.tokens.extend(open.map(|(_, token)| token.clone()));
        }
    }

    /// A write through a server begins.
    pub(crate) fn begin(&mut self, operation: OperationId, via: &str, token: &str) {
        if self.servers.contains(via) {
            self.tokens.insert(token.to_owned());
        }
        self.open.insert(operation, (via.to_owned(), token.to_owned()));
    }

    /// The connection of a write is closed.
    pub(crate) fn end(&mut self, operation: OperationId) {
        self.open.remove(&operation);
    }

    /// A write was applied. Returns whether a silent process may have made it.
    pub(crate) fn applied(&mut self, token: &str) -> bool {
        self.tokens.remove(token)
    }

    /// Whether a silent process may have made a write that nobody recorded.
    pub(crate) fn is_possible(&self, now: Instant) -> bool {
        !self.servers.is_empty() || self.ended.is_some_and(|ended| now < ended + LATEST_WRITE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::{ObjectKey, Operations};
    use restow_store::Revision;

    fn operations() -> [OperationId; 4] {
        let mut operations = Operations::default();
        let key = ObjectKey::new("example.com.widgets", "torture", "widget-1");
        [(); 4].map(|()| operations.begin(key.clone(), None, Revision::new(1)))
    }

    #[test]
    fn a_silent_process_makes_only_writes_that_were_under_way_while_it_ran() {
        let (mut silence, now, [before, open, during, after]) = (Silence::default(), Instant::now(), operations());
        silence.begin(before, "server-0", "before");
        silence.end(before);
        silence.begin(open, "server-0", "open");
        silence.starts("server-0", Reporting::Off, now);
        silence.begin(during, "server-0", "during");
        silence.end(during);
        silence.starts("server-0", Reporting::On, now);
        silence.begin(after, "server-0", "after");
        let silent = ["before", "open", "during", "after"].map(|token| silence.applied(token));
        assert_eq!(silent, [false, true, true, false]);
    }

    #[test]
    fn other_servers_report() {
        let (mut silence, now, [first, second, ..]) = (Silence::default(), Instant::now(), operations());
        silence.begin(first, "server-1", "first");
        silence.starts("server-0", Reporting::Off, now);
        silence.begin(second, "server-1", "second");
        assert_eq!(["first", "second"].map(|token| silence.applied(token)), [false, false]);
    }

    #[test]
    fn a_silent_process_is_possible_until_a_while_after_its_end() {
        let (mut silence, now) = (Silence::default(), Instant::now());
        assert!(!silence.is_possible(now));
        silence.starts("server-0", Reporting::Off, now);
        assert!(silence.is_possible(now + LATEST_WRITE * 2));
        silence.starts("server-0", Reporting::On, now);
        assert!(silence.is_possible(now));
        assert!(!silence.is_possible(now + LATEST_WRITE));
    }
}
