//! Kubernetes' quantities: numbers with suffixes such as `Mi` and `m`, exact to a billionth.

use std::fmt;

use super::{NONE, Opaque, Outcome, opaque};
use crate::cel::eval::EvalError;
use crate::cel::value::Val;

const UNIT: i128 = 1_000_000_000;

/// A quantity, in billionths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Quantity(i128);

impl Quantity {
    pub(super) fn parse(text: &str) -> Result<Quantity, String> {
        let wrong = || {
            "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'".to_string()
        };
        let (negative, rest) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text.strip_prefix('+').unwrap_or(text)),
        };
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (number, suffix) = rest.split_at(end);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') || number.len() > 30 {
            return Err(wrong());
        }
        let (numerator, denominator) = suffix_factor(suffix).ok_or_else(wrong)?;
        let digits: i128 = format!("0{whole}{fraction}").parse().map_err(|_| wrong())?;
        let scale = 10i128.checked_pow(fraction.len() as u32).ok_or_else(wrong)?;
        let scaled = digits.checked_mul(UNIT).and_then(|value| value.checked_mul(numerator)).ok_or_else(wrong)?;
        let divisor = scale.checked_mul(denominator).ok_or_else(wrong)?;
        // What is finer than a billionth is rounded up.
        let value = scaled.div_euclid(divisor) + i128::from(scaled.rem_euclid(divisor) != 0);
        Ok(Quantity(if negative { -value } else { value }))
    }

    pub(super) fn sign(self) -> i64 {
        self.0.signum() as i64
    }

    pub(super) fn as_integer(self) -> Option<i64> {
        (self.0 % UNIT == 0).then(|| i64::try_from(self.0 / UNIT).ok()).flatten()
    }

    pub(super) fn as_float(self) -> f64 {
        self.0 as f64 / UNIT as f64
    }
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.as_integer() {
            Some(whole) => write!(f, "{whole}"),
            None if self.0 % 1_000_000 == 0 => write!(f, "{}m", self.0 / 1_000_000),
            None => write!(f, "{}n", self.0),
        }
    }
}

fn suffix_factor(suffix: &str) -> Option<(i128, i128)> {
    Some(match suffix {
        "" => (1, 1),
        "n" => (1, 1_000_000_000),
        "u" => (1, 1_000_000),
        "m" => (1, 1_000),
        "k" => (1_000, 1),
        "M" => (1_000_000, 1),
        "G" => (1_000_000_000, 1),
        "T" => (1_000_000_000_000, 1),
        "P" => (1_000_000_000_000_000, 1),
        "E" => (1_000_000_000_000_000_000, 1),
        "Ki" => (1 << 10, 1),
        "Mi" => (1 << 20, 1),
        "Gi" => (1 << 30, 1),
        "Ti" => (1 << 40, 1),
        "Pi" => (1 << 50, 1),
        "Ei" => (1 << 60, 1),
        _ => {
            let exponent: i32 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
            let power = 10i128.checked_pow(exponent.unsigned_abs())?;
            if exponent < 0 { (1, power) } else { (power, 1) }
        }
    })
}

pub(super) fn of<'a>(arguments: &[Val<'a>], result: impl Fn(Quantity) -> Outcome<'a>) -> Outcome<'a> {
    match arguments {
        [Val::Opaque(opaque)] => match opaque.as_ref() {
            Opaque::Quantity(quantity) => result(*quantity),
            _ => Err(NONE),
        },
        _ => Err(NONE),
    }
}

pub(super) fn combine<'a>(arguments: &[Val<'a>], subtract: bool) -> Outcome<'a> {
    let amount = |value: &Val<'a>| match value {
        Val::Int(number) => Ok(i128::from(*number) * UNIT),
        Val::Opaque(opaque) => match opaque.as_ref() {
            Opaque::Quantity(quantity) => Ok(quantity.0),
            _ => Err(NONE),
        },
        _ => Err(NONE),
    };
    let [left, right] = arguments else { return Err(NONE) };
    let (left, right) = (amount(left)?, amount(right)?);
    let sum = if subtract { left.checked_sub(right) } else { left.checked_add(right) };
    sum.map(|sum| opaque(Opaque::Quantity(Quantity(sum)))).ok_or_else(|| EvalError::failed("quantity overflow"))
}
