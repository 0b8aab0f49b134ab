//! Checks of the options that requests which write take in their query.

use crate::error::{ApiError, GroupKind};
use crate::field::{FieldError, FieldRule};
use crate::http::query::Query;
use crate::resource::Verb;
use serde_json::json;

/// Refuses options that mean nothing, before anything else of the request is looked at.
pub(crate) fn check(verb: Verb, query: &Query) -> Result<(), ApiError> {
    let kind = match verb {
        Verb::Create => "CreateOptions",
        Verb::Update => "UpdateOptions",
        Verb::Patch => "PatchOptions",
        Verb::Delete | Verb::DeleteCollection => "DeleteOptions",
        Verb::Get | Verb::List | Verb::Watch => return Ok(()),
    };
    let mut causes = Vec::new();
    let dry_run = query.text("dryRun");
    if !matches!(dry_run, "" | "All") {
        causes.push(unsupported("dryRun", json!([dry_run]).to_string(), "supported values: \"All\""));
    }
    let validation = query.text("fieldValidation");
    if kind != "DeleteOptions" && !matches!(validation, "" | "Ignore" | "Strict" | "Warn") {
        let supported = "supported values: \"\", \"Ignore\", \"Strict\", \"Warn\"";
        causes.push(unsupported("fieldValidation", json!(validation).to_string(), supported));
    }
    if causes.is_empty() {
        return Ok(());
    }
    let kind = GroupKind { group: "meta.k8s.io".into(), kind: kind.into() };
    Err(ApiError::Invalid { kind, name: String::new(), causes })
}

fn unsupported(field: &str, value: String, detail: &str) -> FieldError {
    FieldError { field: field.into(), rule: FieldRule::NotSupported(value), detail: detail.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_refused_in_the_words_of_kubernetes() {
        let refused = |verb, query: &str| check(verb, &Query::parse(Some(query))).err().map(|error| error.to_string());
        assert_eq!(refused(Verb::Create, "dryRun=All&fieldValidation=Strict"), None);
        assert_eq!(refused(Verb::Get, "dryRun=Some"), None);
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
