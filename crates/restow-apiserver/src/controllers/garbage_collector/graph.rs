//! The dependency graph: objects with owners, and owners that wait for their dependents. Pure.

use crate::resource::codec;
use crate::storage::deletion::{FOREGROUND, ORPHAN, Propagation};
use restow_apimachinery::object::Object;
use restow_store::Key;
use serde::Deserialize;
use std::collections::{BTreeSet, HashMap, HashSet};

/// How many owners are handled in one transaction. Each needs comparisons, and a store takes 128.
pub(super) const OWNERS_AT_ONCE: usize = 32;

/// An object in the graph.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Node {
    pub(super) uid: String,
    pub(super) owners: Vec<Owner>,
    /// The finalizer that the garbage collector has to process, if the object is being deleted.
    pub(super) waits_for: Option<Propagation>,
    /// The propagation policy of its finalizers.
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
    /// The owner must not be deleted before this dependent.
    pub(super) block_owner_deletion: bool,
}

/// A work item.
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
    nodes: HashMap<Key, Node>,
    dependents: HashMap<String, BTreeSet<Key>>,
    waiting: HashMap<String, Key>,
}

/// The state of an owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OwnerState {
    /// It exists.
    Solid,
    /// It exists and waits for its dependents to be deleted.
    WaitingForDependents,
    /// It does not exist.
    Dangling,
}

/// What to do with a dependent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum DependentAction {
    Keep,
    /// Remove the references to these owners.
    RemoveOwners(Vec<String>),
    Delete(Propagation),
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Metadata {
    uid: String,
    owner_references: Vec<Owner>,
    finalizers: Vec<String>,
    deletion_timestamp: Option<String>,
}

impl Node {
    /// Decodes the metadata of a stored object.
    pub(super) fn of(stored: &[u8]) -> Option<Self> {
        codec::read_metadata::<Metadata>(stored).ok().map(Self::from)
    }

    /// Reads the metadata of an object.
    pub(super) fn of_object(object: &Object) -> Option<Self> {
        let metadata = object.get("metadata").cloned()?;
        serde_json::from_value::<Metadata>(metadata).ok().map(Self::from)
    }
}

impl From<Metadata> for Node {
    fn from(metadata: Metadata) -> Self {
        let has = |name: &str| metadata.finalizers.iter().any(|finalizer| finalizer == name);
        let policy = match () {
            () if has(ORPHAN) => Some(Propagation::Orphan),
            () if has(FOREGROUND) => Some(Propagation::Foreground),
            () => None,
        };
        let waits_for = policy.filter(|_| metadata.deletion_timestamp.is_some());
        Node { uid: metadata.uid, owners: metadata.owner_references, waits_for, policy }
    }
}

impl OwnerState {
    /// The state of an owner, given the value at its key. `None` if that cannot be decoded: it may be the owner.
    pub(super) fn of(owner: &Owner, stored: Option<&[u8]>) -> Option<Self> {
        let Some(stored) = stored else { return Some(OwnerState::Dangling) };
        let node = Node::of(stored).filter(|node| !node.uid.is_empty())?;
        Some(match node.waits_for {
            _ if node.uid != owner.uid => OwnerState::Dangling,
            Some(Propagation::Foreground) => OwnerState::WaitingForDependents,
            _ => OwnerState::Solid,
        })
    }
}

impl Graph {
    /// Adds or updates an object, and returns the work that follows.
    pub(super) fn put(&mut self, key: &Key, node: Node) -> Vec<Work> {
        let before = self.forget(key);
        let mut work = Vec::new();
        for owner in &node.owners {
            self.dependents.entry(owner.uid.clone()).or_default().insert(key.clone());
            work.extend(self.waiting.get(&owner.uid).cloned().map(Work::Owner));
        }
        if !node.owners.is_empty() && before.as_ref().is_none_or(|before| before.owners != node.owners) {
            work.push(Work::Dependent(key.clone()));
        }
        // An owner that this object no longer has may have waited for it.
        let kept: HashSet<&Owner> = node.owners.iter().collect();
        let lost = before.iter().flat_map(|before| &before.owners).filter(|owner| !kept.contains(owner));
        work.extend(lost.filter_map(|owner| self.waiting.get(&owner.uid)).cloned().map(Work::Owner));
        if node.waits_for.is_some() {
            self.waiting.insert(node.uid.clone(), key.clone());
            work.push(Work::Owner(key.clone()));
        }
        if !node.owners.is_empty() || node.waits_for.is_some() {
            self.nodes.insert(key.clone(), node);
        }
        work
    }

    /// Removes an object, and returns the work that follows.
    pub(super) fn remove(&mut self, key: &Key, uid: &str) -> Vec<Work> {
        let before = self.forget(key);
        let owners = before.iter().flat_map(|before| &before.owners);
        let waiting = owners.filter_map(|owner| self.waiting.get(&owner.uid)).cloned().map(Work::Owner);
        let orphaned = self.dependents.get(uid).into_iter().flatten().cloned().map(Work::Dependent);
        waiting.chain(orphaned).collect()
    }

    /// Whether a dependent of this owner waits for its own dependents: there may be a cycle.
    pub(super) fn in_cycle(&self, uid: &str) -> bool {
        let keys = self.dependents.get(uid).into_iter().flatten();
        keys.filter_map(|key| self.nodes.get(key)).any(|node| node.waits_for == Some(Propagation::Foreground))
    }

    /// The owners of an object to check next, no more than fit into one transaction, those that wait for it first. The others
    /// follow when references to these were removed. As long as one of these is solid, the object stays.
    pub(super) fn owners_to_check(&self, node: &Node) -> Vec<Owner> {
        if node.owners.len() <= OWNERS_AT_ONCE {
            return node.owners.clone();
        }
        let waits = |owner: &&Owner| self.waiting.contains_key(&owner.uid);
        let (waiting, others): (Vec<&Owner>, Vec<&Owner>) = node.owners.iter().partition(waits);
        waiting.into_iter().chain(others).take(OWNERS_AT_ONCE + 1).cloned().collect()
    }

    /// Whether anything depends on an owner.
    pub(super) fn has_dependents(&self, uid: &str) -> bool {
        self.dependents.contains_key(uid)
    }

    /// The dependents of an owner, and whether each blocks its deletion.
    pub(super) fn dependents(&self, uid: &str) -> Vec<(Key, bool)> {
        let keys = self.dependents.get(uid).into_iter().flatten();
        keys.map(|key| {
            let owners = self.nodes.get(key).into_iter().flat_map(|node| &node.owners);
            (key.clone(), owners.filter(|owner| owner.uid == uid).any(|owner| owner.block_owner_deletion))
        })
        .collect()
    }

    fn forget(&mut self, key: &Key) -> Option<Node> {
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

/// Decides what to do with a dependent, given the states of the owners that were checked.
pub(super) fn action(node: &Node, owners: &[Owner], states: &[OwnerState], has_dependents: bool) -> DependentAction {
    let lost = |state: &OwnerState| *state != OwnerState::Solid;
    if states.is_empty() {
        return DependentAction::Keep;
    }
    // With more owners than fit into one transaction, some references are removed first.
    if states.contains(&OwnerState::Solid) || states.len() > OWNERS_AT_ONCE {
        let owners = owners.iter().zip(states).filter(|(_, state)| lost(state));
        let gone: Vec<String> = owners.map(|(owner, _)| owner.uid.clone()).take(OWNERS_AT_ONCE).collect();
        return if gone.is_empty() { DependentAction::Keep } else { DependentAction::RemoveOwners(gone) };
    }
    if states.contains(&OwnerState::WaitingForDependents) && has_dependents {
        // An owner that waits for this object also waits for its dependents.
        return DependentAction::Delete(Propagation::Foreground);
    }
    DependentAction::Delete(node.policy.unwrap_or(Propagation::Background))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn key(name: &str) -> Key {
        Key::try_from(format!("/core/pods/n/{name}")).unwrap()
    }

    fn node(uid: &str, owners: &[&str]) -> Node {
        let owners: Vec<Value> = owners
            .iter()
            .map(|uid| json!({"apiVersion": "v1", "kind": "X", "name": uid, "uid": uid, "blockOwnerDeletion": true}))
            .collect();
        let object = json!({"metadata": {"uid": uid, "ownerReferences": owners}});
        Node::of(object.to_string().as_bytes()).unwrap()
    }

    fn waiting(uid: &str) -> Node {
        let metadata = json!({"uid": uid, "finalizers": [FOREGROUND], "deletionTimestamp": "2026-01-01T00:00:00Z"});
        Node::of(json!({"metadata": metadata}).to_string().as_bytes()).unwrap()
    }

    #[test]
    fn a_removed_owner_enqueues_its_dependents_and_a_removed_dependent_its_owner() {
        let mut graph = Graph::default();
        assert_eq!(graph.put(&key("plain"), node("plain", &[])), []);
        assert_eq!(graph.put(&key("a"), node("a", &["o"])), [Work::Dependent(key("a"))]);
        assert_eq!(graph.put(&key("a"), node("a", &["o"])), [], "a change that leaves the owners is of no interest");
        assert_eq!(graph.dependents("o"), [(key("a"), true)]);
        assert_eq!(graph.remove(&key("o"), "o"), [Work::Dependent(key("a"))]);
        assert_eq!(graph.put(&key("o"), waiting("o")), [Work::Owner(key("o"))]);
        assert_eq!(graph.remove(&key("a"), "a"), [Work::Owner(key("o"))]);
        assert_eq!(graph.dependents("o"), []);
    }

    #[test]
    fn an_owner_that_cannot_be_decoded_is_not_absent() {
        let owner = Owner { uid: "o".into(), ..Owner::default() };
        let stored = |uid: &str| json!({"metadata": {"uid": uid}}).to_string().into_bytes();
        let of = |stored: Option<&[u8]>| OwnerState::of(&owner, stored);
        assert_eq!(of(None), Some(OwnerState::Dangling));
        assert_eq!(of(Some(&stored("o"))), Some(OwnerState::Solid));
        assert_eq!(of(Some(&stored("another"))), Some(OwnerState::Dangling));
        let protobuf: &[u8] = b"k8s\0\n\x09\n\x02v1\x12\x03Pod";
        let odd = br#"{"metadata":{"uid":"o","ownerReferences":7}}"#;
        for unreadable in [protobuf, b"", b"{", br#"{"metadata":{}}"#, odd] {
            assert_eq!(of(Some(unreadable)), None, "{unreadable:?}");
        }
    }

    #[test]
    fn a_dependent_goes_with_its_last_owner() {
        use OwnerState::{Dangling, Solid, WaitingForDependents};
        for (states, has_dependents, expected) in [
            (vec![], false, DependentAction::Keep),
            (vec![Solid], false, DependentAction::Keep),
            (vec![Dangling], true, DependentAction::Delete(Propagation::Background)),
            (vec![Solid, Dangling], false, DependentAction::RemoveOwners(vec!["1".into()])),
            (vec![Solid, WaitingForDependents], false, DependentAction::RemoveOwners(vec!["1".into()])),
            (vec![WaitingForDependents], false, DependentAction::Delete(Propagation::Background)),
            (vec![WaitingForDependents], true, DependentAction::Delete(Propagation::Foreground)),
            (vec![WaitingForDependents, Dangling], true, DependentAction::Delete(Propagation::Foreground)),
        ] {
            let owners: Vec<String> = (0..states.len()).map(|number| number.to_string()).collect();
            let owners: Vec<&str> = owners.iter().map(String::as_str).collect();
            let node = node("a", &owners);
            assert_eq!(action(&node, &node.owners, &states, has_dependents), expected, "{states:?}");
        }
    }

    #[test]
    fn owners_by_the_thousand_are_compared_once() {
        let owners: Vec<String> = (0..30_000).map(|number| number.to_string()).collect();
        let owners: Vec<&str> = owners.iter().map(String::as_str).collect();
        let mut graph = Graph::default();
        let begun = std::time::Instant::now();
        graph.put(&key("a"), node("a", &owners));
        assert_eq!(graph.put(&key("a"), node("a", &owners)), []);
        assert_eq!(graph.put(&key("a"), node("a", &owners[1..])), [Work::Dependent(key("a"))]);
        // Each with all others would be a billion comparisons: half a minute.
        assert!(begun.elapsed().as_secs() < 10, "{:?}", begun.elapsed());
    }

    #[test]
    fn an_object_with_many_owners_loses_them_in_several_rounds() {
        let owners: Vec<String> = (0..200).map(|number| number.to_string()).collect();
        let owners: Vec<&str> = owners.iter().map(String::as_str).collect();
        let mut graph = Graph::default();
        graph.put(&key("last"), waiting("199"));
        let many = node("a", &owners);
        let owners_to_check = graph.owners_to_check(&many);
        assert_eq!(owners_to_check.len(), OWNERS_AT_ONCE + 1);
        assert_eq!(owners_to_check[0].uid, "199", "whoever waits is looked at first");
        let DependentAction::RemoveOwners(first) =
            action(&many, &owners_to_check, &[OwnerState::Dangling; OWNERS_AT_ONCE + 1], false)
        else {
            panic!("it has to lose some of them first");
        };
        assert_eq!(first[0], "199");
        assert_eq!(first[1..], owners[..OWNERS_AT_ONCE - 1]);
        let few = node("a", &owners[..OWNERS_AT_ONCE]);
        let owners_to_check = graph.owners_to_check(&few);
        assert_eq!(owners_to_check, few.owners);
        let action = action(&few, &owners_to_check, &[OwnerState::Dangling; OWNERS_AT_ONCE], false);
        assert_eq!(action, DependentAction::Delete(Propagation::Background));
    }
}
