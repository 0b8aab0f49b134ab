//! From a request to its answer.

use crate::audit::Asking;
use crate::auth::service_account::KEYS_PATH;
use crate::auth::{Attributes, ResourceAttributes, User};
use crate::discovery::{self, Half};
use crate::error::ApiError;
use crate::health;
use crate::http::body::Body;
use crate::http::compress::compress;
use crate::http::connections::Peer;
use crate::http::deadline;
use crate::http::documents::{self, Document};
use crate::http::limits::Running;
use crate::http::negotiate::{self, Beside, Media, Protobuf, Shape};
use crate::http::options;
use crate::http::query::Query;
use crate::http::record::{Record, Subject};
use crate::http::render;
use crate::http::request_info::{ResourceTarget, Target, target};
use crate::metrics;
use crate::openapi;
use crate::registry::Registry;
use crate::resource::{Resource, Verb};
use crate::server::ApiServer;
use crate::stored;
use crate::types;
use crate::verbs::{self, Answer, Call};
use bytes::Bytes;
use http::{HeaderMap, Request, Response, header};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use restow_api::GroupVersion;
use serde_json::{Value, json};
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
    let accept = text_header(request.headers(), &header::ACCEPT).map(str::to_string);
    let media = negotiate::accept(accept.as_deref(), Protobuf::Possible).map_or(Media::Json, |accepted| accepted.media);
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
    let asked = Asked { target, found, query, accept };
    let encodings = text_header(request.headers(), &header::ACCEPT_ENCODING).map(str::to_string);
    let answer = match in_time(server, request, asked, peer, &mut record).await {
        Ok(answer) => compress(answer, encodings.as_deref()).await,
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
}

/// What a request about a resource asks for.
struct About {
    target: Arc<ResourceTarget>,
    found: Found,
    query: Query,
    accept: Option<String>,
}

/// Who asks, and the place that the request has among those in flight.
struct Asker {
    user: User,
    place: Option<Running>,
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
    let identity = server.access().identify(peer.certificate.as_ref(), request.headers(), request.uri().path())?;
    record.asked_by(&identity.user, identity.impersonated.as_ref());
    let user = identity.impersonated.unwrap_or(identity.user);
    let place = server.in_flight().enter(&user, &asked.target).await?;
    server.access().authorize(&user, &attributes(&asked.target, request.method()))?;
    record.allowed();
    match asked.target {
        Target::Path(path) => {
            path_answer(server, &path, &asked.query, asked.accept.as_deref(), request.headers()).await
        }
        Target::Resource(target) => {
            let found = asked.found.ok_or_else(|| unknown(server, &target))?;
            let about = About { target, found, query: asked.query, accept: asked.accept };
            resource_answer(server, Asker { user, place }, about, request, record).await
        }
    }
}

async fn resource_answer<B>(
    server: &ApiServer,
    asker: Asker,
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
    let mut accepted = negotiate::accept(accept.as_deref(), resource.protobuf(&version))?;
    if let Shape::Table(beside) = &mut accepted.shape {
        *beside = Beside::read(query.text("includeObject"))?;
    }
    if accepted.shape != Shape::Whole && resource.storage.is_none() {
        // What is answered at once and kept nowhere has no metadata to show.
        return Err(negotiate::not_acceptable());
    }
    server.agreement().admit(&resource, &target)?;
    let content_type = text_header(request.headers(), &header::CONTENT_TYPE).map(str::to_string);
    let user_agent = text_header(request.headers(), &header::USER_AGENT).unwrap_or_default().to_string();
    let body = read_body(request, server.limits().body_timeout).await?;
    // Only what is read as an object needs a form that is known.
    let reads = match target.verb {
        Verb::Create | Verb::Update => true,
        Verb::Delete | Verb::DeleteCollection => !body.is_empty(),
        Verb::Get | Verb::List | Verb::Watch | Verb::Patch => false,
    };
    let content = match content_type.as_deref().filter(|_| reads) {
        Some(text) => Some(negotiate::content_media(Some(text))?),
        None => None,
    };
    let patch_type = content_type.as_deref().and_then(|text| text.split(';').next()).unwrap_or_default();
    let call = Call {
        server,
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
    let answer = verbs::perform(&call).await;
    record.annotate(call.annotations());
    let answer = answer?;
    let mut answer = match answer {
        Answer::Bytes { code, body, media } => render::bytes_answer(code, body, media.content_type()),
        Answer::Nothing => render::nothing(),
        Answer::Object { code, object } => render::object(code, &resource, object, &accepted),
        Answer::List { objects, metadata } => render::list(&resource, &version, objects, metadata, &accepted),
        Answer::Stream(list) => render::parts(list.start(asker.place, server.limits().stall_timeout)),
        Answer::Watch(changes) => render::watch(*changes, server.stopping()),
    };
    for warning in call.warnings() {
        let quoted = format!("299 - {}", serde_json::Value::from(warning));
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
fn attributes(target: &Target, method: &http::Method) -> Attributes {
    match target {
        Target::Path(path) => Attributes::path(method.as_str().to_ascii_lowercase(), path.clone()),
        Target::Resource(target) => Attributes::Resource(ResourceAttributes {
            verb: target.verb.to_string(),
            group: target.group.clone(),
            version: target.version.clone(),
            resource: target.resource.clone(),
            subresource: target.subresource.clone(),
            namespace: match (target.resource.as_str(), target.group.as_str()) {
                // A namespace is in itself, so that its owner can be given rights to it.
                ("namespaces", "") => target.name.clone(),
                _ => target.namespace.clone(),
            },
            name: target.name.clone(),
        }),
    }
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
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
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
            let census = stored::take_census(server.objects().store().as_ref(), |_| {}).await?;
            serde_json::to_value(census).map_err(|error| ApiError::Internal(error.to_string()))?
        }
        ["openapi", rest @ ..] => return openapi_answer(server, path, rest, query, headers),
        ["api" | "apis"] if aggregated => {
            let body = discovery::aggregated(&registry, if parts == ["api"] { Half::Core } else { Half::Named });
            let kind = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
            return Ok(documents::answer(Document::new(body.to_string()), kind, headers));
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
    let media = negotiate::accept(accept, Protobuf::Impossible).map_or(Media::Json, |accepted| accepted.media);
    Ok(render::value(200, &value, media))
}

/// The OpenAPI documents; `parts` is what follows `/openapi`.
fn openapi_answer(
    server: &ApiServer,
    path: &str,
    parts: &[&str],
    query: &Query,
    headers: &HeaderMap,
) -> Result<Response<Body>, ApiError> {
    let (registry, release) = (server.registry(), server.release());
    let find = |make: &dyn Fn(&Registry) -> Option<Value>| {
        server.documents().find(&registry, path, make).ok_or(ApiError::NoSuchResource)
    };
    let document = match parts {
        ["v2"] if text_header(headers, &header::ACCEPT).is_some_and(|accept| accept.contains(OPENAPI_PROTOBUF)) => {
            let make = |registry: &Registry| types::encode_openapi_v2(&openapi::version_2(registry, release)).ok();
            let document = server.documents().find_bytes(&registry, "/openapi/v2 in protobuf", make);
            let document = document.ok_or(ApiError::NoSuchResource)?;
            return Ok(documents::answer(document, OPENAPI_PROTOBUF_SENT, headers));
        }
        ["v2"] => find(&|registry| Some(openapi::version_2(registry, release)))?,
        ["v3"] => find(&|registry| Some(openapi::index(registry, release)))?,
        ["v3", "api", version] | ["v3", "apis", _, version] => {
            let group = if parts.len() == 4 { parts[2] } else { "" };
            let version = GroupVersion::new(group, *version).map_err(|_| ApiError::NoSuchResource)?;
            let document = find(&|registry| openapi::document(registry, &version, release))?;
            return Ok(documents::answer_tagged(document, path, query.text("hash"), headers));
        }
        _ => return Err(ApiError::NoSuchResource),
    };
    Ok(documents::answer(document, Media::Json.content_type(), headers))
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

fn text_header<'a>(headers: &'a HeaderMap, name: &header::HeaderName) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

#[cfg(test)]
mod long_lists;
#[cfg(test)]
pub(crate) mod tests;
#[cfg(test)]
mod wording;
