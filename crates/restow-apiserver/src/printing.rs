//! Tables for `kubectl get`: the columns of a kind, and the cells of an object.

mod columns;
mod custom;
mod special;

use crate::request::negotiation::IncludeObject;
use crate::resource::Resource;
use jiff::Timestamp;
use restow_apimachinery::object::Object;
use restow_tables::columns::{Cell, Column};
use serde_json::{Value, json};

/// Objects as a `Table`; `beside` says what each row includes of its object.
pub(crate) fn table(resource: &Resource, objects: Vec<Object>, metadata: Value, beside: IncludeObject) -> Value {
    let now = restow_host::now();
    let rows = objects.into_iter().map(|object| row(resource, object, now, beside)).collect();
    fields([
        ("kind", "Table".into()),
        ("apiVersion", "meta.k8s.io/v1".into()),
        ("metadata", metadata),
        ("columnDefinitions", definitions(resource).into()),
        ("rows", Value::Array(rows)),
    ])
}

/// The column definitions of a table.
pub(crate) fn definitions(resource: &Resource) -> Vec<Value> {
    match &resource.custom {
        Some(version) => custom::definitions(&version.columns),
        None => columns_of(resource).iter().map(definition).collect(),
    }
}

/// The row of one object, as it is `now`.
pub(crate) fn row(resource: &Resource, object: Object, now: Timestamp, beside: IncludeObject) -> Value {
    let cells = cells(resource, &object, now);
    let object = match beside {
        IncludeObject::Nothing => Value::Null,
        IncludeObject::Metadata => metadata_only(object),
        IncludeObject::Object => object.into_value(),
    };
    fields([("cells", Value::Array(cells)), ("object", object)])
}

/// The cells of one object.
pub(crate) fn cells(resource: &Resource, object: &Object, now: Timestamp) -> Vec<Value> {
    match &resource.custom {
        Some(version) => custom::cells(&version.columns, object, now),
        None => columns_of(resource).iter().map(|column| columns::cell(object, &column.cell, now)).collect(),
    }
}

/// An object as `PartialObjectMetadata`.
pub(crate) fn metadata_only(object: Object) -> Value {
    let metadata = match object.into_value() {
        Value::Object(mut fields) => fields.remove("metadata").unwrap_or_default(),
        _ => Value::Null,
    };
    fields([("kind", "PartialObjectMetadata".into()), ("apiVersion", "meta.k8s.io/v1".into()), ("metadata", metadata)])
}

/// An object of these fields. Unlike `json!`, it does not copy the values.
pub(crate) fn fields<const N: usize>(fields: [(&str, Value); N]) -> Value {
    Value::Object(fields.into_iter().map(|(name, value)| (name.to_string(), value)).collect())
}

fn columns_of(resource: &Resource) -> &'static [Column<'static>] {
    let group = match resource.group_resource.group() {
        "" => "core",
        group => group,
    };
    columns::columns_of(&format!("{group}/{}", resource.group_resource.resource()))
}

fn definition(column: &Column<'_>) -> Value {
    let format = if column.cell == Cell::Name { "name" } else { "" };
    let (title, priority) = (column.title.replace('_', " "), i32::from(column.wide));
    json!({"name": title, "type": "string", "format": format, "description": title, "priority": priority})
}

/// A duration as kubectl writes it (`HumanDuration`).
pub(crate) fn duration(seconds: i64) -> String {
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    let pair = |large: i64, unit: &str, small: i64, small_unit: &str| match small {
        0 => format!("{large}{unit}"),
        small => format!("{large}{unit}{small}{small_unit}"),
    };
    match seconds {
        ..0 => "0s".into(),
        0..120 => format!("{seconds}s"),
        120..600 => pair(minutes, "m", seconds % 60, "s"),
        600..10_800 => format!("{minutes}m"),
        10_800..28_800 => pair(hours, "h", minutes % 60, "m"),
        28_800..172_800 => format!("{hours}h"),
        172_800..691_200 => pair(days, "d", hours % 24, "h"),
        691_200..63_072_000 => format!("{days}d"),
        63_072_000..252_288_000 => pair(days / 365, "y", days % 365, "d"),
        _ => format!("{}y", days / 365),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_have_the_short_format_of_kubectl() {
        for (seconds, expected) in [
            (-5, "0s"),
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (125, "2m5s"),
            (601, "10m"),
            (7300, "121m"),
            (10_800, "3h"),
            (11_000, "3h3m"),
            (30_000, "8h"),
            (180_000, "2d2h"),
            (700_000, "8d"),
            (63_072_000 + 86_400, "2y1d"),
            (400_000_000, "12y"),
        ] {
            assert_eq!(duration(seconds), expected, "{seconds}");
        }
    }
}
