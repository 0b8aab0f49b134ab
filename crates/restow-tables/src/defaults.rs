//! `defaults.txt`: what the server sets where a client says nothing.

use crate::json::Json;
use crate::kubernetes_types::{Form, Scalar, TypeId, Types};
use crate::{TableError, not_empty, path, significant_lines};

/// A default.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Default<'t> {
    /// Its line in the table.
    pub line: usize,
    /// The type that it holds for, as in `core/v1.PodSpec`.
    pub type_name: &'t str,
    /// The way from there to the field.
    pub path: Vec<&'t str>,
    /// Whether an empty text is a value, and not the same as nothing.
    pub keeps_empty: bool,
    /// What is set.
    pub value: Json<'t>,
    /// When it holds.
    pub when: Option<When<'t>>,
}

/// A condition: the text at a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct When<'t> {
    /// The way from the type to the text.
    pub path: Vec<&'t str>,
    /// The text that must stand there.
    pub text: &'t str,
}

impl<'t> When<'t> {
    /// Reads `PATH=TEXT`.
    pub(crate) fn parse(text: &'t str) -> Result<When<'t>, String> {
        match text.split_once('=') {
            Some((at, text)) if !text.is_empty() && !text.contains(' ') => Ok(When { path: path(at)?, text }),
            _ => Err(format!("expected \"when PATH=TEXT\", found \"when {text}\"")),
        }
    }

    /// The path must lead to a text.
    pub(crate) fn check(&self, types: &Types, id: TypeId) -> Result<(), String> {
        match types.target_form(types.follow(id, &self.path)?) {
            Form::Scalar(Scalar::String) => Ok(()),
            other => Err(format!("{} is no text but {}", self.path.join("."), types.form_name(other))),
        }
    }
}

/// Reads the table.
///
/// # Errors
/// A line is not a default, or there is none.
pub fn parse(text: &str) -> Result<Vec<Default<'_>>, TableError> {
    let rows = significant_lines(text);
    let rows = rows.map(|(line, row)| default(line, row).map_err(|problem| TableError::new(line, problem)));
    not_empty(rows.collect::<Result<_, _>>()?)
}

/// `TYPE PATH JSON [when PATH=TEXT]`.
fn default(line: usize, row: &str) -> Result<Default<'_>, String> {
    let (head, when) = row.split_once(" when ").map_or((row, None), |(head, when)| (head, Some(when)));
    let mut words = head.splitn(3, ' ');
    let (Some(type_name), Some(at), Some(value)) = (words.next(), words.next(), words.next()) else {
        return Err("expected TYPE PATH JSON [when PATH=TEXT]".into());
    };
    let (at, keeps_empty) = at.strip_suffix('?').map_or((at, false), |at| (at, true));
    let when = when.map(When::parse).transpose()?;
    Ok(Default { line, type_name, path: path(at)?, keeps_empty, value: Json::parse(value)?, when })
}

/// What the build script checks beyond the form of the rows.
///
/// # Errors
/// A type or field is not there, a value does not fit its field, or a default is there twice.
pub fn check(defaults: &[Default<'_>], types: &Types) -> Result<(), TableError> {
    for (index, default) in defaults.iter().enumerate() {
        let fits = types.find_struct(default.type_name).and_then(|id| {
            types.check_value(types.follow(id, &default.path)?, &default.value)?;
            default.when.as_ref().map_or(Ok(()), |when| when.check(types, id))
        });
        fits.map_err(|problem| TableError::new(default.line, problem))?;
        let same = |other: &&Default<'_>| {
            (other.type_name, &other.path, &other.when) == (default.type_name, &default.path, &default.when)
        };
        if let Some(earlier) = defaults[..index].iter().find(same) {
            let problem = format!("the field already has a default in line {}", earlier.line);
            return Err(TableError::new(default.line, problem));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    const TYPES: &str = "package a/v1 openapi=a\nscalar Name string\nstruct Spec\n 1 count *int32\n 2 name Name\n\
        struct Thing\n 1 spec Spec\n 2 tags []string\n";

    fn checked(text: &str) -> Result<(), TableError> {
        check(&parse(text)?, &Types::parse(TYPES).unwrap())
    }

    #[test]
    fn a_row_has_a_type_a_path_a_value_and_perhaps_a_condition() {
        let text = "# comment\na/v1.Thing spec.count 3 when spec.name=x\na/v1.Spec name? \"a b\"\n";
        let rows = parse(text).unwrap();
        assert_eq!((rows[0].line, rows[0].type_name, &rows[0].value), (2, "a/v1.Thing", &Json::Integer(3)));
        assert_eq!(rows[0].when, Some(When { path: vec!["spec", "name"], text: "x" }));
        assert_eq!(
            (rows[1].path.as_slice(), rows[1].keeps_empty, &rows[1].value),
            (&["name"][..], true, &Json::Text("a b"))
        );
        assert_eq!(checked(text), Ok(()));
    }

    #[test]
    fn errors_name_the_line_and_what_is_wrong() {
        for (row, problem) in [
            ("a/v1.Thing spec.count", "expected TYPE PATH JSON [when PATH=TEXT]"),
            ("a/v1.Thing spec..count 3", "\"spec..count\" is not a path of field names"),
            ("a/v1.Thing spec.name TCP", "\"TCP\" is not a JSON value (without spaces, escapes and fractions)"),
            ("a/v1.Thing spec.count 3 when spec.name", "expected \"when PATH=TEXT\", found \"when spec.name\""),
            ("a/v1.Thign spec.count 3", "there is no type \"a/v1.Thign\" in kubernetes.types"),
            ("a/v1.Name spec.count 3", "a/v1.Name is not a struct"),
            ("a/v1.Thing spec.cuont 3", "a/v1.Thing has no field \"spec.cuont\""),
            ("a/v1.Thing spec.count \"3\"", "the value does not fit its type, int32"),
            ("a/v1.Thing tags [1]", "the value does not fit its type, string"),
            ("a/v1.Thing spec {\"nam\":\"\"}", "a/v1.Spec has no field \"nam\""),
            ("a/v1.Thing spec.count 3 when spec.nmae=x", "a/v1.Thing has no field \"spec.nmae\""),
            ("a/v1.Thing spec.count 3 when spec.count=3", "spec.count is no text but int32"),
            ("a/v1.Spec count 1", "the field already has a default in line 1"),
        ] {
            let text = format!("a/v1.Spec count 0\n{row}");
            assert_eq!(checked(&text).unwrap_err().to_string(), format!("line 2: {problem}"), "{row}");
        }
        assert_eq!(parse("# nothing").unwrap_err().to_string(), "line 1: the table has no rows");
    }
}
