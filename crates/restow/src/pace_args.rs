//! Flags that control how fast objects are rewritten.

use clap::Args;
use restow_migrate::settling_time::SETTLING_TIME;
use restow_rules::migrate::pacer::PacerLimits;
use std::time::Duration;

/// How fast objects are rewritten.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct PaceArgs {
    /// The maximum number of objects of one resource in flight.
    #[arg(long, value_name = "N", default_value_t = PacerLimits::default().ceiling)]
    max_in_flight: usize,
    /// Do not slow down for other clients. By default fewer objects are in flight when small reads take more than twice as
    /// long as without a migration.
    #[arg(long)]
    hurry: bool,
    #[command(flatten)]
    settling: SettlingArgs,
}

/// When a proof begins.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct SettlingArgs {
    /// The settling time: how long an API server may still write an old version after all of them show the new one, or
    /// after one has left, because of older requests in flight. Nothing is proven earlier. It has to be longer, by some 10
    /// s, than the --request-timeout of kube-apiserver and, if API servers may be shut down meanwhile, its
    /// --shutdown-delay-duration together. Does not apply to Restow API servers, which report their storage versions before
    /// they write (StorageVersion API), under a fence; it does to aggregated API servers that report.
    #[arg(long, value_name = "SECONDS", default_value_t = SETTLING_TIME.as_secs())]
    settling_time: u64,
}

impl PaceArgs {
    pub(crate) fn limits(self) -> PacerLimits {
        let limits = if self.hurry { PacerLimits::in_a_hurry() } else { PacerLimits::default() };
        PacerLimits { ceiling: self.max_in_flight, ..limits }
    }

    pub(crate) fn settling_time(self) -> Duration {
        self.settling.time()
    }
}

impl SettlingArgs {
    pub(crate) fn time(self) -> Duration {
        Duration::from_secs(self.settling_time)
    }
}
