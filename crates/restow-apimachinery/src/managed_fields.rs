//! `metadata.managedFields`: who set which field of an object.
//!
//! Field sets and entries as Kubernetes writes them, comparing two objects along their type, and merging an applied
//! configuration. Across versions, and for the kinds of a server, this is done by the API server's field manager.

pub mod apply;
mod compare;
mod entries;
mod given;
mod ownership;
mod set;
#[cfg(test)]
mod tests;

pub use compare::{Comparison, compare};
pub use entries::{Entries, Writer};
pub use given::Given;
pub use ownership::{MergeRule, Node, Ownership};
pub use set::{FieldSet, Member};
