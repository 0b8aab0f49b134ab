//! An aggregated API server: made with the library, with a store of its own, and reports at the main API servers.
//!
//! No transaction spans the two stores, so the order of what happened in them is found by time: all processes of a run have the same
//! time since boot. The server records when each write began and ended, and the revision of etcd is asked for all the time.
//!
//! | file | what is in it |
//! |---|---|
//! | `server.rs`, `recording_store.rs` | the process, and the store that records |
//! | `record.rs`, `reader.rs` | what is recorded, and reading it while it is written |
//! | `revision_times.rs` | when a revision of etcd was made |
//! | `two_stores.rs` | the checks that compare the two stores |

mod reader;
mod record;
mod recording_store;
mod revision_times;
pub(crate) mod server;
mod two_stores;

pub(crate) use reader::Reader;
pub(crate) use revision_times::RevisionTimes;
pub(crate) use two_stores::{ReportedState, check};

use crate::world::user::Kind;
use rand::Rng;
use serde_json::json;

/// The resource that it serves, as in the name of its StorageVersion.
pub(crate) const RESOURCE: &str = "garden.example.plants";
const GROUP: &str = "garden.example";

/// What it serves.
pub(crate) const PLANTS: Kind = Kind {
    resource: RESOURCE,
    path: "/apis/garden.example",
    versions: &["v1", "v2"],
    plural: "plants",
    kind: "Plant",
    namespace: "default",
    names: 5,
    body: |random| json!({"spec": {"height": random.random_range(0..100)}}),
};
