//! Reading a whole collection page by page, at one revision, so that it never lies in memory whole.

use restow_store::{At, KeyRange, RangeRequest, RangeResponse, Revision, Store, StoreError};
use std::sync::Arc;

/// How many objects are read before it is known how large they are, and how many there are.
const FIRST: usize = 250;
/// In how many pages a collection is read: enough that reading one and sending another overlap.
const PAGES: u64 = 16;
/// How many bytes a page has, about. Small ones cost more, since etcd counts what is left for each of them; large ones
/// take memory.
const LEAST_BYTES: usize = 1 << 20;
const MOST_BYTES: usize = 4 << 20;

/// A place in a collection that is read page by page.
pub(super) struct Pages {
    store: Arc<dyn Store>,
    /// What is left.
    range: KeyRange,
    at: At,
    size: usize,
    /// How many entries there are in all, as far as the store tells.
    total: Option<u64>,
}

impl Pages {
    pub(super) fn new(store: Arc<dyn Store>, range: KeyRange, at: At) -> Self {
        Pages { store, range, at, size: FIRST, total: None }
    }

    /// The next page; it says whether there are more.
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

/// How many objects of this size make a good page of a collection of so many.
fn next_size(bytes_each: usize, total: Option<u64>) -> usize {
    let fitting = |bytes: usize| (bytes / bytes_each.max(1)).max(1);
    let share = usize::try_from(total.unwrap_or(0) / PAGES).unwrap_or(usize::MAX);
    share.clamp(fitting(LEAST_BYTES), fitting(MOST_BYTES))
}

#[cfg(test)]
mod tests {
    use super::*;
    use restow_store::conformance::ModelStore;
    use restow_store::{Key, StoreExt};

    #[test]
    fn pages_grow_with_the_collection_and_are_bounded_by_their_bytes() {
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
    async fn every_page_is_of_the_revision_of_the_first() {
        let store: Arc<dyn Store> = Arc::new(ModelStore::default());
        let key = |number: usize| Key::try_from(format!("/core/things/{number:05}")).unwrap();
        for number in 0..FIRST + 3 {
            store.put(&key(number), "{}".into()).await.unwrap();
        }
        let mut pages = Pages::new(store.clone(), KeyRange::prefix("/core/things/"), At::Latest);
        let first = pages.next().await.unwrap();
        assert_eq!((first.entries.len(), first.more), (FIRST, true));
        store.put(&key(FIRST), "[]".into()).await.unwrap();
        store.put(&key(FIRST + 3), "{}".into()).await.unwrap();
        let rest = pages.next().await.unwrap();
        let values: Vec<_> = rest.entries.iter().map(|entry| &entry.value[..]).collect();
        assert_eq!((values, rest.more), (vec![&b"{}"[..]; 3], false));
    }
}
