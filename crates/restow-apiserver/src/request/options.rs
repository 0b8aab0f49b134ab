//! Validation of the options in the query of a request.

use crate::error::{ApiError, GroupKind};
use crate::request::query::Query;
use crate::resource::Verb;
use restow_apimachinery::field::{FieldError, FieldRule};
use restow_apimachinery::go_syntax::quote;
use serde_json::json;

/// Whether a request is a dry run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DryRun {
    /// Everything is checked, and nothing is written.
    Yes,
    /// A real request.
    No,
}

impl DryRun {
    /// A dry run if one of the two is.
    pub(crate) fn or(self, other: DryRun) -> DryRun {
        if self == DryRun::Yes { self } else { other }
    }
}

impl From<bool> for DryRun {
    fn from(asked: bool) -> Self {
        if asked { DryRun::Yes } else { DryRun::No }
    }
}

/// The maximum length of the name of a field manager in bytes.
pub(crate) const MAX_MANAGER_BYTES: usize = 128;

/// Validates the options before anything else of the request.
pub(crate) fn check(verb: Verb, query: &Query) -> Result<(), ApiError> {
    if let Verb::List | Verb::Watch | Verb::DeleteCollection = verb {
        query.number("limit")?;
        query.number("timeoutSeconds")?;
    }
    let kind = match verb {
        Verb::Create => "CreateOptions",
        Verb::Update => "UpdateOptions",
        Verb::Patch => "PatchOptions",
        Verb::Delete | Verb::DeleteCollection => "DeleteOptions",
        Verb::Get => return Ok(()),
        Verb::List | Verb::Watch => "ListOptions",
    };
    let mut causes = match verb {
        Verb::List | Verb::DeleteCollection => list_problems(query),
        Verb::Watch => watch_problems(query),
        _ => Vec::new(),
    };
    if !causes.is_empty() || kind == "ListOptions" {
        return refuse("ListOptions", causes);
    }
    if kind != "DeleteOptions" {
        causes.extend(manager_problems(query.text("fieldManager")));
    }
    causes.extend(query.dry_run().err());
    let validation = query.text("fieldValidation");
    if kind != "DeleteOptions" && !matches!(validation, "" | "Ignore" | "Strict" | "Warn") {
        let supported = "supported values: \"\", \"Ignore\", \"Strict\", \"Warn\"";
        causes.push(unsupported("fieldValidation", json!(validation).to_string(), supported));
    }
    refuse(kind, causes)
}

/// The validation errors of the name of a field manager.
fn manager_problems(name: &str) -> Vec<FieldError> {
    let mut problems = Vec::new();
    if name.len() > MAX_MANAGER_BYTES {
        let detail = format!("may not be more than {MAX_MANAGER_BYTES} bytes");
        problems.push(FieldError { field: "fieldManager".into(), rule: FieldRule::TooLong, detail });
    }
    problems.extend(name.char_indices().filter(|(_, letter)| !is_printable(*letter)).map(|(position, letter)| {
        let detail = format!("invalid character U+{:04X} (at position {position})", u32::from(letter));
        FieldError { field: "fieldManager".into(), rule: FieldRule::Invalid(quote(name)), detail }
    }));
    problems
}

/// Whether a character is printable. Rust escapes unprintable ones after another character.
pub(crate) fn is_printable(letter: char) -> bool {
    match letter.is_ascii() {
        true => letter == ' ' || letter.is_ascii_graphic(),
        false => ['a', letter].iter().collect::<String>().escape_debug().count() == 2,
    }
}

fn refuse(kind: &str, causes: Vec<FieldError>) -> Result<(), ApiError> {
    if causes.is_empty() {
        return Ok(());
    }
    let kind = GroupKind { group: "meta.k8s.io".into(), kind: kind.into() };
    Err(ApiError::Invalid { kind, name: String::new(), causes })
}

/// The validation errors of the resource version options of a list.
fn list_problems(query: &Query) -> Vec<FieldError> {
    let forbidden = |detail: &str| FieldError::forbidden("resourceVersionMatch", detail);
    let (matching, version) = (query.text("resourceVersionMatch"), query.text("resourceVersion"));
    let mut causes = Vec::new();
    if !matching.is_empty() {
        if version.is_empty() {
            causes.push(forbidden("resourceVersionMatch is forbidden unless resourceVersion is provided"));
        }
        if !query.text("continue").is_empty() {
            causes.push(forbidden("resourceVersionMatch is forbidden when continue is provided"));
        }
        if !matches!(matching, "Exact" | "NotOlderThan") {
            let supported = "supported values: \"Exact\", \"NotOlderThan\", \"\"";
            causes.push(unsupported("resourceVersionMatch", json!(matching).to_string(), supported));
        }
        if matching == "Exact" && version == "0" {
            causes.push(forbidden("resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\""));
        }
    }
    if query.has("sendInitialEvents") {
        causes.push(FieldError::forbidden("sendInitialEvents", "sendInitialEvents is forbidden for list"));
    }
    causes
}

/// The validation errors of the resource version options of a watch: only `sendInitialEvents` allows them.
fn watch_problems(query: &Query) -> Vec<FieldError> {
    let forbidden = |detail: &str| FieldError::forbidden("resourceVersionMatch", detail);
    let matching = query.text("resourceVersionMatch");
    let mut causes = Vec::new();
    match query.has("sendInitialEvents") {
        true if matching != "NotOlderThan" => {
            causes.push(forbidden("sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"));
        }
        false if !matching.is_empty() => {
            causes.push(forbidden("resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided"));
        }
        _ => {}
    }
    if !matches!(matching, "" | "NotOlderThan") {
        let supported = "supported values: \"NotOlderThan\"";
        causes.push(unsupported("resourceVersionMatch", json!(matching).to_string(), supported));
    }
    if !query.text("continue").is_empty() {
        causes.push(forbidden("resourceVersionMatch is forbidden when continue is provided"));
    }
    causes
}

fn unsupported(field: &str, value: String, detail: &str) -> FieldError {
    FieldError { field: field.into(), rule: FieldRule::NotSupported(value), detail: detail.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_options_are_refused_with_kubernetes_messages() {
        let refused = |verb, query: &str| check(verb, &Query::parse(Some(query))).err().map(|error| error.to_string());
        assert_eq!(refused(Verb::Create, "dryRun=All&fieldValidation=Strict"), None);
        assert_eq!(refused(Verb::Get, "dryRun=Some"), None);
        assert_eq!(refused(Verb::List, "resourceVersionMatch=Exact&resourceVersion=5"), None);
        let matching = |problems: &str| Some(format!("ListOptions.meta.k8s.io \"\" is invalid: {problems}"));
        for (verb, query, problems) in [
            (
                Verb::List,
                "resourceVersionMatch=Exact",
                "resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden unless resourceVersion is provided",
            ),
            (
                Verb::DeleteCollection,
                "resourceVersionMatch=Exact&resourceVersion=0",
                "resourceVersionMatch: Forbidden: resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"",
            ),
            (
                Verb::List,
                "sendInitialEvents=true",
                "sendInitialEvents: Forbidden: sendInitialEvents is forbidden for list",
            ),
            (
                Verb::Watch,
                "sendInitialEvents=true&resourceVersionMatch=Exact",
                "[resourceVersionMatch: Forbidden: sendInitialEvents requires setting resourceVersionMatch to \
                 NotOlderThan, resourceVersionMatch: Unsupported value: \"Exact\": supported values: \"NotOlderThan\"]",
            ),
        ] {
            assert_eq!(refused(verb, query), matching(problems), "{query}");
        }
        assert_eq!(refused(Verb::Create, "fieldManager=k%C3%BCche%20a%CC%88"), None, "letters, marks and blanks");
        for (manager, problem) in [
            ("a".repeat(129), "Too long: may not be more than 128 bytes"),
            ("a%07".into(), "Invalid value: \"a\\a\": invalid character U+0007 (at position 1)"),
            ("%E2%80%8B".into(), "Invalid value: \"\\u200b\": invalid character U+200B (at position 0)"),
        ] {
            let expected = format!("PatchOptions.meta.k8s.io \"\" is invalid: fieldManager: {problem}");
            assert_eq!(refused(Verb::Patch, &format!("fieldManager={manager}")), Some(expected));
        }
        assert_eq!(
            refused(Verb::List, "timeoutSeconds=abc").as_deref(),
            Some("strconv.ParseInt: parsing \"abc\": invalid syntax")
        );
        assert_eq!(
            refused(Verb::Create, "dryRun=Some").as_deref(),
            Some(
                "CreateOptions.meta.k8s.io \"\" is invalid: dryRun: Unsupported value: [\"Some\"]: supported values: \"All\""
            )
        );
        assert_eq!(
            refused(Verb::Patch, "fieldValidation=No").as_deref(),
            Some(
                "PatchOptions.meta.k8s.io \"\" is invalid: fieldValidation: Unsupported value: \"No\": supported values: \
                 \"\", \"Ignore\", \"Strict\", \"Warn\""
            )
        );
    }
}
