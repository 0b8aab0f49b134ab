//! The table of types, `kubernetes.types`: generated from a source tree, read and written.

mod generate;
mod row;
mod table;
#[cfg(test)]
mod tests;
mod tree;

pub(crate) use generate::{Generated, generate};
pub(crate) use table::Table;
pub(crate) use tree::Tree;
