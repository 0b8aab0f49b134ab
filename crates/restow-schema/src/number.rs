//! Checks of numbers. Kubernetes distinguishes integers from other numbers.

use serde_json::{Number, Value};

use crate::format::Format;
use crate::node::{Kind, Limits, Node};
use restow_apimachinery::go_syntax::{show_float, show_number};

/// A failed check of a number.
pub(crate) enum NumberFault {
    /// About the value: the text after `NAME in body should be`, and the value to show.
    Value { words: String, shown: Value },
    /// A complete sentence that names no field.
    Sentence(String),
    /// The factor of `multipleOf` is invalid.
    Factor(Value),
}

/// All errors of a number, in Kubernetes' order.
pub(crate) fn faults(node: &Node, number: &Number, name: &dyn Fn() -> String) -> Vec<NumberFault> {
    let mut faults = Vec::new();
    if let Some(sentence) = range_fault(node, number, "Checked", name) {
        faults.push(NumberFault::Sentence(sentence));
    }
    let Some(limits) = &node.limits else { return faults };
    if let Some(factor) = limits.multiple_of {
        boundary(node, factor, "MultipleOf", name, &mut faults);
        faults.extend(multiple_fault(number, factor, node_is_exact(node, factor)));
    }
    if let Some(minimum) = limits.minimum {
        boundary(node, minimum, "Minimum boundary", name, &mut faults);
        faults.extend(minimum_fault(limits, number, minimum, node_is_exact(node, minimum)));
    }
    if let Some(maximum) = limits.maximum {
        boundary(node, maximum, "Maximum boundary", name, &mut faults);
        faults.extend(maximum_fault(limits, number, maximum, node_is_exact(node, maximum)));
    }
    faults
}

fn boundary(node: &Node, limit: f64, what: &str, name: &dyn Fn() -> String, faults: &mut Vec<NumberFault>) {
    if let Some(number) = Number::from_f64(limit) {
        faults.extend(range_fault(node, &number, what, name).map(NumberFault::Sentence));
    }
}

/// Whether a limit can be compared exactly in the type of the value.
fn node_is_exact(node: &Node, limit: f64) -> bool {
    Number::from_f64(limit).is_none_or(|number| range_fault(node, &number, "", &String::new).is_none())
}

fn range_fault(node: &Node, number: &Number, what: &str, name: &dyn Fn() -> String) -> Option<String> {
    let kind = if node.int_or_string { None } else { node.kind };
    let whole = number.as_i64().or_else(|| {
        let float = number.as_f64()?;
        (float.fract() == 0.0 && float.abs() < 9.3e18).then_some(float as i64)
    });
    let fits = match (kind, node.format) {
        (Some(Kind::Integer), Some(Format::Int32)) => whole.is_some_and(|whole| i32::try_from(whole).is_ok()),
        (Some(Kind::Integer), _) => whole.is_some(),
        (_, Some(Format::Float)) => number.as_f64().is_some_and(|float| float.abs() <= f64::from(f32::MAX)),
        _ => true,
    };
    if fits {
        return None;
    }
    let type_name = kind.map_or("", Kind::name);
    let path = name();
    Some(match node.format {
        Some(format) => format!("{what} value must be of type {type_name} with format {} in {path}", format.name()),
        None => format!("{what} value must be of type {type_name} (default format) in {path}"),
    })
}

fn multiple_fault(number: &Number, factor: f64, exact: bool) -> Option<NumberFault> {
    match number.as_i64() {
        Some(whole) if exact => {
            let factor = factor as i64;
            if factor <= 0 {
                return Some(NumberFault::Factor(factor.into()));
            }
            (whole % factor != 0).then(|| value_fault(format!("a multiple of {factor}"), number))
        }
        _ => {
            if factor <= 0.0 {
                return Some(NumberFault::Factor(factor.into()));
            }
            let float = number.as_f64().unwrap_or_default();
            let quotient = if factor < 1.0 { 1.0 / factor * float } else { float / factor };
            (!is_json_integer(quotient)).then(|| value_fault(format!("a multiple of {}", show_float(factor)), number))
        }
    }
}

fn minimum_fault(limits: &Limits, number: &Number, minimum: f64, exact: bool) -> Option<NumberFault> {
    let words = if limits.exclusive_minimum { "greater than" } else { "greater than or equal to" };
    match number.as_i64() {
        Some(whole) if exact => {
            let minimum = minimum as i64;
            let fails = if limits.exclusive_minimum { whole <= minimum } else { whole < minimum };
            fails.then(|| value_fault(format!("{words} {minimum}"), number))
        }
        _ => {
            let float = number.as_f64().unwrap_or_default();
            let fails = if limits.exclusive_minimum { float <= minimum } else { float < minimum };
            fails.then(|| value_fault(format!("{words} {}", show_float(minimum)), number))
        }
    }
}

fn maximum_fault(limits: &Limits, number: &Number, maximum: f64, exact: bool) -> Option<NumberFault> {
    let words = if limits.exclusive_maximum { "less than" } else { "less than or equal to" };
    match number.as_i64() {
        Some(whole) if exact => {
            let maximum = maximum as i64;
            let fails = if limits.exclusive_maximum { whole >= maximum } else { whole > maximum };
            fails.then(|| value_fault(format!("{words} {maximum}"), number))
        }
        _ => {
            let float = number.as_f64().unwrap_or_default();
            let fails = if limits.exclusive_maximum { float >= maximum } else { float > maximum };
            fails.then(|| value_fault(format!("{words} {}", show_float(maximum)), number))
        }
    }
}

fn value_fault(words: String, number: &Number) -> NumberFault {
    NumberFault::Value { words, shown: Value::Number(number.clone()) }
}

/// Whether a float is an integer that JSON can represent exactly.
pub(crate) fn is_json_integer(float: f64) -> bool {
    const LARGEST: f64 = 9_007_199_254_740_991.0;
    if !float.is_finite() || float.abs() > LARGEST {
        return false;
    }
    let difference = (float - float.trunc()).abs();
    float == float.trunc() || difference < 1e-9 * float.abs().min(1.0) && float.trunc() != 0.0
}

/// Whether a value equals an enum value; numbers of all types are compared by value.
pub(crate) fn equals_choice(value: &Value, choice: &Value) -> bool {
    match (value, choice) {
        (Value::Null, _) => false,
        (Value::Number(value), Value::Number(choice)) => match choice.as_i64() {
            Some(choice) => value.as_i64().or_else(|| value.as_f64().map(|float| float as i64)) == Some(choice),
            None => value.as_f64() == choice.as_f64(),
        },
        _ => value == choice,
    }
}

/// An enum value in the list of supported values.
pub(crate) fn choice_text(choice: &Value) -> String {
    match choice {
        Value::String(text) => text.clone(),
        Value::Number(number) => show_number(number),
        other => {
            let mut text = String::new();
            restow_apimachinery::go_syntax::write_json(other, &mut text);
            text
        }
    }
}
