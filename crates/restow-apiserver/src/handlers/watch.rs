//! Watch: streams the changes of a collection.

use crate::error::ApiError;
use crate::error::status::status_of;
use crate::handlers::pages::Pages;
use crate::handlers::{Call, HandlerResponse, list};
use crate::printing;
use crate::request::negotiation::{IncludeObject, Media, Representation};
use crate::resource::Resource;
use crate::resource::codec::Opening;
use crate::resource::codec::{self, Typed};
use crate::storage::watch_cache::{CacheEvent, Subscription};
use bytes::Bytes;
use restow_api::GroupVersion;
use restow_apimachinery::object::Object;
use restow_apimachinery::selector::{FieldSelector, Selector};
use restow_apimachinery::types;
use restow_store::{At, Change, Event, KeyRange, RangeResponse, Revision, Store, StoreError, Watch, WatchRequest};
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// The interval of bookmarks.
const BOOKMARK_INTERVAL: Duration = Duration::from_secs(60);
/// The timeout of a watch if the client sets none.
const DEFAULT_SECONDS: u64 = 1800;

/// A running watch. It yields lines of JSON, or frames of protobuf.
pub(crate) struct WatchStream {
    resource: Arc<Resource>,
    version: GroupVersion,
    selector: Selector,
    shape: Representation,
    columns_sent: bool,
    media: Media,
    /// The stored prefix of objects that are stored in the requested version. With it, events can be sent without
    /// decoding.
    plain: Option<Opening>,
    /// The pages of initial objects that are not sent yet.
    initial: Option<Initial>,
    source: Source,
    store: Arc<dyn Store>,
    /// The watched keys.
    range: KeyRange,
    /// Events that are not encoded yet. Each is encoded when the client has taken the one before it, so that a watch
    /// that nobody reads takes little memory.
    taken: VecDeque<Arc<CacheEvent>>,
    /// Encoded events.
    ready: VecDeque<Bytes>,
    bookmarks: Option<Instant>,
    /// Whether to send a bookmark after the received events.
    bookmark_due: bool,
    /// The revision up to which events were received.
    delivered: Revision,
    end: Instant,
    ended: bool,
}

/// The initial objects of a watch (`sendInitialEvents`).
struct Initial {
    pages: Pages,
    /// Whether to send the `k8s.io/initial-events-end` bookmark.
    marked: bool,
}

/// The source of events: the watch cache, or a watch on the store.
enum Source {
    WatchCache(Subscription),
    Store(Watch),
}

/// Why a source has ended.
enum SourceEnd {
    /// The watch cache no longer has the next event.
    FellBehind,
    /// The store has compacted the next event.
    Compacted,
    /// Reading failed.
    Failed(ApiError),
}

pub(super) async fn watch(call: &Call<'_>) -> Result<HandlerResponse, ApiError> {
    let storage = call.resource.storage.as_ref().ok_or(ApiError::MethodNotAllowed)?;
    let mut selector = call.query.selector()?;
    list::check_field_selector(call, &selector)?;
    if !call.target.name.is_empty() {
        selector.fields = FieldSelector::only("metadata.name", &call.target.name);
    }
    // With a name in the selector, only its key is watched.
    let range = list::key_range(call, storage, &selector, None);
    let seconds = call.query.number("timeoutSeconds")?.and_then(|seconds| u64::try_from(seconds).ok());
    let seconds = seconds.filter(|seconds| *seconds > 0).unwrap_or(DEFAULT_SECONDS).min(24 * 3600);
    let wants_bookmarks = call.query.is_on("allowWatchBookmarks");
    let (initial, from) = starting_point(call, &range).await?;
    let source = source(call, &storage.folder(), range.clone(), from).await?;
    let plain =
        selector.is_everything() && call.accepted.shape == Representation::Whole && call.accepted.media != Media::Yaml;
    let mut stream = WatchStream {
        resource: call.resource.clone(),
        version: call.version.clone(),
        plain: plain.then(|| call.resource.opening(&call.version)),
        selector,
        shape: call.accepted.shape,
        columns_sent: false,
        media: call.accepted.media,
        initial: None,
        source,
        store: call.handlers.objects().store().clone(),
        range,
        taken: VecDeque::new(),
        ready: VecDeque::new(),
        bookmarks: wants_bookmarks.then(|| Instant::now() + BOOKMARK_INTERVAL),
        bookmark_due: false,
        delivered: from,
        end: Instant::now() + Duration::from_secs(seconds),
        ended: false,
    };
    if let Some((first, pages)) = initial {
        let marked = call.query.is_on("sendInitialEvents") && wants_bookmarks;
        stream.send_initial(first, Initial { pages, marked }).await?;
    }
    Ok(HandlerResponse::Watch(Box::new(stream)))
}

/// The first page of initial objects, if the client wants them, and the revision after which events follow.
async fn starting_point(
    call: &Call<'_>,
    range: &KeyRange,
) -> Result<(Option<(RangeResponse, Pages)>, Revision), ApiError> {
    let wanted = list::requested_resource_version(call)?.unwrap_or(0);
    let list_first =
        call.query.is_on("sendInitialEvents") || wanted == 0 && call.query.text("sendInitialEvents").is_empty();
    if !list_first {
        let revision = match wanted {
            0 => call.handlers.objects().store().status().await?.revision,
            wanted => Revision::new(wanted),
        };
        return Ok((None, revision));
    }
    let mut pages = Pages::new(call.handlers.objects().store().clone(), range.clone(), At::Latest);
    let first = pages.next().await?;
    let revision = first.revision;
    if wanted > revision.get() {
        return Err(ApiError::TooLargeResourceVersion { requested: wanted, current: revision.get() });
    }
    Ok((Some((first, pages)), revision))
}

async fn source(call: &Call<'_>, folder: &str, range: KeyRange, after: Revision) -> Result<Source, ApiError> {
    if let Ok(subscription) = call.handlers.watch_cache().subscribe(folder, range.clone(), after) {
        return Ok(Source::WatchCache(subscription));
    }
    history(call.handlers.objects().store(), range, after).await
}

/// A watch on the store after a revision.
async fn history(store: &Arc<dyn Store>, range: KeyRange, after: Revision) -> Result<Source, ApiError> {
    let request = WatchRequest::from(range, after.next()).with_previous().with_progress(Duration::from_secs(10));
    match store.watch(request).await {
        Ok(watch) => Ok(Source::Store(watch)),
        Err(StoreError::Compacted { oldest }) => Err(too_old(after, Some(oldest))),
        Err(StoreError::HistoryLost) => Err(too_old(after, None)),
        Err(error) => Err(error.into()),
    }
}

fn too_old(after: Revision, oldest: Option<Revision>) -> ApiError {
    let oldest = oldest.map(|oldest| format!(" ({oldest})")).unwrap_or_default();
    ApiError::Expired { message: format!("too old resource version: {after}{oldest}"), continue_token: None }
}

impl WatchStream {
    /// The media type of the events.
    pub(crate) fn media(&self) -> Media {
        self.media
    }

    /// The next encoded event; `None` when the watch has ended.
    pub(crate) async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(line) = self.ready.pop_front() {
                return Some(line);
            }
            if self.ended {
                return None;
            }
            if let Some(event) = self.taken.pop_front() {
                if let Err(error) = self.deliver(&event).await {
                    self.fail(&error);
                }
                continue;
            }
            if std::mem::take(&mut self.bookmark_due) {
                self.push_bookmark(self.delivered, false);
                continue;
            }
            if let Some(mut initial) = self.initial.take() {
                let page = initial.pages.next().await.map_err(ApiError::from);
                let begun = match page {
                    Ok(page) => self.send_initial(page, initial).await,
                    Err(error) => Err(error),
                };
                if let Err(error) = begun {
                    self.fail(&error);
                }
                continue;
            }
            let wake = self.bookmarks.unwrap_or(self.end).min(self.end);
            let resource = self.resource.clone();
            let source = &mut self.source;
            let next = tokio::time::timeout_at(wake, async {
                tokio::select! {
                    biased;
                    next = source.next() => Some(next),
                    () = resource_removed(&resource) => None,
                }
            });
            let next = match next.await {
                // The CRD was removed. All objects were removed before, and their events are delivered.
                Ok(None) => return None,
                Ok(Some(next)) => Ok(next),
                Err(elapsed) => Err(elapsed),
            };
            match next {
                Ok(Ok((events, reached))) => self.take(events, reached),
                Ok(Err(SourceEnd::FellBehind)) => self.resume_from_store().await,
                Ok(Err(SourceEnd::Compacted)) => self.fail(&too_old(self.delivered, None)),
                Ok(Err(SourceEnd::Failed(error))) => self.fail(&error),
                Err(_) if Instant::now() >= self.end => self.ended = true,
                Err(_) => self.bookmark().await,
            }
        }
    }

    /// Sends a page of initial objects as ADDED events.
    async fn send_initial(&mut self, page: RangeResponse, initial: Initial) -> Result<(), ApiError> {
        let RangeResponse { entries, more, .. } = page;
        let plain = self.plain.as_ref().filter(|_| self.resource.reads_as_stored());
        if entries.iter().all(|entry| plain.is_some_and(|opening| opening.opens(&entry.value))) {
            for entry in entries {
                let created = Event { revision: entry.mod_revision, change: Change::Put(entry), previous: None };
                self.deliver(&created.into()).await?;
            }
        } else {
            for object in self.resource.decode_all(&entries, &self.version).await? {
                if self.selector.matches(&object) {
                    self.push("ADDED", object);
                }
            }
        }
        match more {
            true => self.initial = Some(initial),
            false if initial.marked => self.push_bookmark(self.delivered, true),
            false => {}
        }
        Ok(())
    }

    fn take(&mut self, events: Vec<Arc<CacheEvent>>, reached: Revision) {
        self.taken.extend(events);
        self.delivered = self.delivered.max(reached);
    }

    async fn bookmark(&mut self) {
        self.bookmarks = Some(Instant::now() + BOOKMARK_INTERVAL);
        // Events that arrived since the timeout are delivered before the bookmark.
        if let Source::WatchCache(subscription) = &mut self.source {
            match subscription.take() {
                Ok((events, reached)) => self.take(events, reached),
                Err(_) => return self.resume_from_store().await,
            }
        }
        self.bookmark_due = true;
    }

    /// Continues with a watch on the store, because the watch cache no longer has the next event.
    async fn resume_from_store(&mut self) {
        let lost = matches!(&self.source, Source::WatchCache(subscription) if subscription.is_closed());
        let found = match lost {
            true => Err(too_old(self.delivered, None)),
            false => history(&self.store, self.range.clone(), self.delivered).await,
        };
        match found {
            Ok(source) => self.source = source,
            Err(error) => self.fail(&error),
        }
    }

    async fn deliver(&mut self, event: &CacheEvent) -> Result<(), ApiError> {
        // A value that was just written has all defaults of its schema. A deleted one may be older than the schema.
        let complete = event.current.is_some() || self.resource.reads_as_stored();
        let media = self.media;
        if let Some(line) = self.plain.as_ref().filter(|_| complete).and_then(|opening| rendered(event, opening, media))
        {
            self.ready.push_back(line);
            return Ok(());
        }
        let current = match &event.current {
            Some(entry) => Some(self.resource.decode(entry, &self.version).await?),
            None => None,
        };
        let previous = match &event.previous {
            // The previous object is needed for a selector, and for a DELETED event.
            Some(entry) if current.is_none() || !self.selector.is_everything() => {
                let previous = self.resource.decode(entry, &self.version).await;
                Some(previous.map_err(|error| match error {
                    ApiError::Corrupt(object) if current.is_none() => ApiError::CorruptDeleted(object),
                    other => other,
                })?)
            }
            _ => None,
        };
        let created = event.previous.is_none();
        let matched = previous.as_ref().is_some_and(|object| self.selector.matches(object))
            || self.selector.is_everything() && !created;
        match current {
            Some(object) if self.selector.matches(&object) => {
                self.push(if matched { "MODIFIED" } else { "ADDED" }, object);
            }
            current if matched => {
                // A DELETED event has the revision of the deletion, also if the object only stopped matching.
                let Some(mut object) = current.or(previous) else { return Ok(()) };
                object.set_meta("resourceVersion", &event.revision.to_string());
                self.push("DELETED", object);
            }
            _ => {}
        }
        Ok(())
    }

    fn push(&mut self, change: &str, object: Object) {
        let object = match self.shape {
            Representation::Whole => object.into_value(),
            Representation::MetadataOnly => printing::metadata_only(object),
            Representation::Table(beside) => self.table(object, beside),
        };
        self.push_event(change, object);
    }

    /// A table with one row. Only the first event has the column definitions.
    fn table(&mut self, object: Object, beside: IncludeObject) -> Value {
        let metadata = json!({"resourceVersion": object.resource_version()});
        let mut table = printing::table(&self.resource, vec![object], metadata, beside);
        if std::mem::replace(&mut self.columns_sent, true) {
            table["columnDefinitions"] = Value::Null;
        }
        table
    }

    fn push_bookmark(&mut self, revision: Revision, initial_end: bool) {
        let mut metadata = json!({"resourceVersion": revision.to_string()});
        if initial_end {
            metadata["annotations"] = json!({"k8s.io/initial-events-end": "true"});
        }
        let object = json!({
            "kind": self.resource.names.kind, "apiVersion": self.version.to_string(), "metadata": metadata,
        });
        self.push("BOOKMARK", Object::from_value(object).unwrap_or_default());
    }

    fn fail(&mut self, error: &ApiError) {
        self.push_event("ERROR", status_of(error).body);
        self.ended = true;
    }

    fn push_event(&mut self, change: &str, object: Value) {
        let bytes = match self.media {
            Media::Protobuf => match types::encode_watch_frame(change, &object) {
                Ok(frame) => frame,
                Err(error) => {
                    tracing::error!(%error, "a watch event cannot be encoded as protobuf");
                    self.ended = true;
                    return;
                }
            },
            Media::Json | Media::Yaml => {
                let line = serde_json::to_vec(&printing::fields([("type", change.into()), ("object", object)]));
                let mut line = line.unwrap_or_default();
                line.push(b'\n');
                line
            }
        };
        self.ready.push_back(bytes.into());
    }
}

/// Completes when the resource has been removed.
async fn resource_removed(resource: &Resource) {
    match &resource.storage {
        Some(storage) => storage.write_gate().closing().await,
        None => std::future::pending().await,
    }
}

impl Source {
    /// The next events, and the revision that they reach.
    async fn next(&mut self) -> Result<(Vec<Arc<CacheEvent>>, Revision), SourceEnd> {
        match self {
            Source::WatchCache(subscription) => subscription.next().await.map_err(|_| SourceEnd::FellBehind),
            Source::Store(watch) => match watch.next().await {
                Some(Ok(batch)) => {
                    let events = batch.events.into_iter().map(|event| Arc::new(CacheEvent::from(event)));
                    Ok((events.collect(), batch.revision))
                }
                Some(Err(StoreError::Compacted { .. } | StoreError::HistoryLost)) | None => Err(SourceEnd::Compacted),
                Some(Err(error)) => Err(SourceEnd::Failed(error.into())),
            },
        }
    }
}
/// The encoded event for watches without selectors in the stored version; `None` if it is stored in another version. It
/// is encoded once for all watches.
fn rendered(event: &CacheEvent, opening: &Opening, media: Media) -> Option<Bytes> {
    let form = match media {
        Media::Json => 0,
        Media::Protobuf => 1,
        Media::Yaml => return None,
    };
    event.rendered(form, opening, || {
        let (change, entry) = event.kind()?;
        // The decoder reports values that cannot be read.
        if !opening.opens(&entry.value) || codec::check(&entry.value).is_err() {
            return None;
        }
        let mut bytes = Vec::with_capacity(entry.value.len() + 96);
        if media == Media::Json {
            bytes.extend_from_slice(format!("{{\"type\":\"{change}\",\"object\":").as_bytes());
            opening.splice(&entry.value, event.revision, Typed::Yes, &mut bytes);
            bytes.extend_from_slice(b"}\n");
        } else {
            opening.splice(&entry.value, event.revision, Typed::Yes, &mut bytes);
            bytes = types::transcode_watch_frame(change, &bytes).ok()?;
        }
        Some(bytes.into())
    })
}
