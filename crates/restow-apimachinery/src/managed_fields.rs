//! `metadata.managedFields`: the manager of each field of an object.
//!
//! Field sets and entries in Kubernetes' format, comparing two objects by their type, and merging an applied
//! configuration. The API server's field manager does this across versions and for its resources.

pub mod apply;
mod compare;
mod entries;
mod given;
mod ownership;
mod set;
#[cfg(test)]
mod tests;

pub use compare::{Comparison, compare};
pub use entries::{Entries, FieldWriter};
pub use given::Given;
pub use ownership::{Node, Ownership};
pub use set::{FieldSet, Member};
