//! List: all objects that match, in one response, page by page (`limit`, `continue`), or as a stream.

mod items;
mod protobuf;
mod stream;

use crate::error::ApiError;
use crate::flow_control::fair_queue::YieldBudget;
use crate::handlers::pages::{Pages, revision_of};
use crate::handlers::{Call, HandlerResponse};
use crate::request::negotiation::{Media, Representation};
use crate::resource::{Scope, Storage};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use items::ItemWriter;
use protobuf::ProtobufWriter;
use restow_apimachinery::go_syntax::quote;
use restow_apimachinery::object::Object;
use restow_apimachinery::selector::Selector;
use restow_store::{At, Entry, Key, KeyRange, RangeRequest, RangeResponse, Revision, StoreError, StoreExt};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::num::IntErrorKind;
pub(crate) use stream::ListStream;

/// The estimated size of an object in bytes.
const ESTIMATED_OBJECT_BYTES: usize = 4 << 10;

/// The continue token of a list.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct ContinueToken {
    v: String,
    /// The revision of the list; -1 to continue at the latest revision.
    rv: i64,
    /// The key after which to continue, without the prefix of the collection's keys.
    start: String,
}

/// One page of entries.
#[derive(Default)]
struct Page {
    revision: Revision,
    entries: Vec<Entry>,
    objects: Vec<Object>,
    next: Option<Key>,
    remaining: Option<u64>,
}

pub(super) async fn list(call: &Call<'_>) -> Result<HandlerResponse, ApiError> {
    match (call.accepted.media, call.accepted.shape) {
        (Media::Json, _) => json_list(call).await,
        (Media::Protobuf, Representation::Whole | Representation::MetadataOnly) => protobuf_list(call).await,
        (Media::Yaml | Media::Protobuf, _) => {
            let (objects, metadata) = read_matching(call).await?;
            Ok(HandlerResponse::List { objects, metadata })
        }
    }
}

async fn json_list(call: &Call<'_>) -> Result<HandlerResponse, ApiError> {
    let storage = call.resource.storage.as_ref().ok_or(ApiError::MethodNotAllowed)?;
    let mut items = ItemWriter::new(call);
    if !call.query.selector()?.is_everything() {
        let (objects, metadata) = read_matching(call).await?;
        let mut body = items.begin(&metadata, &[]);
        let mut breath = YieldBudget::default();
        for object in objects {
            let before = body.len();
            items.write_object(object, &mut body)?;
            breath.spend(body.len() - before).await;
        }
        items.end(&mut body);
        return Ok(HandlerResponse::json(200, body));
    }
    let whole = limit(call)? == 0;
    let page = if whole && !storage.has_undecodable() && !call.resource.converter.calls_webhook() {
        let (page, pages) = first_page(call, storage).await?;
        if let Some(pages) = pages {
            let metadata = list_metadata(call, &page)?;
            return Ok(HandlerResponse::Stream(Box::new(ListStream::new(items, &metadata, page.entries, pages))));
        }
        page
    } else {
        read(call).await?
    };
    let mut body = items.begin(&list_metadata(call, &page)?, &page.entries);
    items.write(&page.entries, &mut body).await?;
    items.end(&mut body);
    if whole && call.target.namespace.is_empty() {
        storage.set_has_undecodable(false);
    }
    Ok(HandlerResponse::json(200, body))
}

async fn protobuf_list(call: &Call<'_>) -> Result<HandlerResponse, ApiError> {
    let storage = call.resource.storage.as_ref().ok_or(ApiError::MethodNotAllowed)?;
    let mut list = ProtobufWriter::new(call)?;
    if !call.query.selector()?.is_everything() {
        let (objects, metadata) = read_matching(call).await?;
        let mut breath = YieldBudget::default();
        for object in objects {
            list.write_object(object)?;
            breath.spend(ESTIMATED_OBJECT_BYTES).await;
        }
        return list.finish(&metadata);
    }
    let (first, mut pages) = match limit(call)? {
        0 => first_page(call, storage).await?,
        _ => (read(call).await?, None),
    };
    let metadata = list_metadata(call, &first)?;
    let mut entries = first.entries;
    while let Some(rest) = &mut pages {
        // Read the next page while this one is encoded.
        let (page, written) = tokio::join!(biased; rest.next(), list.write(&entries));
        written?;
        let page = page?;
        entries = page.entries;
        pages = pages.filter(|_| page.more);
    }
    list.write(&entries).await?;
    list.finish(&metadata)
}

/// The first page of the range of a call, and the reader of the pages after it, if there are any.
async fn first_page(call: &Call<'_>, storage: &Storage) -> Result<(Page, Option<Pages>), ApiError> {
    let (at, after) = start_position(call, storage).await?;
    let range = key_range(call, storage, &Selector::default(), after.as_ref());
    let mut pages = Pages::new(call.handlers.objects().store().clone(), range, at);
    let first = pages.next().await.map_err(|error| list_error(call, error, after.as_ref()))?;
    let page = Page { revision: revision_of(at, &first), entries: first.entries, ..Page::default() };
    Ok((page, first.more.then_some(pages)))
}

/// Reads the objects that match a call and decodes them. Also returns the metadata of their list.
pub(super) async fn read_matching(call: &Call<'_>) -> Result<(Vec<Object>, Value), ApiError> {
    let page = read(call).await?;
    let metadata = list_metadata(call, &page)?;
    let objects = match call.query.selector()?.is_everything() {
        true => call.resource.decode_all(&page.entries, &call.version).await?,
        false => page.objects,
    };
    Ok((objects, metadata))
}

async fn read(call: &Call<'_>) -> Result<Page, ApiError> {
    let storage = call.resource.storage.as_ref().ok_or(ApiError::MethodNotAllowed)?;
    let selector = call.query.selector()?;
    check_field_selector(call, &selector)?;
    let limit = limit(call)?;
    let (at, after) = start_position(call, storage).await?;
    let range = key_range(call, storage, &selector, after.as_ref());
    if selector.is_everything() {
        let response = fetch(call, range.clone(), at, limit, after.as_ref()).await?;
        return whole_page(call, response, at, &range).await;
    }
    let mut page = Page::default();
    // With a selector, most objects may not match. Read page by page to bound the memory.
    let mut pages = Pages::new(call.handlers.objects().store().clone(), range, at);
    loop {
        let response = pages.next().await.map_err(|error| list_error(call, error, after.as_ref()))?;
        if page.revision == Revision::ZERO {
            page.revision = revision_of(at, &response);
        }
        let objects = call.resource.decode_all(&response.entries, &call.version).await?;
        for (entry, object) in response.entries.iter().zip(objects) {
            if !selector.matches(&object) {
                continue;
            }
            if limit > 0 && page.objects.len() == limit {
                return Ok(page);
            }
            page.objects.push(object);
            page.next = Some(entry.key.clone());
        }
        if !response.more {
            page.next = None;
            return Ok(page);
        }
    }
}

/// The maximum number of objects; 0 means all. A negative limit is ignored.
fn limit(call: &Call<'_>) -> Result<usize, ApiError> {
    Ok(call.query.number("limit")?.map_or(0, |limit| usize::try_from(limit).unwrap_or(0)))
}

/// The keys that can match, after this key. A selector for one name needs only one key.
pub(super) fn key_range(call: &Call<'_>, storage: &Storage, selector: &Selector, after: Option<&Key>) -> KeyRange {
    let namespace = &call.target.namespace;
    let placed = call.resource.scope == Scope::Cluster || !namespace.is_empty();
    let name = selector.fields.required("metadata.name").filter(|name| placed && !name.is_empty());
    let range = match name.and_then(|name| storage.key(namespace, name).ok()) {
        Some(key) => KeyRange::exactly(&key),
        None => storage.range(namespace),
    };
    match after {
        Some(after) => range.after(after),
        None => range,
    }
}

async fn whole_page(call: &Call<'_>, response: RangeResponse, at: At, range: &KeyRange) -> Result<Page, ApiError> {
    let revision = revision_of(at, &response);
    let next = response.entries.last().filter(|_| response.more).map(|entry| entry.key.clone());
    let remaining = match (&next, response.count) {
        (None, _) => None,
        (Some(_), Some(count)) => Some(count.saturating_sub(response.entries.len() as u64)),
        (Some(next), None) => {
            let rest = call.handlers.objects().store().count(range.after(next), At::Revision(revision)).await;
            rest.ok()
        }
    };
    Ok(Page { revision, entries: response.entries, objects: Vec::new(), next, remaining })
}

async fn fetch(
    call: &Call<'_>,
    range: KeyRange,
    at: At,
    limit: usize,
    after: Option<&Key>,
) -> Result<RangeResponse, ApiError> {
    let request = RangeRequest { at, ..RangeRequest::new(range) }.limit(limit);
    call.handlers.objects().store().range(request).await.map_err(|error| list_error(call, error, after))
}

/// The error of a failed list. If the revision was compacted, the client gets a token to continue at the latest
/// revision.
fn list_error(call: &Call<'_>, error: StoreError, after: Option<&Key>) -> ApiError {
    let (StoreError::Compacted { .. }, Some(after), Some(storage)) = (&error, after, &call.resource.storage) else {
        return error.into();
    };
    ApiError::Expired {
        message: "The provided continue parameter is too old to display a consistent list result. You can start a new \
                  list without the continue parameter, or use the continue token in this response to retrieve the \
                  remainder of the results. Continuing with the provided token results in an inconsistent list - \
                  objects that were created, modified, or deleted between the time the first chunk was returned and \
                  now may show up in the list."
            .into(),
        continue_token: token(storage, -1, after).ok(),
    }
}

/// The revision to read at, and the key to read after.
async fn start_position(call: &Call<'_>, storage: &Storage) -> Result<(At, Option<Key>), ApiError> {
    let (version, matching) = (call.query.text("resourceVersion"), call.query.text("resourceVersionMatch"));
    let given = call.query.text("continue");
    if !given.is_empty() {
        let token = read_token(given)
            .map_err(|why| ApiError::BadRequest(format!("invalid continue token: continue key is not valid{why}")))?;
        if !version.is_empty() && version != "0" {
            return Err(ApiError::bad_request("specifying resource version is not allowed when using continue"));
        }
        let after = Key::try_from(format!("{}{}", storage.folder(), token.start));
        let after = after.map_err(|_| {
            ApiError::BadRequest(format!("invalid continue token: continue key is not valid: {}", token.start))
        })?;
        let at = match u64::try_from(token.rv) {
            Ok(revision) => At::Revision(Revision::new(revision)),
            Err(_) => At::Latest,
        };
        return Ok((at, Some(after)));
    }
    match (matching, requested_resource_version(call)?) {
        (_, None) => Ok((At::Latest, None)),
        ("Exact", Some(exact)) => Ok((At::Revision(Revision::new(exact)), None)),
        (_, Some(oldest)) => {
            let latest = call.handlers.objects().store().status().await?.revision.get();
            match oldest > latest {
                true => Err(ApiError::TooLargeResourceVersion { requested: oldest, current: latest }),
                false => Ok((At::Latest, None)),
            }
        }
    }
}

/// The resource version in the query. Kubernetes responds to an invalid one with 400 in a list and with 500 elsewhere;
/// this server always responds with 400.
pub(super) fn requested_resource_version(call: &Call<'_>) -> Result<Option<u64>, ApiError> {
    parse_resource_version(call.query.text("resourceVersion"))
        .map_err(|problem| ApiError::BadRequest(format!("invalid resource version: resourceVersion: {problem}")))
}

/// Parses a resource version. The error has the words of Go's `strconv`.
pub(super) fn parse_resource_version(text: &str) -> Result<Option<u64>, String> {
    if text.is_empty() {
        return Ok(None);
    }
    // Go's `ParseUint` accepts no sign.
    let parsed = if text.starts_with('+') { "+".parse() } else { text.parse::<u64>() };
    parsed.map(Some).map_err(|error| {
        let (text, problem) = match error.kind() {
            IntErrorKind::PosOverflow => (quote(text), "value out of range"),
            _ => (quote(text), "invalid syntax"),
        };
        format!("Invalid value: {text}: strconv.ParseUint: parsing {text}: {problem}")
    })
}

/// Refuses a field selector with a field that the resource does not support.
pub(super) fn check_field_selector(call: &Call<'_>, selector: &Selector) -> Result<(), ApiError> {
    for field in selector.fields.names() {
        let known = matches!(field, "metadata.name" | "metadata.namespace")
            || call.resource.selectable_fields.iter().any(|selectable| selectable == field);
        if !known {
            return Err(ApiError::BadRequest(unknown_field(call, field)));
        }
    }
    Ok(())
}

/// The message for a field label that the resource does not support.
fn unknown_field(call: &Call<'_>, field: &str) -> String {
    match call.resource.selectable_fields.is_empty() {
        true => format!("{field:?} is not a known field selector: only \"metadata.name\", \"metadata.namespace\""),
        false => call.resource.strategy.unsupported_field_label(field),
    }
}

fn list_metadata(call: &Call<'_>, page: &Page) -> Result<Value, ApiError> {
    let storage = call.resource.storage.as_ref().ok_or(ApiError::MethodNotAllowed)?;
    let mut metadata = json!({"resourceVersion": page.revision.to_string()});
    if let Some(next) = &page.next {
        let revision = i64::try_from(page.revision.get()).unwrap_or(-1);
        metadata["continue"] = token(storage, revision, next)?.into();
        if let Some(remaining) = page.remaining {
            metadata["remainingItemCount"] = remaining.into();
        }
    }
    Ok(metadata)
}

fn token(storage: &Storage, revision: i64, after: &Key) -> Result<String, ApiError> {
    let key = String::from_utf8_lossy(after.as_ref());
    let start = key.strip_prefix(&storage.folder()).unwrap_or_default().to_string();
    let token = ContinueToken { v: "meta.k8s.io/v1".into(), rv: revision, start };
    let json = serde_json::to_vec(&token).map_err(|error| ApiError::Internal(error.to_string()))?;
    Ok(URL_SAFE_NO_PAD.encode(json))
}

/// Parses a continue token. The key in it must stay inside of the collection.
fn read_token(text: &str) -> Result<ContinueToken, String> {
    let decoded = URL_SAFE_NO_PAD.decode(text.trim_end_matches('='));
    let json = decoded.map_err(|error| match error {
        base64::DecodeError::InvalidByte(offset, _) => format!(": illegal base64 data at input byte {offset}"),
        other => format!(": {other}"),
    })?;
    let token: ContinueToken = serde_json::from_slice(&json).map_err(|error| format!(": {error}"))?;
    let start = token.start.strip_prefix('/').unwrap_or(&token.start);
    match token.v.as_str() {
        "meta.k8s.io/v1" if token.rv == 0 => {
            Err(": incorrect encoded start resourceVersion (version meta.k8s.io/v1)".into())
        }
        "meta.k8s.io/v1" if token.start.is_empty() => Err(": encoded start key empty (version meta.k8s.io/v1)".into()),
        "meta.k8s.io/v1" if start.split('/').any(|part| matches!(part, "" | "." | "..")) => {
            Err(format!(": {}", token.start))
        }
        "meta.k8s.io/v1" => Ok(ContinueToken { start: start.to_string(), ..token }),
        other => Err(format!(": server does not recognize this encoded version {other}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_continue_tokens_are_refused_with_kubernetes_messages() {
        let read = |token: &str| read_token(&URL_SAFE_NO_PAD.encode(token)).map(|token| (token.rv, token.start));
        let token = |rv: i64, start: &str| read(&json!({"v": "meta.k8s.io/v1", "rv": rv, "start": start}).to_string());
        assert_eq!(token(5, "default/a"), Ok((5, "default/a".into())));
        assert_eq!(token(-1, "/default/a"), Ok((-1, "default/a".into())));
        let refused = |problem: &str| Err(problem.to_string());
        assert_eq!(token(0, "a"), refused(": incorrect encoded start resourceVersion (version meta.k8s.io/v1)"));
        assert_eq!(token(5, ""), refused(": encoded start key empty (version meta.k8s.io/v1)"));
        for start in ["../secrets/a", "a/../../b", "a//b", ".", "a/", "/"] {
            assert_eq!(token(5, start), refused(&format!(": {start}")), "{start}");
        }
        assert_eq!(
            read(r#"{"v": "meta.k8s.io/v2", "rv": 1, "start": "a"}"#),
            refused(": server does not recognize this encoded version meta.k8s.io/v2")
        );
        for junk in ["", "null", "[]", "{}", r#"{"v": 1}"#, "\u{0}"] {
            assert!(read(junk).is_err(), "{junk}");
        }
        assert!(read_token("%%%").is_err());
    }

    #[test]
    fn resource_versions_are_numbers_without_a_sign() {
        assert_eq!(parse_resource_version(""), Ok(None));
        assert_eq!(parse_resource_version("18446744073709551615"), Ok(Some(u64::MAX)));
        for (text, problem) in [
            ("abc", "invalid syntax"),
            ("-1", "invalid syntax"),
            ("+1", "invalid syntax"),
            (" 1", "invalid syntax"),
            ("18446744073709551616", "value out of range"),
        ] {
            let expected = format!("Invalid value: {text:?}: strconv.ParseUint: parsing {text:?}: {problem}");
            assert_eq!(parse_resource_version(text), Err(expected));
        }
    }
}
