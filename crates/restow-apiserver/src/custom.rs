//! Custom resources: what a CustomResourceDefinition defines is served like what is built in.
//!
//! `definition` reads a definition, `strategy` and `validation` are the rules of definitions themselves, `status` decides
//! on their names and conditions, `resources` makes the resources that are served, `in_force` guards their storage
//! version, and `follower` keeps all of it in step with the store. `kind` has the schemas, `convert` calls conversion
//! webhooks, and `columns` and `openapi` do for custom resources what tables do for built-in ones.

mod columns;
mod convert;
mod definition;
mod finalizer;
mod follower;
mod handler;
pub(crate) mod in_force;
mod kind;
mod numbers;
pub(crate) mod openapi;
mod resources;
mod services;
mod status;
mod strategy;
mod validation;

pub(crate) use columns::{cells, definitions};
pub(crate) use follower::CustomResources;
pub(crate) use resources::CustomVersion;
pub(crate) use strategy::DefinitionStrategy;
