//! Resource quantities (`500m`, `1Gi`, `2e3`) in Kubernetes' canonical form.
//!
//! Kubernetes parses `0.5` and writes `500m`, parses `1024Mi` and writes `1Gi`. But it does not change quantities that
//! look canonical, such as `1.234` or `12E6`. Quantities of more than 38 digits, and decimal ones without a matching
//! suffix, are not changed here either.

use serde_json::Value;
use std::cmp::Ordering;
use std::ops::{Add, Sub};

/// Why a text is not a quantity, with Kubernetes' message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    /// The text has the wrong format.
    #[error("quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'")]
    Format,
    /// The text has an unknown suffix.
    #[error("unable to parse quantity's suffix")]
    Suffix,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Format {
    Decimal,
    Binary,
    Exponent,
}

const DECIMAL_SUFFIXES: [&str; 10] = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"];
const BINARY_SUFFIXES: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];

/// The smallest unit is a billionth.
const SMALLEST_EXPONENT: i64 = -9;

/// The quantity as Kubernetes writes it.
///
/// # Errors
/// The text is not a quantity.
pub fn canonical_quantity(text: &str) -> Result<String, QuantityError> {
    let parts = split(text)?;
    let (format, exponent) = interpret(parts.suffix)?;
    if is_kept(&parts, format, exponent) {
        return Ok(text.to_owned());
    }
    let written = decimal(&parts, format, exponent).and_then(|decimal| decimal.write(format));
    let sign = if parts.negative { "-" } else { "" };
    Ok(match written.as_deref() {
        None => text.to_owned(),
        Some("0") => "0".to_owned(),
        Some(written) => format!("{sign}{written}"),
    })
}

/// Compares two quantities; `None` if one is invalid or has too many digits.
pub fn compare_quantities(one: &str, other: &str) -> Option<Ordering> {
    Some(Amount::parse(one).ok()?.cmp(&Amount::parse(other).ok()?))
}

/// A quantity to compute with, in billionths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Amount(i128);

impl Amount {
    /// An integer amount.
    pub fn whole(number: u64) -> Self {
        Amount(i128::from(number) * 10_i128.pow(SMALLEST_EXPONENT.unsigned_abs() as u32))
    }

    /// The amount of a quantity.
    ///
    /// # Errors
    /// The text is not a quantity, or too long to be computed with.
    pub fn parse(text: &str) -> Result<Self, QuantityError> {
        let parts = split(text)?;
        let (format, exponent) = interpret(parts.suffix)?;
        let size = decimal(&parts, format, exponent).and_then(|found| {
            let places = u32::try_from(found.exponent - SMALLEST_EXPONENT).ok()?;
            found.mantissa.checked_mul(10_i128.checked_pow(places)?)
        });
        let size = size.ok_or(QuantityError::Format)?;
        Ok(Amount(if parts.negative { -size } else { size }))
    }

    /// The amount in billionths.
    pub fn billionths(self) -> i128 {
        self.0
    }

    /// An amount of so many billionths.
    pub fn from_billionths(billionths: i128) -> Self {
        Amount(billionths)
    }

    /// Parses a quantity in an object, where it may also be a number.
    pub fn read(value: &Value) -> Option<Self> {
        match value {
            Value::String(text) => Self::parse(text.trim()).ok(),
            Value::Number(number) => Self::parse(&number.to_string()).ok(),
            _ => None,
        }
    }

    /// The ratio to another amount.
    pub fn over(self, other: Amount) -> f64 {
        self.0 as f64 / other.0 as f64
    }

    /// The amount as a quantity, with a binary or decimal suffix.
    pub fn write(self, binary: bool) -> String {
        let format = if binary { Format::Binary } else { Format::Decimal };
        let decimal = Decimal { mantissa: self.0.saturating_abs(), exponent: SMALLEST_EXPONENT };
        let sign = if self.0 < 0 { "-" } else { "" };
        decimal.write(format).map_or_else(|| format!("{}n", self.0), |written| format!("{sign}{written}"))
    }
}

impl Add for Amount {
    type Output = Amount;

    fn add(self, other: Amount) -> Amount {
        Amount(self.0.saturating_add(other.0))
    }
}

impl Sub for Amount {
    type Output = Amount;

    fn sub(self, other: Amount) -> Amount {
        Amount(self.0.saturating_sub(other.0))
    }
}

struct Parts<'t> {
    negative: bool,
    /// Digits before the point, without leading zeros; never empty.
    whole: &'t str,
    fraction: &'t str,
    suffix: &'t str,
}

/// Splits a text. A missing number is zero, so that a suffix alone is a quantity.
fn split(text: &str) -> Result<Parts<'_>, QuantityError> {
    if text.is_empty() {
        return Err(QuantityError::Format);
    }
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
    let (whole, rest) = unsigned.split_at(digits(unsigned));
    let whole = whole.trim_start_matches('0');
    let (fraction, suffix) = match rest.strip_prefix('.') {
        Some(rest) => rest.split_at(digits(rest)),
        None => ("", rest),
    };
    let letters = suffix.bytes().take_while(|byte| b"eEinumkKMGTP".contains(byte)).count();
    let tail = &suffix[letters..];
    let tail = tail.strip_prefix(['+', '-']).unwrap_or(tail);
    if digits(tail) != tail.len() {
        return Err(QuantityError::Format);
    }
    let whole = if whole.is_empty() { "0" } else { whole };
    Ok(Parts { negative: text.starts_with('-'), whole, fraction, suffix })
}

/// The format of a suffix, and its power of ten or of 1024.
fn interpret(suffix: &str) -> Result<(Format, i32), QuantityError> {
    if let Some(index) = DECIMAL_SUFFIXES.iter().position(|known| *known == suffix) {
        let index = i32::try_from(index).unwrap_or_default();
        return Ok((Format::Decimal, (index - 3) * 3));
    }
    if let Some(index) = BINARY_SUFFIXES.iter().position(|known| *known == suffix) {
        return Ok((Format::Binary, i32::try_from(index).unwrap_or_default()));
    }
    let exponent = suffix.strip_prefix(['e', 'E']).and_then(|exponent| exponent.parse().ok());
    exponent.map(|exponent| (Format::Exponent, exponent)).ok_or(QuantityError::Suffix)
}

/// Whether Kubernetes treats the text as canonical without parsing it.
fn is_kept(parts: &Parts<'_>, format: Format, exponent: i32) -> bool {
    let digits = parts.whole.len() + parts.fraction.len();
    if format == Format::Binary {
        // By Kubernetes' estimate, this many digits fit a 64-bit integer after multiplication.
        let limit = 14 - 3 * i64::from(exponent);
        let odd = parts.whole.parse::<i64>().is_ok_and(|value| value % 8 != 0);
        return parts.fraction.is_empty() && i64::try_from(digits).is_ok_and(|digits| digits <= limit) && odd;
    }
    let scale = i64::from(exponent) - i64::try_from(parts.fraction.len()).unwrap_or(i64::MAX / 2);
    let shifted = format!("{}{}", parts.whole, parts.fraction);
    digits <= 18
        && scale >= SMALLEST_EXPONENT
        && scale % 3 == 0
        && !shifted.ends_with("000")
        && !shifted.starts_with('0')
}

/// A positive number: a mantissa and a power of ten.
struct Decimal {
    mantissa: i128,
    exponent: i64,
}

/// The amount, rounded up to a whole number of billionths; `None` if it has too many digits.
fn decimal(parts: &Parts<'_>, format: Format, exponent: i32) -> Option<Decimal> {
    let digits = format!("{}{}", parts.whole, parts.fraction);
    let mut mantissa: i128 = digits.parse().ok()?;
    let mut power = -i64::try_from(parts.fraction.len()).ok()?;
    match format {
        Format::Binary => mantissa = mantissa.checked_mul(1024_i128.checked_pow(u32::try_from(exponent).ok()?)?)?,
        Format::Decimal | Format::Exponent => power += i64::from(exponent),
    }
    while power < SMALLEST_EXPONENT && mantissa > 1 {
        // Rounding up step by step is rounding up at once.
        let places = u32::try_from((SMALLEST_EXPONENT - power).min(38)).ok()?;
        let divisor = 10_i128.pow(places);
        mantissa = mantissa / divisor + i128::from(mantissa % divisor != 0);
        power += i64::from(places);
    }
    let power = if mantissa == 0 { 0 } else { power.max(SMALLEST_EXPONENT) };
    Some(Decimal { mantissa, exponent: power })
}

impl Decimal {
    fn write(self, format: Format) -> Option<String> {
        if self.mantissa == 0 {
            return Some("0".to_owned());
        }
        let whole = (format == Format::Binary).then(|| self.whole()).flatten();
        match whole {
            Some(whole) if whole >= 1024 => Some(write_binary(whole.min(i128::from(i64::MAX)))),
            _ => self.write_decimal(format),
        }
    }

    /// The amount as an integer, if it is one.
    fn whole(&self) -> Option<i128> {
        let factor = 10_i128.checked_pow(u32::try_from(self.exponent.unsigned_abs()).ok()?)?;
        if self.exponent >= 0 {
            return self.mantissa.checked_mul(factor);
        }
        (self.mantissa % factor == 0).then_some(self.mantissa / factor)
    }

    fn write_decimal(mut self, format: Format) -> Option<String> {
        while self.mantissa % 10 == 0 {
            self.mantissa /= 10;
            self.exponent += 1;
        }
        for _ in 0..self.exponent.rem_euclid(3) {
            self.mantissa = self.mantissa.checked_mul(10)?;
            self.exponent -= 1;
        }
        let Decimal { mantissa, exponent } = self;
        if format == Format::Exponent {
            return Some(if exponent == 0 { mantissa.to_string() } else { format!("{mantissa}e{exponent}") });
        }
        let index = usize::try_from(exponent / 3 + 3).ok()?;
        DECIMAL_SUFFIXES.get(index).map(|suffix| format!("{mantissa}{suffix}"))
    }
}

fn write_binary(mut whole: i128) -> String {
    let mut power = 0;
    while whole % 1024 == 0 && power + 1 < BINARY_SUFFIXES.len() {
        whole /= 1024;
        power += 1;
    }
    format!("{whole}{}", BINARY_SUFFIXES[power])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: &str) {
        assert_eq!(canonical_quantity(text).as_deref(), Ok(expected), "{text}");
    }

    #[test]
    fn writes_quantities_as_kubernetes_does() {
        for (text, expected) in [
            ("0", "0"),
            ("0m", "0"),
            ("0.0Ki", "0"),
            ("-0", "0"),
            ("1", "1"),
            ("-1", "-1"),
            (".5", "500m"),
            ("-0.5", "-500m"),
            ("0.500", "500m"),
            ("1000m", "1"),
            ("1000", "1k"),
            ("1000k", "1M"),
            ("1.08", "1080m"),
            ("1024Mi", "1Gi"),
            ("8Gi", "8Gi"),
            ("1024", "1024"),
            ("1.5Gi", "1536Mi"),
            ("0.5Ki", "512"),
            ("1.1Ki", "1126400m"),
            (".000000000001Ki", "2n"),
            ("5Pi", "5Pi"),
            ("10Ei", "9223372036854775807"),
            ("1000e-12", "1e-9"),
            (".001e12", "1e9"),
            ("1e61", "10e60"),
            ("10000000000000", "10T"),
            ("0.0000000001", "1n"),
            ("3.001n", "4n"),
            ("1e-20", "1e-9"),
            ("1e-2000000000", "1e-9"),
        ] {
            check(text, expected);
        }
    }

    #[test]
    fn quantities_that_look_canonical_or_are_too_large_do_not_change() {
        for text in ["1500m", "1536Mi", "1.234", "1.500", "100.035k", "12E6", "1e3", "1E", "+5", "01Gi", "1e60"] {
            check(text, text);
        }
        check("123456789012345678901234567890123456789012", "123456789012345678901234567890123456789012");
    }

    #[test]
    fn quantities_are_compared_by_value() {
        for (one, other, expected) in [
            ("1", "1000m", Some(Ordering::Equal)),
            ("1Gi", "1G", Some(Ordering::Greater)),
            ("-1", "1n", Some(Ordering::Less)),
            ("0", "-0", Some(Ordering::Equal)),
            ("100Mi", "1e8", Some(Ordering::Greater)),
            ("1", "x", None),
            ("1e60", "1", None),
        ] {
            assert_eq!(compare_quantities(one, other), expected, "{one} {other}");
        }
    }

    #[test]
    fn amounts_add_up_and_are_written_as_quantities() {
        for (one, other, binary, expected) in [
            ("250m", "0.5", false, "750m"),
            ("1", "1", false, "2"),
            ("512Mi", "512Mi", true, "1Gi"),
            ("1Gi", "1n", true, "1073741824000000001n"),
            ("100", "900", true, "1k"),
            ("1", "-2", false, "-1"),
            ("0", "0", false, "0"),
        ] {
            let sum = Amount::parse(one).unwrap() + Amount::parse(other).unwrap();
            assert_eq!(sum.write(binary), expected, "{one} {other}");
        }
        assert_eq!(Amount::whole(3).write(false), "3");
    }

    #[test]
    fn a_quantity_without_a_number_is_zero() {
        for text in ["-", ".", "Ki", "m", "e5"] {
            check(text, "0");
        }
    }

    #[test]
    fn invalid_quantities_are_refused() {
        for text in ["", "abc", "1 ", " 1", "1Ki5x", "1.2.3", "1+1.0M"] {
            assert_eq!(canonical_quantity(text), Err(QuantityError::Format), "{text}");
        }
        for text in ["1kk", "1mi", "1e", "1Ki5", "1i", "-3.01e-"] {
            assert_eq!(canonical_quantity(text), Err(QuantityError::Suffix), "{text}");
        }
    }
}
