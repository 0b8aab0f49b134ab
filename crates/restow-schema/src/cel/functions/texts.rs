//! Functions on texts: those of CEL, the strings extension, and regular expressions.

use super::{FunctionResult, NONE, Native, text_list};
use crate::cel::eval::EvalError;
use crate::cel::time;
use crate::cel::value::Val;
use restow_apimachinery::go_syntax::show_float;

pub(super) const TABLE: &[(&str, Native)] = &[
    ("string", |a| Ok(Val::text(plain(a.first().ok_or(NONE)?)?))),
    ("contains", |a| two(a, |text, other| Val::Bool(text.contains(other)))),
    ("startsWith", |a| two(a, |text, other| Val::Bool(text.starts_with(other)))),
    ("endsWith", |a| two(a, |text, other| Val::Bool(text.ends_with(other)))),
    ("matches", |a| match a {
        [Val::Text(text), Val::Text(pattern)] => {
            let regex = crate::pattern::compile(pattern.as_str()).map_err(EvalError::failed)?;
            Ok(Val::Bool(regex.is_match(text.as_str())))
        }
        _ => Err(NONE),
    }),
    ("find", |a| match a {
        [Val::Text(text), Val::Text(pattern)] => {
            let regex = crate::pattern::compile(pattern.as_str()).map_err(EvalError::failed)?;
            Ok(Val::text(regex.find(text.as_str()).map_or("", |found| found.as_str())))
        }
        _ => Err(NONE),
    }),
    ("findAll", |a| {
        let (text, pattern, limit) = match a {
            [Val::Text(text), Val::Text(pattern)] => (text, pattern, -1),
            [Val::Text(text), Val::Text(pattern), Val::Int(limit)] => (text, pattern, *limit),
            _ => return Err(NONE),
        };
        let regex = crate::pattern::compile(pattern.as_str()).map_err(EvalError::failed)?;
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        text_list(regex.find_iter(text.as_str()).take(limit).map(|found| found.as_str().to_string()))
    }),
    ("charAt", |a| match a {
        [Val::Text(text), Val::Int(place)] => {
            let length = text.as_str().chars().count();
            match usize::try_from(*place).ok().filter(|place| *place <= length) {
                Some(place) => Ok(Val::text(text.as_str().chars().nth(place).map_or(String::new(), String::from))),
                None => Err(EvalError::failed(format!("index out of range: {place}"))),
            }
        }
        _ => Err(NONE),
    }),
    ("lowerAscii", |a| one(a, |text| text.to_ascii_lowercase())),
    ("upperAscii", |a| one(a, |text| text.to_ascii_uppercase())),
    ("trim", |a| one(a, |text| text.trim().to_string())),
    ("strings.quote", |a| one(a, restow_apimachinery::go_syntax::quote)),
    ("replace", |a| match a {
        [Val::Text(text), Val::Text(old), Val::Text(new)] => {
            replace(text.as_str(), old.as_str(), new.as_str(), usize::MAX)
        }
        [Val::Text(text), Val::Text(old), Val::Text(new), Val::Int(limit)] => {
            let limit = usize::try_from(*limit).unwrap_or(usize::MAX);
            replace(text.as_str(), old.as_str(), new.as_str(), limit)
        }
        _ => Err(NONE),
    }),
    ("split", split),
    ("substring", substring),
    ("join", |a| {
        let (list, separator) = match a {
            [list] => (list, ""),
            [list, Val::Text(separator)] => (list, separator.as_str()),
            _ => return Err(NONE),
        };
        let items = list.items().ok_or(NONE)?;
        let texts: Option<Vec<&str>> = items
            .iter()
            .map(|item| match item {
                Val::Text(text) => Some(text.as_str()),
                _ => None,
            })
            .collect();
        let texts = texts.ok_or(NONE)?;
        let gaps = separator.len().saturating_mul(texts.len().saturating_sub(1));
        fits(texts.iter().map(|text| text.len()).fold(gaps, usize::saturating_add))?;
        Ok(Val::text(texts.join(separator)))
    }),
    ("format", |a| match a {
        [Val::Text(template), arguments] => format(template.as_str(), &arguments.items().ok_or(NONE)?),
        _ => Err(NONE),
    }),
];

/// The maximum size of a text in bytes.
const LONGEST: usize = 16 << 20;

/// Refuses a text that would exceed [`LONGEST`], before it is created.
pub(super) fn fits(length: usize) -> Result<(), EvalError> {
    if length > LONGEST { Err(EvalError::CostExceeded) } else { Ok(()) }
}

fn replace<'a>(text: &str, old: &str, new: &str, limit: usize) -> FunctionResult<'a> {
    let times = text.matches(old).take(limit).count();
    fits((text.len() - times * old.len()).saturating_add(times.saturating_mul(new.len())))?;
    Ok(Val::text(text.replacen(old, new, limit)))
}

fn one<'a>(arguments: &[Val<'a>], function: impl Fn(&str) -> String) -> FunctionResult<'a> {
    if let [Val::Text(text)] = arguments { Ok(Val::text(function(text.as_str()))) } else { Err(NONE) }
}

fn two<'a>(arguments: &[Val<'a>], function: impl Fn(&str, &str) -> Val<'a>) -> FunctionResult<'a> {
    match arguments {
        [Val::Text(text), Val::Text(other)] => Ok(function(text.as_str(), other.as_str())),
        _ => Err(NONE),
    }
}

fn split<'a>(arguments: &[Val<'a>]) -> FunctionResult<'a> {
    let (text, separator, limit) = match arguments {
        [Val::Text(text), Val::Text(separator)] => (text.as_str(), separator.as_str(), -1),
        [Val::Text(text), Val::Text(separator), Val::Int(limit)] => (text.as_str(), separator.as_str(), *limit),
        _ => return Err(NONE),
    };
    if limit == 0 {
        return text_list(std::iter::empty());
    }
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    if separator.is_empty() {
        let first = limit.saturating_sub(1);
        let rest: String = text.chars().skip(first).collect();
        let rest = Some(rest).filter(|rest| !rest.is_empty());
        return text_list(text.chars().take(first).map(String::from).chain(rest));
    }
    text_list(text.splitn(limit, separator).map(str::to_string))
}

fn substring<'a>(arguments: &[Val<'a>]) -> FunctionResult<'a> {
    let (text, from, to) = match arguments {
        [Val::Text(text), Val::Int(from)] => (text.as_str(), *from, None),
        [Val::Text(text), Val::Int(from), Val::Int(to)] => (text.as_str(), *from, Some(*to)),
        _ => return Err(NONE),
    };
    let length = text.chars().count();
    let place = |index: i64| {
        let found = usize::try_from(index).ok().filter(|index| *index <= length);
        found.ok_or_else(|| EvalError::failed(format!("index out of range: {index}")))
    };
    let start = place(from)?;
    let end = to.map_or(Ok(length), place)?;
    if start > end {
        return Err(EvalError::failed(format!("invalid substring range. start: {start}, end: {end}")));
    }
    Ok(Val::text(text.chars().skip(start).take(end - start).collect::<String>()))
}

/// A value as text, like `string()`.
pub(crate) fn plain(value: &Val<'_>) -> Result<String, EvalError> {
    let mut out = String::new();
    write_plain(value, &mut out)?;
    Ok(out)
}

/// Appends a value, up to the maximum size of a text. Shared values can be large.
fn write_plain(value: &Val<'_>, out: &mut String) -> Result<(), EvalError> {
    let scalar = match value {
        Val::Null => "null".to_string(),
        Val::Bool(flag) => flag.to_string(),
        Val::Int(number) => number.to_string(),
        Val::Uint(number) => number.to_string(),
        Val::Double(number) => show_float(*number),
        Val::Text(text) => text.as_str().to_string(),
        Val::Bytes(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Val::Duration(nanoseconds) => time::show_duration(*nanoseconds),
        Val::Timestamp(instant) => time::show_timestamp(*instant),
        Val::Type(name) => name.to_string(),
        Val::Opaque(opaque) => opaque.to_string(),
        Val::Optional(Some(inner)) => format!("optional({})", plain(inner)?),
        Val::Optional(None) => "optional.none()".to_string(),
        collection => return write_collection(collection, out),
    };
    append(&scalar, out)
}

fn append(text: &str, out: &mut String) -> Result<(), EvalError> {
    fits(out.len().saturating_add(text.len()))?;
    out.push_str(text);
    Ok(())
}

fn write_collection(collection: &Val<'_>, out: &mut String) -> Result<(), EvalError> {
    if let Some(items) = collection.items() {
        append("[", out)?;
        for (index, item) in items.iter().enumerate() {
            append(if index > 0 { ", " } else { "" }, out)?;
            write_literal(item, out)?;
        }
        return append("]", out);
    }
    let mut shown: Vec<String> = Vec::new();
    let mut length = out.len();
    for (key, value) in collection.entries().unwrap_or_default() {
        let mut entry = String::new();
        write_literal(&key, &mut entry)?;
        append(":", &mut entry)?;
        write_literal(&value, &mut entry)?;
        length = length.saturating_add(entry.len());
        fits(length)?;
        shown.push(entry);
    }
    shown.sort();
    append(&format!("{{{}}}", shown.join(", ")), out)
}

/// Appends a value in a collection as a literal.
fn write_literal(value: &Val<'_>, out: &mut String) -> Result<(), EvalError> {
    let quoted = match value {
        Val::Text(text) => restow_apimachinery::go_syntax::quote(text.as_str()),
        Val::Bytes(bytes) => format!("b{}", restow_apimachinery::go_syntax::quote(&String::from_utf8_lossy(bytes))),
        Val::Timestamp(_) => format!("timestamp({})", restow_apimachinery::go_syntax::quote(&plain(value)?)),
        Val::Duration(_) => format!("duration({})", restow_apimachinery::go_syntax::quote(&plain(value)?)),
        other => return write_plain(other, out),
    };
    append(&quoted, out)
}

fn format<'a>(template: &str, arguments: &[Val<'a>]) -> FunctionResult<'a> {
    let mut out = String::new();
    let mut next = arguments.iter();
    let mut rest = template.chars().peekable();
    while let Some(character) = rest.next() {
        if character != '%' {
            out.push(character);
            continue;
        }
        if rest.next_if_eq(&'%').is_some() {
            out.push('%');
            continue;
        }
        let mut precision = None;
        if rest.next_if_eq(&'.').is_some() {
            let mut digits = String::new();
            while let Some(digit) = rest.next_if(char::is_ascii_digit) {
                digits.push(digit);
            }
            precision = digits.parse::<usize>().ok().map(|digits| digits.min(100));
        }
        let clause = rest.next().ok_or_else(|| EvalError::failed("unexpected end of string"))?;
        let argument =
            next.next().ok_or_else(|| EvalError::failed(format!("index {} out of range", arguments.len())))?;
        let part = format_one(clause, precision, argument)?;
        fits(out.len().saturating_add(part.len()))?;
        out.push_str(&part);
    }
    Ok(Val::text(out))
}

fn format_one(clause: char, precision: Option<usize>, argument: &Val<'_>) -> Result<String, EvalError> {
    let number = || match argument {
        Val::Double(number) => Ok(*number),
        Val::Int(number) => Ok(*number as f64),
        Val::Uint(number) => Ok(*number as f64),
        _ => Err(wrong_clause("only doubles, ints, and uints can be formatted as", argument)),
    };
    Ok(match (clause, argument) {
        ('s', value) => plain(value)?,
        ('d', Val::Int(number)) => number.to_string(),
        ('d', Val::Uint(number)) => number.to_string(),
        ('d', Val::Double(number)) => show_float(*number),
        ('f', _) => format!("{:.*}", precision.unwrap_or(6), number()?),
        ('e', _) => {
            let text = format!("{:.*e}", precision.unwrap_or(6), number()?);
            match text.split_once('e') {
                Some((digits, exponent)) => {
                    let exponent: i32 = exponent.parse().unwrap_or(0);
                    let raised = |digit: char| "⁰¹²³⁴⁵⁶⁷⁸⁹".chars().nth(digit as usize - '0' as usize).unwrap_or(digit);
                    let power: String = format!("{:02}", exponent.abs()).chars().map(raised).collect();
                    let sign = if exponent < 0 { "⁻" } else { "" };
                    format!("{digits}\u{202f}×\u{202f}10{sign}{power}")
                }
                None => text,
            }
        }
        ('b', Val::Int(number)) if *number < 0 => format!("-{:b}", number.unsigned_abs()),
        ('b', Val::Int(number)) => format!("{number:b}"),
        ('b', Val::Uint(number)) => format!("{number:b}"),
        ('b', Val::Bool(flag)) => u8::from(*flag).to_string(),
        ('x', Val::Int(number)) => format!("{number:x}"),
        ('x', Val::Uint(number)) => format!("{number:x}"),
        ('X', Val::Int(number)) => format!("{number:X}"),
        ('X', Val::Uint(number)) => format!("{number:X}"),
        ('x', Val::Text(text)) => text.as_str().bytes().map(|byte| format!("{byte:02x}")).collect(),
        ('X', Val::Text(text)) => text.as_str().bytes().map(|byte| format!("{byte:02X}")).collect(),
        ('x', Val::Bytes(bytes)) => bytes.iter().map(|byte| format!("{byte:02x}")).collect(),
        ('o', Val::Int(number)) => format!("{number:o}"),
        ('o', Val::Uint(number)) => format!("{number:o}"),
        (other, _) if !"sdfebxXo".contains(other) => {
            return Err(EvalError::failed(format!(
                "could not parse formatting clause: unrecognized formatting clause \"{other}\""
            )));
        }
        _ => return Err(wrong_clause("this clause cannot format", argument)),
    })
}

fn wrong_clause(words: &str, argument: &Val<'_>) -> EvalError {
    EvalError::failed(format!("error during formatting: {words}: {}", argument.type_name()))
}
