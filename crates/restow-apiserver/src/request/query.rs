//! The options in the query of a request.

use crate::error::ApiError;
use crate::request::options::DryRun;
use restow_apimachinery::field::{FieldError, FieldRule};
use restow_apimachinery::go_syntax::quote;
use restow_apimachinery::selector::{FieldSelector, LabelSelector, Selector};
use serde_json::json;
use std::collections::HashMap;
use std::num::IntErrorKind;

/// The query of a request: all values of each option. Of an option with a single value, the first one is used.
#[derive(Clone, Debug, Default)]
pub(crate) struct Query(HashMap<String, Vec<String>>);

impl Query {
    /// Parses a query.
    pub(crate) fn parse(text: Option<&str>) -> Self {
        let mut options: HashMap<String, Vec<String>> = HashMap::new();
        for (name, value) in form_urlencoded::parse(text.unwrap_or_default().as_bytes()).into_owned() {
            options.entry(name).or_default().push(value);
        }
        Query(options)
    }

    /// The value of an option; empty if it is absent.
    pub(crate) fn text(&self, name: &str) -> &str {
        self.values(name).first().map(String::as_str).unwrap_or_default()
    }

    /// All values of an option that may be repeated.
    pub(crate) fn values(&self, name: &str) -> &[String] {
        self.0.get(name).map(Vec::as_slice).unwrap_or_default()
    }

    /// Whether an option is present, with any value.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// Whether an option is on. As in Kubernetes, every value except `false` and `0` turns it on: the Python client
    /// 30.1 sends `True`.
    pub(crate) fn is_on(&self, name: &str) -> bool {
        self.has(name) && self.text(name) != "0" && !self.text(name).eq_ignore_ascii_case("false")
    }

    /// A number. As in Kubernetes, an empty value is ignored.
    pub(crate) fn number(&self, name: &str) -> Result<Option<i64>, ApiError> {
        if !self.has(name) {
            return Ok(None);
        }
        let text = self.text(name);
        text.parse().map(Some).map_err(|error: std::num::ParseIntError| {
            let problem = match error.kind() {
                IntErrorKind::PosOverflow | IntErrorKind::NegOverflow => "value out of range",
                _ => "invalid syntax",
            };
            ApiError::BadRequest(format!("strconv.ParseInt: parsing {}: {problem}", quote(text)))
        })
    }

    /// Whether the request is a dry run.
    pub(crate) fn dry_run(&self) -> Result<DryRun, FieldError> {
        let values: Vec<&String> = self.values("dryRun").iter().filter(|value| !value.is_empty()).collect();
        match values.iter().all(|value| *value == "All") {
            true => Ok(DryRun::from(!values.is_empty())),
            false => Err(FieldError {
                field: "dryRun".into(),
                rule: FieldRule::NotSupported(json!(values).to_string()),
                detail: "supported values: \"All\"".into(),
            }),
        }
    }

    /// The label and field selectors.
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

    #[test]
    fn numbers_are_parsed_as_in_go() {
        let number = |text: &str| Query::parse(Some(text)).number("limit").map_err(|error| error.to_string());
        assert_eq!(number(""), Ok(None));
        assert_eq!(number("limit=-5"), Ok(Some(-5)));
        assert_eq!(number("limit=5&limit=x"), Ok(Some(5)), "the first one counts");
        let refused = |text: &str, problem: &str| Err(format!("strconv.ParseInt: parsing \"{text}\": {problem}"));
        assert_eq!(number("limit="), refused("", "invalid syntax"));
        assert_eq!(number("limit=abc"), refused("abc", "invalid syntax"));
        assert_eq!(number("limit=1.5"), refused("1.5", "invalid syntax"));
        assert_eq!(number("limit=99999999999999999999"), refused("99999999999999999999", "value out of range"));
    }

    #[test]
    fn unknown_dry_run_values_are_refused() {
        let dry_run = |text: &str| Query::parse(Some(text)).dry_run().map_err(|error| error.to_string());
        assert_eq!(dry_run("dryRun="), Ok(DryRun::No));
        assert_eq!(dry_run("dryRun=All&dryRun=All"), Ok(DryRun::Yes));
        let refused = dry_run("dryRun=All&dryRun=x").unwrap_err();
        assert_eq!(refused, "dryRun: Unsupported value: [\"All\",\"x\"]: supported values: \"All\"");
    }
}
