//! The Rust client, kube-rs, against servers on each store: typed and dynamic objects, watches, a controller with
//! leader election.

mod controller;
mod leader_election;
mod objects;
mod watch;

/// A config map with these labels and data.
pub(crate) fn config_map(
    name: &str,
    labels: &[(&str, &str)],
    data: &[(&str, &str)],
) -> k8s_openapi::api::core::v1::ConfigMap {
    let map = |pairs: &[(&str, &str)]| pairs.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
    k8s_openapi::api::core::v1::ConfigMap {
        metadata: kube::core::ObjectMeta {
            name: Some(name.to_string()),
            labels: Some(map(labels)),
            ..kube::core::ObjectMeta::default()
        },
        data: Some(map(data)),
        ..k8s_openapi::api::core::v1::ConfigMap::default()
    }
}
