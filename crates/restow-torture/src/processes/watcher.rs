//! A client that lists and watches a resource through one server, as a reflector does: nothing may be missing, doubled, out of order or
//! other than in the history of the store.

use super::api::request;
use super::history::History;
use super::told::{Seen, Told, WATCHED};
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
