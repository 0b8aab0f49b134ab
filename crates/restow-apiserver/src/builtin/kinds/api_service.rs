//! APIServices: their name is their version and group.

use crate::builtin::checks::{Fields, text_at};
use restow_apimachinery::field::FieldError;

pub(crate) fn check(fields: &Fields, _: &str, found: &mut Vec<FieldError>) {
    let text = |path: &[&str]| text_at(fields, path);
    let expected = format!("{}.{}", text(&["spec", "version"]), text(&["spec", "group"]));
    let name = text(&["metadata", "name"]);
    if name != expected {
        let detail = format!("must be `spec.version+\".\"+spec.group`: {expected:?}");
        found.push(FieldError::invalid("metadata.name", &name.into(), detail));
    }
}
