//! Kubernetes' quantities in expressions: numbers with suffixes such as `Mi` and `m`, exact to a billionth.

use restow_apimachinery::types::Amount;

use super::{FunctionResult, NONE, Opaque, opaque};
use crate::cel::eval::EvalError;
use crate::cel::value::Val;

const UNIT: i128 = 1_000_000_000;

/// Parses a quantity; the error is Kubernetes' message.
pub(super) fn parse(text: &str) -> Result<Opaque, String> {
    Amount::parse(text).map(Opaque::Quantity).map_err(|error| error.to_string())
}

pub(super) fn sign(quantity: Amount) -> i64 {
    quantity.billionths().signum() as i64
}

pub(super) fn as_integer(quantity: Amount) -> Option<i64> {
    let billionths = quantity.billionths();
    (billionths % UNIT == 0).then(|| i64::try_from(billionths / UNIT).ok()).flatten()
}

pub(super) fn as_float(quantity: Amount) -> f64 {
    quantity.billionths() as f64 / UNIT as f64
}

/// A quantity in messages.
pub(super) fn show(quantity: Amount) -> String {
    let billionths = quantity.billionths();
    match as_integer(quantity) {
        Some(whole) => whole.to_string(),
        None if billionths % 1_000_000 == 0 => format!("{}m", billionths / 1_000_000),
        None => format!("{billionths}n"),
    }
}

pub(super) fn of<'a>(arguments: &[Val<'a>], result: impl Fn(Amount) -> FunctionResult<'a>) -> FunctionResult<'a> {
    match arguments {
        [Val::Opaque(opaque)] => match opaque.as_ref() {
            Opaque::Quantity(quantity) => result(*quantity),
            _ => Err(NONE),
        },
        _ => Err(NONE),
    }
}

pub(super) fn combine<'a>(arguments: &[Val<'a>], subtract: bool) -> FunctionResult<'a> {
    let amount = |value: &Val<'a>| match value {
        Val::Int(number) => Ok(i128::from(*number) * UNIT),
        Val::Opaque(opaque) => match opaque.as_ref() {
            Opaque::Quantity(quantity) => Ok(quantity.billionths()),
            _ => Err(NONE),
        },
        _ => Err(NONE),
    };
    let [left, right] = arguments else { return Err(NONE) };
    let (left, right) = (amount(left)?, amount(right)?);
    let sum = if subtract { left.checked_sub(right) } else { left.checked_add(right) };
    sum.map(|sum| opaque(Opaque::Quantity(Amount::from_billionths(sum))))
        .ok_or_else(|| EvalError::failed("quantity overflow"))
}
