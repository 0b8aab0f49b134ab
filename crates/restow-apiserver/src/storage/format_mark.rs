//! The format mark: a key that marks a store as Restow's and names the format of its objects. A store that has keys but no mark
//! is refused: the prefix may be that of a real cluster. `restow_rules::ownership` decides whose keys they are; here they are
//! read.

use crate::error::ApiError;
use crate::resource::registry::Registry;
use restow_rules::ownership::{FormatMark, Ownership, Survey, is_laid_out_like_ours};
use restow_store::{
    Compare, Content, Entry, Key, KeyRange, RangeRequest, Revision, Store, StoreError, StoreExt, Txn, TxnOutcome,
};
use std::collections::BTreeSet;

/// The key of the mark.
const MARK_KEY: &str = "/restow/format";
/// The number of values that are read at a time.
const PAGE: usize = 250;
/// The advice to an operator whose store belongs to another program.
const ADVICE: &str = "Nothing was changed. Choose another prefix with --etcd-prefix, or another store. Restow cannot take \
                       over the store of a kube-apiserver yet";

/// The number of times that the mark is read again because another server changes it.
const ATTEMPTS: usize = 10;

/// Ensures that a store is Restow's: an empty one is marked, and one with keys of another program is refused. Of several servers
/// that start at once, one writes the mark, and the others find it. `groups` are the served API groups.
///
/// The mark is provisional until the store was read as of the revision of the mark. A server that finds it provisional, because
/// the server that wrote it has died or has not verified it yet, verifies it itself.
pub(crate) async fn claim(store: &dyn Store, groups: &BTreeSet<String>) -> Result<(), ApiError> {
    let key = Key::try_from(MARK_KEY).map_err(|error| ApiError::Internal(error.to_string()))?;
    for _ in 0..ATTEMPTS {
        let settled = match store.get(&key).await? {
            Some(found) => check(store, &key, &found, groups).await?,
            None => match survey(store).await? {
                Ownership::SomebodyElse(found) => return Err(refusal(found)),
                Ownership::Nobody => mark(store, &key, Revision::ZERO, FormatMark::provisional()).await?.map(|_| false),
                Ownership::Ours => mark(store, &key, Revision::ZERO, FormatMark::newest()).await?.map(|_| true),
            },
        };
        // If another server wrote a mark meanwhile, it is checked next.
        if settled == Some(true) {
            return Ok(());
        }
    }
    Err(ApiError::UnusableStore(format!(
        "another program keeps changing {MARK_KEY}, which marks the store as Restow's"
    )))
}

/// Checks the mark; returns whether it says that the store is Restow's.
async fn check(
    store: &dyn Store,
    key: &Key,
    entry: &Entry,
    groups: &BTreeSet<String>,
) -> Result<Option<bool>, ApiError> {
    let found = String::from_utf8_lossy(&entry.value[..entry.value.len().min(100)]).trim().to_string();
    match FormatMark::read(&entry.value) {
        FormatMark::Known => probe(store, groups).await.map(|()| Some(true)),
        FormatMark::Provisional => verify(store, key, entry.mod_revision).await,
        FormatMark::Newer(_) => Err(ApiError::UnusableStore(format!(
            "the store has the format {found:?}, which a newer release of Restow wrote; use that release"
        ))),
        FormatMark::Unreadable => Err(ApiError::UnusableStore(format!(
            "the mark of the store's format at {MARK_KEY} says {found:?}, which no release of Restow writes. {ADVICE}"
        ))),
    }
}

/// Verifies a provisional mark: reads the store, and makes the mark permanent or deletes it, because another program may have
/// begun to write there at the same time.
async fn verify(store: &dyn Store, key: &Key, marked: Revision) -> Result<Option<bool>, ApiError> {
    match survey(store).await? {
        Ownership::SomebodyElse(found) => {
            store.txn(Txn::new().when(Compare::mod_revision(key, marked)).delete(key)).await?;
            Err(refusal(found))
        }
        Ownership::Nobody | Ownership::Ours => Ok(mark(store, key, marked, FormatMark::newest()).await?.map(|_| true)),
    }
}

/// Checks whether another program, such as a kube-apiserver, has begun to use a store that is marked as Restow's. The layout of
/// its keys shows that: one key of each top-level prefix is enough.
async fn probe(store: &dyn Store, groups: &BTreeSet<String>) -> Result<(), ApiError> {
    let mut rest = KeyRange::prefix("/");
    loop {
        let first = RangeRequest::new(rest.clone()).content(Content::KeysOnly).limit(1);
        let page = store.range(first).await?;
        let Some(entry) = page.entries.first() else { return Ok(()) };
        if !may_be_ours(&entry.key, |group| groups.contains(group)) {
            return Err(refusal(format!(
                "the store is marked as Restow's, but another program, such as a kube-apiserver, uses it too: found the key {}",
                entry.key
            )));
        }
        let text = String::from_utf8_lossy(entry.key.as_bytes());
        let folder: String = text.split_inclusive('/').take(2).collect();
        let last = Key::new([folder.as_bytes(), &[0xff]].concat());
        rest = rest.after(&last.map_err(|error| ApiError::Internal(error.to_string()))?);
    }
}

/// Whether a key may be one of Restow's, by its layout. A key that does not begin with a slash belongs to another prefix that
/// begins with the same text, and is ignored.
pub(crate) fn may_be_ours(key: &Key, is_served: impl Fn(&str) -> bool) -> bool {
    if is_laid_out_like_ours(key.as_bytes()) {
        return true;
    }
    let text = String::from_utf8_lossy(key.as_bytes());
    let mut parts = text.split('/');
    let (before, group) = (parts.next(), parts.next().unwrap_or_default());
    before != Some("") || parts.next().is_some() && is_served(group)
}

/// The groups of all stored resources.
pub(crate) fn groups_of(registry: &Registry) -> BTreeSet<String> {
    let storages = registry.resources().iter().filter_map(|resource| resource.storage.as_ref());
    storages.map(|storage| storage.location.group().to_string()).filter(|group| !group.is_empty()).collect()
}

/// Writes a mark in place of the one of this revision. Returns the revision at which it was written; `None` if another server
/// was faster.
async fn mark(store: &dyn Store, key: &Key, before: Revision, mark: String) -> Result<Option<Revision>, ApiError> {
    let verified = FormatMark::read(mark.as_bytes()) == FormatMark::Known;
    match store.txn(Txn::new().when(Compare::mod_revision(key, before)).put(key, mark)).await {
        Ok(TxnOutcome::Committed { revision }) => Ok(Some(revision)),
        Ok(TxnOutcome::Refused { .. }) => Ok(None),
        // A full store can still be read, and it is certainly Restow's.
        Err(StoreError::Full(reason)) if verified => {
            tracing::warn!(reason, "the format of the store could not be marked; the next start tries again");
            Ok(Some(before))
        }
        Err(error) => Err(error.into()),
    }
}

/// Reads all keys at one revision. Keys that do not begin with a slash are ignored: they belong to another prefix that begins
/// with the same text.
async fn survey(store: &dyn Store) -> Result<Ownership, ApiError> {
    let (mut survey, mut range, mut at) = (Survey::default(), KeyRange::prefix("/"), None);
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
    ApiError::UnusableStore(format!("{found}. {ADVICE}"))
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
        let found = store.get(&Key::try_from(MARK_KEY).unwrap()).await.unwrap();
        found.map(|entry| String::from_utf8(entry.value.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn an_empty_store_is_marked_once() {
        let store = ModelStore::default();
        put(&store, "-neighbour/pods/a", POD).await;
        claim(&store, &BTreeSet::new()).await.unwrap();
        let revision = store.status().await.unwrap().revision;
        assert_eq!(mark_of(&store).await, Some(FormatMark::newest()));
        claim(&store, &BTreeSet::new()).await.unwrap();
        assert_eq!(store.status().await.unwrap().revision, revision, "it is marked already");
    }

    #[tokio::test]
    async fn a_store_of_restow_without_a_mark_gets_one() {
        let store = ModelStore::default();
        put(&store, "/core/namespaces/default", br#"{"apiVersion":"v1","kind":"Namespace","metadata":{}}"#).await;
        claim(&store, &BTreeSet::new()).await.unwrap();
        assert_eq!(mark_of(&store).await, Some(FormatMark::newest()));
    }

    #[tokio::test]
    async fn the_store_of_another_program_is_refused_and_not_changed() {
        let store = ModelStore::default();
        for number in 0..PAGE + 3 {
            put(&store, &format!("/pods/default/{number}"), POD).await;
        }
        let before = store.status().await.unwrap().revision;
        let error = claim(&store, &BTreeSet::new()).await.unwrap_err().to_string();
        assert!(error.contains(&format!("holds {} keys", PAGE + 3)), "{error}");
        assert!(error.contains("/pods/default/0 (v1 Pod") && error.contains("--etcd-prefix"), "{error}");
        assert_eq!(store.status().await.unwrap().revision, before);
    }

    #[tokio::test]
    async fn an_unknown_format_is_refused() {
        for (mark, expected) in [("restow-objects 2\n", "newer release"), ("photos", "no release of Restow")] {
            let store = ModelStore::default();
            put(&store, MARK_KEY, mark.as_bytes()).await;
            let error = claim(&store, &BTreeSet::new()).await.unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[tokio::test]
    async fn a_provisional_mark_is_verified() {
        let store = ModelStore::default();
        // A server marked an empty store and stopped before it verified the mark. Another program had begun to write
        // there.
        put(&store, "/pods/default/first", POD).await;
        let key = Key::try_from(MARK_KEY).unwrap();
        mark(&store, &key, Revision::ZERO, FormatMark::provisional()).await.unwrap();
        let error = claim(&store, &BTreeSet::new()).await.unwrap_err().to_string();
        assert!(error.contains("/pods/default/first"), "{error}");
        assert_eq!(mark_of(&store).await, None);
    }

    #[tokio::test]
    async fn another_program_that_uses_a_marked_store_later_is_detected() {
        for key in ["/pods/default/later", "/namespaces/default", "/ranges/serviceips", "/masterleases/10.0.0.1"] {
            let store = ModelStore::default();
            claim(&store, &BTreeSet::new()).await.unwrap();
            put(&store, "/core/namespaces/default", b"{}").await;
            put(&store, "/zoo.example.com/lions/a", b"{}").await;
            put(&store, "/garden/plants/a", b"{}").await;
            let groups = BTreeSet::from(["garden".to_string()]);
            claim(&store, &groups).await.unwrap();
            put(&store, key, POD).await;
            let error = claim(&store, &groups).await.unwrap_err().to_string();
            assert!(error.contains(key) && error.contains("--etcd-prefix"), "{error}");
        }
    }

    #[tokio::test]
    async fn of_several_servers_that_start_at_once_one_marks_the_store_and_all_start() {
        let (store, groups) = (ModelStore::default(), BTreeSet::new());
        let claims = futures::future::join_all((0..8).map(|_| claim(&store, &groups))).await;
        assert!(claims.iter().all(Result::is_ok), "{claims:?}");
        assert_eq!(mark_of(&store).await, Some(FormatMark::newest()));
        let revision = store.status().await.unwrap().revision;
        assert_eq!(revision, Revision::new(3), "it was marked once, and verified once");
    }
}
