//! `signatures.txt`: the functions that CEL expressions can call, with the types of their arguments and results.

use crate::words::words;
use crate::{TableError, not_empty, significant_lines};

/// Operators whose signatures are those of `_<_`.
const ORDERED_ALIKE: [&str; 3] = ["_<=_", "_>_", "_>=_"];

/// A signature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signature<'t> {
    /// Its line in the table.
    pub line: usize,
    /// The name of the function as expressions write it, with its namespace (`sets.contains`).
    pub name: &'t str,
    /// Whether it is called on a value, whose type is the first parameter.
    pub is_member: bool,
    /// The types of the arguments.
    pub parameters: Vec<Type>,
    /// The type of the result.
    pub result: Type,
}

/// A type in a signature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Type {
    /// A type without parts.
    Plain(Plain),
    /// A list of items of a type.
    List(Box<Type>),
    /// A map of keys and values.
    Map(Box<Type>, Box<Type>),
    /// A value that may be absent.
    Optional(Box<Type>),
}

words! {
    /// The types without parts.
    Plain, "type" {
        /// Any type, as variable A of the signature.
        A = "A",
        /// Any type, as variable B of the signature.
        B = "B",
        /// Not known before evaluation.
        Dyn = "dyn",
        /// `true` or `false`.
        Bool = "bool",
        /// Signed whole numbers.
        Int = "int",
        /// Unsigned whole numbers.
        Uint = "uint",
        /// Floating-point numbers.
        Double = "double",
        /// Text.
        String = "string",
        /// Bytes.
        Bytes = "bytes",
        /// Types as values.
        Type = "type",
        /// Spans of time.
        Duration = "duration",
        /// Points in time.
        Timestamp = "timestamp",
        /// Kubernetes' URLs.
        Url = "url",
        /// IP addresses.
        Ip = "ip",
        /// IP networks.
        Cidr = "cidr",
        /// Resource quantities.
        Quantity = "quantity",
        /// Semantic versions.
        Semver = "semver",
        /// Named formats.
        Format = "format",
        /// `authorizer`.
        Authorizer = "authorizer",
        /// A check of a group's resources.
        GroupCheck = "groupcheck",
        /// A check of a resource.
        ResourceCheck = "resourcecheck",
        /// A check of a path.
        PathCheck = "pathcheck",
        /// What an authorizer decided.
        Decision = "decision",
    }
}

/// Reads the table.
///
/// # Errors
/// A line is not a signature, or there is none.
pub fn parse(text: &str) -> Result<Vec<Signature<'_>>, TableError> {
    let mut signatures: Vec<Signature<'_>> = Vec::new();
    for (line, row) in significant_lines(text) {
        let signature = signature(line, row).map_err(|problem| TableError::new(line, problem))?;
        if signature.name == "_<_" {
            signatures.extend(ORDERED_ALIKE.map(|name| Signature { name, ..signature.clone() }));
        }
        signatures.push(signature);
    }
    not_empty(signatures)
}

/// What the build script checks beyond the form of the rows.
///
/// # Errors
/// A signature is there twice.
pub fn check(signatures: &[Signature<'_>]) -> Result<(), TableError> {
    for (index, signature) in signatures.iter().enumerate() {
        let same = |other: &&Signature<'_>| {
            (other.name, other.is_member, &other.parameters)
                == (signature.name, signature.is_member, &signature.parameters)
        };
        if let Some(earlier) = signatures[..index].iter().find(same) {
            let problem = format!("the signature of {} is already in line {}", signature.name, earlier.line);
            return Err(TableError::new(signature.line, problem));
        }
    }
    Ok(())
}

/// `[RECEIVER.]NAME(TYPE,...) RESULT` or `namespaced NAMESPACE.NAME(TYPE,...) RESULT`.
fn signature(line: usize, row: &str) -> Result<Signature<'_>, String> {
    let form = || "expected [TYPE.]NAME(TYPE,...) TYPE".to_string();
    let (head, rest) = row.split_once('(').ok_or_else(form)?;
    let (arguments, result) = rest.split_once(") ").ok_or_else(form)?;
    let mut parameters = split(arguments).into_iter().map(parse_type).collect::<Result<Vec<_>, _>>()?;
    let is_operator = head.starts_with(['_', '@', '-', '!']);
    let (name, receiver) = match (head.strip_prefix("namespaced "), head.rsplit_once('.')) {
        (Some(name), _) => (name, None),
        (None, Some((receiver, name))) if !is_operator => (name, Some(receiver)),
        _ => (head, None),
    };
    let is_word = |word: &str| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_alphanumeric());
    if !is_operator && !name.split('.').all(is_word) {
        return Err(format!("{name:?} is not the name of a function"));
    }
    if let Some(receiver) = receiver {
        parameters.insert(0, parse_type(receiver)?);
    }
    Ok(Signature { line, name, is_member: receiver.is_some(), parameters, result: parse_type(result)? })
}

/// Splits at the commas that are not inside angle brackets.
fn split(text: &str) -> Vec<&str> {
    let mut depth = 0;
    let is_between = |letter: char| {
        match letter {
            '<' => depth += 1,
            '>' => depth -= 1,
            _ => {}
        }
        letter == ',' && depth == 0
    };
    if text.is_empty() { Vec::new() } else { text.split(is_between).collect() }
}

fn parse_type(text: &str) -> Result<Type, String> {
    let Some((name, inner)) = text.split_once('<') else { return Plain::parse(text).map(Type::Plain) };
    let inner = inner.strip_suffix('>').ok_or_else(|| format!("{text:?} lacks its closing bracket"))?;
    let mut parts =
        split(inner).into_iter().map(|part| parse_type(part).map(Box::new)).collect::<Result<Vec<_>, _>>()?;
    match (name, parts.pop(), parts.pop(), parts.pop()) {
        ("list", Some(item), None, _) => Ok(Type::List(item)),
        ("optional", Some(inner), None, _) => Ok(Type::Optional(inner)),
        ("map", Some(value), Some(key), None) => Ok(Type::Map(key, value)),
        _ => Err(format!("unknown type {text:?}; expected list<T>, map<K,V> or optional<T>")),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn members_operators_and_namespaced_functions_are_told_apart() {
        let text = "# comment\n\nmap<A,B>.size() int\nnamespaced ip.isCanonical(string) bool\n_[_](map<A,B>,A) B\n";
        let signatures = parse(text).unwrap();
        let heads: Vec<_> = signatures.iter().map(|it| (it.line, it.name, it.is_member, it.parameters.len())).collect();
        assert_eq!(heads, [(3, "size", true, 1), (4, "ip.isCanonical", false, 1), (5, "_[_]", false, 2)]);
        let map = Type::Map(Box::new(Type::Plain(Plain::A)), Box::new(Type::Plain(Plain::B)));
        assert_eq!(signatures[0].parameters, [map]);
        let names: Vec<_> = parse("_<_(int,int) bool").unwrap().iter().map(|it| it.name).collect();
        assert_eq!(names, ["_<=_", "_>_", "_>=_", "_<_"]);
    }

    #[test]
    fn errors_name_the_line_and_what_is_wrong() {
        for (text, expected) in [
            ("# only a comment", "line 1: the table has no rows"),
            ("size(string) int\nsize", "line 2: expected [TYPE.]NAME(TYPE,...) TYPE"),
            ("size(string)", "line 1: expected [TYPE.]NAME(TYPE,...) TYPE"),
            ("si ze(string) int", "line 1: \"si ze\" is not the name of a function"),
            ("size(list<A) int", "line 1: \"list<A\" lacks its closing bracket"),
            ("size(set<A>) int", "line 1: unknown type \"set<A>\"; expected list<T>, map<K,V> or optional<T>"),
            ("size(map<A>) int", "line 1: unknown type \"map<A>\"; expected list<T>, map<K,V> or optional<T>"),
        ] {
            assert_eq!(parse(text).unwrap_err().to_string(), expected, "{text}");
        }
        for text in ["size(strng) int", "strng.size() int", "size(string) itn", "size(string,) int", "sets.has(A) bool"]
        {
            assert!(parse(text).unwrap_err().to_string().starts_with("line 1: unknown type "), "{text}");
        }
        let twice = parse("size(string) int\nstring.size() int\nsize(string) uint").unwrap();
        assert_eq!(check(&twice).unwrap_err().to_string(), "line 3: the signature of size is already in line 1");
    }
}
