//! Controllers that run in the server: garbage collector, namespace controller, and the `kubernetes` service.

mod garbage_collector;
mod kubernetes_service;
mod namespaces;

pub(crate) use garbage_collector::collect_garbage;
pub(crate) use kubernetes_service::{KubernetesService, publish_servers, withdraw_server};
pub(crate) use namespaces::empty_namespaces;
