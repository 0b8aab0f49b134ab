//! The participating API servers. "Could not be read" must never be mistaken for "gone".

use restow_api::ServerId;
use restow_api::internal_apiserver::ServerStorageVersion;
use std::collections::{BTreeMap, BTreeSet};

/// The participating servers, as far as they could be read. A server participates as long as its identity lease exists,
/// *expired or not*: until the lease is deleted, it can still write.
///
/// Read the object to change first and the participants after it, or both at one revision. In the other order, a server
/// that joins in between looks like a leftover.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Participants {
    /// The leases that exist; `None` when the list could not be read.
    listed: Option<BTreeSet<ServerId>>,
    /// Servers whose own lease could not be read, though the list could.
    unread: BTreeSet<ServerId>,
    /// The leases that are the identity of an API server, with the control plane that the server is part of.
    control_planes: BTreeMap<ServerId, String>,
}

/// What is known about one server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// Its identity lease exists.
    Participating,
    /// Its identity lease does not exist.
    Gone,
    /// Unknown. Treat it as if it could write.
    Unknown,
}

impl Participants {
    /// The complete list of servers whose identity lease exists.
    pub fn listed(ids: impl IntoIterator<Item = ServerId>) -> Self {
        Participants { listed: Some(ids.into_iter().collect()), ..Self::unreadable() }
    }

    /// The list could not be read. No server is gone.
    pub fn unreadable() -> Self {
        Participants { listed: None, unread: BTreeSet::new(), control_planes: BTreeMap::new() }
    }

    /// The list is complete except for this server, whose lease could not be read.
    pub fn with_unread(mut self, id: ServerId) -> Self {
        self.unread.insert(id);
        self
    }

    /// This lease exists too.
    pub fn with_lease(mut self, id: ServerId) -> Self {
        if let Some(listed) = &mut self.listed {
            listed.insert(id);
        }
        self
    }

    /// This lease exists too, and is the identity of an API server of this control plane: the main one, or that of an aggregated
    /// API. In Kubernetes that is the value of the label `apiserver.kubernetes.io/identity`.
    pub fn with_server(mut self, id: ServerId, control_plane: impl Into<String>) -> Self {
        self.control_planes.insert(id.clone(), control_plane.into());
        self.with_lease(id)
    }

    /// The same list without these servers, whose leases are going to be compared as absent.
    pub(crate) fn without(&self, ids: &[String]) -> Self {
        let mut rest = self.clone();
        rest.listed.iter_mut().for_each(|listed| listed.retain(|id| !ids.iter().any(|gone| gone == id.as_str())));
        rest.control_planes.retain(|id, _| !ids.iter().any(|gone| gone == id.as_str()));
        rest
    }

    /// The participants without an entry, in control planes of which at least one server has an entry. If all entries are of
    /// servers that are gone, nobody knows of which control plane these were: every participant counts. `None` if not all
    /// participants are known.
    pub fn without_entry(&self, entries: &[ServerStorageVersion]) -> Option<Vec<ServerId>> {
        self.all()?;
        let has_entry = |id: &ServerId| entries.iter().any(|entry| entry.api_server_id == id.as_str());
        let (inside, outside): (Vec<_>, Vec<_>) = self.control_planes.iter().partition(|(id, _)| has_entry(id));
        let concerned: BTreeSet<&String> = inside.into_iter().map(|(_, control_plane)| control_plane).collect();
        let all_gone = !entries.is_empty() && entries.iter().all(|entry| self.is_gone(&entry.api_server_id));
        let missing = outside.into_iter().filter(|(_, control_plane)| all_gone || concerned.contains(control_plane));
        Some(missing.map(|(id, _)| id.clone()).collect())
    }

    /// What is known about the server with this id. Text that cannot be the name of a lease counts as gone if the list is
    /// known.
    pub fn presence(&self, id: &str) -> Presence {
        match &self.listed {
            None => Presence::Unknown,
            Some(_) if self.unread.contains(id) => Presence::Unknown,
            Some(listed) if listed.contains(id) => Presence::Participating,
            Some(_) => Presence::Gone,
        }
    }

    /// The control plane of the API server with this id, if its lease says that it is one.
    pub fn control_plane(&self, id: &str) -> Option<&str> {
        self.control_planes.get(id).map(String::as_str)
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

    #[test]
    fn every_server_of_a_control_plane_with_entries_needs_an_entry() {
        let entry = |id: &str| ServerStorageVersion { api_server_id: id.into(), ..ServerStorageVersion::default() };
        let participants = Participants::listed([id("a-leader-election")])
            .with_server(id("a"), "kube-apiserver")
            .with_server(id("b"), "kube-apiserver")
            .with_server(id("g"), "garden");
        let check = |entries: &[&str], expected: &[&str]| {
            let entries: Vec<_> = entries.iter().map(|name| entry(name)).collect();
            let found = participants.without_entry(&entries).unwrap();
            assert_eq!(found.iter().map(ServerId::as_str).collect::<Vec<_>>(), expected, "{entries:?}");
        };
        check(&["a", "b"], &[]);
        check(&["a"], &["b"]);
        check(&["g"], &[]);
        check(&["a", "g"], &["b"]);
        check(&["gone"], &["a", "b", "g"]);
        check(&["gone", "a"], &["b"]);
        assert_eq!(participants.without(&["b".into()]).without_entry(&[entry("a")]), Some(vec![]));
        assert_eq!(participants.with_unread(id("c")).without_entry(&[entry("a")]), None);
    }
}
