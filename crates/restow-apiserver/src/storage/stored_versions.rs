//! Takes a census of a store: reads every value, in pages, and counts them by the version they are encoded in.
//!
//! It only reads. `restow_rules::census` interprets the counts.

use restow_rules::census::{Census, CensusRow};
use restow_store::{KeyRange, RangeRequest, RangeResponse, Revision, Store, StoreError};
use serde::{Deserialize, Serialize};

/// How many values are read at first, before it is known how large they are, and at most. Small values can be followed by
/// large ones, of up to 1.5 MiB each, so even then they are not many.
const FIRST_PAGE: usize = 16;
const LARGEST_PAGE: usize = 50;

/// How many bytes of values are to be in memory at a time.
const PAGE_BYTES: usize = 4 * 1024 * 1024;

/// How often reading begins anew because the revision that is read was compacted.
const RESTARTS: usize = 3;

/// The result of a census.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StoredCensus {
    /// The revision at which reading began.
    pub from_revision: u64,
    /// The revision at which the last page was read; the same, unless that was compacted while reading.
    pub to_revision: u64,
    /// How many values were read.
    pub total: u64,
    /// The counts.
    pub rows: Vec<CensusRow>,
}

/// Reads a whole store at one revision. `progress` is called after each page with the number of values read so far.
///
/// Where that revision is compacted meanwhile, reading begins anew. Where that happens time and again, it goes on at a later
/// revision, and the census says so: it is not one of a single point in time.
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

/// A census under way.
struct Reading {
    census: Census,
    /// What is still to be read; nothing when that is all.
    rest: Option<KeyRange>,
    page: usize,
    /// The revision that is read; nothing where it is yet to be found out.
    at: Option<Revision>,
    first: Option<Revision>,
    last: Revision,
    total: u64,
}

impl Default for Reading {
    fn default() -> Self {
        Reading {
            census: Census::default(),
            // Every key of a store begins with a slash. In etcd, what follows a prefix without one belongs to another prefix
            // that happens to begin alike.
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
    /// Reads one more page; says how many values were read by then, or that there are no more.
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

/// As many values as fit, if they are as large as those before.
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
    async fn every_value_is_counted_once_however_many_pages_there_are() {
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
    async fn pages_shrink_when_values_are_large() {
        let store = ModelStore::default();
        for number in 0..64 {
            let key = Key::try_from(format!("/configmaps/{number:05}")).unwrap();
            store.put(&key, vec![b'x'; 1024 * 1024].into()).await.unwrap();
        }
        let mut reported = Vec::new();
        take_census(&store, |count| reported.push(count)).await.unwrap();
        assert_eq!(reported[..4], [16, 20, 24, 28]);
    }

    /// Does something in the middle of a callback, in a thread of its own: where the runtime of the caller cannot let it wait
    /// for a turn that comes only after the callback.
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
    async fn what_changes_while_reading_is_counted_as_it_was() {
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
    async fn a_compaction_while_reading_begins_it_anew_at_one_revision() {
        let store = filled(100).await;
        let census = census_with(&store, RESTARTS).await;
        assert_eq!(census.from_revision, census.to_revision);
        assert_eq!(census.total, 100, "nothing is counted twice");
        assert_eq!(counts(&census), [(json("v1"), 49), (json("v2"), 50), (json("v9"), 1)]);
    }

    #[tokio::test]
    async fn where_compaction_never_lets_it_finish_that_is_said() {
        let store = filled(100).await;
        let census = census_with(&store, RESTARTS + 1).await;
        assert!(census.from_revision < census.to_revision, "{census:?}");
        assert_eq!(census.total, 100);
    }
}
