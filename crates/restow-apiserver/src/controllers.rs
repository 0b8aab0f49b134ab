//! What a server does by itself, for the whole cluster: one of the servers on a store does it, the others wait.

mod garbage_collector;
mod kubernetes_service;
mod leadership;
mod namespaces;

pub(crate) use garbage_collector::collect_garbage;
pub(crate) use kubernetes_service::{KubernetesService, publish_servers, withdraw_server};
pub(crate) use namespaces::empty_namespaces;
