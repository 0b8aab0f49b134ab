//! The functions that expressions can call: the table `signatures.txt`, parsed once per thread.

use std::collections::HashMap;
use std::rc::Rc;

use restow_tables::signatures::{self, Plain};

use super::library::{AUTHORIZER, RESOURCE_CHECK};
use super::types::Type;

/// A signature: the types of the arguments (the receiver first, if there is one) and of the result.
#[derive(Debug)]
pub(crate) struct Signature {
    pub(crate) is_member: bool,
    pub(crate) parameters: Vec<Type>,
    pub(crate) result: Type,
}

/// All signatures, by the name of the function.
pub(crate) struct Signatures {
    by_name: HashMap<&'static str, Vec<Signature>>,
}

thread_local! {
    // Types have non-atomic reference counts, so each thread that compiles expressions parses the table.
    static TABLE: Rc<Signatures> = Rc::new(Signatures::read(include_str!("signatures.txt")));
}

impl Signatures {
    /// The table.
    pub(crate) fn table() -> Rc<Signatures> {
        TABLE.with(Rc::clone)
    }

    /// The signatures of a function.
    pub(crate) fn of(&self, name: &str) -> &[Signature] {
        self.by_name.get(name).map(Vec::as_slice).unwrap_or_default()
    }

    fn read(text: &'static str) -> Signatures {
        let mut by_name: HashMap<&'static str, Vec<Signature>> = HashMap::new();
        for row in restow_tables::checked(signatures::parse(text)) {
            let parameters = row.parameters.iter().map(type_of).collect();
            let signature = Signature { is_member: row.is_member, parameters, result: type_of(&row.result) };
            by_name.entry(row.name).or_default().push(signature);
        }
        Signatures { by_name }
    }
}

fn type_of(written: &signatures::Type) -> Type {
    match written {
        signatures::Type::Plain(plain) => plain_type(*plain),
        signatures::Type::List(item) => Type::List(Rc::new(type_of(item))),
        signatures::Type::Map(key, value) => Type::Map(Rc::new(type_of(key)), Rc::new(type_of(value))),
        signatures::Type::Optional(inner) => Type::Optional(Rc::new(type_of(inner))),
    }
}

fn plain_type(plain: Plain) -> Type {
    match plain {
        Plain::A => Type::Param(0),
        Plain::B => Type::Param(1),
        Plain::Dyn => Type::Dyn,
        Plain::Bool => Type::Bool,
        Plain::Int => Type::Int,
        Plain::Uint => Type::Uint,
        Plain::Double => Type::Double,
        Plain::String => Type::Text,
        Plain::Bytes => Type::Bytes,
        Plain::Type => Type::OfTypes,
        Plain::Duration => Type::Duration,
        Plain::Timestamp => Type::Timestamp,
        Plain::Url => Type::Opaque("kubernetes.URL"),
        Plain::Ip => Type::Opaque("net.IP"),
        Plain::Cidr => Type::Opaque("net.CIDR"),
        Plain::Quantity => Type::Opaque("kubernetes.Quantity"),
        Plain::Semver => Type::Opaque("kubernetes.Semver"),
        Plain::Format => Type::Opaque("kubernetes.NamedFormat"),
        Plain::Authorizer => Type::Opaque(AUTHORIZER),
        Plain::GroupCheck => Type::Opaque("kubernetes.authorization.GroupCheck"),
        Plain::ResourceCheck => Type::Opaque(RESOURCE_CHECK),
        Plain::PathCheck => Type::Opaque("kubernetes.authorization.PathCheck"),
        Plain::Decision => Type::Opaque("kubernetes.authorization.Decision"),
    }
}
