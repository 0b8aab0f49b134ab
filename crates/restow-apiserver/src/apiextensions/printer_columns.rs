//! The printer columns of a CRD.

use crate::apiextensions::custom_resource_definition::PrinterColumn;
use restow_schema::json_path::JsonPath;

/// A column with its parsed JSON path.
#[derive(Debug)]
pub(crate) struct Column {
    /// The column in the CRD.
    pub(crate) spec: PrinterColumn,
    /// `None` when the path is invalid; the cells stay empty.
    pub(crate) path: Option<JsonPath>,
}

/// The columns of a CRD; by default, the age.
pub(crate) fn columns(specs: &[PrinterColumn]) -> Vec<Column> {
    let age = PrinterColumn {
        name: "Age".into(),
        kind: "date".into(),
        description: "When the object was created.".into(),
        json_path: ".metadata.creationTimestamp".into(),
        ..PrinterColumn::default()
    };
    let specs = if specs.is_empty() { vec![age] } else { specs.to_vec() };
    specs.into_iter().map(|spec| Column { path: JsonPath::parse(&spec.json_path).ok(), spec }).collect()
}
