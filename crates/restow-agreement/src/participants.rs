//! Who takes part. The one thing that must never go wrong here is to take "could not be read" for "gone".

use restow_api::ServerId;
use std::collections::BTreeSet;

/// The servers that take part, as far as they could be read. A server takes part as long as its identity lease exists,
/// *expired or not*: until the lease is deleted, it can still write.
///
/// Read the object that you are about to change first and the participants after it, or both at one revision. The other
/// way round, a server that joins in between looks like a leftover.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Participants {
    /// The leases that exist; nothing when the list could not be read.
    listed: Option<BTreeSet<ServerId>>,
    /// Servers whose own lease could not be read, though the list could.
    unread: BTreeSet<ServerId>,
}

/// What is known about one server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// Its identity lease exists.
    Participating,
    /// Its identity lease does not exist.
    Gone,
    /// Nobody knows. Treat it as if it could write.
    Unknown,
}

impl Participants {
    /// The complete list of servers whose identity lease exists.
    pub fn listed(ids: impl IntoIterator<Item = ServerId>) -> Self {
        Participants { listed: Some(ids.into_iter().collect()), unread: BTreeSet::new() }
    }

    /// The list could not be read. Nobody is gone.
    pub fn unreadable() -> Self {
        Participants { listed: None, unread: BTreeSet::new() }
    }

    /// The list is complete but for this server, whose lease could not be read.
    pub fn with_unread(mut self, id: ServerId) -> Self {
        self.unread.insert(id);
        self
    }

    /// What is known about the server with this id. Text that cannot be the name of a lease names nobody, so it counts
    /// as gone wherever the list is known.
    pub fn presence(&self, id: &str) -> Presence {
        match &self.listed {
            None => Presence::Unknown,
            Some(_) if self.unread.contains(id) => Presence::Unknown,
            Some(listed) if listed.contains(id) => Presence::Participating,
            Some(_) => Presence::Gone,
        }
    }

    /// Whether the server with this id is certainly gone.
    pub fn is_gone(&self, id: &str) -> bool {
        self.presence(id) == Presence::Gone
    }

    /// Every participant, when all of them are known.
    pub fn all(&self) -> Option<&BTreeSet<ServerId>> {
        self.listed.as_ref().filter(|_| self.unread.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(text: &str) -> ServerId {
        text.parse().unwrap()
    }

    #[test]
    fn only_a_known_list_makes_a_server_gone() {
        let check = |participants: &Participants, name: &str, expected: Presence| {
            assert_eq!(participants.presence(name), expected, "{name} in {participants:?}");
        };
        let listed = Participants::listed([id("a")]).with_unread(id("b"));
        check(&listed, "a", Presence::Participating);
        check(&listed, "b", Presence::Unknown);
        check(&listed, "c", Presence::Gone);
        check(&listed, "Not A Name", Presence::Gone);
        check(&Participants::unreadable(), "a", Presence::Unknown);
        check(&Participants::unreadable(), "Not A Name", Presence::Unknown);
    }

    #[test]
    fn all_are_known_only_when_every_lease_was_read() {
        assert_eq!(Participants::listed([id("a")]).all(), Some(&BTreeSet::from([id("a")])));
        assert_eq!(Participants::listed([id("a")]).with_unread(id("b")).all(), None);
        assert_eq!(Participants::unreadable().all(), None);
    }
}
