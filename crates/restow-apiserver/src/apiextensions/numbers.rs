//! Normalizes numbers as Kubernetes does: a whole number is stored without a fraction, however it was sent.

use serde_json::{Number, Value};

/// Larger floats stay as they are.
const LARGEST: f64 = 9.0e18;

/// Normalizes every number in a value.
pub(crate) fn normalize(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(normalize),
        Value::Object(fields) => fields.values_mut().for_each(normalize),
        Value::Number(number) => {
            if let Some(normalized) = normalized(number) {
                *number = normalized;
            }
        }
        _ => {}
    }
}

/// The normalized number; `None` where it is normalized already.
fn normalized(number: &Number) -> Option<Number> {
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
        normalize(&mut value);
        assert!(value["d"].is_f64(), "what does not fit a signed number is a float");
        value["d"] = json!(null);
        assert_eq!(value.to_string(), r#"{"a":2,"b":[2.5,1000],"c":0,"d":null,"e":7}"#);
    }
}
