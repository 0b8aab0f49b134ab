//! Identity leases that aggregated servers hold at the main API server. Their writes go to a store of their own.
//!
//! No transaction spans both stores, so the lease at the main API server never expires by time: a server that was paused
//! could still write to its own store after its report was collected. The lease names the one in the own store that fences
//! the writes. Once that is gone, no write under it can be committed, and a server on that store deletes the lease at the
//! main API server. **The leases at the main API server are read first.** A lease there is younger than the one it names, so one that
//! is missing in the own store afterwards is gone for good: it had a uid of its own, and no other lease will have it.

use std::collections::BTreeSet;

/// The label of an identity lease with the control plane of its server, where that is another one than the label
/// `apiserver.kubernetes.io/identity` says. A stock kube-apiserver removes the reports of servers whose lease does not say
/// `kube-apiserver` there.
pub const CONTROL_PLANE_LABEL: &str = "restow.dev/control-plane";
/// The annotation of an identity lease at a main API server with the uid of the lease in its server's own store.
pub const OWN_LEASE_ANNOTATION: &str = "restow.dev/own-lease-uid";
/// The label of such a lease with the id of that store.
pub const OWN_STORE_LABEL: &str = "restow.dev/own-store";

/// The lease in a server's own store that fences its writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnLease {
    /// Its uid.
    pub uid: String,
    /// The id of the store.
    pub store: String,
}

/// An identity lease at the main API server, of a server with a store of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MainLease {
    /// The server.
    pub id: String,
    /// The uid of this lease, the precondition of deleting it: a server that has joined again has another one.
    pub uid: String,
    /// The uid of the lease in the server's own store, without which it cannot write.
    pub own_lease: String,
}

/// The leases in the own store, read after those at the main API server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnLeases {
    /// Their uids.
    pub uids: BTreeSet<String>,
    /// The names of those that could not be read.
    pub unread: BTreeSet<String>,
}

/// The leases at the main API server whose servers cannot write any more.
pub fn ended(main: Vec<MainLease>, own: &OwnLeases) -> Vec<MainLease> {
    let has_ended = |lease: &MainLease| !own.uids.contains(&lease.own_lease) && !own.unread.contains(&lease.id);
    main.into_iter().filter(has_ended).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_ends_only_with_the_lease_in_the_own_store_that_it_names() {
        let lease =
            |id: &str, own_lease: &str| MainLease { id: id.into(), uid: "m".into(), own_lease: own_lease.into() };
        let own = OwnLeases { uids: BTreeSet::from(["1".to_owned()]), unread: BTreeSet::from(["c".to_owned()]) };
        let main = vec![lease("a", "1"), lease("a", "0"), lease("b", "2"), lease("c", "3")];
        assert_eq!(ended(main, &own), [lease("a", "0"), lease("b", "2")], "another life of a, and b");
    }
}
