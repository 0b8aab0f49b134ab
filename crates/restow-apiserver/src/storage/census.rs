//! Takes a census of a store: reads every value, in pages, and counts them by the version they are encoded in.
//!
//! It only reads. `restow_rules::census` interprets the counts.

use restow_rules::census::{Census, CensusRow};
use restow_store::{KeyRange, RangeRequest, RangeResponse, Revision, Store, StoreError};
use serde::{Deserialize, Serialize};

/// The number of values in the first page, when their size is not known, and the maximum. Values have up to 1.5 MiB,
/// and large ones can follow small ones, so the maximum is low.
const FIRST_PAGE: usize = 16;
const LARGEST_PAGE: usize = 50;

/// The approximate bytes of values in memory.
const PAGE_BYTES: usize = 4 * 1024 * 1024;

/// How often reading starts again because its revision was compacted.
const RESTARTS: usize = 3;

/// The result of a census.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StoredCensus {
    /// The revision at which reading began.
    pub from_revision: u64,
    /// The revision at which the last page was read; the same, unless that was compacted while reading.
    pub to_revision: u64,
    /// The number of values that were read.
    pub total: u64,
    /// The counts.
    pub rows: Vec<CensusRow>,
}

/// Reads a whole store at one revision. `progress` is called after each page with the number of values read so far.
///
/// If that revision is compacted meanwhile, reading starts again. After several restarts, it continues at a later
/// revision, and the census reports that it does not show a single point in time.
pub async fn take_census(store: &dyn Store, mut progress: impl FnMut(u64) + Send) -> Result<StoredCensus, StoreError> {
    let mut restarts = 0;
    let mut reading = Reading::default();
    loop {
        match reading.next_page(store).await {
            Ok(Some(total)) => progress(total),
            Ok(None) => return Ok(reading.into_census()),
            Err(StoreError::Compacted { .. }) if reading.at.is_some() && restarts < RESTARTS => {
                restarts += 1;
                reading = Reading::default();
            }
            Err(StoreError::Compacted { .. }) if reading.at.is_some() => reading.at = None,
            Err(error) => return Err(error),
        }
    }
}

/// A census in progress.
struct Reading {
    census: Census,
    /// The keys that remain; `None` when all were read.
    rest: Option<KeyRange>,
    page: usize,
    /// The revision that is read; `None` before the first page.
    at: Option<Revision>,
    first: Option<Revision>,
    last: Revision,
    total: u64,
}

impl Default for Reading {
    fn default() -> Self {
        Reading {
            census: Census::default(),
            // Every key of a store begins with a slash. In etcd, a key without one belongs to another prefix that
            // begins with the same text.
            rest: Some(KeyRange::prefix("/")),
            page: FIRST_PAGE,
            at: None,
            first: None,
            last: Revision::ZERO,
            total: 0,
        }
    }
}

impl Reading {
    /// Reads the next page. Returns the number of values read so far; `None` when there are no more.
    async fn next_page(&mut self, store: &dyn Store) -> Result<Option<u64>, StoreError> {
        let Some(range) = self.rest.clone() else { return Ok(None) };
        let request = RangeRequest::new(range.clone()).limit(self.page);
        let page = match self.at {
            Some(revision) => store.range(request.at(revision)).await?,
            None => store.range(request).await?,
        };
        self.last = *self.at.get_or_insert(page.revision);
        self.first.get_or_insert(self.last);
        for entry in &page.entries {
            self.census.add(entry.key.as_ref(), &entry.value);
        }
        self.total += page.entries.len() as u64;
        self.page = next_page_size(&page);
        self.rest = page.entries.last().filter(|_| page.more).map(|last| range.after(&last.key));
        Ok(Some(self.total))
    }

    fn into_census(self) -> StoredCensus {
        StoredCensus {
            from_revision: self.first.unwrap_or(self.last).get(),
            to_revision: self.last.get(),
            total: self.total,
            rows: self.census.rows(),
        }
    }
}

/// The number of values that fit, if they are as large as those of the last page.
fn next_page_size(page: &RangeResponse) -> usize {
    let bytes: usize = page.entries.iter().map(|entry| entry.value.len()).sum();
    let average = bytes / page.entries.len().max(1);
    (PAGE_BYTES / average.max(1)).clamp(1, LARGEST_PAGE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use restow_rules::census::Encoding;
    use restow_store::conformance::ModelStore;
    use restow_store::{Key, StoreExt, Txn};

    async fn put(store: &ModelStore, key: &str, version: &str) {
        let key = Key::try_from(key).unwrap();
        let value = format!(r#"{{"apiVersion":"example.com/{version}","kind":"Widget"}}"#);
        store.txn(Txn::new().put(&key, value)).await.unwrap();
    }

    async fn filled(count: usize) -> ModelStore {
        let store = ModelStore::default();
        for number in 0..count {
            let version = if number % 2 == 0 { "v1" } else { "v2" };
            put(&store, &format!("/example.com/widgets/{number:05}"), version).await;
        }
        store
    }

    fn counts(census: &StoredCensus) -> Vec<(Encoding, u64)> {
        census.rows.iter().map(|row| (row.encoding.clone(), row.count)).collect()
    }

    fn json(version: &str) -> Encoding {
        Encoding::Json { version: version.into() }
    }

    #[tokio::test]
    async fn a_census_counts_every_value_once_over_all_pages() {
        let store = filled(FIRST_PAGE + 2 * LARGEST_PAGE + 7).await;
        put(&store, "-b/widgets/of-another-prefix", "v3").await;
        let mut reported = Vec::new();
        let census = take_census(&store, |count| reported.push(count)).await.unwrap();
        assert_eq!(reported, [16, 66, 116, 123]);
        assert_eq!(census.total, 123);
        assert_eq!(census.from_revision, census.to_revision);
        assert_eq!(counts(&census), [(json("v1"), 62), (json("v2"), 61)]);
    }

    #[tokio::test]
    async fn census_pages_are_small_when_values_are_large() {
        let store = ModelStore::default();
        for number in 0..64 {
            let key = Key::try_from(format!("/configmaps/{number:05}")).unwrap();
            store.put(&key, vec![b'x'; 1024 * 1024].into()).await.unwrap();
        }
        let mut reported = Vec::new();
        take_census(&store, |count| reported.push(count)).await.unwrap();
        assert_eq!(reported[..4], [16, 20, 24, 28]);
    }

    /// Runs work inside a callback, on a thread of its own, because the callback blocks the runtime of the caller.
    fn at_once(work: impl Future<Output = ()> + Send) {
        std::thread::scope(|scope| scope.spawn(|| futures::executor::block_on(work)).join()).unwrap();
    }

    /// Reads a store that is changed and compacted after the first page of so many attempts.
    async fn census_with(store: &ModelStore, disturbances: usize) -> StoredCensus {
        let mut left = disturbances;
        let census = take_census(store, |count| {
            if left > 0 && count == FIRST_PAGE as u64 {
                left -= 1;
                at_once(async {
                    put(store, "/example.com/widgets/00000", "v9").await;
                    let revision = store.status().await.unwrap().revision;
                    store.compact(revision).await.unwrap();
                });
            }
        });
        let census = census.await.unwrap();
        assert_eq!(left, 0);
        census
    }

    #[tokio::test]
    async fn a_census_counts_values_at_the_revision_where_it_began() {
        let store = filled(100).await;
        let before = store.status().await.unwrap().revision.get();
        let census = take_census(&store, |_| {
            at_once(put(&store, "/example.com/widgets/00099", "v9"));
        });
        let census = census.await.unwrap();
        assert_eq!(counts(&census), [(json("v1"), 50), (json("v2"), 50)]);
        assert_eq!((census.from_revision, census.to_revision), (before, before));
    }

    #[tokio::test]
    async fn a_census_starts_again_when_its_revision_is_compacted() {
        let store = filled(100).await;
        let census = census_with(&store, RESTARTS).await;
        assert_eq!(census.from_revision, census.to_revision);
        assert_eq!(census.total, 100, "nothing is counted twice");
        assert_eq!(counts(&census), [(json("v1"), 49), (json("v2"), 50), (json("v9"), 1)]);
    }

    #[tokio::test]
    async fn a_census_over_several_revisions_is_reported_as_such() {
        let store = filled(100).await;
        let census = census_with(&store, RESTARTS + 1).await;
        assert!(census.from_revision < census.to_revision, "{census:?}");
        assert_eq!(census.total, 100);
    }
}
