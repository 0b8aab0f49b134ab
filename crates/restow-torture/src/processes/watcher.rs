//! A client that lists and watches a resource through one server, as a reflector does: nothing may be missing, doubled, out of order or
//! other than in the history of the store.

use super::api::request;
use super::history::History;
use super::writer::WATCHED;
use futures::StreamExt;
use http::Request;
use http_body_util::BodyExt;
use kube::Client;
use kube::client::Body;
use serde_json::Value;
use std::sync::Arc;
use std::time::Duration;

/// A watch that delivers nothing for so long is begun again.
const PATIENCE: Duration = Duration::from_secs(15);
/// The pause after a watch or a list has failed.
const PAUSE: Duration = Duration::from_millis(300);

/// A watcher of one resource in one namespace, in which all of its objects are.
pub(crate) struct Watcher {
    history: Arc<History>,
    client: Client,
    /// The server, for violations.
    via: String,
    /// The resource as in the name of its StorageVersion.
    resource: String,
    /// The path of the collection.
    collection: String,
}

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

impl Watcher {
    /// Watchers of all resources that are watched, through one server.
    pub(crate) fn all(history: &Arc<History>, client: &Client, via: &str) -> Vec<Self> {
        let watcher = |(resource, collection): &(&str, &str)| Watcher {
            history: history.clone(),
            client: client.clone(),
            via: via.to_owned(),
            resource: (*resource).to_owned(),
            collection: (*collection).to_owned(),
        };
        WATCHED.iter().map(watcher).collect()
    }

    /// Lists and watches until it is dropped.
    pub(crate) async fn watch(self) {
        loop {
            if let Some(mut after) = self.list().await {
                while self.watch_from(&mut after).await.is_some() {
                    tokio::time::sleep(PAUSE).await;
                }
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    fn told(&self, told: Told) {
        self.history.told(&self.resource, &self.via, told);
    }

    /// Lists. Returns the revision of the list.
    async fn list(&self) -> Option<u64> {
        let answer = request(&self.client, ("GET", &self.collection, "application/json"), None).await.ok()?;
        let revision = revision_of(&answer.body).filter(|_| answer.code == 200)?;
        let items = answer.body["items"].as_array().into_iter().flatten();
        self.told(Told::List(revision, items.filter_map(|item| seen(item, "ADDED")).collect()));
        Some(revision)
    }

    /// Watches from a revision on, which moves with what is delivered. Returns `None` if a new list is needed.
    async fn watch_from(&self, after: &mut u64) -> Option<()> {
        let path =
            format!("{}?watch=1&allowWatchBookmarks=true&timeoutSeconds=20&resourceVersion={after}", self.collection);
        let request = Request::builder().uri(path).header("accept", "application/json").body(Body::empty()).ok()?;
        let response = match tokio::time::timeout(PATIENCE, self.client.send(request)).await {
            Ok(Ok(response)) => response,
            _ => return Some(()),
        };
        match response.status().as_u16() {
            200 => {}
            410 => return None,
            _ => return Some(()),
        }
        let mut frames = response.into_body().into_data_stream();
        let mut buffer = Vec::new();
        while let Ok(Some(Ok(bytes))) = tokio::time::timeout(PATIENCE, frames.next()).await {
            buffer.extend_from_slice(&bytes);
            while let Some(end) = buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = buffer.drain(..=end).collect();
                let event: Value = serde_json::from_slice(&line).unwrap_or_default();
                self.take(&event, after)?;
            }
        }
        Some(())
    }

    /// Takes up an event. Returns `None` if a new list is needed.
    fn take(&self, event: &Value, after: &mut u64) -> Option<()> {
        let (kind, object) = (event["type"].as_str().unwrap_or_default(), &event["object"]);
        let told = match kind {
            "ERROR" => return None,
            "BOOKMARK" => Told::Bookmark(*after, revision_of(object)?),
            _ => Told::Event(*after, seen(object, kind)?),
        };
        *after = revision_of(object)?;
        self.told(told);
        Some(())
    }
}

fn revision_of(object: &Value) -> Option<u64> {
    object["metadata"]["resourceVersion"].as_str()?.parse().ok()
}

fn seen(object: &Value, kind: &str) -> Option<Seen> {
    let metadata = &object["metadata"];
    let token = metadata["annotations"]["token"].as_str().filter(|_| kind != "DELETED");
    let name = metadata["name"].as_str()?.to_owned();
    Some(Seen { revision: revision_of(object)?, name, token: token.map(str::to_owned) })
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
            let mut expected = std::collections::BTreeMap::new();
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

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(revision: u64, token: Option<&str>) -> Seen {
        Seen { revision, name: "a".to_owned(), token: token.map(str::to_owned) }
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
