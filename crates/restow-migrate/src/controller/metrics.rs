//! The metrics of the controller.

use crate::runner::Progress;
use jiff::Timestamp;
use prometheus_client::encoding::{EncodeLabelSet, text::encode};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use restow_api::GroupResource;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

/// The metrics of a controller, in Prometheus format.
#[derive(Clone, Default)]
pub struct Metrics {
    leading: Gauge,
    objects: Family<ObjectsLabels, Gauge>,
    rate: Family<ResourceLabels, Gauge<f64, AtomicU64>>,
    time_left: Family<ResourceLabels, Gauge<f64, AtomicU64>>,
    concurrency: Family<ResourceLabels, Gauge>,
    overloads: Family<ResourceLabels, Gauge>,
    migrations: Family<ResultLabels, Counter>,
    disagreement: Family<ResourceLabels, Gauge>,
    unmigrated: Family<ResourceLabels, Gauge>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResourceLabels {
    resource: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ObjectsLabels {
    resource: String,
    state: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabels {
    resource: String,
    result: String,
}

impl Metrics {
    /// Registers all metrics, for a process that has others too.
    pub fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("restow");
        registry.register("leading", "Whether this controller acts", self.leading.clone());
        registry.register(
            "migration_objects",
            "Objects of the last migration of a resource, by what became of them",
            self.objects.clone(),
        );
        registry.register("migration_objects_per_second", "How fast objects are dealt with", self.rate.clone());
        registry.register(
            "migration_time_left_seconds",
            "How long the present pass through all objects will take, at the present speed",
            self.time_left.clone(),
        );
        registry.register("migration_in_flight_limit", "How many objects may be in flight", self.concurrency.clone());
        registry.register(
            "migration_overloads",
            "How often the API server asked the last migration of a resource to wait (429)",
            self.overloads.clone(),
        );
        registry.register("migrations", "Migrations that ended, by result", self.migrations.clone());
        registry.register(
            "disagreement_since_seconds",
            "Since when the API servers do not agree on a storage version, in seconds since 1970; zero when they do",
            self.disagreement.clone(),
        );
        registry.register(
            "unmigrated_since_seconds",
            "Since when objects may be stored in another version than the current one, in seconds since 1970; zero when \
             none are",
            self.unmigrated.clone(),
        );
    }

    /// All metrics as text.
    pub fn text(&self) -> String {
        let mut registry = Registry::default();
        self.register(&mut registry);
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = encode(&mut text, &registry);
        text
    }

    pub(super) fn set_leading(&self, leading: bool) {
        self.leading.set(i64::from(leading));
    }

    /// Sets whether the servers agree. Returns whether this disagreement is new.
    pub(super) fn set_agreement(&self, resource: &GroupResource, disagreement: Option<&str>) -> bool {
        let gauge = self.disagreement.get_or_create(&labels(resource));
        let is_known = gauge.get() > 0;
        match disagreement {
            None => {
                gauge.set(0);
                false
            }
            Some(_) if is_known => false,
            Some(_) => {
                gauge.set(restow_host::now().as_second());
                true
            }
        }
    }

    pub(super) fn set_unmigrated_since(&self, resource: &GroupResource, since: Option<Timestamp>) {
        self.unmigrated.get_or_create(&labels(resource)).set(since.map_or(0, Timestamp::as_second));
    }

    /// Removes the metrics of a resource that is not served any more.
    pub(super) fn forget(&self, resource: &GroupResource) {
        self.disagreement.remove(&labels(resource));
        self.unmigrated.remove(&labels(resource));
    }

    pub(super) fn progressed(&self, resource: &GroupResource, progress: &Progress, pace: Option<f64>) {
        let counts = &progress.counts;
        for (state, count) in [
            ("seen", counts.seen),
            ("rewritten", counts.rewritten),
            ("skipped", counts.skipped),
            ("failed", counts.failed),
            ("remaining", counts.remaining.unwrap_or(0)),
        ] {
            let labels = ObjectsLabels { resource: resource.to_string(), state };
            self.objects.get_or_create(&labels).set(number(count));
        }
        if let Some(pace) = pace {
            self.rate.get_or_create(&labels(resource)).set(pace);
            let left = progress.total_in_pass.saturating_sub(progress.done_in_pass) as f64 / pace.max(0.001);
            self.time_left.get_or_create(&labels(resource)).set(left);
        }
        self.concurrency.get_or_create(&labels(resource)).set(number(progress.concurrency as u64));
        self.overloads.get_or_create(&labels(resource)).set(number(progress.overloads));
    }

    /// Counts a migration that ended after this time.
    pub(super) fn ended(&self, resource: &GroupResource, result: &str, progress: &Progress, took: Duration) {
        let mut progress = progress.clone();
        progress.counts.remaining = Some(0);
        progress.done_in_pass = progress.total_in_pass;
        progress.concurrency = 0;
        self.progressed(resource, &progress, Some(progress.counts.seen as f64 / took.as_secs_f64().max(0.001)));
        let labels = ResultLabels { resource: resource.to_string(), result: result.to_owned() };
        self.migrations.get_or_create(&labels).inc();
    }
}

fn labels(resource: &GroupResource) -> ResourceLabels {
    ResourceLabels { resource: resource.to_string() }
}

fn number(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DASHBOARD: &str = include_str!("../../../../deploy/grafana-dashboard.json");
    const ALERTS: &str = include_str!("../../../../deploy/alerts.yaml");

    #[test]
    fn every_metric_of_the_dashboard_and_the_alerts_exists() {
        let metrics = Metrics::default();
        let resource: GroupResource = "widgets.example.com".parse().unwrap();
        metrics.set_leading(true);
        metrics.set_agreement(&resource, Some("they differ"));
        metrics.set_unmigrated_since(&resource, None);
        metrics.ended(&resource, "Succeeded", &Progress::default(), Duration::from_secs(1));
        let text = metrics.text();
        let exposed: Vec<&str> = text.lines().filter_map(|line| line.split(['{', ' ']).next()).collect();
        let is_name = |character: char| character.is_ascii_alphanumeric() || character == '_';
        for (file, wanted) in [("dashboard", DASHBOARD), ("alerts", ALERTS)] {
            let names: Vec<&str> =
                wanted.split(|character| !is_name(character)).filter(|word| word.starts_with("restow_")).collect();
            assert!(names.len() > 4, "the {file} names some metrics");
            for name in names {
                assert!(exposed.contains(&name), "the {file} names {name}, which does not exist:\n{text}");
            }
        }
    }

    #[test]
    fn a_disagreement_is_news_once() {
        let metrics = Metrics::default();
        let resource: GroupResource = "widgets.example.com".parse().unwrap();
        assert!(metrics.set_agreement(&resource, Some("a")));
        assert!(!metrics.set_agreement(&resource, Some("a")));
        assert!(!metrics.set_agreement(&resource, None));
        assert!(metrics.set_agreement(&resource, Some("a")));
    }

    #[test]
    fn a_migration_shows_its_objects_its_rate_and_the_time_left() {
        let metrics = Metrics::default();
        let resource: GroupResource = "widgets.example.com".parse().unwrap();
        let value = |name: &str| {
            let text = metrics.text();
            let line = text.lines().find(|line| line.starts_with(name)).map(|line| line.rsplit(' ').next().unwrap());
            line.map(|value| value.parse::<f64>().unwrap())
        };
        let mut progress = Progress::default();
        (progress.pass, progress.done_in_pass, progress.total_in_pass) = (1, 20, 100);
        (progress.concurrency, progress.overloads) = (7, 3);
        progress.counts = restow_api::migration::MigrationCounts {
            seen: 100,
            rewritten: 11,
            skipped: 5,
            failed: 4,
            remaining: Some(80),
        };
        metrics.progressed(&resource, &progress, None);
        for (state, count) in
            [("seen", 100.0), ("rewritten", 11.0), ("skipped", 5.0), ("failed", 4.0), ("remaining", 80.0)]
        {
            let name = format!("restow_migration_objects{{resource=\"widgets.example.com\",state=\"{state}\"}}");
            assert_eq!(value(&name), Some(count), "{state}");
        }
        assert_eq!(value("restow_migration_objects_per_second{"), None, "not known yet");
        metrics.progressed(&resource, &progress, Some(10.0));
        assert_eq!(value("restow_migration_objects_per_second{"), Some(10.0));
        assert_eq!(value("restow_migration_time_left_seconds{"), Some(8.0));
        assert_eq!(value("restow_migration_in_flight_limit{"), Some(7.0));
        assert_eq!(value("restow_migration_overloads{"), Some(3.0));
        metrics.ended(&resource, "Succeeded", &progress, Duration::from_secs(50));
        assert_eq!(value("restow_migration_objects_per_second{"), Some(2.0), "on average");
        assert_eq!(value("restow_migration_time_left_seconds{"), Some(0.0));
        assert_eq!(value("restow_migration_in_flight_limit{"), Some(0.0));
        assert_eq!(value("restow_migrations_total{"), Some(1.0));
    }

    #[test]
    fn a_resource_that_is_gone_has_no_metrics() {
        let metrics = Metrics::default();
        let resource: GroupResource = "widgets.example.com".parse().unwrap();
        metrics.set_agreement(&resource, Some("a"));
        metrics.set_unmigrated_since(&resource, Some(Timestamp::from_second(77).unwrap()));
        assert!(metrics.text().contains("restow_unmigrated_since_seconds{resource=\"widgets.example.com\"} 77"));
        metrics.set_leading(true);
        assert!(metrics.text().contains("restow_leading 1"));
        metrics.forget(&resource);
        assert!(!metrics.text().contains("widgets.example.com"), "{}", metrics.text());
    }
}
