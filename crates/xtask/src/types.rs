//! The table of types, `kubernetes.types`: what a source tree says, and how it is written.

mod generate;
mod row;
mod table;
#[cfg(test)]
mod tests;
mod tree;

pub(crate) use generate::{Generated, generate};
pub(crate) use table::Table;
pub(crate) use tree::Tree;
