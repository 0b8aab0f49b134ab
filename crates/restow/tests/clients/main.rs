//! Real clients against real servers: the binary, on each store, used with kubectl, kube-rs and the Python client.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod admission;
mod admission_policies;
mod aggregated_apis;
mod conversion_webhook;
mod custom_resources;
mod etcd_outage;
mod exit_codes;
mod invalid_input;
mod kube_rs;
mod kubectl;
mod migration;
mod python;
mod rbac;
mod real_crds;
mod server_side_apply;
mod startup;
mod status_command;
mod storage_version_changes;
mod subresource_admission;
mod verify_command;
mod webhook_server;
mod workloads;
