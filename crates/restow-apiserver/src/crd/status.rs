//! Computes the status of a CRD: its accepted names and its conditions. Pure.

use crate::apiextensions::custom_resource_definition::{CrdCondition, CrdNames, CrdStatus, CustomResourceDefinition};
use std::collections::HashSet;

/// The names that other CRDs of the group use.
#[derive(Clone, Debug, Default)]
pub(crate) struct NamesInUse<'a> {
    resources: HashSet<&'a str>,
    kinds: HashSet<&'a str>,
}

impl<'a> NamesInUse<'a> {
    /// The names of these CRDs.
    pub(crate) fn of(others: impl Iterator<Item = &'a CustomResourceDefinition>) -> Self {
        let mut taken = NamesInUse::default();
        for other in others {
            let names = &other.status.accepted_names;
            taken.resources.extend([names.plural.as_str(), names.singular.as_str()]);
            taken.resources.extend(names.short_names.iter().map(String::as_str));
            taken.kinds.extend([names.kind.as_str(), names.list_kind.as_str()]);
        }
        taken
    }
}

/// The desired status of a CRD; `None` when it is up to date.
pub(crate) fn decide(crd: &CustomResourceDefinition, taken: &NamesInUse<'_>, now: &str) -> Option<CrdStatus> {
    let mut status = crd.status.clone();
    if crd.metadata.deletion_timestamp.is_none() {
        let (names, accepted) = accept(crd, taken);
        status.accepted_names = names;
        let agreed = accepted.status == "True";
        set(&mut status, accepted, now);
        establish(&mut status, agreed, now);
    }
    if let Some(condition) = approval(crd) {
        set(&mut status, condition, now);
    }
    match crd.spec.preserve_unknown_fields {
        true => {
            let message = "spec.preserveUnknownFields: Invalid value: true: must be false";
            set(&mut status, condition("NonStructuralSchema", "True", "Violations", message), now);
        }
        false => status.conditions.retain(|condition| condition.kind != "NonStructuralSchema"),
    }
    (status != crd.status).then_some(status)
}

/// Sets a condition. Its transition time changes only when its status changes.
pub(crate) fn set(status: &mut CrdStatus, mut condition: CrdCondition, now: &str) {
    condition.last_transition_time = Some(now.to_string());
    match status.conditions.iter_mut().find(|known| known.kind == condition.kind) {
        None => status.conditions.push(condition),
        Some(known) => {
            if known.status == condition.status && known.last_transition_time.is_some() {
                condition.last_transition_time = known.last_transition_time.take();
            }
            condition.observed_generation = known.observed_generation;
            *known = condition;
        }
    }
}

/// A condition without a time.
pub(crate) fn condition(kind: &str, status: &str, reason: &str, message: &str) -> CrdCondition {
    CrdCondition {
        kind: kind.into(),
        status: status.into(),
        reason: reason.into(),
        message: message.into(),
        ..CrdCondition::default()
    }
}

/// An established CRD stays established, whatever happens to its names.
fn establish(status: &mut CrdStatus, names_accepted: bool, now: &str) {
    let established = status.conditions.iter().any(|known| known.kind == "Established" && known.status == "True");
    if established {
        return;
    }
    let (state, reason, message) = match names_accepted {
        true => ("True", "InitialNamesAccepted", "the initial names have been accepted"),
        false => ("False", "NotAccepted", "not all names are accepted"),
    };
    set(status, condition("Established", state, reason, message), now);
}

/// The names of the spec that are accepted, and the condition NamesAccepted.
fn accept(crd: &CustomResourceDefinition, taken: &NamesInUse<'_>) -> (CrdNames, CrdCondition) {
    let (wanted, had) = (&crd.spec.names, &crd.status.accepted_names);
    let mut names = had.clone();
    let mut conflict: Option<(&str, String)> = None;
    let mut settle = |wanted: &str, had: &str, taken: &HashSet<&str>, reason: &'static str| {
        if wanted == had || !taken.contains(wanted) {
            return true;
        }
        conflict = Some((reason, format!("{wanted:?} is already in use")));
        false
    };
    if settle(&wanted.plural, &had.plural, &taken.resources, "PluralConflict") {
        names.plural.clone_from(&wanted.plural);
    }
    if settle(&wanted.singular, &had.singular, &taken.resources, "SingularConflict") {
        names.singular.clone_from(&wanted.singular);
    }
    let short = |name: &&String| !had.short_names.contains(name) && taken.resources.contains(name.as_str());
    let clashes: Vec<String> = wanted.short_names.iter().filter(short).cloned().collect();
    match clashes.as_slice() {
        [] => names.short_names.clone_from(&wanted.short_names),
        [one] => _ = settle(one, "", &taken.resources, "ShortNamesConflict"),
        many => {
            let all: Vec<String> = many.iter().map(|name| format!("{name:?} is already in use")).collect();
            conflict = Some(("ShortNamesConflict", format!("[{}]", all.join(", "))));
        }
    }
    let mut settle = |wanted: &str, had: &str, taken: &HashSet<&str>, reason: &'static str| {
        if wanted == had || !taken.contains(wanted) {
            return true;
        }
        conflict = Some((reason, format!("{wanted:?} is already in use")));
        false
    };
    if settle(&wanted.kind, &had.kind, &taken.kinds, "KindConflict") {
        names.kind.clone_from(&wanted.kind);
    }
    if settle(&wanted.list_kind, &had.list_kind, &taken.kinds, "ListKindConflict") {
        names.list_kind.clone_from(&wanted.list_kind);
    }
    names.categories.clone_from(&wanted.categories);
    let condition = match conflict {
        Some((reason, message)) => condition("NamesAccepted", "False", reason, &message),
        None => condition("NamesAccepted", "True", "NoConflicts", "no conflicts found"),
    };
    (names, condition)
}

/// The approval annotation of CRDs in protected groups.
pub(crate) const APPROVED: &str = "api-approved.kubernetes.io";

/// Whether a group is protected, because it belongs to Kubernetes.
pub(crate) fn is_protected(group: &str) -> bool {
    ["k8s.io", "kubernetes.io"].iter().any(|own| group == *own || group.ends_with(&format!(".{own}")))
}

/// What the approval annotation of a CRD in a protected group says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Approval {
    Missing,
    Bypassed,
    Approved,
    Invalid,
}

/// The approval, and the message about it.
pub(crate) fn approval_of(annotation: &str) -> (Approval, String) {
    const SEE: &str = "see https://github.com/kubernetes/enhancements/pull/1111";
    let is_url = annotation.split_once("://").is_some_and(|(scheme, rest)| {
        !scheme.is_empty() && rest.split('/').next().is_some_and(|host| !host.is_empty())
    });
    match annotation {
        "" => (Approval::Missing, format!("protected groups must have approval annotation {APPROVED:?}, {SEE}")),
        text if text.starts_with("unapproved") => (Approval::Bypassed, format!("not approved: {text:?}")),
        text if is_url => (Approval::Approved, format!("approved in {text}")),
        _ => (
            Approval::Invalid,
            format!(
                "protected groups must have approval annotation {APPROVED:?} with either a URL or a reason starting \
                 with \"unapproved\", {SEE}"
            ),
        ),
    }
}

fn approval(crd: &CustomResourceDefinition) -> Option<CrdCondition> {
    if !is_protected(&crd.spec.group) {
        return None;
    }
    let (state, message) = approval_of(crd.metadata.annotations.get(APPROVED).map_or("", String::as_str));
    let (status, reason) = match state {
        Approval::Missing => ("False", "MissingAnnotation"),
        Approval::Bypassed => ("False", "UnapprovedAnnotation"),
        Approval::Approved => ("True", "ApprovedAnnotation"),
        Approval::Invalid => ("False", "InvalidAnnotation"),
    };
    Some(condition("KubernetesAPIApprovalPolicyConformant", status, reason, &message))
}
