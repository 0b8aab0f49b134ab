//! From a request to its answer.

use crate::audit::Asking;
use crate::discovery::documents::DocumentName;
use crate::discovery::openapi;
use crate::discovery::{self, Half};
use crate::error::ApiError;
use crate::flow_control::fair_queue::{self, Share, Taken};
use crate::flow_control::limits::{self, Running};
use crate::handlers::{self, Answer, Call};
use crate::http::body::Body;
use crate::http::compress::compress;
use crate::http::connections::Peer;
use crate::http::deadline;
use crate::http::documents;
use crate::http::health;
use crate::http::record::{Record, Subject};
use crate::http::render;
use crate::metrics;
use crate::request::Request as ResourceRequest;
use crate::request::headers;
use crate::request::negotiation::{self, Beside, Media, Shape};
use crate::request::options;
use crate::request::query::Query;
use crate::request::request_info::{self, ResourceTarget, Target, target};
use crate::resource::Protobuf;
use crate::resource::registry::Registry;
use crate::resource::{Resource, Verb};
use crate::server::ApiServer;
use crate::serving::{Connection, Held};
use crate::storage::stored_versions;
use bytes::Bytes;
use http::{HeaderMap, Request, Response, header};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use restow_api::GroupVersion;
use restow_apimachinery::names::NameRule;
use restow_apimachinery::selector::FieldSelector;
use restow_apimachinery::types;
use restow_auth::service_account::KEYS_PATH;
use restow_auth::user::ANONYMOUS;
use restow_auth::{Attributes, ResourceAttributes, User};
use serde_json::{Value, json};
use std::borrow::Cow;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// How Go's clients ask for OpenAPI of version 2, and what it is then called.
const OPENAPI_PROTOBUF: &str = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf";
const OPENAPI_PROTOBUF_SENT: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";

/// The largest body that is read: the largest object, and room for how it is written.
const MAX_BODY: usize = 3 << 20;
/// How much of a body that is too large is read before the answer is sent all the same.
const MOST_SKIPPED: usize = 16 << 20;

/// Answers a request, whatever happens.
pub(crate) async fn answer<B>(server: &ApiServer, request: Request<B>, peer: &Peer) -> Response<Body>
where
    B: hyper::body::Body<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let accept = headers::text(request.headers(), header::ACCEPT).map(Cow::into_owned);
    let media =
        negotiation::accept(accept.as_deref(), Protobuf::Possible).map_or(Media::Json, |accepted| accepted.media);
    let query = Query::parse(request.uri().query());
    let target = target(request.method(), request.uri().path(), query.is_on("watch"));
    let found = match &target {
        Target::Resource(target) => find(server, target),
        Target::Path(_) => None,
    };
    let mut record = Record::begin(
        server,
        Subject {
            asking: Asking {
                method: request.method(),
                uri: request.uri(),
                headers: request.headers(),
                address: peer.address,
            },
            target: &target,
            resource: found.as_ref().map(|found| found.resource.clone()),
            dry_run: query.has("dryRun"),
        },
    );
    let encodings = headers::text(request.headers(), header::ACCEPT_ENCODING).map(Cow::into_owned);
    let asked = Asked { target, found, query, accept, encodings };
    let answer = match in_time(server, request, asked, peer, &mut record).await {
        Ok(answer) => answer,
        Err(error) => {
            record.failed(&error);
            render::failure(&error, media)
        }
    };
    record.answered(answer)
}

/// What a request asks for, as far as its head tells.
struct Asked {
    target: Target,
    found: Option<Found>,
    query: Query,
    accept: Option<String>,
    encodings: Option<String>,
}

/// What a request about a resource asks for.
struct About {
    target: Arc<ResourceTarget>,
    found: Found,
    query: Query,
    accept: Option<String>,
}

/// Who asks, and the place that the request has among those in flight.
struct Asker<'a> {
    user: User,
    place: &'a mut Option<Running>,
    share: Share,
}

/// A resource that is served, and the version that it is asked for in.
struct Found {
    resource: Arc<Resource>,
    version: GroupVersion,
}

fn find(server: &ApiServer, target: &ResourceTarget) -> Option<Found> {
    let version = GroupVersion::new(&*target.group, &*target.version).ok()?;
    let resource = server.registry().find(&version, &target.resource)?.clone();
    Some(Found { resource, version })
}

/// Answers within the time that the request has. A watch has its own.
async fn in_time<B>(
    server: &ApiServer,
    request: Request<B>,
    asked: Asked,
    peer: &Peer,
    record: &mut Record,
) -> Result<Response<Body>, ApiError>
where
    B: hyper::body::Body<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    if matches!(&asked.target, Target::Resource(target) if target.verb == Verb::Watch) {
        return route(server, request, asked, peer, record).await;
    }
    let time = deadline::allowed(asked.query.text("timeout"), server.limits().request_timeout)?;
    let answer = tokio::time::timeout(time, route(server, request, asked, peer, record)).await;
    match answer {
        Ok(answer) => answer,
        Err(_) => {
            record.terminated(504);
            Err(deadline::exceeded())
        }
    }
}

async fn route<B>(
    server: &ApiServer,
    request: Request<B>,
    asked: Asked,
    peer: &Peer,
    record: &mut Record,
) -> Result<Response<Body>, ApiError>
where
    B: hyper::body::Body<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let connection = request.extensions().get::<Connection>();
    if let Some(reserved) = connection.filter(|connection| connection.is_reserved()) {
        // One of the last connections is for one answer, whatever that is. Nobody fills them by staying.
        reserved.close();
    }
    let user = server.access().identify(peer.certificate.as_ref(), request.headers(), request.uri().path())?;
    record.asked_by(&user, None);
    if let Some(connection) = connection.filter(|_| user.name != ANONYMOUS) {
        connection.prove();
    }
    let impersonated = server.access().impersonate(&user, request.headers())?;
    record.asked_by(&user, impersonated.as_ref());
    let user = impersonated.unwrap_or(user);
    if connection.is_some_and(Connection::is_reserved) && !limits::is_urgent(&user, &asked.target) {
        return Err(limits::turned_away());
    }
    let mut place = server.in_flight().enter(&user, &asked.target).await?;
    server.access().authorize(&user, &attributes(&asked.target, request.method(), &asked.query))?;
    record.allowed();
    let share = limits::share(&user, &asked.target);
    let answer = match asked.target {
        Target::Path(path) => {
            let answer = path_answer(server, &path, &asked.query, asked.accept.as_deref(), request.headers());
            server.fair_queue().run(&share, answer).await?
        }
        Target::Resource(target) => {
            let found = asked.found.ok_or_else(|| unknown(server, &target))?;
            let about = About { target, found, query: asked.query, accept: asked.accept };
            let asker = Asker { user, place: &mut place, share: share.clone() };
            resource_answer(server, asker, about, request, record).await?
        }
    };
    let mut answer = server.fair_queue().run(&share, compress(answer, asked.encodings.as_deref())).await;
    if let Some(mut place) = place {
        place.work_is_done();
        answer.extensions_mut().insert(Held::new(place));
    }
    Ok(answer)
}

async fn resource_answer<B>(
    server: &ApiServer,
    asker: Asker<'_>,
    about: About,
    request: Request<B>,
    record: &mut Record,
) -> Result<Response<Body>, ApiError>
where
    B: hyper::body::Body<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let About { target, found: Found { resource, version }, query, accept } = about;
    if matches!(target.verb, Verb::Update | Verb::Patch) && target.name.is_empty() {
        return Err(ApiError::MethodNotAllowed);
    }
    options::check(target.verb, &query)?;
    let mut accepted = negotiation::accept(accept.as_deref(), resource.protobuf(&version))?;
    if let Shape::Table(beside) = &mut accepted.shape {
        *beside = Beside::read(query.text("includeObject"))?;
    }
    if accepted.shape != Shape::Whole && resource.storage.is_none() {
        // What is answered at once and kept nowhere has no metadata to show.
        return Err(negotiation::not_acceptable());
    }
    server.agreement().admit(&resource, &target)?;
    let content_type = headers::text(request.headers(), header::CONTENT_TYPE).map(Cow::into_owned);
    let user_agent = headers::text(request.headers(), header::USER_AGENT).unwrap_or_default().into_owned();
    let patience = server.limits().body_timeout;
    let (body, arrived) = match target.verb {
        // They need no body, so none is kept. It is read, so that whoever is still sending does not lose the answer.
        Verb::Get | Verb::List | Verb::Watch => {
            let _ = tokio::time::timeout(patience, skip(Box::pin(request.into_body()))).await;
            (Bytes::new(), None)
        }
        Verb::Create | Verb::Update | Verb::Patch | Verb::Delete | Verb::DeleteCollection => {
            let arrived = server.fair_queue().room_to_arrive(&asker.share, expected_length(request.body())).await;
            (read_body(request, patience).await?, arrived)
        }
    };
    // Only what is read as an object needs a form that is known.
    let reads = match target.verb {
        Verb::Create | Verb::Update => true,
        Verb::Delete | Verb::DeleteCollection => !body.is_empty(),
        Verb::Get | Verb::List | Verb::Watch | Verb::Patch => false,
    };
    let content = match content_type.as_deref().filter(|_| reads) {
        Some(text) => Some(negotiation::content_media(Some(text))?),
        None => None,
    };
    let patch_type = content_type.as_deref().and_then(|text| text.split(';').next()).unwrap_or_default();
    let request = ResourceRequest {
        user: asker.user,
        resource: resource.clone(),
        version: version.clone(),
        target,
        query,
        accepted: accepted.clone(),
        content,
        patch_type: patch_type.trim().to_string(),
        user_agent,
        body,
        warnings: Mutex::default(),
        annotations: Mutex::default(),
    };
    let call = Call { handlers: &server.handlers, request };
    let work = async {
        let _room = server.fair_queue().room(&asker.share, call.body.len()).await;
        drop(arrived);
        fair_queue::expect(call.body.len()).await;
        Ok(match handlers::perform(&call).await? {
            Answer::Bytes { code, body, media } => render::bytes_answer(code, body, media.content_type()),
            Answer::Nothing => render::nothing(),
            Answer::Object { code, object } => render::object(code, &resource, object, &accepted),
            Answer::List { objects, metadata } => render::list(&resource, &version, objects, metadata, &accepted),
            Answer::Stream(list) => {
                let taken = Taken { turns: server.fair_queue().clone(), share: asker.share.clone() };
                render::parts(list.start(asker.place.take(), taken, server.limits().stall_timeout))
            }
            Answer::Watch(changes) => {
                let taken = Taken { turns: server.fair_queue().clone(), share: asker.share.clone() };
                render::watch(*changes, taken, server.core.stopping())
            }
        })
    };
    let answer: Result<_, ApiError> = server.fair_queue().run(&asker.share, work).await;
    record.annotate(call.annotations());
    let mut answer = answer?;
    for warning in call.warnings() {
        let quoted = format!("299 - {}", Value::from(warning));
        if let Ok(value) = http::HeaderValue::from_str(&quoted) {
            answer.headers_mut().append(header::WARNING, value);
        }
    }
    Ok(answer)
}

/// What is said of a resource that is not served. Kubernetes has another answer where it does not know the group at all.
fn unknown(server: &ApiServer, target: &ResourceTarget) -> ApiError {
    match target.group.is_empty() || discovery::group(&server.registry(), &target.group).is_some() {
        true => ApiError::NoSuchResource,
        false => ApiError::NoSuchPath,
    }
}

/// What a request wants to do, as the policy speaks of it.
fn attributes(target: &Target, method: &http::Method, query: &Query) -> Attributes {
    match target {
        Target::Path(path) => Attributes::path(method.as_str().to_ascii_lowercase(), path.clone()),
        Target::Resource(target) => Attributes::Resource(ResourceAttributes {
            verb: target.verb.to_string(),
            group: target.group.clone(),
            version: target.version.clone(),
            resource: target.resource.clone(),
            // What follows a subresource is its own affair.
            subresource: target.subresource.split('/').next().unwrap_or_default().to_string(),
            namespace: match target.resource.as_str() {
                // A namespace is in itself, so that its owner can be given rights to it.
                "namespaces" if target.namespace.is_empty() => target.name.clone(),
                _ => target.namespace.clone(),
            },
            name: match (target.verb, target.name.as_str()) {
                (Verb::List | Verb::Watch, "") => selected_name(query).unwrap_or_default(),
                (_, name) => name.to_string(),
            },
        }),
    }
}

/// The one object that a list or a watch can show, where its field selector leaves no other.
fn selected_name(query: &Query) -> Option<String> {
    let selector = FieldSelector::parse(query.text("fieldSelector")).ok()?;
    let name = selector.required("metadata.name")?;
    NameRule::PathSegment.check(name).is_empty().then(|| name.to_string())
}

/// How long a body can become, as far as its request tells.
fn expected_length(body: &impl hyper::body::Body) -> usize {
    let length = body.size_hint().upper().and_then(|length| usize::try_from(length).ok());
    length.unwrap_or(MAX_BODY).min(MAX_BODY)
}

async fn read_body<B>(request: Request<B>, patience: Duration) -> Result<Bytes, ApiError>
where
    B: hyper::body::Body<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let mut body = Box::pin(request.into_body());
    let limited = Limited::new(body.as_mut(), MAX_BODY);
    let Ok(collected) = tokio::time::timeout(patience, limited.collect()).await else {
        return Err(ApiError::Timeout("the body of the request did not arrive in time".into()));
    };
    match collected {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) if error.downcast_ref::<LengthLimitError>().is_some() => {
            // Who is still sending does not read yet, and would lose the answer with the connection.
            let _ = tokio::time::timeout(patience, skip(body)).await;
            Err(ApiError::TooLarge(format!("Request entity too large: limit is {MAX_BODY}")))
        }
        Err(error) => Err(ApiError::BadRequest(format!("the body could not be read: {error}"))),
    }
}

/// Reads on without keeping anything, up to a limit.
async fn skip<B: hyper::body::Body<Data = Bytes>>(mut body: Pin<Box<B>>) {
    let mut skipped = 0;
    while skipped < MOST_SKIPPED
        && let Some(Ok(frame)) = body.frame().await
    {
        skipped += frame.data_ref().map_or(0, Bytes::len);
    }
}

/// Whether all of discovery may be answered in one document. Older clients know only its beta version, which is not served any
/// more, and would read one of another version as an empty one.
fn asks_for_aggregated_discovery(accept: &str) -> bool {
    accept.split(',').any(|range| {
        let has = |wanted: &str| range.split(';').any(|parameter| parameter.trim() == wanted);
        has("as=APIGroupDiscoveryList") && has("v=v2")
    })
}

async fn path_answer(
    server: &ApiServer,
    path: &str,
    query: &Query,
    accept: Option<&str>,
    headers: &HeaderMap,
) -> Result<Response<Body>, ApiError> {
    let registry = server.registry();
    let parts = request_info::parts(path);
    let aggregated = accept.is_some_and(asks_for_aggregated_discovery);
    let hashes = server.show_hashes();
    let value = match parts.as_slice() {
        ["healthz" | "livez" | "readyz", ..] => return Ok(health::answer(server, &parts, query).await),
        [".well-known", "openid-configuration"] | ["openid", "v1", "jwks"] => {
            let tokens = server.access().authenticators().tokens.as_ref().ok_or(ApiError::NoSuchPath)?;
            match parts.first() {
                Some(&"openid") => tokens.json_web_keys(),
                _ => tokens.openid_configuration(&format!("https://{}{KEYS_PATH}", server.address())),
            }
        }
        ["metrics"] => return Ok(metrics(server).await),
        ["version"] => server.version(),
        ["debug", "stored-versions"] => {
            let census = stored_versions::take_census(server.objects().store().as_ref(), |_| {}).await?;
            serde_json::to_value(census).map_err(|error| ApiError::Internal(error.to_string()))?
        }
        ["openapi", rest @ ..] => {
            // Whoever asks first after a change has all of it written.
            fair_queue::expect(usize::MAX).await;
            return openapi_answer(server, rest, query, headers).await;
        }
        ["api" | "apis"] if aggregated => {
            let half = if parts == ["api"] { Half::Core } else { Half::Named };
            let make = move |registry: &Registry| Some(discovery::aggregated(registry, half).to_string().into_bytes());
            let document = server.documents().find(&registry, DocumentName::Discovery(half), make).await;
            let kind = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
            return Ok(documents::answer(document.ok_or(ApiError::NoSuchPath)?, kind, headers));
        }
        ["api"] => discovery::core_versions(&registry, &server.address()),
        ["apis"] => discovery::groups(&registry),
        ["apis", group] => discovery::group(&registry, group).ok_or(ApiError::NoSuchPath)?,
        ["api", version] | ["apis", _, version] => {
            let group = if parts.len() == 3 { parts[1] } else { "" };
            let version = GroupVersion::new(group, *version).map_err(|_| ApiError::NoSuchResource)?;
            let known = group.is_empty() || discovery::group(&registry, group).is_some();
            let missing = if known { ApiError::NoSuchResource } else { ApiError::NoSuchPath };
            discovery::resources(&registry, &version, hashes).ok_or(missing)?
        }
        [] | ["index.html"] => json!({"paths": paths(server)}),
        _ => return Err(ApiError::NoSuchPath),
    };
    let media = negotiation::accept(accept, Protobuf::Impossible).map_or(Media::Json, |accepted| accepted.media);
    Ok(render::value(200, &value, media))
}

/// The OpenAPI documents; `parts` is what follows `/openapi`.
async fn openapi_answer(
    server: &ApiServer,
    parts: &[&str],
    query: &Query,
    headers: &HeaderMap,
) -> Result<Response<Body>, ApiError> {
    let (registry, release) = (server.registry(), server.release());
    let documents = server.documents();
    let json = Media::Json.content_type();
    let (document, kind) = match parts {
        ["v2"] if headers::text(headers, header::ACCEPT).is_some_and(|accept| accept.contains(OPENAPI_PROTOBUF)) => {
            let make = move |registry: &Registry| types::encode_openapi_v2(&openapi::version_2(registry, release)).ok();
            (documents.find(&registry, DocumentName::OpenApiV2Protobuf, make).await, OPENAPI_PROTOBUF_SENT)
        }
        ["v2"] => {
            let make = move |registry: &Registry| Some(openapi::version_2(registry, release).to_string().into_bytes());
            (documents.find(&registry, DocumentName::OpenApiV2, make).await, json)
        }
        ["v3"] => {
            let make = move |registry: &Registry| Some(openapi::index(registry, release).to_string().into_bytes());
            (documents.find(&registry, DocumentName::OpenApiV3Index, make).await, json)
        }
        ["v3", "api", version] | ["v3", "apis", _, version] => {
            let group = if parts.len() == 4 { parts[2] } else { "" };
            let version = GroupVersion::new(group, *version).map_err(|_| ApiError::NoSuchResource)?;
            let path = format!("/openapi/v3/{}", openapi::path_of(&version));
            let name = DocumentName::OpenApiV3(version.clone());
            let make = move |registry: &Registry| {
                openapi::document(registry, &version, release).map(|document| document.to_string().into_bytes())
            };
            let document = documents.find(&registry, name, make).await.ok_or(ApiError::NoSuchResource)?;
            return Ok(documents::answer_tagged(document, &path, query.text("hash"), headers));
        }
        _ => (None, json),
    };
    Ok(documents::answer(document.ok_or(ApiError::NoSuchResource)?, kind, headers))
}

/// The metrics as text. The health of the server is among them, so it is looked at first.
async fn metrics(server: &ApiServer) -> Response<Body> {
    health::check(server).await;
    render::bytes_answer(200, server.metrics().render().into_bytes(), metrics::CONTENT_TYPE)
}

fn paths(server: &ApiServer) -> Vec<String> {
    let mut paths: Vec<String> = ["/healthz", "/livez", "/metrics", "/readyz", "/version"].map(String::from).to_vec();
    for (name, group) in server.registry().groups() {
        let root = if name.is_empty() { "/api".to_string() } else { format!("/apis/{name}") };
        paths.extend(group.versions.iter().map(|version| format!("{root}/{version}")));
        paths.push(root);
    }
    paths.sort();
    paths
}

#[cfg(test)]
mod bounded;
#[cfg(test)]
mod long_lists;
#[cfg(test)]
pub(crate) mod tests;
#[cfg(test)]
mod wording;
