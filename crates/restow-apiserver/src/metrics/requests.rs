//! Requests by verb, resource and code; how long they take, and how many run now.

use super::seconds;
use super::series::SeriesCache;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use std::time::Duration;

/// The label `component`, as in Kubernetes.
const COMPONENT: &str = "apiserver";

/// The labels of a request. Only names of served resources may appear, so that their number is bounded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct RequestLabels<'a> {
    /// The verb in capitals, as in `LIST`.
    pub(crate) verb: &'a str,
    /// Whether it is a dry run.
    pub(crate) dry_run: bool,
    /// The group of the resource.
    pub(crate) group: &'a str,
    /// The version of the resource.
    pub(crate) version: &'a str,
    /// The resource; empty for other paths.
    pub(crate) resource: &'a str,
    /// The subresource, or the path if it is no resource.
    pub(crate) subresource: &'a str,
    /// `resource`, `namespace` or `cluster`.
    pub(crate) scope: &'static str,
}

/// Whether a request may change something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestKind {
    /// It may write.
    Mutating,
    /// It only reads.
    ReadOnly,
}

/// The metrics of requests.
pub(crate) struct RequestMetrics {
    series: SeriesCache<Series>,
    total: Family<TotalLabels, Counter>,
    duration: Family<Labels, Histogram, fn() -> Histogram>,
    terminated: Family<TotalLabels, Counter>,
    long_running: Family<Labels, Gauge>,
    mutating: Gauge,
    read_only: Gauge,
    /// Connections that failed before their first request.
    pub(crate) handshake_errors: Counter,
    /// Connections that are open.
    pub(crate) connections: Gauge,
}

struct Series {
    labels: TotalLabels,
    total: Counter,
    duration: Histogram,
}

#[derive(Clone, Debug, EncodeLabelSet, Eq, Hash, PartialEq)]
struct Labels {
    verb: String,
    dry_run: &'static str,
    group: String,
    version: String,
    resource: String,
    subresource: String,
    scope: &'static str,
    component: &'static str,
}

#[derive(Clone, Debug, EncodeLabelSet, Eq, Hash, PartialEq)]
struct TotalLabels {
    #[prometheus(flatten)]
    request: Labels,
    code: u16,
}

#[derive(Clone, Debug, EncodeLabelSet, Eq, Hash, PartialEq)]
struct KindLabels {
    request_kind: &'static str,
}

/// A long-running request; it counts until this is dropped.
pub(crate) struct LongRunning(Gauge);

impl Drop for LongRunning {
    fn drop(&mut self) {
        self.0.dec();
    }
}

impl Labels {
    fn new(request: &RequestLabels<'_>) -> Self {
        Labels {
            verb: request.verb.into(),
            dry_run: if request.dry_run { "All" } else { "" },
            group: request.group.into(),
            version: request.version.into(),
            resource: request.resource.into(),
            subresource: request.subresource.into(),
            scope: request.scope,
            component: COMPONENT,
        }
    }

    fn is_of(&self, request: &RequestLabels<'_>) -> bool {
        self.verb == request.verb
            && self.dry_run.is_empty() != request.dry_run
            && self.group == request.group
            && self.version == request.version
            && self.resource == request.resource
            && self.subresource == request.subresource
            && self.scope == request.scope
    }
}

impl RequestMetrics {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let kinds = Family::<KindLabels, Gauge>::default();
        let metrics = RequestMetrics {
            series: SeriesCache::default(),
            total: Family::default(),
            duration: Family::new_with_constructor(seconds),
            terminated: Family::default(),
            long_running: Family::default(),
            mutating: kinds.get_or_create_owned(&KindLabels { request_kind: "mutating" }),
            read_only: kinds.get_or_create_owned(&KindLabels { request_kind: "readOnly" }),
            handshake_errors: Counter::default(),
            connections: Gauge::default(),
        };
        let total = metrics.total.clone();
        registry.register("apiserver_request", "Requests by verb, resource and code", total);
        let help = "How long requests take, in seconds";
        registry.register("apiserver_request_duration_seconds", help, metrics.duration.clone());
        let help = "Requests that were rejected or ended because the server protects itself";
        registry.register("apiserver_request_terminations", help, metrics.terminated.clone());
        let help = "Long-running requests now, such as watches";
        registry.register("apiserver_longrunning_requests", help, metrics.long_running.clone());
        let help = "Requests in flight now that count against the limits";
        registry.register("apiserver_current_inflight_requests", help, kinds);
        let help = "Connections that ended in their TLS handshake";
        registry.register("apiserver_tls_handshake_errors", help, metrics.handshake_errors.clone());
        registry.register("apiserver_open_connections", "Connections that are open", metrics.connections.clone());
        metrics
    }

    /// Records a completed request.
    pub(crate) fn observe(&self, request: &RequestLabels<'_>, code: u16, after: Duration) {
        let series = self.series.find(
            (request, code),
            |series| series.labels.code == code && series.labels.request.is_of(request),
            || self.create_series(request, code),
        );
        series.total.inc();
        series.duration.observe(after.as_secs_f64());
    }

    /// Records a request that the server rejected or ended to protect itself.
    pub(crate) fn terminated(&self, request: &RequestLabels<'_>, code: u16) {
        self.terminated.get_or_create(&TotalLabels { request: Labels::new(request), code }).inc();
    }

    /// Counts a long-running request until the returned value is dropped.
    pub(crate) fn long_running(&self, request: &RequestLabels<'_>) -> LongRunning {
        let gauge = self.long_running.get_or_create_owned(&Labels::new(request));
        gauge.inc();
        LongRunning(gauge)
    }

    /// How many requests of this kind run now.
    pub(crate) fn in_flight(&self, kind: RequestKind) -> &Gauge {
        match kind {
            RequestKind::Mutating => &self.mutating,
            RequestKind::ReadOnly => &self.read_only,
        }
    }

    fn create_series(&self, request: &RequestLabels<'_>, code: u16) -> Series {
        let labels = TotalLabels { request: Labels::new(request), code };
        let total = self.total.get_or_create_owned(&labels);
        let duration = self.duration.get_or_create_owned(&labels.request);
        Series { labels, total, duration }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus_client::encoding::text;

    #[test]
    fn requests_are_counted_by_their_labels() {
        let mut registry = Registry::default();
        let metrics = RequestMetrics::register(&mut registry);
        let get = RequestLabels {
            verb: "GET",
            version: "v1",
            resource: "pods",
            scope: "resource",
            ..RequestLabels::default()
        };
        let dry = RequestLabels { verb: "POST", dry_run: true, ..get };
        metrics.observe(&get, 200, Duration::from_millis(30));
        metrics.observe(&get, 200, Duration::from_millis(1));
        metrics.observe(&get, 404, Duration::from_millis(1));
        metrics.observe(&dry, 201, Duration::from_millis(1));
        let watching = metrics.long_running(&RequestLabels { verb: "WATCH", ..get });
        metrics.in_flight(RequestKind::Mutating).inc();
        let mut out = String::new();
        text::encode(&mut out, &registry).unwrap();
        let of_get = "verb=\"GET\",dry_run=\"\",group=\"\",version=\"v1\",resource=\"pods\",subresource=\"\",scope=\"resource\",component=\"apiserver\"";
        for line in [
            format!("apiserver_request_total{{{of_get},code=\"200\"}} 2"),
            format!("apiserver_request_total{{{of_get},code=\"404\"}} 1"),
            format!("apiserver_request_duration_seconds_bucket{{le=\"0.005\",{of_get}}} 2"),
            format!("apiserver_request_duration_seconds_count{{{of_get}}} 3"),
            "apiserver_current_inflight_requests{request_kind=\"mutating\"} 1".into(),
            "apiserver_current_inflight_requests{request_kind=\"readOnly\"} 0".into(),
        ] {
            assert!(out.contains(&line), "{line} is missing in\n{out}");
        }
        assert!(out.contains("dry_run=\"All\""), "{out}");
        drop(watching);
        let mut out = String::new();
        text::encode(&mut out, &registry).unwrap();
        let gone = out.lines().find(|line| line.starts_with("apiserver_longrunning_requests{")).unwrap();
        assert!(gone.ends_with(" 0"), "{gone}");
    }
}
