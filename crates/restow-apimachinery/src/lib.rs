//! What Kubernetes calls apimachinery: its types, objects and their text forms, as pure functions.
//!
//! | module | what is in it |
//! |---|---|
//! | [`object`] | an API object as JSON, with accessors for its metadata |
//! | [`types`] | Kubernetes' built-in types as a table: protobuf, field checks, strategic merge patch, OpenAPI schemas, quantities |
//! | [`managed_fields`] | `metadata.managedFields`: field sets, comparing and merging objects along their types |
//! | [`selector`], [`meta_v1`] | label and field selectors of queries; label selectors in objects |
//! | [`names`], [`field`] | the rules for names, labels and annotations; errors about fields |
//! | [`bounded_patch`] | JSON patches within bounds |
//! | [`typed`], [`untyped`], [`go_syntax`] | reading JSON into types, and without a type; values as Go prints them in messages |
//!
//! Nothing here knows HTTP, a store or a clock.

pub mod bounded_patch;
pub mod field;
pub mod go_syntax;
pub mod managed_fields;
pub mod meta_v1;
pub mod names;
pub mod object;
pub mod selector;
pub mod typed;
pub mod types;
pub mod untyped;

/// The maximum nesting of an object in requests and in the store, with all fields that the server adds, so that every
/// stored object can be sent. Objects of Kubernetes stay far below, and a parser with a limit of 128 levels can still
/// parse a list of them.
pub const MAX_DEPTH: usize = 100;
