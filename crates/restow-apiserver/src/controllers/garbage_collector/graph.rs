//! Who depends on whom, and what follows from that. Pure.

use crate::resource::codec;
use crate::storage::deletion::{FOREGROUND, ORPHAN, Propagation};
use restow_apimachinery::object::Object;
use restow_store::Key;
use serde::Deserialize;
use std::collections::{BTreeSet, HashMap, HashSet};

/// How many owners are concluded upon at once. Each costs comparisons in the transaction, and a store takes 128.
pub(super) const OWNERS_AT_ONCE: usize = 32;

/// What the collector knows of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) uid: String,
    pub(super) owners: Vec<Owner>,
    /// What is to be done before the object can go.
    pub(super) waits_for: Option<Propagation>,
    /// The policy that its own finalizers ask for.
    pub(super) policy: Option<Propagation>,
}

/// A reference to an owner.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Owner {
    pub(super) api_version: String,
    pub(super) kind: String,
    pub(super) name: String,
    pub(super) uid: String,
    /// The owner must not go before this dependent.
    pub(super) block_owner_deletion: bool,
}

/// Something to look at.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Work {
    /// An object that has owners.
    Dependent(Key),
    /// An object that waits for its dependents.
    Owner(Key),
}

/// The objects that have owners, and those that wait for their dependents.
#[derive(Debug, Default)]
pub(super) struct Graph {
    nodes: HashMap<Key, Seen>,
    dependents: HashMap<String, BTreeSet<Key>>,
    waiting: HashMap<String, Key>,
}

/// What an owner turned out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// It is there.
    Solid,
    /// It is there and waits for its dependents to go.
    Waiting,
    /// It is gone.
    Absent,
}

/// What becomes of a dependent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Stays,
    /// It loses these owners.
    LosesOwners(Vec<String>),
    Goes(Propagation),
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Metadata {
    uid: String,
    owner_references: Vec<Owner>,
    finalizers: Vec<String>,
    deletion_timestamp: Option<String>,
}

impl Seen {
    /// Reads a stored object.
    pub(super) fn of(stored: &[u8]) -> Option<Self> {
        codec::read_metadata::<Metadata>(stored).ok().map(Self::from)
    }

    /// Reads an object.
    pub(super) fn of_object(object: &Object) -> Option<Self> {
        let metadata = object.get("metadata").cloned()?;
        serde_json::from_value::<Metadata>(metadata).ok().map(Self::from)
    }
}

impl From<Metadata> for Seen {
    fn from(metadata: Metadata) -> Self {
        let has = |name: &str| metadata.finalizers.iter().any(|finalizer| finalizer == name);
        let policy = match () {
            () if has(ORPHAN) => Some(Propagation::Orphan),
            () if has(FOREGROUND) => Some(Propagation::Foreground),
            () => None,
        };
        let waits_for = policy.filter(|_| metadata.deletion_timestamp.is_some());
        Seen { uid: metadata.uid, owners: metadata.owner_references, waits_for, policy }
    }
}

impl Standing {
    /// What an owner is, given what is stored in its place. Nothing where that cannot be read: it may be the owner.
    pub(super) fn of(owner: &Owner, stored: Option<&[u8]>) -> Option<Self> {
        let Some(stored) = stored else { return Some(Standing::Absent) };
        let seen = Seen::of(stored).filter(|seen| !seen.uid.is_empty())?;
        Some(match seen.waits_for {
            _ if seen.uid != owner.uid => Standing::Absent,
            Some(Propagation::Foreground) => Standing::Waiting,
            _ => Standing::Solid,
        })
    }
}

impl Graph {
    /// Takes note of an object, and tells what to look at.
    pub(super) fn put(&mut self, key: &Key, seen: Seen) -> Vec<Work> {
        let before = self.forget(key);
        let mut work = Vec::new();
        for owner in &seen.owners {
            self.dependents.entry(owner.uid.clone()).or_default().insert(key.clone());
            work.extend(self.waiting.get(&owner.uid).cloned().map(Work::Owner));
        }
        if !seen.owners.is_empty() && before.as_ref().is_none_or(|before| before.owners != seen.owners) {
            work.push(Work::Dependent(key.clone()));
        }
        // An owner that this object no longer has may have waited for it.
        let kept: HashSet<&Owner> = seen.owners.iter().collect();
        let lost = before.iter().flat_map(|before| &before.owners).filter(|owner| !kept.contains(owner));
        work.extend(lost.filter_map(|owner| self.waiting.get(&owner.uid)).cloned().map(Work::Owner));
        if seen.waits_for.is_some() {
            self.waiting.insert(seen.uid.clone(), key.clone());
            work.push(Work::Owner(key.clone()));
        }
        if !seen.owners.is_empty() || seen.waits_for.is_some() {
            self.nodes.insert(key.clone(), seen);
        }
        work
    }

    /// Takes note that an object is gone, and tells what to look at.
    pub(super) fn remove(&mut self, key: &Key, uid: &str) -> Vec<Work> {
        let before = self.forget(key);
        let owners = before.iter().flat_map(|before| &before.owners);
        let waiting = owners.filter_map(|owner| self.waiting.get(&owner.uid)).cloned().map(Work::Owner);
        let orphaned = self.dependents.get(uid).into_iter().flatten().cloned().map(Work::Dependent);
        waiting.chain(orphaned).collect()
    }

    /// Whether a dependent of this owner waits for its own dependents: the owner may be among those.
    pub(super) fn in_circle(&self, uid: &str) -> bool {
        let keys = self.dependents.get(uid).into_iter().flatten();
        keys.filter_map(|key| self.nodes.get(key)).any(|seen| seen.waits_for == Some(Propagation::Foreground))
    }

    /// The owners of an object that are looked at next, no more than can be concluded upon: first those that wait for it.
    /// The others have their turn when it has lost some of these. As long as it has one of these, it stays.
    pub(super) fn pressing(&self, seen: &Seen) -> Vec<Owner> {
        if seen.owners.len() <= OWNERS_AT_ONCE {
            return seen.owners.clone();
        }
        let waits = |owner: &&Owner| self.waiting.contains_key(&owner.uid);
        let (waiting, others): (Vec<&Owner>, Vec<&Owner>) = seen.owners.iter().partition(waits);
        waiting.into_iter().chain(others).take(OWNERS_AT_ONCE + 1).cloned().collect()
    }

    /// Whether anything depends on an owner.
    pub(super) fn has_dependents(&self, uid: &str) -> bool {
        self.dependents.contains_key(uid)
    }

    /// The dependents of an owner, and whether each keeps it from going.
    pub(super) fn dependents(&self, uid: &str) -> Vec<(Key, bool)> {
        let keys = self.dependents.get(uid).into_iter().flatten();
        keys.map(|key| {
            let owners = self.nodes.get(key).into_iter().flat_map(|seen| &seen.owners);
            (key.clone(), owners.filter(|owner| owner.uid == uid).any(|owner| owner.block_owner_deletion))
        })
        .collect()
    }

    fn forget(&mut self, key: &Key) -> Option<Seen> {
        let before = self.nodes.remove(key)?;
        for owner in &before.owners {
            if let Some(keys) = self.dependents.get_mut(&owner.uid) {
                keys.remove(key);
                if keys.is_empty() {
                    self.dependents.remove(&owner.uid);
                }
            }
        }
        if self.waiting.get(&before.uid) == Some(key) {
            self.waiting.remove(&before.uid);
        }
        Some(before)
    }
}

/// Says what becomes of a dependent, given what those of its owners that were looked at turned out to be.
pub(super) fn fate(seen: &Seen, owners: &[Owner], standings: &[Standing], has_dependents: bool) -> Fate {
    let lost = |standing: &Standing| *standing != Standing::Solid;
    if standings.is_empty() {
        return Fate::Stays;
    }
    // One with more owners than can be concluded upon at once loses some of them first.
    if standings.contains(&Standing::Solid) || standings.len() > OWNERS_AT_ONCE {
        let owners = owners.iter().zip(standings).filter(|(_, standing)| lost(standing));
        let gone: Vec<String> = owners.map(|(owner, _)| owner.uid.clone()).take(OWNERS_AT_ONCE).collect();
        return if gone.is_empty() { Fate::Stays } else { Fate::LosesOwners(gone) };
    }
    if standings.contains(&Standing::Waiting) && has_dependents {
        // Whoever waits for this one waits for what depends on it, too.
        return Fate::Goes(Propagation::Foreground);
    }
    Fate::Goes(seen.policy.unwrap_or(Propagation::Background))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn key(name: &str) -> Key {
        Key::try_from(format!("/core/pods/n/{name}")).unwrap()
    }

    fn seen(uid: &str, owners: &[&str]) -> Seen {
        let owners: Vec<Value> = owners
            .iter()
            .map(|uid| json!({"apiVersion": "v1", "kind": "X", "name": uid, "uid": uid, "blockOwnerDeletion": true}))
            .collect();
        let object = json!({"metadata": {"uid": uid, "ownerReferences": owners}});
        Seen::of(object.to_string().as_bytes()).unwrap()
    }

    fn waiting(uid: &str) -> Seen {
        let metadata = json!({"uid": uid, "finalizers": [FOREGROUND], "deletionTimestamp": "2026-01-01T00:00:00Z"});
        Seen::of(json!({"metadata": metadata}).to_string().as_bytes()).unwrap()
    }

    #[test]
    fn a_removed_owner_leads_to_its_dependents_and_a_removed_dependent_to_its_owner() {
        let mut graph = Graph::default();
        assert_eq!(graph.put(&key("plain"), seen("plain", &[])), []);
        assert_eq!(graph.put(&key("a"), seen("a", &["o"])), [Work::Dependent(key("a"))]);
        assert_eq!(graph.put(&key("a"), seen("a", &["o"])), [], "a change that leaves the owners is of no interest");
        assert_eq!(graph.dependents("o"), [(key("a"), true)]);
        assert_eq!(graph.remove(&key("o"), "o"), [Work::Dependent(key("a"))]);
        assert_eq!(graph.put(&key("o"), waiting("o")), [Work::Owner(key("o"))]);
        assert_eq!(graph.remove(&key("a"), "a"), [Work::Owner(key("o"))]);
        assert_eq!(graph.dependents("o"), []);
    }

    #[test]
    fn an_owner_that_cannot_be_read_is_not_absent() {
        let owner = Owner { uid: "o".into(), ..Owner::default() };
        let stored = |uid: &str| json!({"metadata": {"uid": uid}}).to_string().into_bytes();
        let of = |stored: Option<&[u8]>| Standing::of(&owner, stored);
        assert_eq!(of(None), Some(Standing::Absent));
        assert_eq!(of(Some(&stored("o"))), Some(Standing::Solid));
        assert_eq!(of(Some(&stored("another"))), Some(Standing::Absent));
        let protobuf: &[u8] = b"k8s\0\n\x09\n\x02v1\x12\x03Pod";
        let odd = br#"{"metadata":{"uid":"o","ownerReferences":7}}"#;
        for unreadable in [protobuf, b"", b"{", br#"{"metadata":{}}"#, odd] {
            assert_eq!(of(Some(unreadable)), None, "{unreadable:?}");
        }
    }

    #[test]
    fn a_dependent_goes_with_its_last_owner() {
        use Standing::{Absent, Solid, Waiting};
        for (standings, has_dependents, expected) in [
            (vec![], false, Fate::Stays),
            (vec![Solid], false, Fate::Stays),
            (vec![Absent], true, Fate::Goes(Propagation::Background)),
            (vec![Solid, Absent], false, Fate::LosesOwners(vec!["1".into()])),
            (vec![Solid, Waiting], false, Fate::LosesOwners(vec!["1".into()])),
            (vec![Waiting], false, Fate::Goes(Propagation::Background)),
            (vec![Waiting], true, Fate::Goes(Propagation::Foreground)),
            (vec![Waiting, Absent], true, Fate::Goes(Propagation::Foreground)),
        ] {
            let owners: Vec<String> = (0..standings.len()).map(|number| number.to_string()).collect();
            let owners: Vec<&str> = owners.iter().map(String::as_str).collect();
            let seen = seen("a", &owners);
            assert_eq!(fate(&seen, &seen.owners, &standings, has_dependents), expected, "{standings:?}");
        }
    }

    #[test]
    fn owners_by_the_thousand_are_compared_once() {
        let owners: Vec<String> = (0..30_000).map(|number| number.to_string()).collect();
        let owners: Vec<&str> = owners.iter().map(String::as_str).collect();
        let mut graph = Graph::default();
        let begun = std::time::Instant::now();
        graph.put(&key("a"), seen("a", &owners));
        assert_eq!(graph.put(&key("a"), seen("a", &owners)), []);
        assert_eq!(graph.put(&key("a"), seen("a", &owners[1..])), [Work::Dependent(key("a"))]);
        // Each with all others would be a billion comparisons: half a minute.
        assert!(begun.elapsed().as_secs() < 10, "{:?}", begun.elapsed());
    }

    #[test]
    fn one_with_very_many_owners_loses_some_of_them_at_a_time() {
        let owners: Vec<String> = (0..200).map(|number| number.to_string()).collect();
        let owners: Vec<&str> = owners.iter().map(String::as_str).collect();
        let mut graph = Graph::default();
        graph.put(&key("last"), waiting("199"));
        let many = seen("a", &owners);
        let pressing = graph.pressing(&many);
        assert_eq!(pressing.len(), OWNERS_AT_ONCE + 1);
        assert_eq!(pressing[0].uid, "199", "whoever waits is looked at first");
        let Fate::LosesOwners(first) = fate(&many, &pressing, &[Standing::Absent; OWNERS_AT_ONCE + 1], false) else {
            panic!("it has to lose some of them first");
        };
        assert_eq!(first[0], "199");
        assert_eq!(first[1..], owners[..OWNERS_AT_ONCE - 1]);
        let few = seen("a", &owners[..OWNERS_AT_ONCE]);
        let pressing = graph.pressing(&few);
        assert_eq!(pressing, few.owners);
        let fate = fate(&few, &pressing, &[Standing::Absent; OWNERS_AT_ONCE], false);
        assert_eq!(fate, Fate::Goes(Propagation::Background));
    }
}
