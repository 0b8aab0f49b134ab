//! Reading all objects that match, whole or page by page.

mod items;
mod protobuf;
mod stream;

use crate::error::ApiError;
use crate::flow_control::fair_queue::YieldBudget;
use crate::handlers::pages::{Pages, revision_of};
use crate::handlers::{Answer, Call};
use crate::request::negotiation::{Media, Shape};
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

/// About how many bytes an object has.
const ABOUT: usize = 4 << 10;

/// Where a list goes on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct ContinueToken {
    v: String,
    /// The revision of the list; -1 to go on at the latest one.
    rv: i64,
    /// The key after which to go on, without the part that all keys of the collection share.
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

pub(super) async fn list(call: &Call<'_>) -> Result<Answer, ApiError> {
    match (call.accepted.media, call.accepted.shape) {
        (Media::Json, _) => json_list(call).await,
        (Media::Protobuf, Shape::Whole | Shape::MetadataOnly) => protobuf_list(call).await,
        (Media::Yaml | Media::Protobuf, _) => {
            let (objects, metadata) = matching(call).await?;
            Ok(Answer::List { objects, metadata })
        }
    }
}

async fn json_list(call: &Call<'_>) -> Result<Answer, ApiError> {
    let storage = call.resource.storage.as_ref().ok_or(ApiError::MethodNotAllowed)?;
    let mut items = ItemWriter::new(call);
    if !call.query.selector()?.is_everything() {
        let (objects, metadata) = matching(call).await?;
        let mut body = items.begin(&metadata, &[]);
        let mut breath = YieldBudget::default();
        for object in objects {
            let before = body.len();
            items.write_object(object, &mut body)?;
            breath.spend(body.len() - before).await;
        }
        items.end(&mut body);
        return Ok(Answer::json(200, body));
    }
    let whole = limit(call)? == 0;
    let page = if whole && !storage.is_troubled() && !call.resource.converter.asks_others() {
        let (page, pages) = first_page(call, storage).await?;
        if let Some(pages) = pages {
            let metadata = list_metadata(call, &page)?;
            return Ok(Answer::Stream(Box::new(ListStream::new(items, &metadata, page.entries, pages))));
        }
        page
    } else {
        read(call).await?
    };
    let mut body = items.begin(&list_metadata(call, &page)?, &page.entries);
    items.write(&page.entries, &mut body).await?;
    items.end(&mut body);
    if whole && call.target.namespace.is_empty() {
        storage.set_troubled(false);
    }
    Ok(Answer::json(200, body))
}

async fn protobuf_list(call: &Call<'_>) -> Result<Answer, ApiError> {
    let storage = call.resource.storage.as_ref().ok_or(ApiError::MethodNotAllowed)?;
    let mut list = ProtobufWriter::new(call)?;
    if !call.query.selector()?.is_everything() {
        let (objects, metadata) = matching(call).await?;
        let mut breath = YieldBudget::default();
        for object in objects {
            list.write_object(object)?;
            breath.spend(ABOUT).await;
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
        // The store is asked for the next page before this one is written.
        let (page, written) = tokio::join!(biased; rest.next(), list.write(&entries));
        written?;
        let page = page?;
        entries = page.entries;
        pages = pages.filter(|_| page.more);
    }
    list.write(&entries).await?;
    list.finish(&metadata)
}

/// The first page of everything that a call is about, and how to read the others where there are any.
async fn first_page(call: &Call<'_>, storage: &Storage) -> Result<(Page, Option<Pages>), ApiError> {
    let (at, after) = start(call, storage).await?;
    let range = rest(call, storage, &Selector::default(), after.as_ref());
    let mut pages = Pages::new(call.handlers.objects().store().clone(), range, at);
    let first = pages.next().await.map_err(|error| failed(call, error, after.as_ref()))?;
    let page = Page { revision: revision_of(at, &first), entries: first.entries, ..Page::default() };
    Ok((page, first.more.then_some(pages)))
}

/// The objects that a call is about, decoded, with the metadata of their list.
pub(super) async fn matching(call: &Call<'_>) -> Result<(Vec<Object>, Value), ApiError> {
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
    check_fields(call, &selector)?;
    let limit = limit(call)?;
    let (at, after) = start(call, storage).await?;
    let range = rest(call, storage, &selector, after.as_ref());
    if selector.is_everything() {
        let response = fetch(call, range.clone(), at, limit, after.as_ref()).await?;
        return whole_page(call, response, at, &range).await;
    }
    let mut page = Page::default();
    // Most of what is read may not match, so it is read as for a list in parts, and never lies in memory whole.
    let mut pages = Pages::new(call.handlers.objects().store().clone(), range, at);
    loop {
        let response = pages.next().await.map_err(|error| failed(call, error, after.as_ref()))?;
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

/// How many objects are asked for at most; 0 for all. A limit below zero is none.
fn limit(call: &Call<'_>) -> Result<usize, ApiError> {
    Ok(call.query.number("limit")?.map_or(0, |limit| usize::try_from(limit).unwrap_or(0)))
}

/// The keys of everything that can match and comes after this key. One object that is asked for by name needs no search.
pub(super) fn rest(call: &Call<'_>, storage: &Storage, selector: &Selector, after: Option<&Key>) -> KeyRange {
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
    call.handlers.objects().store().range(request).await.map_err(|error| failed(call, error, after))
}

/// Why a list cannot be read. One that cannot go on as it began gets a token to go on at the latest revision.
fn failed(call: &Call<'_>, error: StoreError, after: Option<&Key>) -> ApiError {
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

/// Where to read: at which revision, and after which key.
async fn start(call: &Call<'_>, storage: &Storage) -> Result<(At, Option<Key>), ApiError> {
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
    match (matching, wanted_revision(call)?) {
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

/// The resource version that a request asks for. Kubernetes refuses one that is none in a list, and calls it a fault of its
/// own in everything else; it is the client's in all of them.
pub(super) fn wanted_revision(call: &Call<'_>) -> Result<Option<u64>, ApiError> {
    revision(call.query.text("resourceVersion"))
        .map_err(|problem| ApiError::BadRequest(format!("invalid resource version: resourceVersion: {problem}")))
}

/// A resource version that a client gave, in Go's words where it is none.
pub(super) fn revision(text: &str) -> Result<Option<u64>, String> {
    if text.is_empty() {
        return Ok(None);
    }
    // Go's unsigned numbers have no sign at all.
    let parsed = if text.starts_with('+') { "+".parse() } else { text.parse::<u64>() };
    parsed.map(Some).map_err(|error| {
        let (text, problem) = match error.kind() {
            IntErrorKind::PosOverflow => (quote(text), "value out of range"),
            _ => (quote(text), "invalid syntax"),
        };
        format!("Invalid value: {text}: strconv.ParseUint: parsing {text}: {problem}")
    })
}

/// Refuses a field selector that names a field which cannot be selected by.
pub(super) fn check_fields(call: &Call<'_>, selector: &Selector) -> Result<(), ApiError> {
    for field in selector.fields.names() {
        let known = matches!(field, "metadata.name" | "metadata.namespace")
            || call.resource.selectable_fields.iter().any(|selectable| selectable == field);
        if !known {
            return Err(ApiError::BadRequest(unknown_field(call, field)));
        }
    }
    Ok(())
}

/// Kinds that can be selected by fields of their own have a shorter way to say no.
fn unknown_field(call: &Call<'_>, field: &str) -> String {
    match (call.resource.names.kind.as_str(), call.resource.selectable_fields.is_empty()) {
        (_, true) => format!("{field:?} is not a known field selector: only \"metadata.name\", \"metadata.namespace\""),
        ("Job", _) => format!("field label {field:?} not supported for Job"),
        _ => format!("field label not supported: {field}"),
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

/// Reads a token; the error says what is wrong with it. A token cannot lead out of its collection.
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
    fn tokens_that_are_none_are_refused_in_the_words_of_kubernetes() {
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
        assert_eq!(revision(""), Ok(None));
        assert_eq!(revision("18446744073709551615"), Ok(Some(u64::MAX)));
        for (text, problem) in [
            ("abc", "invalid syntax"),
            ("-1", "invalid syntax"),
            ("+1", "invalid syntax"),
            (" 1", "invalid syntax"),
            ("18446744073709551616", "value out of range"),
        ] {
            let expected = format!("Invalid value: {text:?}: strconv.ParseUint: parsing {text:?}: {problem}");
            assert_eq!(revision(text), Err(expected));
        }
    }
}
