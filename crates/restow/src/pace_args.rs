//! How fast objects are rewritten.

use clap::Args;
use restow_agreement::migrate::pacer::PacerLimits;

/// How fast objects are rewritten.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct PaceArgs {
    /// The most objects of one resource to have in flight.
    #[arg(long, value_name = "N", default_value_t = PacerLimits::default().ceiling)]
    max_in_flight: usize,
    /// Do not slow down for other clients. Otherwise fewer objects are in flight when small reads take more than twice as
    /// long as without a migration.
    #[arg(long)]
    hurry: bool,
}

impl PaceArgs {
    pub(crate) fn limits(self) -> PacerLimits {
        let limits = if self.hurry { PacerLimits::in_a_hurry() } else { PacerLimits::default() };
        PacerLimits { ceiling: self.max_in_flight, ..limits }
    }
}
