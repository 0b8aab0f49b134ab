//! A census of a store: every value is read, in pages, and counted by the version it is really encoded in.
//!
//! It only reads. What the counts mean is decided in `restow_agreement::census`.

use restow_agreement::census::{Census, CensusRow};
use restow_store::{KeyRange, RangeRequest, Revision, Store, StoreError};
use serde::{Deserialize, Serialize};

/// How many values are read at a time. They can be large, so they are not many.
const PAGE: usize = 250;

/// What was found in a store.
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

/// Reads a whole store. `progress` is told after each page how many values were read so far.
pub async fn take_census(store: &dyn Store, mut progress: impl FnMut(u64) + Send) -> Result<StoredCensus, StoreError> {
    let mut census = Census::default();
    let mut range = KeyRange::all();
    let (mut first, mut at, mut total) = (None, None::<Revision>, 0);
    loop {
        let request = RangeRequest::new(range.clone()).limit(PAGE);
        let page = match at {
            Some(revision) => store.range(request.at(revision)).await,
            None => store.range(request).await,
        };
        let page = match page {
            // What was counted stays counted; what comes after is counted as it is now.
            Err(StoreError::Compacted { .. }) if at.is_some() => {
                at = None;
                continue;
            }
            page => page?,
        };
        let revision = *at.get_or_insert(page.revision);
        first.get_or_insert(revision);
        for entry in &page.entries {
            census.add(entry.key.as_ref(), &entry.value);
        }
        total += page.entries.len() as u64;
        progress(total);
        let Some(last) = page.entries.last().filter(|_| page.more) else {
            return Ok(StoredCensus {
                from_revision: first.unwrap_or(revision).get(),
                to_revision: revision.get(),
                total,
                rows: census.rows(),
            });
        };
        range = range.after(&last.key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use restow_store::conformance::ModelStore;
    use restow_store::{Key, Txn};

    #[tokio::test]
    async fn every_value_is_counted_once_however_many_pages_there_are() {
        let store = ModelStore::default();
        for number in 0..PAGE * 2 + 7 {
            let version = if number % 2 == 0 { "v1" } else { "v2" };
            let key = Key::try_from(format!("/example.com/widgets/{number:05}")).unwrap();
            let value = format!(r#"{{"apiVersion":"example.com/{version}","kind":"Widget"}}"#);
            store.txn(Txn::new().put(&key, value)).await.unwrap();
        }
        let mut told = Vec::new();
        let census = take_census(&store, |count| told.push(count)).await.unwrap();
        assert_eq!(told, [250, 500, 507]);
        assert_eq!(census.total, 507);
        assert_eq!(census.from_revision, census.to_revision);
        let counts: Vec<u64> = census.rows.iter().map(|row| row.count).collect();
        assert_eq!(counts, [254, 253]);
    }
}
