//! The mark that says that a store is ours, and in which format its objects lie. Without it nothing is served from a store
//! that holds anything: the prefix of keys may be that of a real cluster. Whose keys they are is decided in
//! `restow_agreement::ownership`; here they are read.

use crate::error::ApiError;
use restow_agreement::ownership::{Mark, Ownership, Survey};
use restow_store::{Compare, Key, KeyRange, RangeRequest, Revision, Store, StoreError, StoreExt, Txn, TxnOutcome};

/// Where the mark lies.
const PLACE: &str = "/restow/format";
/// How many values are read at a time.
const PAGE: usize = 250;
/// What can be done about a store of somebody else.
const WAY_OUT: &str = "Nothing was changed. Choose another prefix with --etcd-prefix, or another store. Restow cannot take \
                       over the store of a kube-apiserver yet";

/// Makes sure that a store is ours: one that is empty is marked, and one that holds somebody else's keys is refused. Of
/// several servers that start at once, one writes the mark, and the others find it.
pub(crate) async fn claim(store: &dyn Store) -> Result<(), ApiError> {
    let key = Key::try_from(PLACE).map_err(|error| ApiError::Internal(error.to_string()))?;
    if let Some(found) = store.get(&key).await? {
        return check(&found.value);
    }
    match survey(store, None).await? {
        Ownership::SomebodyElse(found) => Err(refusal(found)),
        Ownership::Nobody => mark_empty(store, &key).await,
        Ownership::Ours => match mark(store, &key).await {
            // A store whose disk is full can still be read from, and it is certainly ours.
            Err(StoreError::Full(reason)) => {
                tracing::warn!(reason, "the format of the store could not be marked; the next start tries again");
                Ok(())
            }
            Ok(Some(_)) => Ok(()),
            Ok(None) => check_marked(store, &key).await,
            Err(error) => Err(error.into()),
        },
    }
}

/// Checks the mark that another server wrote meanwhile.
async fn check_marked(store: &dyn Store, key: &Key) -> Result<(), ApiError> {
    match store.get(key).await? {
        Some(found) => check(&found.value),
        None => Err(ApiError::UnusableStore(format!("somebody removed {PLACE}, which marks the store as Restow's"))),
    }
}

fn check(value: &[u8]) -> Result<(), ApiError> {
    let found = String::from_utf8_lossy(&value[..value.len().min(100)]).trim().to_string();
    match Mark::read(value) {
        Mark::Known => Ok(()),
        Mark::Newer(_) => Err(ApiError::UnusableStore(format!(
            "the store has the format {found:?}, which a newer release of Restow wrote; use that release"
        ))),
        Mark::Unreadable => Err(ApiError::UnusableStore(format!(
            "the mark of the store's format at {PLACE} says {found:?}, which no release of Restow writes. {WAY_OUT}"
        ))),
    }
}

/// Marks a store that was empty a moment ago, and looks whether it was so when the mark was written: somebody else may have
/// begun to write there at the same time.
async fn mark_empty(store: &dyn Store, key: &Key) -> Result<(), ApiError> {
    let Some(marked) = mark(store, key).await? else { return check_marked(store, key).await };
    match survey(store, Some(marked)).await? {
        Ownership::SomebodyElse(found) => {
            store.txn(Txn::new().when(Compare::mod_revision(key, marked)).delete(key)).await?;
            Err(refusal(found))
        }
        _ => Ok(()),
    }
}

/// Writes the mark where there is none. Returns the revision at which it was written; nothing if another server was faster.
async fn mark(store: &dyn Store, key: &Key) -> Result<Option<Revision>, StoreError> {
    match store.txn(Txn::new().when(Compare::absent(key)).put(key, Mark::newest())).await? {
        TxnOutcome::Committed { revision } => Ok(Some(revision)),
        TxnOutcome::Refused { .. } => Ok(None),
    }
}

/// Looks at everything, at one revision. Keys that do not begin with a slash are none that we could ever touch: they
/// belong to a neighbour whose prefix begins with ours.
async fn survey(store: &dyn Store, mut at: Option<Revision>) -> Result<Ownership, ApiError> {
    let (mut survey, mut range) = (Survey::default(), KeyRange::prefix("/"));
    loop {
        let request = RangeRequest::new(range.clone()).limit(PAGE);
        let page = match at {
            Some(revision) => store.range(request.at(revision)).await?,
            None => store.range(request).await?,
        };
        at.get_or_insert(page.revision);
        page.entries.iter().for_each(|entry| survey.add(entry.key.as_ref(), &entry.value));
        match page.entries.last().filter(|_| page.more) {
            Some(last) => range = range.after(&last.key),
            None => return Ok(survey.conclude()),
        }
    }
}

fn refusal(found: impl std::fmt::Display) -> ApiError {
    ApiError::UnusableStore(format!("{found}. {WAY_OUT}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use restow_store::conformance::ModelStore;

    const POD: &[u8] = b"k8s\0\n\x09\n\x02v1\x12\x03Pod\x12\x04\n\x02\x08\x01\x1a\0\"\0";

    async fn put(store: &dyn Store, key: &str, value: &'static [u8]) {
        store.put(&Key::try_from(key).unwrap(), value.into()).await.unwrap();
    }

    async fn mark_of(store: &dyn Store) -> Option<String> {
        let found = store.get(&Key::try_from(PLACE).unwrap()).await.unwrap();
        found.map(|entry| String::from_utf8(entry.value.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn an_empty_store_is_marked_once() {
        let store = ModelStore::default();
        put(&store, "-neighbour/pods/a", POD).await;
        claim(&store).await.unwrap();
        let revision = store.status().await.unwrap().revision;
        assert_eq!(mark_of(&store).await, Some(Mark::newest()));
        put(&store, "/pods/default/later", POD).await;
        claim(&store).await.unwrap();
        assert_eq!(store.status().await.unwrap().revision, revision.next(), "it is marked already");
    }

    #[tokio::test]
    async fn a_store_of_ours_without_a_mark_is_given_one() {
        let store = ModelStore::default();
        put(&store, "/core/namespaces/default", br#"{"apiVersion":"v1","kind":"Namespace","metadata":{}}"#).await;
        claim(&store).await.unwrap();
        assert_eq!(mark_of(&store).await, Some(Mark::newest()));
    }

    #[tokio::test]
    async fn somebody_elses_store_is_refused_and_left_alone() {
        let store = ModelStore::default();
        for number in 0..PAGE + 3 {
            put(&store, &format!("/pods/default/{number}"), POD).await;
        }
        let before = store.status().await.unwrap().revision;
        let error = claim(&store).await.unwrap_err().to_string();
        assert!(error.contains(&format!("holds {} keys", PAGE + 3)), "{error}");
        assert!(error.contains("/pods/default/0 (v1 Pod") && error.contains("--etcd-prefix"), "{error}");
        assert_eq!(store.status().await.unwrap().revision, before);
    }

    #[tokio::test]
    async fn an_unknown_format_is_refused() {
        for (mark, expected) in [("restow-objects 2\n", "newer release"), ("photos", "no release of Restow")] {
            let store = ModelStore::default();
            put(&store, PLACE, mark.as_bytes()).await;
            let error = claim(&store).await.unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[tokio::test]
    async fn whoever_begins_to_write_at_the_same_moment_is_noticed() {
        let store = ModelStore::default();
        let key = Key::try_from(PLACE).unwrap();
        // The store was empty when it was looked at, and is not when the mark is written.
        put(&store, "/pods/default/first", POD).await;
        let error = mark_empty(&store, &key).await.unwrap_err().to_string();
        assert!(error.contains("/pods/default/first"), "{error}");
        assert_eq!(mark_of(&store).await, None);
    }

    #[tokio::test]
    async fn of_several_that_start_at_once_one_marks_and_all_start() {
        let store = ModelStore::default();
        let claims = futures::future::join_all((0..8).map(|_| claim(&store))).await;
        assert!(claims.iter().all(Result::is_ok), "{claims:?}");
        assert_eq!(store.status().await.unwrap().revision, Revision::new(2), "one write");
    }
}
