//! The conditions of a terminating namespace that say why API servers behind this one hold it up, with Kubernetes' reasons and
//! messages.

use crate::resource::object_meta;
use restow_api::GroupVersion;
use restow_apimachinery::object::Object;
use serde_json::{Value, json};

/// What is left of a namespace on other servers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct AggregatedContents {
    /// The group-versions whose servers cannot be asked.
    pub(super) unknown: Vec<GroupVersion>,
    /// The resources that could not be deleted, and why.
    pub(super) failures: Vec<String>,
    /// The resources with objects, and how many these are.
    pub(super) left: Vec<(String, usize)>,
}

/// A condition: its type, its reason and message while all is well, and those while it is not.
type Row = (&'static str, &'static str, &'static str, Option<(&'static str, String)>);

impl AggregatedContents {
    /// Whether nothing is known to be left.
    pub(super) fn is_empty(&self) -> bool {
        *self == AggregatedContents::default()
    }

    /// Why the namespace is held up.
    pub(super) fn reason(&self) -> String {
        let problems = self.rows().into_iter().filter_map(|(_, _, _, problem)| problem);
        problems.map(|(_, message)| message).collect::<Vec<_>>().join("; ")
    }

    fn rows(&self) -> [Row; 3] {
        let unknown: Vec<String> = self.unknown.iter().map(GroupVersion::to_string).collect();
        let stale = unknown.iter().map(|version| format!("{version}: stale GroupVersion discovery: {version}"));
        let stale = stale.collect::<Vec<_>>().join(", ");
        let undiscovered = format!(
            "Discovery failed for some groups, {} failing: unable to retrieve the complete list of server APIs: {stale}",
            unknown.len()
        );
        let failed = format!(
            "Failed to delete all resource types, {} remaining: {}",
            self.failures.len(),
            self.failures.join(", ")
        );
        let left = self.left.iter().map(|(name, count)| format!("{name} has {count} resource instances"));
        let left = format!("Some resources are remaining: {}", left.collect::<Vec<_>>().join(", "));
        let when = |holds: bool, reason, message| holds.then_some((reason, message));
        [
            (
                "NamespaceDeletionDiscoveryFailure",
                "ResourcesDiscovered",
                "All resources successfully discovered",
                when(!unknown.is_empty(), "DiscoveryFailed", undiscovered),
            ),
            (
                "NamespaceDeletionContentFailure",
                "ContentDeleted",
                "All content successfully deleted, may be waiting on finalization",
                when(!self.failures.is_empty(), "ContentDeletionFailed", failed),
            ),
            (
                "NamespaceContentRemaining",
                "ContentRemoved",
                "All content successfully removed",
                when(!self.left.is_empty(), "SomeResourcesRemain", left),
            ),
        ]
    }

    /// The namespace with these conditions; `None` if it has them. A namespace that nothing has held up gets none.
    pub(super) fn shown_in(&self, namespace: &Object) -> Option<Object> {
        let conditions = namespace.at(&["status", "conditions"]).and_then(Value::as_array).cloned().unwrap_or_default();
        let mut next = conditions.clone();
        for (kind, reason, message, problem) in self.rows() {
            let known = next.iter_mut().find(|condition| condition["type"] == kind);
            if known.is_none() && self.is_empty() {
                continue;
            }
            let (status, reason, message) = match &problem {
                Some((reason, message)) => ("True", *reason, message.as_str()),
                None => ("False", reason, message),
            };
            let before = known.as_ref().filter(|before| before["status"] == status);
            let transition =
                before.map_or_else(|| object_meta::now().into(), |before| before["lastTransitionTime"].clone());
            let condition = json!({
                "type": kind, "status": status, "lastTransitionTime": transition, "reason": reason, "message": message,
            });
            match known {
                Some(known) => *known = condition,
                None => next.push(condition),
            }
        }
        (next != conditions).then(|| {
            let mut shown = namespace.clone();
            shown.set_at(&["status", "conditions"], Some(next.into()));
            shown
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conditions(object: &Object) -> Vec<(String, String, String)> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_string();
        let all = object.at(&["status", "conditions"]).and_then(Value::as_array).cloned().unwrap_or_default();
        all.iter().map(|found| (text(&found["type"]), text(&found["status"]), text(&found["reason"]))).collect()
    }

    #[test]
    fn a_namespace_says_which_servers_cannot_be_asked_until_they_can() {
        let namespace = Object::from_value(json!({"metadata": {"name": "a"}})).unwrap();
        assert!(AggregatedContents::default().shown_in(&namespace).is_none());
        let unknown = vec!["garden.example/v1".parse().unwrap()];
        let held = AggregatedContents { unknown, ..AggregatedContents::default() };
        let shown = held.shown_in(&namespace).unwrap();
        let expected = [
            ("NamespaceDeletionDiscoveryFailure", "True", "DiscoveryFailed"),
            ("NamespaceDeletionContentFailure", "False", "ContentDeleted"),
            ("NamespaceContentRemaining", "False", "ContentRemoved"),
        ];
        let expected =
            expected.map(|(kind, status, reason)| (kind.to_string(), status.to_string(), reason.to_string()));
        assert_eq!(conditions(&shown), expected);
        let message = "Discovery failed for some groups, 1 failing: unable to retrieve the complete list of server APIs: \
                       garden.example/v1: stale GroupVersion discovery: garden.example/v1";
        assert_eq!(shown.at(&["status", "conditions"]).unwrap()[0]["message"], message);
        assert!(held.shown_in(&shown).is_none(), "nothing has changed");
        let freed = AggregatedContents::default().shown_in(&shown).unwrap();
        assert_eq!(conditions(&freed)[0].1, "False");
    }

    #[test]
    fn what_is_left_is_counted() {
        let left = vec![("plants.garden.example".to_string(), 2)];
        let held = AggregatedContents { left, failures: vec!["no".into()], ..AggregatedContents::default() };
        let expected = "Failed to delete all resource types, 1 remaining: no; Some resources are remaining: \
                        plants.garden.example has 2 resource instances";
        assert_eq!(held.reason(), expected);
    }
}
