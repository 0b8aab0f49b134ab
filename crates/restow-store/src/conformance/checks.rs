//! The checks themselves, one file per concern. Each opens a store of its own.

mod compaction;
mod concurrent_histories;
mod limits;
mod progress;
mod random_operations;
mod ranges;
mod revisions;
mod time_to_live;
mod transactions;
mod watches;

use super::mirror::{Mirror, key};
use super::{Fixture, TIMEOUT};
use crate::{KeyRange, Txn};

/// Runs one check of the list in `conformance_tests!`.
pub(super) async fn run(group: &str, check: &str, fixture: &dyn Fixture) {
    crate::conformance_tests! { @list dispatch (group, check, fixture) }
    panic!("there is no check {group}::{check}");
}

/// Writes a history in which keys are created, changed, deleted, created again and changed together. Its last change
/// touches each of [`ranges_of_interest`].
async fn write_a_history(mirror: &mut Mirror) {
    mirror.put("/a/1", "first").await;
    mirror.put("/a/2", "second").await;
    mirror.put("/b/1", "other folder").await;
    mirror.put("/a/1", "changed").await;
    mirror.delete("/a/2").await;
    mirror.commit(Txn::new().put(&key("/a/3"), "x").put(&key("/a/2"), "again").delete(&key("/b/1"))).await;
    mirror.put("/a/1", "changed").await;
    mirror.commit(Txn::new().delete(&key("/a/3")).delete(&key("/a/1")).put(&key("/a"), "the folder's own name")).await;
    mirror.delete("/a/2").await;
    mirror.put("/a/1", "").await;
    mirror.put("/a0", "just beyond the folder").await;
    mirror.commit(Txn::new().put(&key("/c"), "c").delete(&key("/a"))).await;
    end_a_history(mirror).await;
}

/// Changes something in each of [`ranges_of_interest`].
async fn end_a_history(mirror: &mut Mirror) {
    let at = mirror.revision();
    let ending = ["/a/1", "/a/2", "/b/1", "/z"].into_iter().fold(Txn::new(), |txn, name| {
        let value = format!("after {at}");
        txn.put(&key(name), value)
    });
    mirror.commit(ending).await;
}

fn ranges_of_interest() -> Vec<KeyRange> {
    vec![
        KeyRange::all(),
        KeyRange::prefix("/a/"),
        KeyRange::prefix("/a"),
        KeyRange::exactly(&key("/a/2")),
        KeyRange::all().after(&key("/a/2")),
    ]
}
