//! The printer columns that a CRD asks for.

use crate::apiextensions::definition::PrinterColumn;
use restow_schema::json_path::JsonPath;

/// A column, ready to be filled.
#[derive(Debug)]
pub(crate) struct Column {
    /// What the CRD says of it.
    pub(crate) asked: PrinterColumn,
    /// `None` when the path makes no sense; the cells stay empty.
    pub(crate) path: Option<JsonPath>,
}

/// The columns that a definition asks for; without any, the age.
pub(crate) fn columns(asked: &[PrinterColumn]) -> Vec<Column> {
    let age = PrinterColumn {
        name: "Age".into(),
        kind: "date".into(),
        description: "When the object was created.".into(),
        json_path: ".metadata.creationTimestamp".into(),
        ..PrinterColumn::default()
    };
    let asked = if asked.is_empty() { vec![age] } else { asked.to_vec() };
    asked.into_iter().map(|asked| Column { path: JsonPath::parse(&asked.json_path).ok(), asked }).collect()
}
