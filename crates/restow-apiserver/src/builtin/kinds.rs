//! What is special about single built-in kinds, one file each, beyond their rows in the tables.
//!
//! A kind's file has its [`Strategy`], the defaults and checks of its types (named in `defaults/by_type.rs` and
//! `checks/by_type.rs`), and its conversion (named in `convert.rs`). Kinds that have only a conversion are in `convert/`.

mod admission_registration;
pub(super) mod api_service;
pub(super) mod certificate_signing_request;
mod config_map;
mod cron_job;
pub(super) mod daemon_set;
pub(super) mod deployment;
pub(super) mod endpoint_slice;
pub(super) mod event;
pub(super) mod flow_control;
pub(super) mod horizontal_pod_autoscaler;
pub(super) mod ingress;
pub(super) mod job;
mod lease;
pub(super) mod limit_range;
mod namespace;
pub(super) mod network_policy;
pub(super) mod node;
mod persistent_volume;
pub(super) mod persistent_volume_claim;
pub(super) mod pod;
mod priority_class;
pub(super) mod rbac;
pub(super) mod replication_controller;
pub(super) mod resource_quota;
mod review;
pub(super) mod secret;
pub(crate) mod service;
mod service_account;
pub(super) mod stateful_set;
mod storage_class;
pub(crate) mod storage_version;
mod workloads;

use crate::resource::strategy::{Plain, Strategy};

/// The rules in the file of a kind, without those that its row in `resources.txt` names.
pub(super) fn rules(group: &str, kind: &str) -> &'static dyn Strategy {
    match (group, kind) {
        ("", "Binding") => &pod::Binding,
        ("", "ConfigMap") => &config_map::ConfigMap,
        ("", "Event") => &event::CoreEvent,
        ("", "LimitRange") => &limit_range::LimitRange,
        ("", "Namespace") => &namespace::Namespace,
        ("", "Node") => &node::Node,
        ("", "PersistentVolume") => &persistent_volume::PersistentVolume,
        ("", "PersistentVolumeClaim") => &persistent_volume_claim::PersistentVolumeClaim,
        ("", "Pod") => &pod::Pod,
        ("", "PodTemplate") => &pod::PodTemplate,
        ("", "ReplicationController") => &replication_controller::ReplicationController,
        ("", "Secret") => &secret::Secret,
        ("", "Service") => &service::Service,
        ("", "ServiceAccount") => &service_account::ServiceAccount,
        ("admissionregistration.k8s.io", _) => &admission_registration::Configuration,
        ("apiregistration.k8s.io", "APIService") => &api_service::ApiService,
        ("apps", "DaemonSet") => &daemon_set::DaemonSet,
        ("apps", "Deployment") => &deployment::Deployment,
        ("apps", "ReplicaSet") => &workloads::ReplicaSet,
        ("apps", "StatefulSet") => &stateful_set::StatefulSet,
        ("authentication.k8s.io" | "authorization.k8s.io", kind) => review::rules(kind),
        ("batch", "CronJob") => &cron_job::CronJob,
        ("batch", "Job") => &job::Job,
        ("certificates.k8s.io", "CertificateSigningRequest") => &certificate_signing_request::CertificateSigningRequest,
        ("coordination.k8s.io", "Lease") => &lease::Lease,
        ("discovery.k8s.io", "EndpointSlice") => &endpoint_slice::EndpointSlice,
        ("events.k8s.io", "Event") => &event::Event,
        ("internal.apiserver.k8s.io", "StorageVersion") => &storage_version::StorageVersionRules,
        ("networking.k8s.io", "Ingress") => &ingress::Ingress,
        ("rbac.authorization.k8s.io", "Role" | "ClusterRole") => &rbac::Role,
        ("rbac.authorization.k8s.io", "RoleBinding" | "ClusterRoleBinding") => &rbac::RoleBinding,
        ("scheduling.k8s.io", "PriorityClass") => &priority_class::PriorityClass,
        ("storage.k8s.io", "StorageClass") => &storage_class::StorageClass,
        _ => &Plain,
    }
}
