//! Writes responses in the media type and shape that the client accepts.

use crate::error::ApiError;
use crate::error::status::status_of;
use crate::flow_control::fair_queue::FlowHandle;
use crate::handlers::Interrupted;
use crate::handlers::watch::WatchStream;
use crate::http::body::{Body, StreamKind};
use crate::printing;
use crate::request::negotiation::{Accepted, Media, Representation};
use crate::resource::{Origin, Resource};
use bytes::Bytes;
use futures::{Stream, StreamExt};
use http::{HeaderValue, Response, header};
use restow_api::GroupVersion;
use restow_apimachinery::object::Object;
use restow_apimachinery::types;
use serde_json::{Value, json};

/// A response with this value as its body.
pub(crate) fn value(code: u16, value: &Value, media: Media) -> Response<Body> {
    let bytes = match media {
        // Faster than through a string.
        Media::Json => serde_json::to_vec(value).unwrap_or_default(),
        Media::Yaml => match serde_saphyr::to_string(value) {
            Ok(text) => text.into_bytes(),
            Err(error) => return failure(&ApiError::Internal(format!("cannot write YAML: {error}")), Media::Json),
        },
        Media::Protobuf => match types::encode_protobuf(value) {
            Ok(bytes) => bytes,
            Err(error) => return failure(&ApiError::Internal(format!("cannot write protobuf: {error}")), Media::Json),
        },
    };
    bytes_response(code, bytes, media.content_type())
}

/// A response with these bytes.
pub(crate) fn bytes_response(code: u16, bytes: impl Into<Bytes>, content_type: &'static str) -> Response<Body> {
    body_response(code, Body::Whole(bytes.into()), content_type)
}

fn body_response(code: u16, body: Body, content_type: &'static str) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = http::StatusCode::from_u16(code).unwrap_or(http::StatusCode::INTERNAL_SERVER_ERROR);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    response
}

/// A response without a body.
pub(crate) fn nothing() -> Response<Body> {
    let mut response = Response::new(Body::Whole(Bytes::new()));
    *response.status_mut() = http::StatusCode::NO_CONTENT;
    response
}

/// A response to a request that failed.
pub(crate) fn failure(error: &ApiError, media: Media) -> Response<Body> {
    if let ApiError::NoSuchPath = error {
        return bytes_response(404, format!("{error}\n"), "text/plain; charset=utf-8");
    }
    let status = status_of(error);
    let mut response = value(status.code, &status.body, media);
    if let Some(after) = status.retry_after {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(after.as_secs().max(1)));
    }
    response
}

/// A response with one object.
pub(crate) fn object(code: u16, resource: &Resource, object: Object, accepted: &Accepted) -> Response<Body> {
    let plain = object.kind() == "Status";
    let body = match accepted.shape {
        _ if plain => object.into_value(),
        Representation::Whole => object.into_value(),
        Representation::MetadataOnly => printing::metadata_only(object),
        Representation::Table(beside) => {
            let metadata = json!({"resourceVersion": object.resource_version()});
            printing::table(resource, vec![object], metadata, beside)
        }
    };
    value(code, &body, accepted.media)
}

/// A response with a list of objects.
pub(crate) fn list(
    resource: &Resource,
    version: &GroupVersion,
    objects: Vec<Object>,
    metadata: Value,
    accepted: &Accepted,
) -> Response<Body> {
    let (kind, api_version, items): (_, _, Vec<Value>) = match accepted.shape {
        Representation::Table(beside) => {
            return value(200, &printing::table(resource, objects, metadata, beside), accepted.media);
        }
        Representation::MetadataOnly => {
            let items = objects.into_iter().map(printing::metadata_only).collect();
            ("PartialObjectMetadataList", "meta.k8s.io/v1".to_string(), items)
        }
        Representation::Whole => {
            // Protobuf needs to know what each item is; JSON says it for custom resources only.
            let typed = resource.origin == Origin::Custom || accepted.media == Media::Protobuf;
            let items = objects.into_iter().map(|mut object| {
                if !typed {
                    object.set("apiVersion", None);
                    object.set("kind", None);
                }
                object.into_value()
            });
            (resource.names.list_kind.as_str(), version.to_string(), items.collect())
        }
    };
    let body = printing::fields([
        ("kind", kind.into()),
        ("apiVersion", api_version.into()),
        ("metadata", metadata),
        ("items", Value::Array(items)),
    ]);
    value(200, &body, accepted.media)
}

/// A response that streams a watch until it ends or the server stops.
pub(crate) fn watch(
    changes: WatchStream,
    queue: FlowHandle,
    stopping: impl Future<Output = ()> + Send + 'static,
) -> Response<Body> {
    let media = changes.media();
    let lines = futures::stream::unfold((changes, queue), |(mut changes, queue)| async {
        let line = queue.run(changes.next()).await?;
        Some((Ok(line), (changes, queue)))
    });
    let content_type = match media {
        Media::Protobuf => "application/vnd.kubernetes.protobuf;stream=watch",
        Media::Json | Media::Yaml => "application/json",
    };
    body_response(200, Body::stream(StreamKind::Watch, lines.take_until(stopping)), content_type)
}

/// A response whose JSON is streamed in chunks.
pub(crate) fn chunks(chunks: impl Stream<Item = Result<Bytes, Interrupted>> + Send + 'static) -> Response<Body> {
    body_response(200, Body::stream(StreamKind::Document, chunks), Media::Json.content_type())
}
