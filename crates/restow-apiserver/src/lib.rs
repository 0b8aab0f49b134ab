//! A generic, Kubernetes-compatible API server.
//!
//! # The way of a request
//!
//! `http` reads it and finds out what it is about; `verbs` has one file for each thing that can be done; they read and
//! write through `object_store`, which knows versions and writes in the one that is in force; below lies any
//! [`restow_store::Store`]. Changes come back through `hub`, which follows the store and feeds every watch.
//!
//! # What is served
//!
//! A [`registry::Registry`] of [`resource::Resource`]s. The built-in ones are rows of a table ([`builtin`]); others are
//! made by whoever builds a server with this library.

mod access;
mod admission;
pub mod agreement;
pub mod audit;
pub mod builtin;
mod codec;
mod compaction;
mod controllers;
pub mod conversion;
mod corrupt;
mod custom;
mod deletion;
pub mod discovery;
pub mod error;
pub mod field_manager;
mod following;
mod format_mark;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
pub mod gates;
mod health;
mod http;
mod hub;
pub mod listening;
mod metrics;
mod namespaces;
mod object_store;
pub mod openapi;
mod passage;
pub mod pki;
mod printing;
pub mod registry;
pub mod release;
pub mod resource;
mod server;
mod starting;
mod status;
mod storage;
pub mod stored;
pub mod strategy;
mod turns;
mod verbs;
mod webhook;

pub use access::{AccessConfig, Authorization};
pub use agreement::{Agreement, AgreementConfig, AgreementError, Guarantee, StorageVersions};
pub use corrupt::CorruptObject;
pub use gates::{Gate, Gates};
pub use http::limits::LoadLimits;
pub use hub::{Hub, HubEvent, Overtaken, Subscription};
pub use metrics::Metrics;
pub use object_store::{Begin, Change, Changed, Decision, ObjectStore, Place, Written};
pub use server::{ApiServer, ServerConfig};
pub use status::{StatusAnswer, status_of};
