//! What the controller counts and measures.

use crate::runner::Progress;
use prometheus_client::encoding::{EncodeLabelSet, text::encode};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use restow_api::GroupResource;
use std::sync::Arc;

/// The metrics of a controller, in Prometheus' words.
#[derive(Clone)]
pub struct Metrics {
    registry: Arc<Registry>,
    leading: Gauge,
    objects: Family<ObjectsLabels, Gauge>,
    concurrency: Family<ResourceLabels, Gauge>,
    overloads: Family<ResourceLabels, Gauge>,
    migrations: Family<ResultLabels, Counter>,
    disagreement: Family<ResourceLabels, Gauge>,
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

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("restow");
        let metrics = (
            Gauge::default(),
            Family::<ObjectsLabels, Gauge>::default(),
            Family::<ResourceLabels, Gauge>::default(),
            Family::<ResourceLabels, Gauge>::default(),
            Family::<ResultLabels, Counter>::default(),
            Family::<ResourceLabels, Gauge>::default(),
        );
        registry.register("leading", "Whether this controller acts", metrics.0.clone());
        registry.register(
            "migration_objects",
            "Objects of the last migration of a resource, by what became of them",
            metrics.1.clone(),
        );
        registry.register("migration_in_flight_limit", "How many objects may be in flight", metrics.2.clone());
        registry.register(
            "migration_overloads",
            "How often the API server asked the last migration of a resource to wait",
            metrics.3.clone(),
        );
        registry.register("migrations", "Migrations that ended, by result", metrics.4.clone());
        registry.register(
            "disagreement_since_seconds",
            "Since when the API servers do not agree on a storage version, in seconds since 1970; zero when they do",
            metrics.5.clone(),
        );
        let (leading, objects, concurrency, overloads, migrations, disagreement) = metrics;
        Metrics { registry: Arc::new(registry), leading, objects, concurrency, overloads, migrations, disagreement }
    }
}

impl Metrics {
    /// All metrics as text.
    pub fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = encode(&mut text, &self.registry);
        text
    }

    pub(super) fn set_leading(&self, leading: bool) {
        self.leading.set(i64::from(leading));
    }

    pub(super) fn set_agreement(&self, resource: &GroupResource, disagreement: Option<String>) {
        let since = self.disagreement.get_or_create(&labels(resource)).get();
        let since_now = match disagreement {
            None => 0,
            Some(_) if since > 0 => since,
            Some(words) => {
                tracing::warn!("{resource}: {words}");
                jiff::Timestamp::now().as_second()
            }
        };
        self.disagreement.get_or_create(&labels(resource)).set(since_now);
    }

    pub(super) fn progressed(&self, resource: &GroupResource, progress: &Progress) {
        let counts = &progress.counts;
        for (state, count) in [
            ("seen", counts.seen),
            ("rewritten", counts.rewritten),
            ("skipped", counts.skipped),
            ("failed", counts.failed),
            ("remaining", counts.remaining.unwrap_or(0)),
        ] {
            let labels = ObjectsLabels { resource: resource.to_string(), state };
            self.objects.get_or_create(&labels).set(i64::try_from(count).unwrap_or(i64::MAX));
        }
        let number = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        self.concurrency.get_or_create(&labels(resource)).set(number(progress.concurrency as u64));
        self.overloads.get_or_create(&labels(resource)).set(number(progress.overloads));
    }

    pub(super) fn ended(&self, resource: &GroupResource, result: &str, progress: &Progress) {
        self.progressed(resource, progress);
        let labels = ResultLabels { resource: resource.to_string(), result: result.to_owned() };
        self.migrations.get_or_create(&labels).inc();
    }
}

fn labels(resource: &GroupResource) -> ResourceLabels {
    ResourceLabels { resource: resource.to_string() }
}
