//! The compiled schema of one version of a custom resource.

use serde_json::Value;

use crate::json_path::{Brackets, field_path};
use crate::keywords::{self, Around};
use crate::node::{Kind, Node};
use crate::parse::Compiler;
use crate::problem::{Problem, ProblemKind};
use crate::raw::Raw;
use crate::{default, defaults_check, embedded, list_type, prune, rules, structural, validate};

/// A compiled structural schema.
#[derive(Debug)]
pub struct Schema {
    node: Node,
}

/// The field of a selectable field's path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SelectableField {
    /// The path without its leading dot, as in `spec.color`.
    pub path: String,
    /// Whether the field has a selectable type: string, boolean or integer.
    pub is_selectable: bool,
}

impl Schema {
    /// Compiles an `openAPIV3Schema`. `path` is where it stands in its CustomResourceDefinition, for messages:
    /// `spec.versions[1].schema.openAPIV3Schema`, or, as Kubernetes says where all versions have the same schema (or there
    /// is only one version), `spec.validation.openAPIV3Schema`.
    ///
    /// # Errors
    ///
    /// Everything that Kubernetes would refuse the schema for.
    pub fn compile(schema: &Value, path: &str) -> Result<Schema, Vec<Problem>> {
        if let Some(problem) = keywords::size_problem(schema, path) {
            return Err(vec![problem]);
        }
        let Some(raw) = Raw::of(schema) else {
            return Err(vec![Problem::type_invalid(path, schema.clone(), "must be an object")]);
        };
        let mut problems = Vec::new();
        if raw.flag("nullable") {
            problems.push(Problem::forbidden(format!("{path}.nullable"), "nullable cannot be true at the root"));
        }
        let mut written = Vec::new();
        keywords::check(raw, path, &Around::default(), true, &mut written);
        let structural = structural::problems(raw, path);
        let is_structural = structural.is_empty();
        problems.extend(structural);
        let mut node = Compiler::default().node(raw);
        if is_structural && written.is_empty() {
            let rules = rules::compile(raw, &mut node, path);
            if rules.is_empty() {
                problems.extend(defaults_check::problems(&node, path));
            }
            problems.extend(rules);
        }
        problems.extend(written);
        if problems.is_empty() { Ok(Schema { node }) } else { Err(problems) }
    }

    /// Whether there are validation rules. Their cost is limited by a budget and not by the size of an object.
    pub fn has_rules(&self) -> bool {
        self.node.below.rules
    }

    /// The error of a schema whose root uses keywords that the status subresource forbids, because they affect `spec`
    /// and `status` together.
    pub fn status_subresource_problem(schema: &Value, path: &str) -> Option<Problem> {
        keywords::status_root_problem(Raw::of(schema)?, path)
    }

    /// Checks that a selectable field's path names a field of a written schema.
    ///
    /// # Errors
    ///
    /// Why it does not, to follow `is an invalid path: `.
    pub fn selectable_field(schema: &Value, path: &str) -> Result<SelectableField, String> {
        let raw = Raw::of(schema).ok_or("does not refer to a valid field")?;
        let (shown, found) = field_path(path, raw, Brackets::Refused)?;
        let kind = Kind::from_name(found.kind());
        let is_selectable = matches!(kind, Some(Kind::String | Kind::Boolean | Kind::Integer));
        Ok(SelectableField { path: shown, is_selectable })
    }

    /// Removes all fields that the schema does not specify, and returns their paths, sorted. `apiVersion`, `kind` and
    /// `metadata` of the resource are not changed; metadata of embedded resources is pruned.
    pub fn prune(&self, object: &mut Value) -> Vec<String> {
        prune::prune_resource(&self.node, object)
    }

    /// Drops nulls that are not nullable, then sets the defaults.
    pub fn default(&self, object: &mut Value) {
        default::default_resource(&self.node, object);
    }

    /// Validates an object. On an update, `old` is the object before it: errors of unchanged parts are ignored.
    pub fn validate(&self, object: &Value, old: Option<&Value>) -> Vec<Problem> {
        let mut problems = validate::check(&self.node, object, old, None);
        problems.extend(embedded::check(&self.node, object));
        let repeated = list_type::check(&self.node, object);
        if !repeated.is_empty() && old.is_none_or(|old| list_type::check(&self.node, old).is_empty()) {
            problems.extend(repeated);
        }
        if self.node.below.rules {
            if blocks_rules(&problems) {
                let words = "some validation rules were not checked because the object was invalid; correct the existing errors to complete validation";
                problems.push(Problem::invalid("<nil>", Value::Null, words));
            } else {
                problems.extend(rules::check(&self.node, object, old));
            }
        }
        problems
    }
}

/// Whether rules cannot be evaluated because the object does not have the structure that they rely on.
fn blocks_rules(problems: &[Problem]) -> bool {
    problems.iter().any(|problem| {
        matches!(
            problem.kind,
            ProblemKind::NotSupported
                | ProblemKind::Required
                | ProblemKind::TooLong
                | ProblemKind::TooMany
                | ProblemKind::TypeInvalid
        )
    })
}
