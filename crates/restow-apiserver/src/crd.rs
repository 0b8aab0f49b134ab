//! Custom resources: serves the resources of CustomResourceDefinitions (CRDs) like built-in ones.
//!
//! | file | what is in it |
//! |---|---|
//! | `reconciler.rs` | reflects the CRDs, builds and removes handlers, writes their status |
//! | `handler.rs` | the handler of one CRD, and how it is replaced when the CRD changes |
//! | `resources.rs` | the resources of a CRD, one for each served version |
//! | `version_in_force.rs` | the key that guards the storage version of a custom resource |
//! | `status.rs` | accepted names and conditions |
//! | `strategy.rs`, `validation.rs` | defaults and validation of CRDs themselves |
//! | `finalizer.rs` | deletion of a CRD and its objects |
//! | `convert.rs` | conversion webhooks |
//!
//! The types and the schemas are in `apiextensions`.

mod conversion_webhook;
mod finalizer;
mod handler;
mod reconciler;
mod resources;
mod status;
mod strategy;
mod validation;
pub(crate) mod version_in_force;

pub(crate) use reconciler::CustomResources;
pub(crate) use strategy::CrdStrategy;
