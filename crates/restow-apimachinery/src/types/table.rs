//! The table of built-in types, `kubernetes.types`. `restow-tables` parses it; the build script has checked it.

#[cfg(test)]
mod tests;

pub use restow_tables::kubernetes_types::TypeId;
pub(super) use restow_tables::kubernetes_types::{
    Definition, Field, FieldExtra, Form, KindScope, ListType, MapType, PatchStrategy, Scalar, Shape, ShapeId, Special,
};

use restow_tables::checked;
use restow_tables::kubernetes_types::Types;
use std::ops::Deref;
use std::sync::LazyLock;

/// The facts, one line each. The grammar is at the top of the file.
const TEXT: &str = include_str!("kubernetes.types");

static SHARED: LazyLock<TypeTable> = LazyLock::new(|| TypeTable(checked(Types::parse(TEXT))));

/// All built-in types, with functions on their values. Lookups are those of [`Types`].
#[derive(Debug)]
pub struct TypeTable(Types);

impl TypeTable {
    /// The table of built-in types. It is parsed on first use and shared.
    pub fn shared() -> &'static TypeTable {
        &SHARED
    }
}

impl Deref for TypeTable {
    type Target = Types;

    fn deref(&self) -> &Types {
        &self.0
    }
}
