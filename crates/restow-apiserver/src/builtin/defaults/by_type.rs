//! The types with defaults that depend on other values, which a row of `defaults.txt` cannot express. The functions are
//! in the files of the kinds.

use crate::builtin::kinds::{
    flow_control, horizontal_pod_autoscaler, job, limit_range, network_policy, node, pod, replication_controller,
    secret, service, stateful_set,
};
use serde_json::{Map, Value};

/// Sets the defaults of a value of this type.
pub(super) fn complete(package: &str, name: &str, fields: &mut Map<String, Value>) {
    match (package, name) {
        ("apps/v1", "StatefulSetSpec") => stateful_set::default_claims(fields),
        ("autoscaling/v1", "HorizontalPodAutoscaler") => horizontal_pod_autoscaler::default_cpu_target(fields),
        ("autoscaling/v2", "HorizontalPodAutoscalerBehavior") => horizontal_pod_autoscaler::default_behavior(fields),
        ("batch/v1", "Job") => job::default(fields),
        ("core/v1", "Container") | ("core/v1", "EphemeralContainer") => pod::types::default_pull_policy(fields),
        ("core/v1", "LimitRangeItem") => limit_range::default_item(fields),
        ("core/v1", "NodeSpec") => node::default_pod_cidrs(fields),
        ("core/v1", "NodeStatus") => node::default_allocatable(fields),
        ("core/v1", "Pod") => pod::types::default_requests(fields),
        ("core/v1", "PodSpec") => pod::types::default_service_account(fields),
        ("core/v1", "ReplicationController") => replication_controller::default(fields),
        ("core/v1", "Secret") => secret::default(fields),
        ("core/v1", "ServicePort") => service::default_target_port(fields),
        ("core/v1", "ServiceSpec") => service::default_affinity(fields),
        ("core/v1", "Volume") => pod::types::default_volume(fields),
        ("flowcontrol/v1", "FlowSchemaSpec") => flow_control::default_flow_schema(fields),
        ("flowcontrol/v1", "QueuingConfiguration") => flow_control::default_queuing(fields),
        ("networking/v1", "NetworkPolicySpec") => network_policy::default_policy_types(fields),
        _ => {}
    }
}
