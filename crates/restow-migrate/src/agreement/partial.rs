//! What can be seen of a cluster though not every API server can be asked: from behind a load balancer, or from a laptop.
//!
//! It is for people to look at. Nothing is migrated by it, because servers that cannot be asked may store anything.

use super::{Observation, Scope, observe, reported};
use crate::cluster::Cluster;
use crate::discovery::discover;
use crate::exchange::Failure;

/// The servers that are there, by what is known of them.
const OTHERS: &str = "the API servers behind it";

/// Asks all servers, or at least the one that answers at the common address.
pub async fn observe_what_can_be_seen(cluster: &Cluster) -> Result<Observation, Failure> {
    let failure = match observe(cluster, Scope::All).await {
        Ok(observation) => return Ok(observation),
        Err(failure) => failure,
    };
    let common = cluster.common();
    // Where not even that one answers, the first failure says more.
    let Ok(discovery) = discover(&common.client).await else { return Err(failure) };
    let reported = reported(cluster).await.unwrap_or_default();
    let discoveries = vec![(common.name.clone(), Ok(discovery)), (OTHERS.to_owned(), Err(failure))];
    Ok(Observation { instances: vec![common], discoveries, reported })
}
