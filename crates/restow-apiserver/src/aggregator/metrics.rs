//! The metrics of the servers behind this one, with Kubernetes' names.

use crate::aggregator::api_service::Condition;
use crate::metrics::Metrics;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use restow_api::GroupVersion;

/// The metrics of all APIServices with a server behind them.
#[derive(Default)]
pub(super) struct AggregatorMetrics {
    unavailable: Family<NameLabels, Gauge>,
    /// As a gauge: in OpenMetrics, a counter of this name would have the same name as the gauge above.
    became_unavailable: Family<ReasonLabels, Gauge>,
}

#[derive(Clone, Debug, EncodeLabelSet, Eq, Hash, PartialEq)]
struct NameLabels {
    name: String,
}

#[derive(Clone, Debug, EncodeLabelSet, Eq, Hash, PartialEq)]
struct ReasonLabels {
    name: String,
    reason: String,
}

impl AggregatorMetrics {
    pub(super) fn register(&self, metrics: &Metrics) {
        metrics.register(|registry| {
            let help = "Whether an APIService is unavailable (1) or available (0)";
            registry.register("aggregator_unavailable_apiservice", help, self.unavailable.clone());
            let help = "How often an APIService became unavailable, by the reason of its condition";
            registry.register("aggregator_unavailable_apiservice_total", help, self.became_unavailable.clone());
        });
    }

    /// Records the condition of the server behind an APIService, and whether it was another one at the last check.
    pub(super) fn checked(&self, version: &GroupVersion, before: Option<&Condition>, now: &Condition) {
        let name = name_of(version);
        self.unavailable.get_or_create(&NameLabels { name: name.clone() }).set(i64::from(!now.is_true()));
        if before.is_some_and(Condition::is_true) && !now.is_true() {
            self.became_unavailable.get_or_create(&ReasonLabels { name, reason: now.reason.clone() }).inc();
        }
    }

    /// The APIService is gone, or names another server.
    pub(super) fn forget(&self, version: &GroupVersion) {
        self.unavailable.remove(&NameLabels { name: name_of(version) });
    }
}

fn name_of(version: &GroupVersion) -> String {
    format!("{}.{}", version.version(), version.group())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_becomes_unavailable_is_counted_once_with_its_reason() {
        let (all, metrics) = (Metrics::default(), AggregatorMetrics::default());
        metrics.register(&all);
        let version = GroupVersion::new("garden.example", "v1").unwrap();
        let condition = |status: &str, reason: &str| Condition::new(status, reason, String::new());
        let (passed, failed) = (condition("True", "Passed"), condition("False", "FailedDiscoveryCheck"));
        metrics.checked(&version, None, &failed);
        metrics.checked(&version, Some(&failed), &passed);
        let gauge = "aggregator_unavailable_apiservice{name=\"v1.garden.example\"}";
        assert!(all.render().contains(&format!("{gauge} 0\n")), "{}", all.render());
        metrics.checked(&version, Some(&passed), &failed);
        metrics.checked(&version, Some(&failed), &failed);
        let text = all.render();
        let counter =
            "aggregator_unavailable_apiservice_total{name=\"v1.garden.example\",reason=\"FailedDiscoveryCheck\"} 1\n";
        assert!(text.contains(&format!("{gauge} 1\n")) && text.contains(counter), "{text}");
        metrics.forget(&version);
        assert!(!all.render().contains(gauge));
    }
}
