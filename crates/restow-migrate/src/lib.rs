//! Finds objects stored in an old version and rewrites them, on any Kubernetes.
//!
//! This crate uses the public Kubernetes API only, so the same code runs on Restow API servers and on stock clusters. It
//! observes and executes; `restow-rules` decides what to do.
//!
//! | module | what it does |
//! |---|---|
//! | [`cluster`] | how to reach the API servers, through one address and one by one |
//! | [`discovery`] | which resources are stored, and in which version each API server stores them |
//! | [`api_servers`] | queries all API servers: do they store a resource in the same version? |
//! | [`processes`] | which process answers at each address |
//! | [`settling_time`] | since when the API servers agree, and how long older writes may still be in flight |
//! | [`runner`] | rewrites the objects of one resource until nothing old is left |
//! | [`crd`] | reads CRDs, and writes their annotations and stored versions |
//! | [`mark`] | the annotations that mark a CRD while its objects are migrated: set, renewed, removed |
//! | [`step`] | the steps of a migration, as log events |
//! | [`migration`] | one migration from agreement to stored versions; `restow migrate` and the controller share it |
//! | [`controller`] | reconciles the whole cluster: the trigger, the workers, leader election, metrics and events |
//! | [`cluster_status`] | the storage versions and migrations of a cluster, for `restow status` |
//! | [`install`] | installs what the controller needs |

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
pub mod step;

mod backoff;
mod request;

pub use request::{RequestError, RequestErrorDetails};
