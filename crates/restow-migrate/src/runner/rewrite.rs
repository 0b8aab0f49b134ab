//! The rewriting of one object, until something final can be said about it.

use super::listing::{Detail, ListedObject, object, path_part};
use crate::cluster::Instance;
use crate::discovery::StoredResource;
use crate::exchange::{Failure, exchange};
use bytes::Bytes;
use http::Request;
use kube::Client;
use restow_agreement::migrate::managed_fields::moved;
use restow_agreement::migrate::verdict::{MOST_TRIES, Verdict, judge, wait_after};
use restow_api::migration::MigrationFailure;
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::time::Duration;

/// How objects are rewritten.
#[derive(Clone, Debug)]
pub(crate) struct Rewriting {
    pub(crate) resource: StoredResource,
    pub(crate) mode: Mode,
    pub(crate) method: Method,
    pub(crate) owners: Option<OwnersPlan>,
}

/// Whether anything is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Objects are rewritten.
    #[default]
    Write,
    /// The server is asked what it would say, and writes nothing.
    DryRun,
}

/// With which request an object is rewritten.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Method {
    /// A merge patch that changes nothing. The object itself does not travel.
    #[default]
    Patch,
    /// The object is read and put back as it is, the way older migrators do it. For measurements.
    Put,
}

/// Which versions the owners of fields may go on naming, and which one they are moved to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnersPlan {
    /// The `apiVersion`s that stay.
    pub staying: BTreeSet<String>,
    /// The `apiVersion` that others are moved to.
    pub target: String,
}

/// What there is to say about an object.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Settled {
    /// It was stored otherwise, and is rewritten.
    Rewritten,
    /// It was stored as it should be.
    Current,
    /// It is gone.
    Gone,
    /// Others kept writing it.
    Unsettled,
    /// It cannot be rewritten.
    Failed(MigrationFailure),
    /// Nothing yet: the server asks to wait.
    Overloaded(ListedObject, Duration),
    /// Nothing yet: a webhook that is needed for it cannot be reached.
    WebhookDown(ListedObject, String),
    /// Nothing, because we may not.
    NotAllowed(Failure),
    /// Nothing, because a server does not answer: which one, and what is known of that.
    Silent(String),
}

/// Whoever owns fields is told who did it. Nobody reads warnings about fields that a schema does not have, and without them
/// the server has less to do.
const PARAMETERS: &str = "fieldManager=restow&fieldValidation=Ignore";

/// The other version in which events are served.
const EVENTS_VERSION: &str = "events.k8s.io/v1";

/// How often an object that others write is looked at again before the next pass takes care of it.
const MOST_MOVES: u32 = 4;

impl Rewriting {
    /// What of the metadata has to be read.
    pub(crate) fn detail(&self) -> Detail {
        if self.owners.is_some() || self.is_about_events() { Detail::ManagedFields } else { Detail::Identity }
    }

    fn is_about_events(&self) -> bool {
        self.resource.resource.group().is_empty() && self.resource.resource.resource() == "events"
    }

    /// The path of an object. Events are served in two groups, and a server that writes one in the other group than it was
    /// made in forgets who owns its fields. Every new one would be changed by that, and nothing ever proven.
    fn path(&self, listed: &ListedObject) -> String {
        let names_it = |entry: &Value| entry["apiVersion"] == EVENTS_VERSION;
        if self.is_about_events() && listed.managed_fields.iter().any(names_it) {
            let (namespace, name) = (path_part(&listed.namespace), path_part(&listed.name));
            return format!("/apis/{EVENTS_VERSION}/namespaces/{namespace}/events/{name}");
        }
        self.resource.object_path(&listed.namespace, &listed.name)
    }

    /// Rewrites the object on these servers, one after the other.
    pub(crate) async fn settle_on_each(&self, servers: Vec<Instance>, mut object: ListedObject) -> Settled {
        let mut result = Settled::Current;
        for server in servers {
            match self.settle(&server, &mut object).await {
                Settled::Current => {}
                Settled::Rewritten => result = Settled::Rewritten,
                other => return other,
            }
        }
        result
    }

    async fn settle(&self, server: &Instance, listed: &mut ListedObject) -> Settled {
        let (mut tries, mut moves) = (0, 0);
        loop {
            let failure = match self.rewrite(&server.client, listed).await {
                Ok(resource_version) if resource_version == listed.resource_version => return Settled::Current,
                Ok(resource_version) => {
                    listed.resource_version = resource_version;
                    listed.managed_fields.clear();
                    // A server that writes nothing may still show another revision.
                    return if self.mode == Mode::DryRun { Settled::Current } else { Settled::Rewritten };
                }
                Err(failure) => failure,
            };
            match judge(&failure.refusal()) {
                Verdict::Moved if moves < MOST_MOVES => {
                    moves += 1;
                    match object(&server.client, &self.resource, listed, self.detail()).await {
                        Ok(now) if now.uid != listed.uid => return Settled::Gone,
                        Ok(now) => *listed = now,
                        Err(failure) if failure.code == 404 => return Settled::Gone,
                        Err(failure) if failure.is_silent => return Settled::Silent(silent(server, &failure)),
                        Err(_) => return Settled::Unsettled,
                    }
                }
                Verdict::Moved => return Settled::Unsettled,
                Verdict::Gone => return Settled::Gone,
                Verdict::Overloaded(wait) => return Settled::Overloaded(listed.clone(), wait),
                Verdict::WebhookDown => return Settled::WebhookDown(listed.clone(), failure.message),
                Verdict::NotAllowed => return Settled::NotAllowed(failure),
                Verdict::TryAgain if tries < MOST_TRIES && !failure.is_silent => {
                    tokio::time::sleep(wait_after(tries)).await;
                    tries += 1;
                }
                // A server from which no answer comes says nothing about the object.
                Verdict::TryAgain if failure.code == 0 => return Settled::Silent(silent(server, &failure)),
                Verdict::TryAgain | Verdict::Refused => return Settled::Failed(record(listed, &failure)),
            }
        }
    }

    /// Asks the server to write the object as it is. Returns its resource version after that.
    async fn rewrite(&self, server: &Client, listed: &ListedObject) -> Result<String, Failure> {
        let body = match self.method {
            Method::Patch => exchange(server, self.patch(listed)?).await?,
            Method::Put => self.put(server, listed).await?,
        };
        #[derive(Deserialize)]
        struct Written {
            metadata: WrittenMetadata,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct WrittenMetadata {
            #[serde(default)]
            resource_version: String,
        }
        let written: Written = serde_json::from_slice(&body).map_err(|error| Failure {
            message: format!("the server's answer is unreadable: {error}"),
            ..Failure::default()
        })?;
        Ok(written.metadata.resource_version)
    }

    fn patch(&self, listed: &ListedObject) -> Result<Request<Vec<u8>>, Failure> {
        let mut metadata = json!({"uid": listed.uid, "resourceVersion": listed.resource_version});
        if let Some(plan) = &self.owners
            && let Some(entries) = moved(&listed.managed_fields, &plan.staying, &plan.target)
        {
            metadata["managedFields"] = Value::Array(entries);
        }
        let path = self.path(listed);
        let accept = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json";
        Request::patch(format!("{path}?{PARAMETERS}{}", self.dry_run()))
            .header(http::header::CONTENT_TYPE, "application/merge-patch+json")
            .header(http::header::ACCEPT, accept)
            .body(json!({ "metadata": metadata }).to_string().into_bytes())
            .map_err(unsendable)
    }

    async fn put(&self, server: &Client, listed: &ListedObject) -> Result<Bytes, Failure> {
        let path = self.path(listed);
        let read = exchange(server, Request::get(&path).body(Vec::new()).map_err(unsendable)?).await?;
        let request = Request::put(format!("{path}?{PARAMETERS}{}", self.dry_run()))
            .header(http::header::CONTENT_TYPE, "application/json")
            .body(read.to_vec())
            .map_err(unsendable)?;
        exchange(server, request).await
    }

    fn dry_run(&self) -> &'static str {
        match self.mode {
            Mode::Write => "",
            Mode::DryRun => "&dryRun=All",
        }
    }
}

/// Which server does not answer, for people.
pub(super) fn silent(server: &Instance, failure: &Failure) -> String {
    format!("the API server {} does not answer, and may still write: {}", server.name, failure.message)
}

fn unsendable(error: http::Error) -> Failure {
    Failure { message: error.to_string(), ..Failure::default() }
}

pub(super) fn record(object: &ListedObject, failure: &Failure) -> MigrationFailure {
    // An answer can quote the whole object. What helps is at its beginning.
    let message = failure.message.chars().take(1_000).collect();
    MigrationFailure {
        namespace: object.namespace.clone(),
        name: object.name.clone(),
        uid: object.uid.clone(),
        code: failure.code.into(),
        reason: if failure.reason.is_empty() { "Unknown".to_owned() } else { failure.reason.clone() },
        message,
    }
}
