//! From a request to its answer.

use crate::auth::service_account::KEYS_PATH;
use crate::auth::{Attributes, ResourceAttributes, User};
use crate::discovery::{self, Half};
use crate::error::ApiError;
use crate::health;
use crate::http::negotiate::{self, Media, Protobuf};
use crate::http::query::Query;
use crate::http::render::{self, Body};
use crate::http::request_info::{ResourceTarget, Target, target};
use crate::openapi;
use crate::resource::Verb;
use crate::server::ApiServer;
use crate::stored;
use crate::verbs::{self, Answer, Call};
use bytes::Bytes;
use http::{HeaderMap, Request, Response, header};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use restow_api::GroupVersion;
use serde_json::json;
use std::sync::Mutex;

/// The largest body that is read: the largest object, and room for how it is written.
const MAX_BODY: usize = 3 << 20;

/// Answers a request, whatever happens.
pub(crate) async fn answer<B>(server: &ApiServer, request: Request<B>, certificate: Option<&User>) -> Response<Body>
where
    B: hyper::body::Body<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let accept = text_header(request.headers(), &header::ACCEPT).map(str::to_string);
    let media = negotiate::accept(accept.as_deref(), Protobuf::Possible).map_or(Media::Json, |accepted| accepted.media);
    match route(server, request, accept.as_deref(), certificate).await {
        Ok(answer) => answer,
        Err(error) => render::failure(&error, media),
    }
}

async fn route<B>(
    server: &ApiServer,
    request: Request<B>,
    accept: Option<&str>,
    certificate: Option<&User>,
) -> Result<Response<Body>, ApiError>
where
    B: hyper::body::Body<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let query = Query::parse(request.uri().query());
    let target = target(request.method(), request.uri().path(), query.is_on("watch"));
    let user = server.access().identify(certificate, request.headers(), request.uri().path())?;
    server.access().authorize(&user, &attributes(&target, request.method()))?;
    match target {
        Target::Path(path) => path_answer(server, &path, &query, accept).await,
        Target::Resource(target) => resource_answer(server, user, target, query, accept, request).await,
    }
}

async fn resource_answer<B>(
    server: &ApiServer,
    user: User,
    target: ResourceTarget,
    query: Query,
    accept: Option<&str>,
    request: Request<B>,
) -> Result<Response<Body>, ApiError>
where
    B: hyper::body::Body<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let version = GroupVersion::new(&*target.group, &*target.version).map_err(|_| ApiError::NoSuchResource)?;
    let registry = server.registry();
    let resource = registry.find(&version, &target.resource).ok_or(ApiError::NoSuchResource)?.clone();
    let accepted = negotiate::accept(accept, resource.protobuf(&version))?;
    let content_type = text_header(request.headers(), &header::CONTENT_TYPE).map(str::to_string);
    let patch = target.verb == Verb::Patch;
    let content = match patch {
        true => None,
        false => content_type.as_deref().map(|text| negotiate::content_media(Some(text))).transpose()?,
    };
    let patch_type = content_type.as_deref().and_then(|text| text.split(';').next()).unwrap_or_default();
    let call = Call {
        server,
        user,
        resource: resource.clone(),
        version: version.clone(),
        target,
        query,
        accepted: accepted.clone(),
        content,
        patch_type: patch_type.trim().to_string(),
        body: read_body(request).await?,
        warnings: Mutex::default(),
    };
    let answer = verbs::perform(&call).await?;
    let mut answer = match answer {
        Answer::Json(bytes) => render::bytes_answer(200, bytes, Media::Json.content_type()),
        Answer::Object { code, object } => render::object(code, &resource, object, &accepted),
        Answer::List { objects, metadata } => render::list(&resource, &version, objects, metadata, &accepted),
        Answer::Watch(changes) => render::watch(*changes),
    };
    for warning in call.warnings() {
        let quoted = format!("299 - {}", serde_json::Value::from(warning));
        if let Ok(value) = http::HeaderValue::from_str(&quoted) {
            answer.headers_mut().append(header::WARNING, value);
        }
    }
    Ok(answer)
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

async fn read_body<B>(request: Request<B>) -> Result<Bytes, ApiError>
where
    B: hyper::body::Body<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let body = Box::pin(Limited::new(request.into_body(), MAX_BODY));
    match body.collect().await {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) if error.downcast_ref::<LengthLimitError>().is_some() => {
            Err(ApiError::TooLarge(format!("Request entity too large: limit is {MAX_BODY}")))
        }
        Err(error) => Err(ApiError::BadRequest(format!("the body could not be read: {error}"))),
    }
}

async fn path_answer(
    server: &ApiServer,
    path: &str,
    query: &Query,
    accept: Option<&str>,
) -> Result<Response<Body>, ApiError> {
    let registry = server.registry();
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    let aggregated =
        accept.is_some_and(|accept| accept.contains("as=APIGroupDiscoveryList") && accept.contains("v=v2"));
    let hashes = server.show_hashes();
    let value = match parts.as_slice() {
        ["healthz" | "livez" | "readyz", ..] => return Ok(health::answer(server, &parts, query).await),
        [".well-known", "openid-configuration"] | ["openid", "v1", "jwks"] => {
            let tokens = server.access().authenticators().tokens.as_ref().ok_or(ApiError::NoSuchResource)?;
            match parts.first() {
                Some(&"openid") => tokens.json_web_keys(),
                _ => tokens.openid_configuration(&format!("https://{}{KEYS_PATH}", server.address())),
            }
        }
        ["version"] => server.version(),
        ["debug", "stored-versions"] => {
            let census = stored::take_census(server.objects().store().as_ref(), |_| {}).await?;
            serde_json::to_value(census).map_err(|error| ApiError::Internal(error.to_string()))?
        }
        ["openapi", "v2"] => openapi::version_2(&registry, server.release()),
        ["openapi", "v3"] => openapi::index(&registry, server.release()),
        ["openapi", "v3", "api", version] | ["openapi", "v3", "apis", _, version] => {
            let group = if parts.len() == 5 { parts[3] } else { "" };
            let version = GroupVersion::new(group, *version).map_err(|_| ApiError::NoSuchResource)?;
            openapi::document(&registry, &version, server.release()).ok_or(ApiError::NoSuchResource)?
        }
        ["api" | "apis"] if aggregated => {
            let body = discovery::aggregated(&registry, if parts == ["api"] { Half::Core } else { Half::Named });
            let kind = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
            return Ok(render::bytes_answer(200, body.to_string().into_bytes(), kind));
        }
        ["api"] => discovery::core_versions(&registry, &server.address()),
        ["apis"] => discovery::groups(&registry),
        ["apis", group] => discovery::group(&registry, group).ok_or(ApiError::NoSuchResource)?,
        ["api", version] | ["apis", _, version] => {
            let group = if parts.len() == 3 { parts[1] } else { "" };
            let version = GroupVersion::new(group, *version).map_err(|_| ApiError::NoSuchResource)?;
            discovery::resources(&registry, &version, hashes).ok_or(ApiError::NoSuchResource)?
        }
        [] => json!({"paths": paths(server)}),
        _ => return Err(ApiError::NoSuchResource),
    };
    let media = negotiate::accept(accept, Protobuf::Impossible).map_or(Media::Json, |accepted| accepted.media);
    Ok(render::value(200, &value, media))
}

fn paths(server: &ApiServer) -> Vec<String> {
    let mut paths: Vec<String> = ["/healthz", "/livez", "/readyz", "/version"].map(String::from).to_vec();
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
