//! Range reads. Long ranges are read in pages at one revision, so that no message becomes too large.

use crate::cluster::CallKind;
use crate::failure::{CallError, Rejection};
use crate::keyspace::{EtcdRange, number};
use crate::proto;
use crate::store::EtcdStore;
use bytes::{BufMut, Bytes, BytesMut};
use restow_store::{At, Content, RangeRequest, RangeResponse, Revision, StoreError};

/// The size of the first page, in entries. Later pages depend on the size of the entries.
const FIRST_PAGE: usize = 1000;
const MAX_PAGE: usize = 10_000;
const MIN_PAGE: usize = 16;
/// The size of a page, in bytes, that is aimed at.
const PAGE_BYTES: usize = 8 * 1024 * 1024;
/// How often a list at the latest revision is restarted because that revision was compacted meanwhile. After that, it is
/// read in one page.
const MAX_RESTARTS: usize = 3;

impl EtcdStore {
    pub(crate) async fn read_range(&self, request: RangeRequest) -> Result<RangeResponse, StoreError> {
        let at = match request.at {
            At::Latest => 0,
            At::Revision(wanted) => match i64::try_from(wanted.get()) {
                // etcd takes 0 for the latest revision. Nothing is stored at revision 1.
                Ok(number) => number.max(1),
                Err(_) => return Err(self.future_revision(wanted).await),
            },
        };
        let mut restarts = 0;
        loop {
            let pages = Pages {
                range: self.keyspace.range(&request.range),
                at,
                limit: request.limit.map_or(usize::MAX, |limit| limit.get()),
                content: request.content,
                whole: restarts == MAX_RESTARTS,
            };
            let error = match pages.fetch(self).await {
                Ok(found) => return self.translate(found),
                Err(error) => error,
            };
            match (error, request.at) {
                (CallError::Rejected(Rejection::Compacted), At::Latest) if restarts < MAX_RESTARTS => restarts += 1,
                (CallError::Rejected(Rejection::Compacted), at) => {
                    let requested = if let At::Revision(requested) = at { requested } else { Revision::ZERO };
                    return Err(self.compacted(requested.next()).await);
                }
                (CallError::Rejected(Rejection::FutureRevision), At::Revision(requested)) => {
                    return Err(self.future_revision(requested).await);
                }
                (error, _) => return Err(error.into()),
            }
        }
    }

    fn translate(&self, found: Found) -> Result<RangeResponse, StoreError> {
        let entries: Result<_, _> = found.entries.into_iter().map(|entry| self.keyspace.entry(entry)).collect();
        Ok(RangeResponse { revision: found.revision, entries: entries?, more: found.more, count: Some(found.count) })
    }
}

/// A range to read.
struct Pages {
    range: EtcdRange,
    /// The revision, or 0 for the latest.
    at: i64,
    limit: usize,
    content: Content,
    /// Whether to read everything in one page.
    whole: bool,
}

/// What was read.
#[derive(Default)]
struct Found {
    revision: Revision,
    entries: Vec<proto::KeyValue>,
    more: bool,
    count: u64,
}

impl Pages {
    async fn fetch(mut self, store: &EtcdStore) -> Result<Found, CallError> {
        let mut found = Found::default();
        let mut page = FIRST_PAGE;
        let mut first = true;
        loop {
            let seen = store.rollback_detector.seen();
            let wanted = self.limit - found.entries.len();
            let answer = match self.page(store, wanted.min(page)).await {
                Err(CallError::Rejected(Rejection::ResponseTooLarge(_))) if page > 1 => {
                    page = (wanted.min(page) / 2).max(1);
                    continue;
                }
                other => other?,
            };
            if first {
                found.revision = store.rollback_detector.observe(seen, answer.header);
                found.count = answer.count.try_into().unwrap_or_default();
                self.at = if self.at == 0 { number(found.revision.get()) } else { self.at };
                first = false;
            }
            found.more = answer.more;
            page = next_page(&answer.kvs).unwrap_or(page);
            let end = answer.kvs.last().map(|entry| after(&entry.key));
            found.entries.extend(answer.kvs);
            match end {
                Some(start) if answer.more && found.entries.len() < self.limit => self.range.key = start,
                _ => return Ok(found),
            }
        }
    }

    async fn page(&self, store: &EtcdStore, limit: usize) -> Result<proto::RangeResponse, CallError> {
        // etcd takes 0 for no limit.
        let limit = if self.whole { self.limit } else { limit };
        let limit = if limit == usize::MAX { 0 } else { i64::try_from(limit).unwrap_or(0) };
        let request = proto::RangeRequest {
            key: self.range.key.clone(),
            range_end: self.range.range_end.clone(),
            limit: if self.content == Content::CountOnly { 0 } else { limit },
            revision: self.at,
            serializable: false,
            keys_only: self.content == Content::KeysOnly,
            count_only: self.content == Content::CountOnly,
        };
        let call = store.cluster.call(CallKind::Read, |client| {
            let request = request.clone();
            async move { client.kv().range(client.request(request)).await }
        });
        call.await
    }
}

/// How many entries of this size fill a page.
fn next_page(entries: &[proto::KeyValue]) -> Option<usize> {
    let bytes: usize = entries.iter().map(|entry| entry.key.len() + entry.value.len()).sum();
    let fitting = (PAGE_BYTES * entries.len()).checked_div(bytes)?;
    Some(fitting.clamp(MIN_PAGE, MAX_PAGE))
}

fn after(key: &[u8]) -> Bytes {
    let mut next = BytesMut::with_capacity(key.len() + 1);
    next.put_slice(key);
    next.put_u8(0);
    next.freeze()
}
