//! What a watcher was told, and comparing it with the history: nothing may be missing, doubled, out of order or different.

use std::collections::BTreeMap;

/// The resources that are watched, each with the path of the collection in which all of its objects are that have a token.
pub(crate) const WATCHED: [(&str, &str); 2] = [
    ("example.com.widgets", "/apis/example.com/v1/namespaces/torture/widgets"),
    ("discovery.k8s.io.endpointslices", "/apis/discovery.k8s.io/v1/namespaces/torture/endpointslices"),
];

/// An object at a revision, as a client sees it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Seen {
    pub(crate) revision: u64,
    pub(crate) name: String,
    /// `None` if it was deleted.
    pub(crate) token: Option<String>,
}

/// What a watcher was told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    /// A list at a revision.
    List(u64, Vec<Seen>),
    /// The next event after a revision.
    Event(u64, Seen),
    /// There is nothing after the first revision up to the second.
    Bookmark(u64, u64),
}

/// Compares what a watcher was told with all changes of its resource, oldest first. Returns what is wrong.
pub(crate) fn compare(told: &Told, changes: &[Seen]) -> Option<String> {
    let between = |after: u64, until: u64| {
        let first = changes.partition_point(|change| change.revision <= after);
        &changes[first..changes.partition_point(|change| change.revision <= until).max(first)]
    };
    match told {
        Told::Event(after, seen) => {
            let expected = between(*after, seen.revision);
            (expected != [seen.clone()])
                .then(|| format!("after {after} came {seen:?}, and the history has {expected:?}"))
        }
        Told::Bookmark(after, until) => {
            let expected = between(*after, *until);
            let words = || format!("after {after} came a bookmark at {until}, and the history has {expected:?}");
            (!expected.is_empty()).then(words)
        }
        Told::List(revision, listed) => {
            let mut expected = BTreeMap::new();
            for change in between(0, *revision) {
                match change.token {
                    Some(_) => drop(expected.insert(&change.name, change)),
                    None => drop(expected.remove(&change.name)),
                }
            }
            let (mut listed, mut expected): (Vec<&Seen>, Vec<&Seen>) =
                (listed.iter().collect(), expected.into_values().collect());
            listed.sort();
            expected.sort();
            let words = || format!("a list at {revision} has {listed:?}, and the history {expected:?}");
            (listed != expected).then(words)
        }
    }
}

/// Forgets the changes before a revision that others have followed.
pub(crate) fn forget(changes: &mut Vec<Seen>, before: u64) {
    let old = changes.partition_point(|change| change.revision < before);
    let latest: BTreeMap<String, u64> =
        changes[..old].iter().map(|change| (change.name.clone(), change.revision)).collect();
    changes.retain(|change| {
        change.revision >= before || change.token.is_some() && latest.get(&change.name) == Some(&change.revision)
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(revision: u64, token: Option<&str>) -> Seen {
        Seen { revision, name: "a".to_owned(), token: token.map(str::to_owned) }
    }

    #[test]
    fn lists_and_events_are_the_same_after_old_changes_are_forgotten() {
        let other = |revision| Seen { name: "b".to_owned(), ..seen(revision, Some("z")) };
        let mut changes = vec![seen(1, Some("w")), seen(3, Some("x")), other(4), seen(5, None), seen(8, Some("y"))];
        forget(&mut changes, 5);
        assert_eq!(changes, [seen(3, Some("x")), other(4), seen(5, None), seen(8, Some("y"))]);
        forget(&mut changes, 6);
        assert_eq!(changes, [other(4), seen(8, Some("y"))]);
        assert_eq!(compare(&Told::List(9, vec![other(4), seen(8, Some("y"))]), &changes), None);
        assert_eq!(compare(&Told::Event(5, seen(8, Some("y"))), &changes), None);
    }

    #[test]
    fn what_is_missing_doubled_or_different_is_found() {
        let changes = [seen(3, Some("x")), seen(5, Some("y")), seen(8, None)];
        let fine = [
            Told::List(4, vec![seen(3, Some("x"))]),
            Told::Event(4, seen(5, Some("y"))),
            Told::Bookmark(5, 7),
            Told::Event(7, seen(8, None)),
            Told::List(9, Vec::new()),
        ];
        for told in &fine {
            assert_eq!(compare(told, &changes), None);
        }
        let wrong = [
            Told::List(5, vec![seen(3, Some("x"))]),
            Told::Event(2, seen(5, Some("y"))),
            Told::Event(5, seen(5, Some("y"))),
            Told::Event(4, seen(5, Some("z"))),
            Told::Bookmark(3, 5),
        ];
        for told in &wrong {
            assert!(compare(told, &changes).is_some(), "{told:?}");
        }
    }
}
