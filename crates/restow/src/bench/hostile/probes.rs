//! The requests that must stay fast under hostile load.

use super::{NAMESPACE, send};
use http::Method;
use std::time::{Duration, Instant};

/// How often each is sent.
const INTERVAL: Duration = Duration::from_millis(25);

/// A request that must stay fast.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Probe {
    Health,
    Lease,
    Administrator,
}

impl Probe {
    pub(super) const ALL: [Probe; 3] = [Probe::Health, Probe::Lease, Probe::Administrator];

    pub(super) fn name(self) -> &'static str {
        match self {
            Probe::Health => "/healthz",
            Probe::Lease => "renewal of a lease",
            Probe::Administrator => "an administrator's get",
        }
    }

    /// Sends it again and again until the end.
    pub(super) async fn measure(self, client: &kube::Client, end: Instant) -> anyhow::Result<Latencies> {
        let mut latencies = Latencies::default();
        let mut number = 0u64;
        while Instant::now() < end {
            number += 1;
            let begun = Instant::now();
            self.ask(client, number).await?;
            let taken = begun.elapsed();
            latencies.0.push(taken);
            tokio::time::sleep(INTERVAL.saturating_sub(taken)).await;
        }
        latencies.0.sort_unstable();
        Ok(latencies)
    }

    async fn ask(self, client: &kube::Client, number: u64) -> anyhow::Result<()> {
        match self {
            Probe::Health => send(client, Method::GET, "/healthz", None, None).await?,
            Probe::Lease => {
                let path = format!("/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/probe");
                let patch = format!(r#"{{"spec":{{"holderIdentity":"{number}"}}}}"#);
                let body = Some(("application/merge-patch+json", patch));
                send(client, Method::PATCH, &path, body, Some("renewer")).await?
            }
            Probe::Administrator => {
                let path = format!("/api/v1/namespaces/{NAMESPACE}/configmaps/map-000000");
                send(client, Method::GET, &path, None, None).await?
            }
        };
        Ok(())
    }
}

/// Sorted latencies.
#[derive(Debug, Default)]
pub(super) struct Latencies(Vec<Duration>);

impl Latencies {
    /// The milliseconds within which this share of the responses came.
    pub(super) fn at(&self, share: f64) -> Option<f64> {
        let last = self.0.len().checked_sub(1)?;
        let place = (share * self.0.len() as f64).ceil() as usize;
        self.0.get(place.saturating_sub(1).min(last)).map(|taken| taken.as_secs_f64() * 1000.0)
    }

    pub(super) fn count(&self) -> f64 {
        self.0.len() as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_of_all_answers() {
        let latencies = Latencies((1..=200).map(Duration::from_millis).collect());
        assert_eq!([0.5, 0.99, 1.0].map(|share| latencies.at(share)), [Some(100.0), Some(198.0), Some(200.0)]);
        assert_eq!(Latencies::default().at(0.5), None);
    }
}
