//! Reads a collection page by page at one revision, so that it is never in memory as a whole.

use restow_store::{At, KeyRange, RangeRequest, RangeResponse, Revision, Store, StoreError};
use std::sync::Arc;

/// The size of the first page, before the size and number of the objects are known.
const FIRST_PAGE_OBJECTS: usize = 250;
/// The number of pages that a collection is divided into: enough to read one while another is sent.
const TARGET_PAGES: u64 = 16;
/// The approximate size of a page. etcd counts the remaining keys for each page, so small pages are slow; large ones
/// take memory.
const MIN_PAGE_BYTES: usize = 1 << 20;
const MAX_PAGE_BYTES: usize = 4 << 20;

/// A collection that is read page by page.
pub(super) struct Pages {
    store: Arc<dyn Store>,
    /// The keys that remain.
    range: KeyRange,
    at: At,
    size: usize,
    /// The total number of entries, if the store reports it.
    total: Option<u64>,
}

impl Pages {
    pub(super) fn new(store: Arc<dyn Store>, range: KeyRange, at: At) -> Self {
        Pages { store, range, at, size: FIRST_PAGE_OBJECTS, total: None }
    }

    /// The next page; its `more` says whether another one follows.
    pub(super) async fn next(&mut self) -> Result<RangeResponse, StoreError> {
        let request = RangeRequest { at: self.at, ..RangeRequest::new(self.range.clone()) }.limit(self.size);
        let page = self.store.range(request).await?;
        self.at = At::Revision(revision_of(self.at, &page));
        self.total = self.total.or(page.count);
        if let Some(last) = page.entries.last() {
            self.range = self.range.after(&last.key);
            let bytes: usize = page.entries.iter().map(|entry| entry.value.len()).sum();
            self.size = next_size(bytes / page.entries.len(), self.total);
        }
        Ok(page)
    }
}

/// The revision that a range was read at.
pub(super) fn revision_of(at: At, response: &RangeResponse) -> Revision {
    match at {
        At::Latest => response.revision,
        At::Revision(revision) => revision,
    }
}

/// The size of the next page, given the size of an object and the number of objects.
fn next_size(bytes_each: usize, total: Option<u64>) -> usize {
    let fitting = |bytes: usize| (bytes / bytes_each.max(1)).max(1);
    let share = usize::try_from(total.unwrap_or(0) / TARGET_PAGES).unwrap_or(usize::MAX);
    share.clamp(fitting(MIN_PAGE_BYTES), fitting(MAX_PAGE_BYTES))
}

#[cfg(test)]
mod tests {
    use super::*;
    use restow_store::conformance::ModelStore;
    use restow_store::{Key, StoreExt};

    #[test]
    fn page_size_grows_with_the_collection_up_to_a_maximum_of_bytes() {
        for (bytes_each, total, expected) in [
            (2048, Some(1_000), 512),
            (2048, Some(16_000), 1_000),
            (2048, Some(100_000), 2_048),
            (2048, None, 512),
            (3 << 20, Some(100_000), 1),
            (0, Some(u64::MAX), 4 << 20),
        ] {
            assert_eq!(next_size(bytes_each, total), expected, "{bytes_each} bytes each, {total:?} in all");
        }
    }

    #[tokio::test]
    async fn all_pages_are_read_at_the_revision_of_the_first() {
        let store: Arc<dyn Store> = Arc::new(ModelStore::default());
        let key = |number: usize| Key::try_from(format!("/core/things/{number:05}")).unwrap();
        for number in 0..FIRST_PAGE_OBJECTS + 3 {
            store.put(&key(number), "{}".into()).await.unwrap();
        }
        let mut pages = Pages::new(store.clone(), KeyRange::prefix("/core/things/"), At::Latest);
        let first = pages.next().await.unwrap();
        assert_eq!((first.entries.len(), first.more), (FIRST_PAGE_OBJECTS, true));
        store.put(&key(FIRST_PAGE_OBJECTS), "[]".into()).await.unwrap();
        store.put(&key(FIRST_PAGE_OBJECTS + 3), "{}".into()).await.unwrap();
        let rest = pages.next().await.unwrap();
        let values: Vec<_> = rest.entries.iter().map(|entry| &entry.value[..]).collect();
        assert_eq!((values, rest.more), (vec![&b"{}"[..]; 3], false));
    }
}
