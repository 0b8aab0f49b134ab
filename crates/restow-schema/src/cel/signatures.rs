//! The functions that expressions can call: a table of signatures, read once.

use std::collections::HashMap;
use std::rc::Rc;

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
    by_name: HashMap<String, Vec<Signature>>,
}

thread_local! {
    // Types are counted without atomics, so each thread that compiles expressions reads the table for itself.
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

    fn read(text: &str) -> Signatures {
        let mut by_name: HashMap<String, Vec<Signature>> = HashMap::new();
        for line in text.lines().filter(|line| !line.is_empty()) {
            let Some((name, signature)) = read_line(line) else { continue };
            if name == "_<_" {
                for other in ["_<=_", "_>_", "_>=_"] {
                    by_name.entry(other.to_string()).or_default().extend(read_line(line).map(|(_, copy)| copy));
                }
            }
            by_name.entry(name).or_default().push(signature);
        }
        Signatures { by_name }
    }
}

/// `receiver.name(argument,argument) result`.
fn read_line(line: &str) -> Option<(String, Signature)> {
    let open = line.find('(')?;
    let close = line.rfind(')')?;
    let (head, arguments, result) = (line.get(..open)?, line.get(open + 1..close)?, line.get(close + 2..)?);
    let mut parameters: Vec<Type> = split(arguments).iter().filter_map(|text| read_type(text)).collect();
    // A dot separates a receiver from a name only if what stands before it is a type; `sets.contains` is one name.
    let namespaces = ["sets", "strings", "lists", "optional"];
    let receiver = head
        .rsplit_once('.')
        .filter(|(before, after)| !namespaces.contains(before) && !is_static(before, after))
        .and_then(|(before, after)| Some((read_type(before)?, after)));
    let (is_member, name) = match receiver {
        Some((receiver, name)) => {
            parameters.insert(0, receiver);
            (true, name)
        }
        None => (false, head),
    };
    Some((name.to_string(), Signature { is_member, parameters, result: read_type(result)? }))
}

/// Functions that are called on the name of a type rather than on a value of it.
fn is_static(before: &str, after: &str) -> bool {
    (before == "ip" && after == "isCanonical") || before == "jsonpatch" || (before == "format" && after != "validate")
}

/// Splits at the commas that are not inside of angle brackets.
fn split(text: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let (mut depth, mut start) = (0, 0);
    for (index, character) in text.char_indices() {
        match character {
            '<' => depth += 1,
            '>' => depth -= 1,
            ',' if depth == 0 => {
                parts.extend(text.get(start..index));
                start = index + 1;
            }
            _ => {}
        }
    }
    parts.extend(text.get(start..).filter(|last| !last.is_empty()));
    parts
}

fn read_type(text: &str) -> Option<Type> {
    if let Some((name, inner)) = text.split_once('<') {
        let inner = split(inner.strip_suffix('>')?);
        let part = |index: usize| inner.get(index).and_then(|text| read_type(text)).map(Rc::new);
        return Some(match name {
            "list" => Type::List(part(0)?),
            "map" => Type::Map(part(0)?, part(1)?),
            "optional" => Type::Optional(part(0)?),
            _ => return None,
        });
    }
    Some(match text {
        "int" => Type::Int,
        "uint" => Type::Uint,
        "double" => Type::Double,
        "string" => Type::Text,
        "bytes" => Type::Bytes,
        "bool" => Type::Bool,
        "dyn" => Type::Dyn,
        "type" => Type::OfTypes,
        "duration" => Type::Duration,
        "timestamp" => Type::Timestamp,
        "A" => Type::Param(0),
        "B" => Type::Param(1),
        "url" => Type::Opaque("kubernetes.URL"),
        "ip" => Type::Opaque("net.IP"),
        "cidr" => Type::Opaque("net.CIDR"),
        "quantity" => Type::Opaque("kubernetes.Quantity"),
        "semver" => Type::Opaque("kubernetes.Semver"),
        "format" => Type::Opaque("kubernetes.NamedFormat"),
        "authorizer" => Type::Opaque(AUTHORIZER),
        "groupcheck" => Type::Opaque("kubernetes.authorization.GroupCheck"),
        "resourcecheck" => Type::Opaque(RESOURCE_CHECK),
        "pathcheck" => Type::Opaque("kubernetes.authorization.PathCheck"),
        "decision" => Type::Opaque("kubernetes.authorization.Decision"),
        _ => return None,
    })
}
