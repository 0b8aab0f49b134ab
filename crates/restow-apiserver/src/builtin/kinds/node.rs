//! Nodes: defaults of pod CIDRs and allocatable resources, and `proxy`.

use crate::builtin::defaults::text;
use crate::resource::strategy::{Strategy, SubresourceAction};
use serde_json::{Map, Value};

type Fields = Map<String, Value>;

pub(super) struct Node;

impl Strategy for Node {
    fn subresource_action(&self, subresource: &str) -> Option<SubresourceAction> {
        (subresource == "proxy").then_some(SubresourceAction::Connect)
    }
}

/// `podCIDR` and the first of `podCIDRs` are the same; `podCIDR` takes precedence.
pub(crate) fn default_pod_cidrs(fields: &mut Fields) {
    let ranges = fields.get("podCIDRs").and_then(Value::as_array).cloned().unwrap_or_default();
    match (text(fields, "podCIDR").to_string(), ranges) {
        (own, ranges) if own.is_empty() => {
            if let Some(first) = ranges.into_iter().next() {
                fields.insert("podCIDR".into(), first);
            }
        }
        (own, mut ranges) if ranges.first().is_none_or(|first| *first != own.as_str()) => {
            if ranges.is_empty() {
                ranges.push(Value::Null);
            }
            ranges[0] = own.into();
            fields.insert("podCIDRs".into(), ranges.into());
        }
        _ => {}
    }
}

/// `allocatable` defaults to `capacity`.
pub(crate) fn default_allocatable(fields: &mut Fields) {
    if let Some(all) = fields.get("capacity").filter(|all| !all.is_null()).cloned()
        && fields.get("allocatable").is_none_or(Value::is_null)
    {
        fields.insert("allocatable".into(), all);
    }
}
