//! The mirror: a store under test and the model side by side. Every call goes to both, and their responses must be equal.

use super::{Fixture, Model, Opened, WatchReader, short};
use crate::{
    Content, Key, KeyRange, Limits, RangeRequest, RangeResponse, Revision, Store, StoreError, Txn, TxnOutcome,
    WatchRequest,
};
use std::fmt::Debug;
use std::mem::discriminant;
use std::sync::Arc;

/// A key for a check.
pub(super) fn key(text: &str) -> Key {
    Key::try_from(text).expect("checks use valid keys")
}

/// A store and its model. No one else may write to the store.
pub(super) struct Mirror {
    pub(super) store: Arc<dyn Store>,
    pub(super) model: Model,
    _opened: Opened,
}

impl Mirror {
    /// Opens a fresh store and a model at its revision.
    pub(super) async fn open(fixture: &dyn Fixture) -> Self {
        Self::over(fixture.open().await).await
    }

    /// Creates the model for an empty store.
    pub(super) async fn over(opened: Opened) -> Self {
        let store = opened.store.clone();
        let status = store.status().await.expect("a fresh store has a status");
        let model = Model::new(status.revision, Limits { store_bytes: None, ..opened.limits });
        let mirror = Mirror { store, model, _opened: opened };
        mirror.range(RangeRequest::new(KeyRange::all())).await.expect("a fresh store can be read");
        mirror
    }

    pub(super) fn limits(&self) -> Limits {
        self.model.limits()
    }

    pub(super) fn revision(&self) -> Revision {
        self.model.revision()
    }

    /// Runs a transaction on both.
    pub(super) async fn txn(&mut self, txn: Txn) -> Result<TxnOutcome, StoreError> {
        let expected = self.model.txn(&txn);
        let actual = self.store.txn(txn.clone()).await;
        assert_same(&actual, &expected, &txn);
        actual
    }

    /// Runs a transaction that must be committed.
    pub(super) async fn commit(&mut self, txn: Txn) -> Revision {
        match self.txn(txn.clone()).await {
            Ok(TxnOutcome::Committed { revision }) => revision,
            other => panic!("{txn:?} was not committed: {other:?}"),
        }
    }

    pub(super) async fn put(&mut self, name: &str, value: &str) -> Revision {
        self.commit(Txn::new().put(&key(name), value.to_owned())).await
    }

    pub(super) async fn delete(&mut self, name: &str) -> Revision {
        self.commit(Txn::new().delete(&key(name))).await
    }

    /// Reads from both.
    pub(super) async fn range(&self, request: RangeRequest) -> Result<RangeResponse, StoreError> {
        let expected = self.model.range(&request);
        let actual = self.store.range(request.clone()).await;
        assert_same(&comparable(&actual, &expected, &request), &expected, &request);
        actual
    }

    /// Compacts both.
    pub(super) async fn compact(&mut self, revision: Revision) -> Result<(), StoreError> {
        let expected = self.model.compact(revision);
        let actual = self.store.compact(revision).await;
        assert_same(&actual, &expected, &revision);
        actual
    }

    /// Reads these ranges at every revision since `first`, in every way.
    pub(super) async fn read_every_revision(&self, first: Revision, ranges: &[KeyRange]) {
        for number in first.get()..=self.revision().get() {
            for range in ranges {
                let request = RangeRequest::new(range.clone()).at(Revision::new(number));
                for request in [
                    request.clone(),
                    request.clone().limit(2),
                    request.clone().content(Content::KeysOnly),
                    request.content(Content::CountOnly),
                ] {
                    let _either_is_compared = self.range(request).await;
                }
            }
        }
    }

    pub(super) async fn follow(&self, request: WatchRequest) -> WatchReader {
        WatchReader::start(&*self.store, request.clone())
            .await
            .unwrap_or_else(|error| panic!("{request:?} did not start: {error}"))
    }

    /// Starts these watches, with the entries before, and compares them with what the model has up to now; then
    /// changes once more what the latest revision changed, so that a missing or additional event is detected. The
    /// latest revision must have changed something in each range.
    pub(super) async fn watch_to_the_end(&mut self, watches: Vec<(KeyRange, Revision)>) {
        let latest = self.model.events(&KeyRange::all(), self.revision(), false).expect("the model has its latest");
        let mut readers = Vec::new();
        for (range, from) in watches {
            assert!(latest.iter().any(|event| range.contains(event.key())), "nothing changed last in {range:?}");
            let mut reader = self.follow(WatchRequest::from(range.clone(), from).with_previous()).await;
            reader.until(self.revision()).await.expect("this history is not compacted");
            self.compare(&reader, &range, from);
            readers.push((range, from, reader));
        }
        self.commit(latest.iter().fold(Txn::new(), |txn, event| txn.put(event.key(), "the end"))).await;
        for (range, from, mut reader) in readers {
            reader.until(self.revision()).await.expect("a watch goes on");
            self.compare(&reader, &range, from);
        }
    }

    fn compare(&self, reader: &WatchReader, range: &KeyRange, from: Revision) {
        let expected = self.model.events(range, from, true).expect("the model has this history");
        let actual = reader.events();
        let same = actual.iter().zip(&expected).take_while(|(actual, expected)| actual == expected).count();
        let difference = (actual.get(same), expected.get(same));
        assert!(
            difference == (None, None),
            "a watch of {range:?} from {from} has after {same} events {}\n but should have {}",
            short(&difference.0),
            short(&difference.1),
        );
    }
}

/// Compares results. Errors with a free text must only be of the same kind.
pub(super) fn assert_same<T: Debug + PartialEq>(
    actual: &Result<T, StoreError>,
    expected: &Result<T, StoreError>,
    request: &dyn Debug,
) {
    let same = match (actual, expected) {
        (Err(StoreError::Invalid(_)), Err(error)) => discriminant(error) == discriminant(&invalid()),
        (actual, expected) => actual == expected,
    };
    if !same {
        let [request, actual, expected] = [request, actual as &dyn Debug, expected].map(short);
        panic!("for {request}\n the store returned {actual}\n it should return {expected}");
    }
}

fn invalid() -> StoreError {
    StoreError::Invalid(String::new())
}

/// The response without allowed differences: a back end may leave out a count that was not requested, and `more` is undefined
/// for [`Content::CountOnly`].
fn comparable(
    actual: &Result<RangeResponse, StoreError>,
    expected: &Result<RangeResponse, StoreError>,
    request: &RangeRequest,
) -> Result<RangeResponse, StoreError> {
    let mut actual = actual.clone();
    if let (Ok(actual), Ok(expected)) = (&mut actual, expected) {
        if request.content == Content::CountOnly {
            actual.more = expected.more;
        } else if actual.count.is_none() {
            actual.count = expected.count;
        }
    }
    actual
}
