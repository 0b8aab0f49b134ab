//! A store wrapper that measures the duration of calls.

use super::series::SeriesCache;
use super::{Metrics, seconds};
use async_trait::async_trait;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use restow_store::{
    Content, KeyRange, Mutation, RangeRequest, RangeResponse, Revision, Store, StoreError, StoreStatus, Txn,
    TxnOutcome, Watch, WatchRequest,
};
use std::sync::Arc;
use std::time::Instant;

/// Passes every call on and measures it. The metric names are those of Kubernetes (`etcd_*`), also for other stores.
pub(crate) struct MeasuredStore {
    store: Arc<dyn Store>,
    series: SeriesCache<Series>,
    duration: Family<Labels, Histogram, fn() -> Histogram>,
    total: Family<Labels, Counter>,
    errors: Family<Labels, Counter>,
}

struct Series {
    labels: Labels,
    duration: Histogram,
    total: Counter,
    errors: Counter,
}

#[derive(Clone, Debug, EncodeLabelSet, Eq, Hash, PartialEq)]
struct Labels {
    operation: &'static str,
    group: String,
    resource: String,
}

impl MeasuredStore {
    /// Measures the calls to a store.
    pub(crate) fn new(store: Arc<dyn Store>, metrics: &Metrics) -> Self {
        let measured = MeasuredStore {
            store,
            series: SeriesCache::default(),
            duration: Family::new_with_constructor(seconds),
            total: Family::default(),
            errors: Family::default(),
        };
        metrics.register(|registry| {
            let help = "How long calls to the store take, in seconds";
            registry.register("etcd_request_duration_seconds", help, measured.duration.clone());
            registry.register("etcd_requests", "Calls to the store", measured.total.clone());
            registry.register("etcd_request_errors", "Calls to the store that failed", measured.errors.clone());
        });
        measured
    }

    /// Records a call for a key.
    fn record<T>(&self, operation: &'static str, key: &[u8], begun: Instant, outcome: &Result<T, StoreError>) {
        let (group, resource) = collection(key);
        let series = self.series.find(
            (operation, group, resource),
            |series| {
                let labels = &series.labels;
                labels.operation == operation && labels.group == group && labels.resource == resource
            },
            || self.create_series(operation, group, resource),
        );
        series.duration.observe(begun.elapsed().as_secs_f64());
        series.total.inc();
        if outcome.is_err() {
            series.errors.inc();
        }
    }

    fn create_series(&self, operation: &'static str, group: &str, resource: &str) -> Series {
        let labels = Labels { operation, group: group.into(), resource: resource.into() };
        Series {
            duration: self.duration.get_or_create_owned(&labels),
            total: self.total.get_or_create_owned(&labels),
            errors: self.errors.get_or_create_owned(&labels),
            labels,
        }
    }
}

#[async_trait]
impl Store for MeasuredStore {
    async fn range(&self, request: RangeRequest) -> Result<RangeResponse, StoreError> {
        let operation = match (request.content, is_one_key(&request.range)) {
            (Content::CountOnly, _) => "count",
            (_, true) => "get",
            (_, false) => "list",
        };
        let (start, begun) = (request.range.start().clone(), Instant::now());
        let outcome = self.store.range(request).await;
        self.record(operation, &start, begun, &outcome);
        outcome
    }

    async fn txn(&self, txn: Txn) -> Result<TxnOutcome, StoreError> {
        let (operation, key) = match txn.then.first() {
            Some(Mutation::Put(put)) => ("update", Some(put.key.as_bytes().clone())),
            Some(Mutation::Delete(key)) => ("delete", Some(key.as_bytes().clone())),
            None => ("compare", txn.when.first().map(|compare| compare.key.as_bytes().clone())),
        };
        let begun = Instant::now();
        let outcome = self.store.txn(txn).await;
        self.record(operation, &key.unwrap_or_default(), begun, &outcome);
        outcome
    }

    async fn watch(&self, request: WatchRequest) -> Result<Watch, StoreError> {
        self.store.watch(request).await
    }

    async fn compact(&self, revision: Revision) -> Result<(), StoreError> {
        let begun = Instant::now();
        let outcome = self.store.compact(revision).await;
        self.record("compact", b"", begun, &outcome);
        outcome
    }

    async fn status(&self) -> Result<StoreStatus, StoreError> {
        let begun = Instant::now();
        let outcome = self.store.status().await;
        self.record("status", b"", begun, &outcome);
        outcome
    }

    async fn ready(&self) -> Result<(), StoreError> {
        self.store.ready().await
    }
}

/// Whether a range is one of [`KeyRange::exactly`]: it ends right after its start.
fn is_one_key(range: &KeyRange) -> bool {
    let start = range.start();
    range.end().is_some_and(|end| end.len() == start.len() + 1 && end.starts_with(start) && end.ends_with(&[0]))
}

/// The group and resource that a key belongs to: its first two parts.
fn collection(key: &[u8]) -> (&str, &str) {
    let text = std::str::from_utf8(key).unwrap_or_default();
    let mut parts = text.strip_prefix('/').unwrap_or(text).split('/');
    match (parts.next(), parts.next()) {
        (Some("core"), Some(resource)) => ("", resource),
        (Some(group), Some(resource)) => (group, resource),
        _ => ("", ""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use restow_store::Key;

    #[test]
    fn keys_have_a_collection_and_single_key_ranges_are_recognized() {
        assert_eq!(collection(b"/core/pods/default/web"), ("", "pods"));
        assert_eq!(collection(b"/apps/deployments/"), ("apps", "deployments"));
        assert_eq!(collection(b""), ("", ""));
        assert!(is_one_key(&KeyRange::exactly(&Key::try_from("/core/pods/a/b".to_string()).unwrap())));
        assert!(!is_one_key(&KeyRange::prefix("/core/pods/")));
        assert!(!is_one_key(&KeyRange::all()));
    }
}
