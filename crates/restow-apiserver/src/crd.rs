//! Custom resources: what a CustomResourceDefinition defines is served like what is built in.
//!
//! `definition` reads a definition, `strategy` and `validation` are the rules of definitions themselves, `status` decides
//! on their names and conditions, `resources` makes the resources that are served, `in_force` guards their storage
//! version, and `follower` keeps all of it in step with the store. `kind` has the schemas, `convert` calls conversion
//! webhooks, and `columns` and `openapi` do for custom resources what tables do for built-in ones.

mod convert;
mod finalizer;
mod handler;
mod reconciler;
mod resources;
mod status;
mod strategy;
mod validation;
pub(crate) mod version_in_force;

pub(crate) use reconciler::CustomResources;
pub(crate) use strategy::DefinitionStrategy;
