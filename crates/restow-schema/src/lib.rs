//! Structural schemas of custom resources: validation, pruning, defaulting and CEL rules.
//!
//! Everything here is a pure function of its arguments: no I/O, no clock, no randomness. A [`Schema`] is compiled once
//! from a CustomResourceDefinition's `openAPIV3Schema` and then applied to any number of objects, from any number of
//! threads. It reports [`Problem`]s with Kubernetes' messages; the caller makes a `Status` or a warning of them.

pub mod cel;
mod correlate;
mod default;
mod defaults_check;
mod embedded;
mod format;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
pub mod json_path;
mod keywords;
mod list_type;
mod node;
mod number;
mod parse;
mod path;
mod pattern;
mod problem;
mod prune;
mod raw;
mod rules;
mod schema;
mod structural;
mod validate;

pub use problem::{Problem, ProblemKind};
pub use schema::{Schema, SelectableField};
