//! Checks that defaults are valid: pruning must remove nothing from them, and validation must accept them.

use serde_json::Value;

use crate::node::{Additional, Node};
use crate::problem::Problem;
use crate::{embedded, list_type, prune, rules, validate};

/// The errors of all defaults.
pub(crate) fn problems(node: &Node, path: &str) -> Vec<Problem> {
    let mut problems = Vec::new();
    level(node, path, true, &mut problems);
    problems
}

fn level(node: &Node, path: &str, is_root: bool, problems: &mut Vec<Problem>) {
    if let Some(default) = node.default.as_deref().filter(|_| !is_root) {
        one(node, default, &format!("{path}.default"), problems);
    }
    if let Additional::Schema(schema) = &node.additional {
        level(schema, &format!("{path}.additionalProperties"), false, problems);
    }
    if let Some(item) = &node.items {
        level(item, &format!("{path}.items"), false, problems);
    }
    for (name, property) in &node.properties {
        // Defaults in a resource's metadata are checked with the metadata.
        if is_root && name.as_ref() == "metadata" {
            continue;
        }
        level(property, &format!("{path}.properties[{name}]"), false, problems);
    }
}

fn one(node: &Node, default: &Value, place: &str, problems: &mut Vec<Problem>) {
    let mut pruned = default.clone();
    prune::prune_part(node, &mut pruned);
    if pruned != *default {
        problems.push(Problem::invalid(place, default.clone(), "must not have unknown fields"));
    }
    let before = problems.len();
    problems.extend(embedded::check(node, default).into_iter().map(|problem| under(place, problem)));
    if problems.len() == before {
        problems.extend(validate::check(node, default, None, Some(place)));
    }
    if problems.len() == before {
        problems.extend(list_type::check(node, default).into_iter().map(|problem| under(place, problem)));
        problems.extend(rules::check(node, default, None).into_iter().map(|problem| under(place, problem)));
    }
}

fn under(place: &str, mut problem: Problem) -> Problem {
    problem.path = match problem.path.as_str() {
        "<nil>" => place.to_string(),
        path if path.starts_with('[') => format!("{place}{path}"),
        path => format!("{place}.{path}"),
    };
    problem
}
