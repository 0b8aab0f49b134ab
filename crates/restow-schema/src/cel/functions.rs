//! The functions and operators of CEL and of its extensions, by name. Each checks its arguments itself.

use super::eval::EvalError;
use super::library;
use super::time;
use super::value::Val;
use std::cmp::Ordering;

mod lists;
mod texts;

pub(crate) use texts::plain;

/// A function.
pub(crate) type Native = for<'a> fn(&[Val<'a>]) -> Result<Val<'a>, EvalError>;

type FunctionResult<'a> = Result<Val<'a>, EvalError>;

const NONE: EvalError = EvalError::NoSuchOverload;

const TABLES: [&[(&str, Native)]; 4] = [OPERATORS, texts::TABLE, lists::TABLE, library::TABLE];

/// A function by its name, with the static name.
pub(crate) fn find(name: &str, is_member: bool) -> Option<(&'static str, Native)> {
    if is_member && name == "ip" {
        return Some(("ip", library::cidr_address));
    }
    TABLES.into_iter().flatten().find(|(known, _)| *known == name).copied()
}

// Every function of `signatures.txt` must be in one of the tables, or the crate does not compile.
include!(concat!(env!("OUT_DIR"), "/implemented.rs"));

const fn is_implemented(name: &str) -> bool {
    let mut table = 0;
    while table < TABLES.len() {
        let mut row = 0;
        while row < TABLES[table].len() {
            if is_same(TABLES[table][row].0.as_bytes(), name.as_bytes()) {
                return true;
            }
            row += 1;
        }
        table += 1;
    }
    false
}

/// Compares names while the crate is compiled, when `==` cannot be called.
const fn is_same(one: &[u8], other: &[u8]) -> bool {
    let mut index = 0;
    while index < one.len() && index < other.len() && one[index] == other[index] {
        index += 1;
    }
    index == one.len() && index == other.len()
}

const OPERATORS: &[(&str, Native)] = &[
    ("_+_", add),
    ("_-_", subtract),
    ("_*_", |a| arithmetic(a, i64::checked_mul, u64::checked_mul, |x, y| x * y)),
    ("_/_", divide),
    ("_%_", remainder),
    ("-_", negate),
    ("!_", |a| if let [Val::Bool(flag)] = a { Ok(Val::Bool(!flag)) } else { Err(NONE) }),
    ("_==_", |a| if let [left, right] = a { Ok(Val::Bool(left.equals(right))) } else { Err(NONE) }),
    ("_!=_", |a| if let [left, right] = a { Ok(Val::Bool(!left.equals(right))) } else { Err(NONE) }),
    ("_<_", |a| order(a, Ordering::is_lt)),
    ("_<=_", |a| order(a, Ordering::is_le)),
    ("_>_", |a| order(a, Ordering::is_gt)),
    ("_>=_", |a| order(a, Ordering::is_ge)),
    ("@in", contained),
    ("_[_]", |a| index(a, true)),
    ("_[?_]", |a| index(a, false)),
    ("size", |a| match a {
        [
            value @ (Val::Text(_) | Val::Bytes(_) | Val::List(_) | Val::Map(_) | Val::JsonList(..) | Val::JsonMap(..)),
        ] => Ok(Val::Int(value.size() as i64)),
        _ => Err(NONE),
    }),
    ("type", |a| a.first().map(|value| Val::Type(value.type_name())).ok_or(NONE)),
    ("dyn", |a| a.first().cloned().ok_or(NONE)),
    ("bool", |a| match a {
        [Val::Bool(flag)] => Ok(Val::Bool(*flag)),
        [Val::Text(text)] => match text.as_str() {
            "1" | "t" | "true" | "TRUE" | "True" | "T" => Ok(Val::Bool(true)),
            "0" | "f" | "false" | "FALSE" | "False" | "F" => Ok(Val::Bool(false)),
            _ => Err(EvalError::failed("type conversion error from 'string' to 'bool'")),
        },
        _ => Err(NONE),
    }),
    ("int", to_int),
    ("uint", to_uint),
    ("double", |a| match a {
        [Val::Double(number)] => Ok(Val::Double(*number)),
        [Val::Int(number)] => Ok(Val::Double(*number as f64)),
        [Val::Uint(number)] => Ok(Val::Double(*number as f64)),
        [Val::Text(text)] => text.as_str().parse().map(Val::Double).map_err(|_| conversion("string", "double")),
        _ => Err(NONE),
    }),
    ("bytes", |a| match a {
        [Val::Bytes(bytes)] => Ok(Val::Bytes(bytes.clone())),
        [Val::Text(text)] => Ok(Val::Bytes(text.as_str().as_bytes().into())),
        _ => Err(NONE),
    }),
    ("duration", |a| match a {
        [Val::Duration(nanoseconds)] => Ok(Val::Duration(*nanoseconds)),
        [Val::Int(nanoseconds)] => Ok(Val::Duration(*nanoseconds)),
        [Val::Text(text)] => restow_apimachinery::go_syntax::parse_duration(text.as_str())
            .map(Val::Duration)
            .ok_or_else(|| conversion("string", "google.protobuf.Duration")),
        _ => Err(NONE),
    }),
    ("timestamp", |a| match a {
        [Val::Timestamp(instant)] => Ok(Val::Timestamp(*instant)),
        [Val::Int(seconds)] => Ok(Val::Timestamp(i128::from(*seconds) * 1_000_000_000)),
        [Val::Text(text)] => time::parse_timestamp(text.as_str())
            .map(Val::Timestamp)
            .ok_or_else(|| conversion("string", "google.protobuf.Timestamp")),
        _ => Err(NONE),
    }),
    ("getFullYear", |a| calendar(a, |civil| civil.year)),
    ("getMonth", |a| calendar(a, |civil| civil.month - 1)),
    ("getDate", |a| calendar(a, |civil| civil.day)),
    ("getDayOfMonth", |a| calendar(a, |civil| civil.day - 1)),
    ("getDayOfWeek", |a| calendar(a, |civil| civil.day_of_week)),
    ("getDayOfYear", |a| calendar(a, |civil| civil.day_of_year)),
    ("getHours", |a| clock(a, 3_600_000_000_000, |civil| civil.hour)),
    ("getMinutes", |a| clock(a, 60_000_000_000, |civil| civil.minute)),
    ("getSeconds", |a| clock(a, 1_000_000_000, |civil| civil.second)),
    ("getMilliseconds", |a| clock(a, 1_000_000, |civil| civil.millisecond)),
    ("optional.of", |a| a.first().cloned().map(Val::some).ok_or(NONE)),
    ("optional.none", |_| Ok(Val::Optional(None))),
    ("optional.ofNonZeroValue", |a| match a {
        [value] if value.is_zero() => Ok(Val::Optional(None)),
        [value] => Ok(Val::some(value.clone())),
        _ => Err(NONE),
    }),
    ("hasValue", |a| if let [Val::Optional(inner)] = a { Ok(Val::Bool(inner.is_some())) } else { Err(NONE) }),
    ("value", |a| match a {
        [Val::Optional(Some(inner))] => Ok(inner.as_ref().clone()),
        [Val::Optional(None)] => Err(EvalError::failed("optional.none() dereference")),
        _ => Err(NONE),
    }),
    ("orValue", |a| match a {
        [Val::Optional(Some(inner)), _] => Ok(inner.as_ref().clone()),
        [Val::Optional(None), other] => Ok(other.clone()),
        _ => Err(NONE),
    }),
    ("or", |a| match a {
        [Val::Optional(None), other] => Ok(other.clone()),
        [value @ Val::Optional(_), _] => Ok(value.clone()),
        _ => Err(NONE),
    }),
];

fn conversion(from: &str, to: &str) -> EvalError {
    EvalError::failed(format!("type conversion error from '{from}' to '{to}'"))
}

fn overflow(what: &str) -> EvalError {
    EvalError::failed(format!("{what} overflow"))
}

fn order<'a>(arguments: &[Val<'a>], holds: fn(Ordering) -> bool) -> FunctionResult<'a> {
    let [left, right] = arguments else { return Err(NONE) };
    let order = match (left, right) {
        (Val::Opaque(left), Val::Opaque(right)) => left.compare(right),
        _ => left.compare(right),
    };
    match order {
        Some(order) => Ok(Val::Bool(holds(order))),
        // NaN is neither less nor greater than any number.
        None if matches!((left, right), (Val::Double(_), _) | (_, Val::Double(_))) => Ok(Val::Bool(false)),
        None => Err(NONE),
    }
}

fn arithmetic<'a>(
    arguments: &[Val<'a>],
    whole: fn(i64, i64) -> Option<i64>,
    unsigned: fn(u64, u64) -> Option<u64>,
    float: fn(f64, f64) -> f64,
) -> FunctionResult<'a> {
    match arguments {
        [Val::Int(left), Val::Int(right)] => whole(*left, *right).map(Val::Int).ok_or_else(|| overflow("integer")),
        [Val::Uint(left), Val::Uint(right)] => {
            unsigned(*left, *right).map(Val::Uint).ok_or_else(|| overflow("unsigned integer"))
        }
        [Val::Double(left), Val::Double(right)] => Ok(Val::Double(float(*left, *right))),
        _ => Err(NONE),
    }
}

fn add<'a>(arguments: &[Val<'a>]) -> FunctionResult<'a> {
    match arguments {
        [Val::Text(left), Val::Text(right)] => {
            let (left, right) = (left.as_str(), right.as_str());
            texts::fits(left.len().saturating_add(right.len()))?;
            Ok(Val::text(format!("{left}{right}")))
        }
        [Val::Bytes(left), Val::Bytes(right)] => {
            texts::fits(left.len().saturating_add(right.len()))?;
            Ok(Val::Bytes([left.as_ref(), right.as_ref()].concat().into()))
        }
        [Val::Duration(left), Val::Duration(right)] => {
            left.checked_add(*right).map(Val::Duration).ok_or_else(|| overflow("duration"))
        }
        [Val::Timestamp(instant), Val::Duration(span)] | [Val::Duration(span), Val::Timestamp(instant)] => {
            Ok(Val::Timestamp(instant + i128::from(*span)))
        }
        [left, right] => match (left.items(), right.items()) {
            (Some(left_items), Some(right_items)) => lists::concatenate(left, left_items, right_items),
            _ => arithmetic(arguments, i64::checked_add, u64::checked_add, |x, y| x + y),
        },
        _ => Err(NONE),
    }
}

fn subtract<'a>(arguments: &[Val<'a>]) -> FunctionResult<'a> {
    match arguments {
        [Val::Duration(left), Val::Duration(right)] => {
            left.checked_sub(*right).map(Val::Duration).ok_or_else(|| overflow("duration"))
        }
        [Val::Timestamp(instant), Val::Duration(span)] => Ok(Val::Timestamp(instant - i128::from(*span))),
        [Val::Timestamp(left), Val::Timestamp(right)] => {
            i64::try_from(left - right).map(Val::Duration).map_err(|_| overflow("duration"))
        }
        _ => arithmetic(arguments, i64::checked_sub, u64::checked_sub, |x, y| x - y),
    }
}

fn divide<'a>(arguments: &[Val<'a>]) -> FunctionResult<'a> {
    match arguments {
        [Val::Int(_), Val::Int(0)] | [Val::Uint(_), Val::Uint(0)] => Err(EvalError::failed("division by zero")),
        _ => arithmetic(arguments, i64::checked_div, u64::checked_div, |x, y| x / y),
    }
}

fn remainder<'a>(arguments: &[Val<'a>]) -> FunctionResult<'a> {
    match arguments {
        [Val::Int(_), Val::Int(0)] | [Val::Uint(_), Val::Uint(0)] => Err(EvalError::failed("modulus by zero")),
        [Val::Double(_), Val::Double(_)] => Err(NONE),
        _ => arithmetic(arguments, i64::checked_rem, u64::checked_rem, |x, _| x),
    }
}

fn negate<'a>(arguments: &[Val<'a>]) -> FunctionResult<'a> {
    match arguments {
        [Val::Int(number)] => number.checked_neg().map(Val::Int).ok_or_else(|| overflow("integer")),
        [Val::Double(number)] => Ok(Val::Double(-number)),
        _ => Err(NONE),
    }
}

fn contained<'a>(arguments: &[Val<'a>]) -> FunctionResult<'a> {
    let [value, container] = arguments else { return Err(NONE) };
    match container {
        Val::Map(_) | Val::JsonMap(..) => Ok(Val::Bool(container.get(value).is_some())),
        _ => {
            let items = container.items().ok_or(NONE)?;
            Ok(Val::Bool(items.iter().any(|item| item.equals(value))))
        }
    }
}

fn index<'a>(arguments: &[Val<'a>], needed: bool) -> FunctionResult<'a> {
    let [container, key] = arguments else { return Err(NONE) };
    let (container, optional) = match container {
        Val::Optional(None) => return Ok(Val::Optional(None)),
        Val::Optional(Some(inner)) => (inner.as_ref(), true),
        other => (other, !needed),
    };
    let found = match (container, key) {
        (Val::List(items), Val::Int(place)) => usize::try_from(*place).ok().and_then(|place| items.get(place).cloned()),
        (Val::JsonList(items, node), Val::Int(place)) => usize::try_from(*place)
            .ok()
            .and_then(|place| items.get(place))
            .map(|value| Val::from_json(value, node.and_then(|node| node.items.as_deref()))),
        (Val::List(_) | Val::JsonList(..), _) => return Err(NONE),
        (Val::Map(_) | Val::JsonMap(..), key) => container.get(key),
        _ => return Err(NONE),
    };
    match (found, optional, key) {
        (Some(value), true, _) => Ok(Val::some(value)),
        (Some(value), false, _) => Ok(value),
        (None, true, _) => Ok(Val::Optional(None)),
        (None, false, Val::Int(place)) if container.items().is_some() => {
            Err(EvalError::failed(format!("index out of bounds: {place}")))
        }
        (None, false, key) => Err(EvalError::failed(format!("no such key: {}", texts::plain(key)?))),
    }
}

fn to_int<'a>(arguments: &[Val<'a>]) -> FunctionResult<'a> {
    match arguments {
        [Val::Int(number)] => Ok(Val::Int(*number)),
        [Val::Uint(number)] => i64::try_from(*number).map(Val::Int).map_err(|_| overflow("integer")),
        [Val::Double(number)] if number.is_finite() && number.abs() < 9.223_372_036_854_775e18 => {
            Ok(Val::Int(*number as i64))
        }
        [Val::Double(_)] => Err(overflow("integer")),
        [Val::Text(text)] => text.as_str().parse().map(Val::Int).map_err(|_| conversion("string", "int")),
        [Val::Timestamp(instant)] => Ok(Val::Int(instant.div_euclid(1_000_000_000) as i64)),
        [Val::Duration(nanoseconds)] => Ok(Val::Int(*nanoseconds)),
        _ => Err(NONE),
    }
}

fn to_uint<'a>(arguments: &[Val<'a>]) -> FunctionResult<'a> {
    match arguments {
        [Val::Uint(number)] => Ok(Val::Uint(*number)),
        [Val::Int(number)] => u64::try_from(*number).map(Val::Uint).map_err(|_| overflow("unsigned integer")),
        [Val::Double(number)] if (0.0..1.844_674_407_370_955e19).contains(number) => Ok(Val::Uint(*number as u64)),
        [Val::Double(_)] => Err(overflow("unsigned integer")),
        [Val::Text(text)] => text.as_str().parse().map(Val::Uint).map_err(|_| conversion("string", "uint")),
        _ => Err(NONE),
    }
}

fn calendar<'a>(arguments: &[Val<'a>], field: fn(&time::Civil) -> i64) -> FunctionResult<'a> {
    match arguments {
        [Val::Timestamp(instant)] => Ok(Val::Int(field(&time::civil(*instant, 0)))),
        [Val::Timestamp(instant), Val::Text(zone)] => match time::parse_offset(zone.as_str()) {
            Some(offset) => Ok(Val::Int(field(&time::civil(*instant, offset)))),
            None => Err(EvalError::failed(format!("unknown time zone {}", zone.as_str()))),
        },
        _ => Err(NONE),
    }
}

/// A field of the clock of a timestamp, or a whole duration in that unit.
fn clock<'a>(arguments: &[Val<'a>], unit: i64, field: fn(&time::Civil) -> i64) -> FunctionResult<'a> {
    match arguments {
        [Val::Duration(nanoseconds)] => Ok(Val::Int(nanoseconds / unit)),
        _ => calendar(arguments, field),
    }
}

/// A list of texts.
fn text_list<'a>(texts: impl Iterator<Item = String>) -> FunctionResult<'a> {
    let texts: Vec<Val<'a>> = texts.take(lists::MOST_ITEMS + 1).map(Val::text).collect();
    if texts.len() > lists::MOST_ITEMS { Err(EvalError::CostExceeded) } else { Val::list(texts) }
}
