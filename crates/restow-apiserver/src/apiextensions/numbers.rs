//! Numbers as Kubernetes keeps them: one that is whole is written without a fraction, however it was sent.

use serde_json::{Number, Value};

/// The whole numbers that a float tells apart from their neighbours' neighbours: beyond, it stays as it is.
const LARGEST: f64 = 9.0e18;

/// Settles every number in a value.
pub(crate) fn settle(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(settle),
        Value::Object(fields) => fields.values_mut().for_each(settle),
        Value::Number(number) => {
            if let Some(settled) = settled(number) {
                *number = settled;
            }
        }
        _ => {}
    }
}

/// The number in its settled form; `None` where it has it already.
fn settled(number: &Number) -> Option<Number> {
    if number.is_i64() {
        return None;
    }
    let float = number.as_f64()?;
    match float.fract() == 0.0 && float.abs() < LARGEST {
        true => Some(Number::from(float as i64)),
        // What does not fit a signed number is a float for Kubernetes.
        false if number.is_u64() => Number::from_f64(float),
        false => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn whole_numbers_have_no_fraction() {
        let mut value: Value =
            serde_json::from_str(r#"{"a":2.0,"b":[2.5,1e3],"c":-0.0,"d":12345678901234567890,"e":7}"#).unwrap();
        settle(&mut value);
        assert!(value["d"].is_f64(), "what does not fit a signed number is a float");
        value["d"] = json!(null);
        assert_eq!(value.to_string(), r#"{"a":2,"b":[2.5,1000],"c":0,"d":null,"e":7}"#);
    }
}
