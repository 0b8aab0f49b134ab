//! Named formats, `format.dns1123Label().validate(text)`: `none` if the text is valid, else its errors.

use super::{FunctionResult, NONE, Opaque};
use crate::cel::value::Val;
use crate::format::Format;
use crate::node::Kind;

const NAMES: &[&str] = &[
    "dns1123Label",
    "dns1123Subdomain",
    "dns1035Label",
    "qualifiedName",
    "dns1123LabelPrefix",
    "dns1123SubdomainPrefix",
    "dns1035LabelPrefix",
    "labelValue",
    "uri",
    "uuid",
    "byte",
    "date",
    "datetime",
];

pub(super) fn named(name: &str) -> Option<&'static str> {
    NAMES.iter().find(|known| **known == name).copied()
}

pub(super) fn validate<'a>(arguments: &[Val<'a>]) -> FunctionResult<'a> {
    let [Val::Opaque(opaque), Val::Text(text)] = arguments else { return Err(NONE) };
    let Opaque::Format(name) = opaque.as_ref() else { return Err(NONE) };
    let faults = faults(name, text.as_str());
    if faults.is_empty() {
        return Ok(Val::Optional(None));
    }
    Ok(Val::some(Val::list(faults.into_iter().map(Val::text).collect())?))
}

fn faults(name: &str, text: &str) -> Vec<String> {
    let (base, text) = match name.strip_suffix("Prefix") {
        // A prefix may end with a dash, because a suffix follows.
        Some(base) => (base, text.strip_suffix('-').unwrap_or(text)),
        None => (name, text),
    };
    let holds = match base {
        "dns1123Label" => text.len() <= 63 && is_label(text),
        "dns1123Subdomain" => text.len() <= 253 && text.split('.').all(is_label),
        "dns1035Label" => text.len() <= 63 && is_label(text) && text.starts_with(|c: char| c.is_ascii_lowercase()),
        "qualifiedName" => is_qualified(text),
        "labelValue" => text.is_empty() || is_name(text),
        other => {
            let known = if other == "datetime" { "date-time" } else { other };
            Format::find(Some(Kind::String), false, known).is_none_or(|format| format.admits(text))
        }
    };
    if holds { Vec::new() } else { vec![format!("{text:?} is not a valid {base}")] }
}

fn is_label(text: &str) -> bool {
    let inside = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    text.bytes().all(|byte| inside(byte) || byte == b'-')
        && text.bytes().next().is_some_and(inside)
        && text.bytes().next_back().is_some_and(inside)
}

fn is_name(text: &str) -> bool {
    text.len() <= 63
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
        && text.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric())
        && text.bytes().next_back().is_some_and(|byte| byte.is_ascii_alphanumeric())
}

fn is_qualified(text: &str) -> bool {
    match text.split_once('/') {
        Some((prefix, name)) => prefix.len() <= 253 && prefix.split('.').all(is_label) && is_name(name),
        None => is_name(text),
    }
}
