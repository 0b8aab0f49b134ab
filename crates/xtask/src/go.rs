//! Reads as much of Go as Kubernetes' API packages need: declarations, struct tags, markers and registrations.
//!
//! It does not type-check. Unsupported syntax is an error with file and line. Types that Kubernetes may have beside the API
//! types (an interface, a generic type) are a [`TypeExpr::Other`], which is an error only if an API type refers to it.

mod comments;
mod lexer;
mod package;
mod parser;
mod registration;
mod tag;
#[cfg(test)]
mod tests;

pub(crate) use comments::Markers;
pub(crate) use package::{Location, Package};
pub(crate) use registration::{Registration, RegistrationCall};
pub(crate) use tag::StructTag;

/// A type expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TypeExpr {
    Name {
        package: Option<String>,
        name: String,
    },
    Pointer(Box<TypeExpr>),
    Slice(Box<TypeExpr>),
    Map(Box<TypeExpr>, Box<TypeExpr>),
    Struct(Vec<FieldDecl>),
    /// A type that no API type may use, with its description.
    Other(&'static str),
}

/// A declared type.
#[derive(Clone, Debug)]
pub(crate) struct TypeDecl {
    pub(crate) name: String,
    pub(crate) location: Location,
    pub(crate) markers: Markers,
    pub(crate) definition: TypeExpr,
    /// Declared with `=`: another name for the type, not a type of its own.
    pub(crate) is_alias: bool,
}

/// A field of a struct.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FieldDecl {
    /// `None` for an embedded field.
    pub(crate) name: Option<String>,
    pub(crate) location: Location,
    pub(crate) markers: Markers,
    pub(crate) expr: TypeExpr,
    pub(crate) tag: StructTag,
}
