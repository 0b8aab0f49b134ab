//! Rewrites one object, until the result is final.

use super::listing::{Detail, ListedObject, object};
use crate::backoff::request_delay;
use crate::cluster::Instance;
use crate::discovery::StoredResource;
use crate::request::{RequestError, path_part, request_json, send_request};
use bytes::Bytes;
use http::Request;
use kube::Client;
use restow_api::migration::MigrationFailure;
use restow_rules::migrate::difference::first_difference;
use restow_rules::migrate::managed_fields::{ManagedFieldsPlan, moved};
use restow_rules::migrate::passes::{Changed, ObjectEnd};
use restow_rules::migrate::response::{Absence, MAX_RETRIES, ResponseClass, absence, classify};
use serde::Deserialize;
use serde_json::{Value, json};
use std::time::Duration;

/// How objects are rewritten.
#[derive(Clone, Debug)]
pub(crate) struct Rewriting {
    pub(crate) resource: StoredResource,
    pub(crate) mode: WriteMode,
    pub(crate) method: RewriteMethod,
    pub(crate) owners: Option<ManagedFieldsPlan>,
    /// The other versions in which the resource is served.
    pub(crate) other_versions: Vec<String>,
}

/// Whether anything is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WriteMode {
    /// Objects are rewritten.
    #[default]
    Write,
    /// Dry run: the server validates, and writes nothing.
    DryRun,
}

/// The request that rewrites an object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RewriteMethod {
    /// A merge patch that changes nothing. The object itself is not transferred.
    #[default]
    Patch,
    /// The object is read and written back, as older migrators do. For measurements.
    Put,
}

/// An object that is being rewritten on one or more servers.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct RewriteTask {
    pub(crate) object: ListedObject,
    /// Whether any server has changed it.
    pub(crate) changed: Changed,
    /// Whether to find out first if admission would change it.
    pub(crate) admission_check: AdmissionCheck,
    /// How many webhook calls for it were left without an answer.
    pub(crate) no_responses: u32,
    /// Whether an earlier try may have been executed without an answer.
    pub(crate) may_be_written: bool,
}

/// When to find out whether admission changes an object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum AdmissionCheck {
    /// Never: in the first pass objects are expected to change.
    #[default]
    None,
    /// After it was changed, because it should have been left unchanged.
    Afterwards,
    /// Before it is written, with a dry run.
    Beforehand,
}

/// The result of rewriting an object, for now.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ObjectResult {
    /// A final result.
    Done(ObjectOutcome, Changed),
    /// Not final: the server sent a 429.
    Overloaded(RewriteTask, Duration),
    /// Not final: a webhook cannot be reached.
    WebhookDown(RewriteTask, String),
    /// Not final: a webhook was reached and did not answer.
    WebhookNoResponse(RewriteTask, RequestError),
    /// Rewriting is forbidden.
    NotAllowed(RequestError),
    /// A webhook does not support dry run.
    NoDryRun(RequestError),
    /// A server does not answer; the message names it.
    Unresponsive(String),
    /// A server does not serve the resource; the message names it.
    NotServed(String),
}

/// The final result of an object.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ObjectOutcome {
    Current,
    Gone,
    Unsettled,
    Failed(MigrationFailure),
}

impl ObjectOutcome {
    pub(crate) fn kind(&self) -> ObjectEnd {
        match self {
            ObjectOutcome::Current => ObjectEnd::Current,
            ObjectOutcome::Gone => ObjectEnd::Gone,
            ObjectOutcome::Unsettled => ObjectEnd::Unsettled,
            ObjectOutcome::Failed(_) => ObjectEnd::Failed,
        }
    }
}

/// The result of an object on one server.
enum ServerResult {
    /// The server left it unchanged, or has rewritten it.
    Satisfied,
    /// Someone else wrote it, so the results of other servers do not count any more.
    Moved,
    /// The result is known.
    Done(Box<ObjectResult>),
}

impl ServerResult {
    fn done(settled: ObjectResult) -> Self {
        ServerResult::Done(Box::new(settled))
    }
}

/// The reason of the failure if admission changes an object on every write.
pub const CHANGED_BY_ADMISSION: &str = "ChangedByAdmission";

/// The field manager, and no warnings about unknown fields, which nobody reads and which cost the server time.
const PARAMETERS: &str = "fieldManager=restow&fieldValidation=Ignore";

/// The other API version of events.
const EVENTS_VERSION: &str = "events.k8s.io/v1";

/// How often an object that others write is retried before it is left to the next pass.
const MOST_MOVES: u32 = 4;

impl Rewriting {
    /// Which metadata has to be read.
    pub(crate) fn detail(&self) -> Detail {
        if self.owners.is_some() || self.is_about_events() { Detail::ManagedFields } else { Detail::Identity }
    }

    fn is_about_events(&self) -> bool {
        self.resource.resource.group().is_empty() && self.resource.resource.resource() == "events"
    }

    /// The path of an object. Events are served in two groups, and a server that writes one through the other group drops
    /// its managedFields. Every new event would be changed by that, and nothing could be proven.
    fn path(&self, listed: &ListedObject) -> String {
        let names_it = |entry: &Value| entry["apiVersion"] == EVENTS_VERSION;
        if self.is_about_events() && listed.managed_fields.iter().any(names_it) {
            let (namespace, name) = (path_part(&listed.namespace), path_part(&listed.name));
            return format!("/apis/{EVENTS_VERSION}/namespaces/{namespace}/events/{name}");
        }
        self.resource.object_path(&listed.namespace, &listed.name)
    }

    /// Rewrites the object on these servers, one after the other. If someone else writes it meanwhile, all of them are
    /// tried again, because their results were for another state.
    pub(crate) async fn rewrite_on_each(&self, servers: Vec<Instance>, mut task: RewriteTask) -> ObjectResult {
        for _ in 0..=MOST_MOVES {
            let mut is_moved = false;
            for server in &servers {
                match self.rewrite_on(server, &mut task).await {
                    ServerResult::Satisfied => {}
                    ServerResult::Moved => is_moved = true,
                    ServerResult::Done(settled) => return *settled,
                }
                if is_moved {
                    break;
                }
            }
            if !is_moved {
                return ObjectResult::Done(ObjectOutcome::Current, task.changed);
            }
        }
        ObjectResult::Done(ObjectOutcome::Unsettled, task.changed)
    }

    async fn rewrite_on(&self, server: &Instance, task: &mut RewriteTask) -> ServerResult {
        if task.admission_check == AdmissionCheck::Beforehand
            && let Some(failure) = self.changed_by_admission(server, &task.object).await
        {
            return ServerResult::done(ObjectResult::Done(ObjectOutcome::Failed(failure), task.changed));
        }
        let mut tries = 0;
        loop {
            let failure = match self.rewrite(&server.client, &task.object).await {
                Ok(written) if written == task.object.resource_version => return ServerResult::Satisfied,
                // A dry run may return another resource version.
                Ok(_) if self.mode == WriteMode::DryRun => return ServerResult::Satisfied,
                Ok(written) => return self.changed(server, task, written).await,
                Err(failure) => failure,
            };
            let response = classify(&failure.response());
            task.may_be_written |= response.leaves_open_what_was_written() && self.mode == WriteMode::Write;
            match response {
                ResponseClass::Moved | ResponseClass::Absent => {
                    // It is unknown whether someone else wrote it, or the try whose answer got lost.
                    if std::mem::take(&mut task.may_be_written) {
                        task.changed = Changed::Yes;
                    }
                    return self.look_again(server, task).await;
                }
                ResponseClass::TryAgain if tries < MAX_RETRIES && !failure.is_unresponsive => {
                    tokio::time::sleep(request_delay(tries)).await;
                    tries += 1;
                }
                _ => return ServerResult::done(stopped_by(server, task, failure)),
            }
        }
    }

    /// The object has another resource version now. If it should have been left unchanged, finds out why.
    async fn changed(&self, server: &Instance, task: &mut RewriteTask, resource_version: String) -> ServerResult {
        task.object.resource_version = resource_version;
        task.object.managed_fields.clear();
        task.changed = Changed::Yes;
        if task.admission_check == AdmissionCheck::None {
            return ServerResult::Satisfied;
        }
        match self.changed_by_admission(server, &task.object).await {
            Some(failure) => ServerResult::done(ObjectResult::Done(ObjectOutcome::Failed(failure), Changed::Yes)),
            None => ServerResult::Satisfied,
        }
    }

    /// Reads the object again: it may have been replaced or deleted, or the resource may not be served.
    async fn look_again(&self, server: &Instance, task: &mut RewriteTask) -> ServerResult {
        let failure = match object(&server.client, &self.resource, &task.object, self.detail()).await {
            Ok(now) => {
                task.object = now;
                return ServerResult::Moved;
            }
            Err(failure) => failure,
        };
        ServerResult::done(match absence(&failure.response(), &task.object.name) {
            Some(Absence::Gone) => ObjectResult::Done(ObjectOutcome::Gone, task.changed),
            Some(Absence::NotServed) => ObjectResult::NotServed(not_served(server, &failure)),
            None => match classify(&failure.response()) {
                ResponseClass::TryAgain if failure.code != 0 => {
                    ObjectResult::Done(ObjectOutcome::Unsettled, task.changed)
                }
                _ => stopped_by(server, task, failure),
            },
        })
    }

    /// Finds out, by a dry run, whether admission changes the object. `None` if it does not, or if that cannot be found
    /// out, for instance because a webhook does not support dry run.
    async fn changed_by_admission(&self, server: &Instance, object: &ListedObject) -> Option<MigrationFailure> {
        let path = self.path(object);
        let before: Value = request_json(&server.client, Request::get(&path).body(Vec::new()).ok()?).await.ok()?;
        let metadata =
            json!({"uid": before["metadata"]["uid"], "resourceVersion": before["metadata"]["resourceVersion"]});
        let request = Request::patch(format!("{path}?{PARAMETERS}&dryRun=All"))
            .header(http::header::CONTENT_TYPE, "application/merge-patch+json")
            .body(json!({ "metadata": metadata }).to_string().into_bytes());
        let after: Value = request_json(&server.client, request.ok()?).await.ok()?;
        let field = first_difference(&before, &after)?;
        let message = format!(
            "a mutating webhook or policy changes {field} on every write, so that it cannot be shown how the object is \
             stored; exempt the user of this migration from it, or make it leave objects alone that it has seen"
        );
        let failure = RequestError { reason: CHANGED_BY_ADMISSION.to_owned(), message, ..RequestError::default() };
        Some(record(object, &failure))
    }

    /// Rewrites the object and returns its new resource version.
    ///
    /// An answer about another object is an error.
    async fn rewrite(&self, server: &Client, listed: &ListedObject) -> Result<String, RequestError> {
        let body = match self.method {
            RewriteMethod::Patch => send_request(server, self.patch(listed)?).await?,
            RewriteMethod::Put => self.put(server, listed).await?,
        };
        #[derive(Deserialize)]
        struct Written {
            metadata: WrittenMetadata,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct WrittenMetadata {
            uid: String,
            resource_version: String,
        }
        let unreadable = |words: String| RequestError { message: words, ..RequestError::default() };
        let written: Written = serde_json::from_slice(&body)
            .map_err(|error| unreadable(format!("the server's answer is unreadable: {error}")))?;
        if written.metadata.uid != listed.uid || written.metadata.resource_version.is_empty() {
            return Err(unreadable("the server's answer is about another object".to_owned()));
        }
        Ok(written.metadata.resource_version)
    }

    fn patch(&self, listed: &ListedObject) -> Result<Request<Vec<u8>>, RequestError> {
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

    async fn put(&self, server: &Client, listed: &ListedObject) -> Result<Bytes, RequestError> {
        let path = self.path(listed);
        let read = send_request(server, Request::get(&path).body(Vec::new()).map_err(unsendable)?).await?;
        let request = Request::put(format!("{path}?{PARAMETERS}{}", self.dry_run()))
            .header(http::header::CONTENT_TYPE, "application/json")
            .body(read.to_vec())
            .map_err(unsendable)?;
        send_request(server, request).await
    }

    fn dry_run(&self) -> &'static str {
        match self.mode {
            WriteMode::Write => "",
            WriteMode::DryRun => "&dryRun=All",
        }
    }
}

/// The message about a server that does not answer.
pub(super) fn unresponsive(server: &Instance, failure: &RequestError) -> String {
    format!("the API server {} does not answer, and may still write: {}", server.name, failure.message)
}

/// The message about a server that does not serve the resource.
pub(super) fn not_served(server: &Instance, failure: &RequestError) -> String {
    format!("the API server {} does not serve the resource: {}", server.name, failure.message)
}

/// The result of an object whose request failed for another reason than a conflict.
fn stopped_by(server: &Instance, task: &RewriteTask, failure: RequestError) -> ObjectResult {
    match classify(&failure.response()) {
        ResponseClass::Overloaded(wait) => ObjectResult::Overloaded(task.clone(), wait),
        ResponseClass::WebhookDown => ObjectResult::WebhookDown(task.clone(), failure.message),
        ResponseClass::WebhookNoResponse => ObjectResult::WebhookNoResponse(
            RewriteTask { no_responses: task.no_responses + 1, ..task.clone() },
            failure,
        ),
        ResponseClass::NotAllowed => ObjectResult::NotAllowed(failure),
        ResponseClass::NoDryRun => ObjectResult::NoDryRun(failure),
        // A server that does not answer says nothing about the object.
        ResponseClass::TryAgain if failure.code == 0 => ObjectResult::Unresponsive(unresponsive(server, &failure)),
        ResponseClass::TryAgain | ResponseClass::Refused | ResponseClass::Moved | ResponseClass::Absent => {
            ObjectResult::Done(ObjectOutcome::Failed(record(&task.object, &failure)), task.changed)
        }
    }
}

fn unsendable(error: http::Error) -> RequestError {
    RequestError { message: error.to_string(), ..RequestError::default() }
}

pub(super) fn record(object: &ListedObject, failure: &RequestError) -> MigrationFailure {
    // The message can quote the whole object. Its beginning is enough.
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

#[cfg(test)]
mod tests;
