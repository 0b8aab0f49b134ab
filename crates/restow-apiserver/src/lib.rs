//! A generic, Kubernetes-compatible API server.
//!
//! # The path of a request
//!
//! `http` parses it and finds its handler; `handlers` has one file for each verb, and the pipeline that every write passes; they read
//! and write through `storage`, which stores objects in the storage version, in any [`restow_store::Store`]. The watch cache watches
//! the store and feeds the watches of all clients.
//!
//! # What is served
//!
//! A [`Registry`](resource::registry::Registry) of [`Resource`](resource::Resource)s. The built-in ones are rows of a table
//! ([`builtin`]); a program that uses this library defines others.

mod admission;
mod aggregator;
mod apiextensions;
pub mod audit;
mod auth;
pub mod builtin;
mod controllers;
mod core;
mod crd;
pub mod discovery;
pub mod error;
mod field_manager;
mod flow_control;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
pub mod gates;
mod handlers;
mod http;
mod metrics;
mod namespaces;
mod printing;
pub mod release;
mod request;
pub mod resource;
mod server;
pub mod serving;
pub mod storage;
pub mod storage_version;
mod webhook_client;

pub use aggregator::{
    AggregatorConfig, AggregatorConfigError, AggregatorTlsError, ProxyClientCertificate, RequestHeaderConfig,
};
pub use auth::{AccessConfig, AuthorizationMode};
pub use error::corrupt::CorruptObject;
pub use error::status::{StatusResponse, status_of};
pub use flow_control::limits::LoadLimits;
pub use gates::{Gate, Gates};
pub use http::connections::serve;
pub use http::in_process::{InProcessBody, call};
pub use metrics::Metrics;
pub use resource::ObjectRef;
pub use server::{ApiServer, ServerConfig};
pub use storage::object_store::{Begin, Changed, ObjectChange, ObjectDecision, ObjectStore, Written};
pub use storage::watch_cache::{CacheEvent, Expired, Subscription, WatchCache};
pub use storage_version::{Agreement, AgreementConfig, AgreementError, Guarantee, StorageVersions};
