//! The rules of the design, as predicates over states.

use crate::protocol::Protocol;
use crate::state::{Process, State, Version, Write};

pub(crate) const REPORT_BEFORE_WRITE: &str = "rule 1: report before write";
pub(crate) const AGREEMENT_IS_TRUE: &str = "rule 2: agreement is true";
pub(crate) const NO_POLLUTED_MIGRATION: &str = "rule 3: no polluted migration";
pub(crate) const A_PROOF_STAYS_TRUE: &str =
    "what a migration proved stays true while the StorageVersion stays the same";
pub(crate) const A_MIGRATION_SUCCEEDS: &str = "a migration to the new version succeeds";

/// Every write was in the version that its server had reported at that revision. One that reports nothing at all is outside
/// this rule; the next one is about it too.
pub(crate) fn report_before_write(_: &Protocol, state: &State) -> bool {
    !state.history.unreported_write
}

/// If there is a common version, every server that can still write encodes it.
pub(crate) fn agreement_is_true(protocol: &Protocol, state: &State) -> bool {
    let Some(common) = state.store.storage_version.as_ref().and_then(|record| record.common) else {
        return true;
    };
    versions_still_to_be_written(protocol, state).into_iter().all(|version| version == common)
}

/// No migration succeeded with an object in another version.
pub(crate) fn no_polluted_migration(_: &Protocol, state: &State) -> bool {
    !state.history.polluted_migration
}

/// After a success, every object stays in the target version for as long as the StorageVersion does not change.
pub(crate) fn a_proof_stays_true(_: &Protocol, state: &State) -> bool {
    state.proof.is_none_or(|proof| state.store.objects.iter().flatten().all(|object| object.version == proof.version))
}

/// Liveness: a migration can succeed.
pub(crate) fn a_migration_succeeds(_: &Protocol, state: &State) -> bool {
    let all_v2 = state.store.objects.iter().flatten().all(|object| object.version == Version::V2);
    state.history.migrated_to_v2 && all_v2 && state.proof.is_some()
}

/// The versions of everything that is in flight and of everything that serving processes may yet send, as far as the
/// fence would let it pass.
fn versions_still_to_be_written(protocol: &Protocol, state: &State) -> Vec<Version> {
    let passes = |server: usize, fence, in_force| {
        let holds_lease = !protocol.comparisons.fence || fence == state.store.lease_revision(server);
        holds_lease && in_force == state.store.crd.revision
    };
    let in_flight = state.servers.iter().filter_map(|server| server.in_flight).chain(state.orphan);
    let future = state.servers.iter().enumerate().filter_map(|(index, server)| match server.process {
        Process::Serving { version, lease } => Some((index, version, lease, server.heard)),
        _ => None,
    });
    in_flight
        .map(|Write { server, version, fence, in_force, .. }| (server, version, fence, in_force))
        .chain(future)
        .filter(|(server, _, fence, in_force)| passes(*server, *fence, *in_force))
        .map(|(_, version, _, _)| version)
        .collect()
}
