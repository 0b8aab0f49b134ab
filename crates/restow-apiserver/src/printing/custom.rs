//! The cells of custom resources, by the printer columns of their CRD.

use crate::apiextensions::printer_columns::Column;
use restow_apimachinery::object::Object;
use serde_json::{Value, json};

/// The column definitions: the name, and the columns of the CRD.
pub(crate) fn definitions(columns: &[Column]) -> Vec<Value> {
    let name = json!({"name": "Name", "type": "string", "format": "name", "description": "Name", "priority": 0});
    let others = columns.iter().map(|column| {
        let asked = &column.spec;
        json!({
            "name": asked.name, "type": asked.kind, "format": asked.format, "description": asked.description,
            "priority": asked.priority,
        })
    });
    std::iter::once(name).chain(others).collect()
}

/// The cells of one object.
pub(crate) fn cells(columns: &[Column], object: &Object, now: jiff::Timestamp) -> Vec<Value> {
    let others = columns.iter().map(|column| cell(column, object.as_value(), now));
    std::iter::once(object.name().into()).chain(others).collect()
}

fn cell(column: &Column, object: &Value, now: jiff::Timestamp) -> Value {
    let Some(path) = &column.path else { return Value::Null };
    let found = path.find(object);
    let Some(first) = found.first() else { return Value::Null };
    match (column.spec.kind.as_str(), first) {
        ("integer", Value::Number(number)) => match (number.as_i64(), number.as_f64()) {
            (Some(whole), _) => whole.into(),
            #[allow(clippy::cast_possible_truncation, reason = "a whole number is asked for")]
            (None, Some(fraction)) => (fraction as i64).into(),
            _ => Value::Null,
        },
        ("number", Value::Number(_)) | ("boolean", Value::Bool(_)) => (*first).clone(),
        ("date", Value::String(text)) => match text.parse::<jiff::Timestamp>() {
            Ok(time) => super::duration(now.as_second() - time.as_second()).into(),
            Err(_) => "<invalid>".into(),
        },
        ("string", _) => found.iter().map(|value| plain(value)).collect::<Vec<_>>().join(" ").into(),
        _ => Value::Null,
    }
}

fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apiextensions::custom_resource_definition::PrinterColumn;
    use crate::apiextensions::printer_columns::columns;

    fn check(kind: &str, path: &str, expected: Value) {
        let object = json!({
            "metadata": {"name": "a", "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"replicas": 3, "ratio": 0.5, "on": true, "names": ["a", "b"]},
            "status": {"conditions": [{"type": "Other", "status": "No"}, {"type": "Ready", "status": "True"}]},
        });
        let asked = PrinterColumn { kind: kind.into(), json_path: path.into(), ..PrinterColumn::default() };
        let now = "2026-01-01T01:00:00Z".parse().unwrap();
        assert_eq!(cell(&columns(&[asked])[0], &object, now), expected, "{kind} {path}");
    }

    #[test]
    fn cells_have_the_values_at_their_json_paths() {
        check("integer", ".spec.replicas", json!(3));
        check("integer", ".spec.ratio", json!(0));
        check("number", ".spec.ratio", json!(0.5));
        check("boolean", ".spec.on", json!(true));
        check("string", ".spec.names[*]", json!("a b"));
        check("string", ".status.conditions[?(@.type==\"Ready\")].status", json!("True"));
        check("date", ".metadata.creationTimestamp", json!("60m"));
        check("date", ".metadata.name", json!("<invalid>"));
        check("string", ".spec.missing", Value::Null);
        check("integer", ".metadata.name", Value::Null);
    }
}
