//! The options that stand in a request's query.

use crate::error::ApiError;
use crate::field::{FieldError, FieldRule};
use crate::selector::{FieldSelector, LabelSelector, Selector};
use std::collections::HashMap;

/// The query of a request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Query(HashMap<String, String>);

impl Query {
    /// Reads a query.
    pub(crate) fn parse(text: Option<&str>) -> Self {
        let pairs = form_urlencoded::parse(text.unwrap_or_default().as_bytes());
        Query(pairs.into_owned().collect())
    }

    /// An option's text; empty where it is not given.
    pub(crate) fn text(&self, name: &str) -> &str {
        self.0.get(name).map(String::as_str).unwrap_or_default()
    }

    /// Whether an option is given, with whatever value.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// Whether an option is on. As in Kubernetes, every value but `false` and `0` turns it on: the Python client 30.1 sends
    /// `True`.
    pub(crate) fn is_on(&self, name: &str) -> bool {
        self.0.get(name).is_some_and(|value| value != "0" && !value.eq_ignore_ascii_case("false"))
    }

    /// A number.
    pub(crate) fn number(&self, name: &str) -> Result<Option<i64>, ApiError> {
        match self.text(name) {
            "" => Ok(None),
            text => text
                .parse()
                .map(Some)
                .map_err(|_| ApiError::BadRequest(format!("strconv.ParseInt: parsing {text:?}: invalid syntax"))),
        }
    }

    /// Whether nothing is to be written.
    pub(crate) fn dry_run(&self) -> Result<bool, FieldError> {
        match self.text("dryRun") {
            "" => Ok(false),
            "All" => Ok(true),
            other => Err(FieldError {
                field: "dryRun".into(),
                rule: FieldRule::NotSupported(format!("[{other:?}]")),
                detail: "supported values: \"All\"".into(),
            }),
        }
    }

    /// Which objects of a collection are meant.
    pub(crate) fn selector(&self) -> Result<Selector, ApiError> {
        let labels = LabelSelector::parse(self.text("labelSelector")).map_err(ApiError::BadRequest)?;
        let fields = FieldSelector::parse(self.text("fieldSelector")).map_err(ApiError::BadRequest)?;
        Ok(Selector { labels, fields })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_option_is_on_unless_it_is_absent_false_or_zero() {
        let check =
            |text: &str, expected: bool| assert_eq!(Query::parse(Some(text)).is_on("watch"), expected, "{text}");
        check("", false);
        check("limit=1", false);
        check("watch=false", false);
        check("watch=False", false);
        check("watch=0", false);
        check("watch=true", true);
        check("watch=True", true);
        check("watch=1", true);
        check("watch=", true);
        check("watch", true);
    }
}
