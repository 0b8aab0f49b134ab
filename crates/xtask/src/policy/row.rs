//! One role or binding as the table writes it. Objects that the table cannot express are an error.

use std::fmt;

use anyhow::{Result, bail};

use super::objects::{Kind, RbacObject, Rule, Subject};

const GROUP: &str = "rbac.authorization.k8s.io";
const AGGREGATE_LABEL_PREFIX: &str = "rbac.authorization.k8s.io/aggregate-to-";
const BOOTSTRAPPING_LABEL: (&str, &str) = ("kubernetes.io/bootstrapping", "rbac-defaults");
const AUTOUPDATE_ANNOTATION: (&str, &str) = ("rbac.authorization.kubernetes.io/autoupdate", "true");
const CONTROLLER_PREFIX: &str = "system:controller:";
const READ: [&str; 3] = ["get", "list", "watch"];
const WRITE: [&str; 5] = ["create", "delete", "deletecollection", "patch", "update"];

/// The line that opens a role or binding, and the lines of its rules or subjects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) head: String,
    pub(super) details: Vec<String>,
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.head)?;
        self.details.iter().try_for_each(|detail| writeln!(f, "  {detail}"))
    }
}

impl Row {
    pub(super) fn of(object: RbacObject) -> Result<Row> {
        let name = word(&object.metadata.name)?;
        let part_of = check_metadata(&object)?;
        let namespace = object.metadata.namespace.as_deref();
        let mut words: Vec<String> = match (object.kind, namespace) {
            (Kind::ClusterRole, None) => vec!["clusterrole".into(), name],
            (Kind::ClusterRoleBinding, None) => vec!["clusterrolebinding".into(), name],
            (Kind::Role, Some(namespace)) => vec!["role".into(), word(namespace)?, name],
            (Kind::RoleBinding, Some(namespace)) => vec!["rolebinding".into(), word(namespace)?, name],
            (_, Some(namespace)) => bail!("has a namespace ({namespace}), which its kind cannot have"),
            (_, None) => bail!("has no namespace"),
        };
        if !part_of.is_empty() {
            words.extend(["part-of".to_owned(), part_of.join(",")]);
        }
        if let Some(gathers) = gathers(&object)? {
            words.extend(["gathers".to_owned(), gathers]);
        }
        let details = if matches!(object.kind, Kind::ClusterRole | Kind::Role) {
            rule_lines(&object)?
        } else {
            words.extend(role_ref(&object)?);
            subject_lines(&object)?
        };
        Ok(Row { head: words.join(" "), details })
    }

    /// A controller's role and binding, which the table writes as one.
    pub(super) fn of_controller(role: RbacObject, binding: RbacObject) -> Result<Row> {
        let name = role.metadata.name.clone();
        let Some(controller) = name.strip_prefix(CONTROLLER_PREFIX) else {
            bail!("the name does not begin with {CONTROLLER_PREFIX}");
        };
        let (role, binding) = (Row::of(role)?, Row::of(binding)?);
        let expected = Row {
            head: format!("clusterrolebinding {name} clusterrole {name}"),
            details: vec![format!("serviceaccount kube-system/{controller}")],
        };
        if binding != expected {
            bail!("the binding is `{binding}` in place of `{expected}`");
        }
        if role.head != format!("clusterrole {name}") {
            bail!("the role is `{}`, which is not a plain ClusterRole", role.head);
        }
        if role.details.is_empty() {
            bail!("the role has no rules");
        }
        Ok(Row { head: format!("controller {controller}"), details: role.details })
    }
}

/// Every object has one label and one annotation, which the table does not repeat; returns the aggregates it is part of.
fn check_metadata(object: &RbacObject) -> Result<Vec<String>> {
    let metadata = &object.metadata;
    if object.api_version != format!("{GROUP}/v1") {
        bail!("its apiVersion is {}", object.api_version);
    }
    let annotations: Vec<(&str, &str)> = pairs(&metadata.annotations).collect();
    if annotations != [AUTOUPDATE_ANNOTATION] {
        bail!("its annotations are {annotations:?}");
    }
    let mut part_of = Vec::new();
    let mut bootstrapping = false;
    for (label, value) in pairs(&metadata.labels) {
        match label.strip_prefix(AGGREGATE_LABEL_PREFIX) {
            Some(aggregate) if value == "true" && object.kind == Kind::ClusterRole => part_of.push(word(aggregate)?),
            None if (label, value) == BOOTSTRAPPING_LABEL => bootstrapping = true,
            _ => bail!("the label {label}={value} is not understood"),
        }
    }
    if bootstrapping { Ok(part_of) } else { bail!("it lacks the label {}", BOOTSTRAPPING_LABEL.0) }
}

/// The aggregates that the aggregation rule of a ClusterRole selects.
fn gathers(object: &RbacObject) -> Result<Option<String>> {
    let Some(aggregation) = &object.aggregation_rule else { return Ok(None) };
    let mut names = Vec::new();
    for selector in &aggregation.cluster_role_selectors {
        let labels: Vec<(&str, &str)> = pairs(&selector.match_labels).collect();
        match labels.as_slice() {
            [(label, "true")] if label.starts_with(AGGREGATE_LABEL_PREFIX) => {
                names.push(word(&label[AGGREGATE_LABEL_PREFIX.len()..])?);
            }
            _ => bail!("its aggregation rule selects {labels:?}"),
        }
    }
    Ok(Some(names.join(",")))
}

fn role_ref(object: &RbacObject) -> Result<[String; 2]> {
    let Some(role) = &object.role_ref else { bail!("it names no role") };
    let kind = match (role.kind, role.api_group.as_str()) {
        (Kind::ClusterRole, GROUP) => "clusterrole",
        (Kind::Role, GROUP) if object.kind == Kind::RoleBinding => "role",
        other => bail!("it names a role of kind {other:?}"),
    };
    Ok([kind.to_owned(), word(&role.name)?])
}

fn rule_lines(object: &RbacObject) -> Result<Vec<String>> {
    if object.role_ref.is_some() || object.subjects.is_some() {
        bail!("a role with the fields of a binding");
    }
    object.rules.iter().flatten().map(rule_line).collect()
}

fn subject_lines(object: &RbacObject) -> Result<Vec<String>> {
    if object.rules.is_some() || object.aggregation_rule.is_some() {
        bail!("a binding with the fields of a role");
    }
    object.subjects.iter().flatten().map(subject_line).collect()
}

fn subject_line(subject: &Subject) -> Result<String> {
    let name = word(&subject.name)?;
    match (subject.kind.as_str(), subject.api_group.as_deref(), subject.namespace.as_deref()) {
        ("Group", Some(GROUP), None) => Ok(format!("group {name}")),
        ("User", Some(GROUP), None) => Ok(format!("user {name}")),
        ("ServiceAccount", None, Some(namespace)) => Ok(format!("serviceaccount {}/{name}", word(namespace)?)),
        _ => bail!("the subject {subject:?} is not understood"),
    }
}

fn rule_line(rule: &Rule) -> Result<String> {
    let verbs = verbs(&rule.verbs)?;
    if !rule.non_resource_urls.is_empty() {
        let of_paths =
            Rule { verbs: rule.verbs.clone(), non_resource_urls: rule.non_resource_urls.clone(), ..Rule::default() };
        if *rule != of_paths {
            bail!("a rule on paths and on resources: {rule:?}");
        }
        return Ok(format!("path {} {verbs}", list(&rule.non_resource_urls)?));
    }
    let mut groups = rule.api_groups.clone();
    if groups.iter().any(|group| group == "core") {
        bail!("a group that is called core");
    }
    groups.iter_mut().filter(|group| group.is_empty()).for_each(|group| "core".clone_into(group));
    let mut line = format!("{} {} {verbs}", list(&groups)?, list(&rule.resources)?);
    if !rule.resource_names.is_empty() {
        line.push_str(&format!(" named {}", list(&rule.resource_names)?));
    }
    if line == "core,events.k8s.io events create,patch,update" {
        "records-events".clone_into(&mut line);
    }
    Ok(line)
}

/// Verbs in order, with `read` and `write` in place of those that they stand for.
fn verbs(verbs: &[String]) -> Result<String> {
    if !verbs.is_sorted() {
        bail!("the verbs {verbs:?} are not sorted, and the table keeps no other order");
    }
    let mut rest: Vec<&str> = verbs.iter().map(String::as_str).collect();
    if let Some(word) = rest.iter().find(|verb| ["read", "write"].contains(verb)) {
        bail!("a verb that is called {word}");
    }
    let mut words = Vec::new();
    for (name, stands_for) in [("read", READ.as_slice()), ("write", WRITE.as_slice())] {
        if stands_for.iter().all(|verb| rest.contains(verb)) {
            rest.retain(|verb| !stands_for.contains(verb));
            words.push(name.to_owned());
        }
    }
    words.extend(rest.into_iter().map(str::to_owned));
    list(&words)
}

fn list(names: &[String]) -> Result<String> {
    if names.is_empty() {
        bail!("a rule with an empty list");
    }
    let words = names.iter().map(|name| word(name)).collect::<Result<Vec<_>>>()?;
    Ok(words.join(","))
}

/// A name that can stand in the table.
fn word(name: &str) -> Result<String> {
    if name.is_empty() || name.contains([',', '#']) || name.contains(char::is_whitespace) {
        bail!("`{name}` cannot be a word of the table");
    }
    Ok(name.to_owned())
}

fn pairs(map: &std::collections::BTreeMap<String, String>) -> impl Iterator<Item = (&str, &str)> {
    map.iter().map(|(key, value)| (key.as_str(), value.as_str()))
}
