//! Paths that are not resources (nonResourceURLs): health, metrics, version, discovery, OpenAPI, OpenID, debugging.

use crate::discovery::aggregation::TieBreak;
use crate::discovery::documents::{DocumentName, Sources};
use crate::discovery::openapi;
use crate::discovery::{self, DiscoveryRoot};
use crate::error::ApiError;
use crate::flow_control::fair_queue;
use crate::http::body::Body;
use crate::http::documents;
use crate::http::health;
use crate::http::render;
use crate::metrics;
use crate::request::headers;
use crate::request::negotiation::{self, Media};
use crate::request::query::Query;
use crate::request::request_info;
use crate::resource::Protobuf;
use crate::server::ApiServer;
use crate::storage::census;
use http::{HeaderMap, Response, header};
use restow_api::GroupVersion;
use restow_apimachinery::types;
use restow_auth::service_account::KEYS_PATH;
use serde_json::json;

/// The media type in which Go's clients request OpenAPI v2, and the one of the response.
pub(super) const OPENAPI_PROTOBUF: &str = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf";
pub(super) const OPENAPI_PROTOBUF_SENT: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";

/// Whether the client accepts aggregated discovery (v2). Older clients know only its beta version, which is not served any
/// more, and would read another version as an empty document.
fn accepts_aggregated_discovery(accept: &str) -> bool {
    accept.split(',').any(|range| {
        let has = |wanted: &str| range.split(';').any(|parameter| parameter.trim() == wanted);
        has("as=APIGroupDiscoveryList") && has("v=v2")
    })
}

/// Responds to a request for a path that is not a resource.
pub(super) async fn handle(
    server: &ApiServer,
    path: &str,
    query: &Query,
    accept: Option<&str>,
    headers: &HeaderMap,
) -> Result<Response<Body>, ApiError> {
    let sources = server.document_sources();
    let (registry, aggregation) = (&sources.registry, &sources.aggregation);
    let parts = request_info::parts(path);
    let aggregated = accept.is_some_and(accepts_aggregated_discovery);
    let hashes = server.show_hashes();
    let value = match parts.as_slice() {
        ["healthz" | "livez" | "readyz", ..] => return Ok(health::handle(server, &parts, query).await),
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
            let census = census::take_census(server.objects().store().as_ref(), |_| {}).await?;
            serde_json::to_value(census).map_err(|error| ApiError::Internal(error.to_string()))?
        }
        ["openapi", rest @ ..] => {
            // The first request after a change writes the whole document.
            fair_queue::wait_for_turn(usize::MAX).await;
            return handle_openapi(server, rest, query, headers).await;
        }
        ["api" | "apis"] if aggregated => {
            let root = if parts == ["api"] { DiscoveryRoot::Api } else { DiscoveryRoot::Apis };
            let make = move |sources: &Sources| {
                Some(discovery::aggregated(&sources.registry, &sources.aggregation, root).to_string().into_bytes())
            };
            let document = server.documents().find(&sources, DocumentName::Discovery(root), make).await;
            let kind = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
            return Ok(documents::document_response(document.ok_or(ApiError::NoSuchPath)?, kind, headers));
        }
        ["api"] => discovery::core_versions(registry, &server.address()),
        ["apis"] => discovery::all_groups(registry, aggregation),
        ["apis", group] => discovery::group(registry, aggregation, group).ok_or(ApiError::NoSuchPath)?,
        ["api", version] | ["apis", _, version] => {
            let group = if parts.len() == 3 { parts[1] } else { "" };
            let version = GroupVersion::new(group, *version).map_err(|_| ApiError::NoSuchResource)?;
            let known = group.is_empty() || registry.groups().contains_key(group);
            let missing = if known { ApiError::NoSuchResource } else { ApiError::NoSuchPath };
            discovery::resources(registry, &version, hashes).ok_or(missing)?
        }
        [] | ["index.html"] => json!({"paths": paths(server)}),
        _ => return Err(ApiError::NoSuchPath),
    };
    let media = negotiation::accept(accept, Protobuf::Impossible).map_or(Media::Json, |accepted| accepted.media);
    Ok(render::value(200, &value, media))
}

/// The OpenAPI documents; `parts` is what follows `/openapi`.
async fn handle_openapi(
    server: &ApiServer,
    parts: &[&str],
    query: &Query,
    headers: &HeaderMap,
) -> Result<Response<Body>, ApiError> {
    let (sources, release) = (server.document_sources(), server.release());
    let documents = server.documents();
    let json = Media::Json.content_type();
    let (document, kind) = match parts {
        ["v2"] if headers::text(headers, header::ACCEPT).is_some_and(|accept| accept.contains(OPENAPI_PROTOBUF)) => {
            let make =
                move |sources: &Sources| types::encode_openapi_v2(&openapi::version_2(&sources.registry, release)).ok();
            (documents.find(&sources, DocumentName::OpenApiV2Protobuf, make).await, OPENAPI_PROTOBUF_SENT)
        }
        ["v2"] => {
            let make =
                move |sources: &Sources| Some(openapi::version_2(&sources.registry, release).to_string().into_bytes());
            (documents.find(&sources, DocumentName::OpenApiV2, make).await, json)
        }
        ["v3"] => {
            let make = move |sources: &Sources| {
                Some(openapi::index(&sources.registry, &sources.aggregation, release).to_string().into_bytes())
            };
            (documents.find(&sources, DocumentName::OpenApiV3Index, make).await, json)
        }
        ["v3", "api", version] | ["v3", "apis", _, version] => {
            let group = if parts.len() == 4 { parts[2] } else { "" };
            let version = GroupVersion::new(group, *version).map_err(|_| ApiError::NoSuchResource)?;
            let path = format!("/openapi/v3/{}", openapi::path_of(&version));
            let name = DocumentName::OpenApiV3(version.clone());
            let make = move |sources: &Sources| {
                openapi::document(&sources.registry, &version, release)
                    .map(|document| document.to_string().into_bytes())
            };
            let document = documents.find(&sources, name, make).await.ok_or(ApiError::NoSuchResource)?;
            return Ok(documents::versioned_document_response(document, &path, query.text("hash"), headers));
        }
        _ => (None, json),
    };
    Ok(documents::document_response(document.ok_or(ApiError::NoSuchResource)?, kind, headers))
}

/// The metrics as text. They include the health checks, so these run first.
async fn metrics(server: &ApiServer) -> Response<Body> {
    health::check(server).await;
    render::bytes_response(200, server.metrics().render().into_bytes(), metrics::CONTENT_TYPE)
}

/// The paths that `/` lists.
fn paths(server: &ApiServer) -> Vec<String> {
    let Sources { registry, aggregation } = server.document_sources();
    let mut paths: Vec<String> = ["/healthz", "/livez", "/metrics", "/readyz", "/version"].map(String::from).to_vec();
    for (name, versions) in aggregation.ordered_groups(&registry, TieBreak::Group) {
        let root = if name.is_empty() { "/api".to_string() } else { format!("/apis/{name}") };
        paths.extend(versions.iter().map(|version| format!("{root}/{version}")));
        paths.push(root);
    }
    paths.sort();
    paths
}
