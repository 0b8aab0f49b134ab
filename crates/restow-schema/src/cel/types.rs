//! The types of expressions, and the types and sizes that a schema declares.

use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;

use crate::raw::Raw;

/// The size of the largest request: the limit of values without a limit of their own.
const LARGEST_REQUEST: u64 = 3 * 1024 * 1024;

/// A type.
#[derive(Clone, Debug)]
pub(crate) enum Type {
    Dyn,
    Null,
    Bool,
    Int,
    Uint,
    Double,
    Text,
    Bytes,
    Duration,
    Timestamp,
    List(Rc<Type>),
    Map(Rc<Type>, Rc<Type>),
    Object(Rc<Decl>),
    Optional(Rc<Type>),
    OfTypes,
    /// A type of a library, by its name.
    Opaque(&'static str),
    /// A type parameter of a signature.
    Param(u8),
}

/// A type with the sizes from a schema.
#[derive(Debug)]
pub(crate) struct Decl {
    pub(crate) shape: DeclShape,
    /// The maximum number of characters, items or entries.
    pub(crate) max_elements: u64,
    /// The minimum size of a value as JSON in bytes.
    pub(crate) min_size: u64,
}

/// The structure of a declared value.
#[derive(Debug)]
pub(crate) enum DeclShape {
    Scalar(Type),
    List(Rc<Decl>),
    Map(Rc<Decl>),
    Object(BTreeMap<String, Rc<Decl>>),
}

impl Decl {
    /// The type of values of this declaration.
    pub(crate) fn ty(self: &Rc<Decl>) -> Type {
        match &self.shape {
            DeclShape::Scalar(scalar) => scalar.clone(),
            DeclShape::List(item) => Type::List(Rc::new(item.ty())),
            DeclShape::Map(value) => Type::Map(Rc::new(Type::Text), Rc::new(value.ty())),
            DeclShape::Object(_) => Type::Object(self.clone()),
        }
    }

    /// The declaration of a field, by its name in expressions.
    pub(crate) fn field(&self, name: &str) -> Option<Rc<Decl>> {
        match &self.shape {
            DeclShape::Object(fields) => fields.get(name).cloned(),
            _ => None,
        }
    }

    /// The declaration of items or of a map's values.
    pub(crate) fn element(&self) -> Option<Rc<Decl>> {
        match &self.shape {
            DeclShape::List(element) | DeclShape::Map(element) => Some(element.clone()),
            _ => None,
        }
    }
}

fn scalar(ty: Type, max_elements: u64, min_size: u64) -> Option<Rc<Decl>> {
    Some(Rc::new(Decl { shape: DeclShape::Scalar(ty), max_elements, min_size }))
}

/// The declaration of a schema for expressions; `None` if it is not specific enough.
pub(crate) fn declare(raw: Raw<'_>, is_resource: bool) -> Option<Rc<Decl>> {
    let max_length = raw.integer("maxLength").map(|length| u64::try_from(length).unwrap_or(0));
    if raw.flag("x-kubernetes-int-or-string") {
        let longest = max_length.map_or(LARGEST_REQUEST - 2, |length| length.saturating_mul(4));
        return scalar(Type::Dyn, longest, 1);
    }
    match raw.kind() {
        "boolean" => scalar(Type::Bool, 0, 4),
        "integer" => scalar(Type::Int, 0, 1),
        "number" => scalar(Type::Double, 0, 1),
        "string" => declare_text(raw, max_length),
        "array" => {
            let item = raw.item()?;
            let item = declare(item, item.flag("x-kubernetes-embedded-resource"))?;
            let max_elements = match raw.integer("maxItems") {
                Some(limit) => u64::try_from(limit).unwrap_or(0),
                None => (LARGEST_REQUEST - 2) / (item.min_size + 1),
            };
            Some(Rc::new(Decl { shape: DeclShape::List(item), max_elements, min_size: 2 }))
        }
        "object" => match raw.additional_schema() {
            Some(value) => {
                let value = declare(value, value.flag("x-kubernetes-embedded-resource"))?;
                let max_elements = match raw.integer("maxProperties") {
                    Some(limit) => u64::try_from(limit).unwrap_or(0),
                    None => (LARGEST_REQUEST - 2) / (value.min_size + 6),
                };
                Some(Rc::new(Decl { shape: DeclShape::Map(value), max_elements, min_size: 2 }))
            }
            None => Some(declare_object(raw, is_resource)),
        },
        _ => None,
    }
}

fn declare_text(raw: Raw<'_>, max_length: Option<u64>) -> Option<Rc<Decl>> {
    match raw.text("format") {
        "byte" => return scalar(Type::Bytes, max_length.unwrap_or(LARGEST_REQUEST - 2), 2),
        "duration" => return scalar(Type::Duration, 32, 3),
        "date" => return scalar(Type::Timestamp, 12, 12),
        "date-time" => return scalar(Type::Timestamp, 32, 21),
        _ => {}
    }
    let choices = raw.list("enum");
    let longest = match max_length {
        Some(length) => length.saturating_mul(4),
        None if !choices.is_empty() => {
            choices.iter().filter_map(|choice| choice.as_str()).map(str::len).max().unwrap_or(0) as u64
        }
        None => LARGEST_REQUEST - 2,
    };
    scalar(Type::Text, longest, 2)
}

fn declare_object(raw: Raw<'_>, is_resource: bool) -> Rc<Decl> {
    let mut fields = BTreeMap::new();
    let mut min_size = 2;
    for (name, property) in raw.properties() {
        let Some(field) = declare(property, property.flag("x-kubernetes-embedded-resource")) else { continue };
        let required = raw.texts("required").any(|required| required == name);
        if required && property.get("default").is_none() {
            min_size += name.len() as u64 + field.min_size + 4;
        }
        if let Some(escaped) = escape(name) {
            fields.insert(escaped, field);
        }
    }
    if is_resource {
        let text = |fields: &mut BTreeMap<String, Rc<Decl>>, name: &str| {
            fields.insert(
                name.to_string(),
                Rc::new(Decl { shape: DeclShape::Scalar(Type::Text), max_elements: LARGEST_REQUEST - 2, min_size: 2 }),
            );
        };
        let mut metadata = match fields.get("metadata").map(|metadata| &metadata.shape) {
            Some(DeclShape::Object(known)) => known.clone(),
            _ => BTreeMap::new(),
        };
        for name in ["name", "generateName"] {
            if !metadata.contains_key(name) {
                text(&mut metadata, name);
            }
        }
        for name in ["kind", "apiVersion"] {
            if !fields.contains_key(name) {
                text(&mut fields, name);
            }
        }
        let metadata = Decl { shape: DeclShape::Object(metadata), max_elements: 0, min_size: 2 };
        fields.insert("metadata".to_string(), Rc::new(metadata));
    }
    Rc::new(Decl { shape: DeclShape::Object(fields), max_elements: 0, min_size })
}

/// Reserved words, which cannot be variables.
pub(super) const RESERVED: &[&str] = &[
    "true",
    "false",
    "null",
    "in",
    "as",
    "break",
    "const",
    "continue",
    "else",
    "for",
    "function",
    "if",
    "import",
    "let",
    "loop",
    "package",
    "namespace",
    "return",
    "var",
    "void",
    "while",
];

/// The name of a property in expressions; `None` if it cannot be used in expressions.
pub(crate) fn escape(name: &str) -> Option<String> {
    if name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    if RESERVED.contains(&name) {
        return Some(format!("__{name}__"));
    }
    if !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_.-/".contains(&byte)) {
        return None;
    }
    let escaped = name.replace("__", "__underscores__");
    Some(escaped.replace('.', "__dot__").replace('-', "__dash__").replace('/', "__slash__"))
}

/// The name of the property that has this name in expressions.
pub(crate) fn unescape(name: &str) -> String {
    let whole = name.strip_prefix("__").and_then(|rest| rest.strip_suffix("__"));
    if let Some(reserved) = whole.filter(|inner| RESERVED.contains(inner)) {
        return reserved.to_string();
    }
    let plain = name.replace("__dot__", ".").replace("__dash__", "-").replace("__slash__", "/");
    plain.replace("__underscores__", "__")
}

impl Type {
    /// The nesting of types. Keys of maps are not nested.
    pub(crate) fn depth(&self) -> usize {
        let (mut depth, mut ty) = (1, self);
        while let Type::List(inner) | Type::Optional(inner) | Type::Map(_, inner) = ty {
            depth += 1;
            ty = inner;
        }
        depth
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Type::Dyn => write!(f, "dyn"),
            Type::Null => write!(f, "null"),
            Type::Bool => write!(f, "bool"),
            Type::Int => write!(f, "int"),
            Type::Uint => write!(f, "uint"),
            Type::Double => write!(f, "double"),
            Type::Text => write!(f, "string"),
            Type::Bytes => write!(f, "bytes"),
            Type::Duration => write!(f, "duration"),
            Type::Timestamp => write!(f, "timestamp"),
            Type::List(item) => write!(f, "list({item})"),
            Type::Map(key, value) => write!(f, "map({key}, {value})"),
            Type::Object(_) => write!(f, "object"),
            Type::Optional(inner) => write!(f, "optional_type({inner})"),
            Type::OfTypes => write!(f, "type"),
            Type::Opaque(name) => write!(f, "{name}"),
            Type::Param(index) => write!(f, "{}", char::from(b'A' + index)),
        }
    }
}

/// The types of the type parameters of a signature.
pub(crate) type Bindings = [Option<Type>; 3];

/// Whether a value of type `actual` can be used as `expected`.
pub(crate) fn assignable(expected: &Type, actual: &Type, bindings: &mut Bindings) -> bool {
    match (expected, actual) {
        (Type::Param(index), actual) => {
            let Some(slot) = bindings.get_mut(usize::from(*index)) else { return false };
            match slot.clone() {
                None => {
                    *slot = Some(actual.clone());
                    true
                }
                Some(Type::Dyn) => {
                    // Keep the more specific of the two for the following checks.
                    *slot = Some(actual.clone());
                    true
                }
                Some(bound) => match join(&bound, actual) {
                    Some(joined) => {
                        *slot = Some(joined);
                        true
                    }
                    None => false,
                },
            }
        }
        (Type::Dyn, _) | (_, Type::Dyn) => true,
        (Type::List(expected), Type::List(actual)) | (Type::Optional(expected), Type::Optional(actual)) => {
            assignable(expected, actual, bindings)
        }
        (Type::Map(expected_key, expected), Type::Map(actual_key, actual)) => {
            assignable(expected_key, actual_key, bindings) && assignable(expected, actual, bindings)
        }
        (Type::Object(expected), Type::Object(actual)) => Rc::ptr_eq(expected, actual),
        (Type::Opaque(expected), Type::Opaque(actual)) => expected == actual,
        (Type::Object(_) | Type::Duration | Type::Timestamp | Type::Optional(_) | Type::Opaque(_), Type::Null) => true,
        _ => std::mem::discriminant(expected) == std::mem::discriminant(actual) && !matches!(expected, Type::List(_)),
    }
}

/// The common type of both.
pub(crate) fn join(left: &Type, right: &Type) -> Option<Type> {
    match (left, right) {
        (Type::Dyn, other) | (other, Type::Dyn) => Some(other.clone()),
        (
            Type::Null,
            other @ (Type::Object(_) | Type::Duration | Type::Timestamp | Type::Optional(_) | Type::Opaque(_)),
        )
        | (
            other @ (Type::Object(_) | Type::Duration | Type::Timestamp | Type::Optional(_) | Type::Opaque(_)),
            Type::Null,
        ) => Some(other.clone()),
        (Type::List(left), Type::List(right)) => Some(Type::List(Rc::new(join(left, right)?))),
        (Type::Optional(left), Type::Optional(right)) => Some(Type::Optional(Rc::new(join(left, right)?))),
        (Type::Map(left_key, left), Type::Map(right_key, right)) => {
            Some(Type::Map(Rc::new(join(left_key, right_key)?), Rc::new(join(left, right)?)))
        }
        _ => assignable(left, right, &mut Bindings::default()).then(|| left.clone()),
    }
}

/// A signature's type with its type parameters replaced.
pub(crate) fn substitute(ty: &Type, bindings: &Bindings) -> Type {
    match ty {
        Type::Param(index) => bindings.get(usize::from(*index)).cloned().flatten().unwrap_or(Type::Dyn),
        Type::List(item) => Type::List(Rc::new(substitute(item, bindings))),
        Type::Optional(inner) => Type::Optional(Rc::new(substitute(inner, bindings))),
        Type::Map(key, value) => Type::Map(Rc::new(substitute(key, bindings)), Rc::new(substitute(value, bindings))),
        other => other.clone(),
    }
}
