//! The metrics of the server, as `/metrics` serves them.
//!
//! Names and labels are those of Kubernetes, so that its dashboards and alerts work. To add a metric, keep a handle to it
//! and register it once:
//!
//! ```
//! # use prometheus_client::metrics::counter::Counter;
//! # let metrics = restow_apiserver::Metrics::default();
//! let refused = Counter::<u64>::default();
//! metrics.register(|registry| registry.register("apiserver_fence_failures", "Writes that a fence refused", refused.clone()));
//! refused.inc();
//! ```
//!
//! A counter is registered without `_total`, which the text adds. A value that is read only at scrape time is a
//! [`Collector`](prometheus_client::collector::Collector), such as the [`process`](self) metrics.

mod process;
mod requests;
mod series;
mod store;

pub(crate) use requests::{LongRunning, RequestKind, RequestLabels, RequestMetrics};
pub(crate) use store::MeasuredStore;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use std::sync::{Mutex, PoisonError};

/// The media type of the text.
pub(crate) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The buckets of Kubernetes' histograms of durations, in seconds.
const SECONDS: [f64; 23] = [
    0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 15.0, 20.0, 30.0,
    45.0, 60.0,
];

/// All metrics of a server.
pub struct Metrics {
    registry: Mutex<Registry>,
    pub(crate) requests: RequestMetrics,
    health: Family<HealthLabels, Gauge>,
    health_checks: Family<HealthCheckLabels, Counter>,
}

#[derive(Clone, Debug, EncodeLabelSet, Eq, Hash, PartialEq)]
struct HealthLabels {
    name: &'static str,
    r#type: &'static str,
}

#[derive(Clone, Debug, EncodeLabelSet, Eq, Hash, PartialEq)]
struct HealthCheckLabels {
    name: &'static str,
    r#type: &'static str,
    status: &'static str,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::default();
        let requests = RequestMetrics::register(&mut registry);
        let (health, health_checks) = (Family::default(), Family::default());
        registry.register("kubernetes_healthcheck", "Whether a check passed when it last ran", health.clone());
        registry.register("kubernetes_healthchecks", "Checks that ran, by result", health_checks.clone());
        registry.register_collector(Box::new(process::ProcessCollector));
        Metrics { registry: Mutex::new(registry), requests, health, health_checks }
    }
}

impl Metrics {
    /// Adds metrics. Their names must not be in use yet.
    pub fn register(&self, add: impl FnOnce(&mut Registry)) {
        add(&mut self.registry.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// All metrics as text.
    pub fn render(&self) -> String {
        let mut out = String::new();
        let registry = self.registry.lock().unwrap_or_else(PoisonError::into_inner);
        if text::encode(&mut out, &registry).is_err() {
            // Writing to a string cannot fail; a registered collector can.
            tracing::warn!("could not encode all metrics");
        }
        out
    }

    /// Records the result of a health check.
    pub(crate) fn health_checked(&self, endpoint: &'static str, name: &'static str, passed: bool) {
        self.health.get_or_create(&HealthLabels { name, r#type: endpoint }).set(passed.into());
        let status = if passed { "success" } else { "error" };
        self.health_checks.get_or_create(&HealthCheckLabels { name, r#type: endpoint, status }).inc();
    }
}

/// A histogram of durations with Kubernetes' buckets.
fn seconds() -> Histogram {
    Histogram::new(SECONDS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_has_registered_and_process_metrics() {
        let metrics = Metrics::default();
        let own = Counter::<u64>::default();
        metrics.register(|registry| registry.register("apiserver_own", "Of somebody else", own.clone()));
        own.inc();
        metrics.health_checked("readyz", "etcd", false);
        let text = metrics.render();
        for line in [
            "apiserver_own_total 1",
            "kubernetes_healthcheck{name=\"etcd\",type=\"readyz\"} 0",
            "kubernetes_healthchecks_total{name=\"etcd\",type=\"readyz\",status=\"error\"} 1",
            "process_resident_memory_bytes ",
            "process_cpu_seconds_total ",
            "process_start_time_seconds ",
            "# EOF",
        ] {
            assert!(text.contains(line), "{line} is missing in\n{text}");
        }
    }
}
