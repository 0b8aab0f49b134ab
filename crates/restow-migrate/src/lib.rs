//! Finds objects stored in an old version and rewrites them, on any Kubernetes.
//!
//! Everything here speaks the public Kubernetes API and nothing else, so the same code runs against our own API server and
//! against a stock cluster. It observes and executes; what to do is decided in `restow-rules`.
//!
//! | module | what it does |
//! |---|---|
//! | [`cluster`] | how the API servers are reached, together and one by one |
//! | [`discovery`] | which resources are stored, and in which version each server stores them |
//! | [`agreement`] | whether all servers store a resource in the same version |
//! | [`processes`] | which process each of them is |
//! | [`settling`] | since when they do, and how long a write that was encoded before may still be under way |
//! | [`runner`] | rewrites the objects of one resource until nothing old is left |
//! | [`CRD`] | reading CRDs, and writing their annotations and stored versions |
//! | [`mark`] | who marked a CRD as being migrated: set, renewed, taken away |
//! | [`migration`] | one migration from agreement to stored versions: what `restow migrate` and the controller share |
//! | [`controller`] | does all of this by itself |
//! | [`overview`] | everything that is known about the storage versions of a cluster, for people |
//! | [`install`] | puts what the controller needs into a cluster |

pub mod api_servers;
pub mod cluster;
pub mod cluster_status;
pub mod controller;
pub mod crd;
pub mod discovery;
pub mod install;
pub mod mark;
pub mod migration;
pub mod processes;
pub mod runner;
pub mod settling_time;

mod backoff;
mod request;

pub use request::{RequestError, RequestErrorDetails};
