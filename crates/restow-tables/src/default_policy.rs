//! `default_policy.txt`: the RBAC roles and bindings that every cluster has.

use crate::words::words;
use crate::{TableError, group, list, not_empty, significant_lines};

#[cfg(test)]
mod tests;

/// A role or a binding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry<'t> {
    /// Its line in the table.
    pub line: usize,
    /// What it is.
    pub object: Object<'t>,
}

/// What an entry is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Object<'t> {
    /// A ClusterRole.
    ClusterRole {
        /// Its name.
        name: &'t str,
        /// The aggregates that it is labelled to be part of.
        part_of: Vec<&'t str>,
        /// The labels whose roles it gathers; none where it is not an aggregate.
        gathers: Vec<&'t str>,
        /// Its rules.
        rules: Vec<Rule<'t>>,
    },
    /// The ClusterRole of a controller, and its binding to the controller's service account in kube-system.
    Controller {
        /// The name of the controller.
        name: &'t str,
        /// The rules of its role.
        rules: Vec<Rule<'t>>,
    },
    /// A Role.
    Role {
        /// Its namespace.
        namespace: &'t str,
        /// Its name.
        name: &'t str,
        /// Its rules.
        rules: Vec<Rule<'t>>,
    },
    /// A ClusterRoleBinding.
    ClusterRoleBinding {
        /// Its name.
        name: &'t str,
        /// The ClusterRole.
        role: &'t str,
        /// Who is bound to it.
        subjects: Vec<Subject<'t>>,
    },
    /// A RoleBinding.
    RoleBinding {
        /// Its namespace.
        namespace: &'t str,
        /// Its name.
        name: &'t str,
        /// The kind of the role.
        role_kind: RoleKind,
        /// The role.
        role: &'t str,
        /// Who is bound to it.
        subjects: Vec<Subject<'t>>,
    },
}

/// A rule of a role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rule<'t> {
    /// About resources.
    Resources {
        /// API groups; the core group is empty.
        groups: Vec<&'t str>,
        /// Resources and subresources.
        resources: Vec<&'t str>,
        /// Verbs.
        verbs: Vec<Verb>,
        /// The names of objects; none where it is about all.
        names: Vec<&'t str>,
    },
    /// About paths that are not resources.
    Paths {
        /// Paths.
        paths: Vec<&'t str>,
        /// Verbs.
        verbs: Vec<Verb>,
    },
}

/// Who is bound to a role.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject<'t> {
    /// A group of users.
    Group(&'t str),
    /// A user.
    User(&'t str),
    /// A service account.
    ServiceAccount {
        /// Its namespace.
        namespace: &'t str,
        /// Its name.
        name: &'t str,
    },
}

words! {
    /// The kind of a role that a binding names.
    RoleKind, "kind of role" {
        /// A Role.
        Role = "role",
        /// A ClusterRole.
        ClusterRole = "clusterrole",
    }
}

words! {
    /// The verbs of rules.
    Verb, "verb" {
        /// All of them.
        All = "*",
        /// Approve certificate requests of a signer.
        Approve = "approve",
        /// Attest trust bundles of a signer.
        Attest = "attest",
        /// Bind roles.
        Bind = "bind",
        /// Create objects.
        Create = "create",
        /// Delete an object.
        Delete = "delete",
        /// Delete a collection.
        DeleteCollection = "deletecollection",
        /// Grant more than one has.
        Escalate = "escalate",
        /// Read an object.
        Get = "get",
        /// Act as somebody else.
        Impersonate = "impersonate",
        /// Read a collection.
        List = "list",
        /// Change an object.
        Patch = "patch",
        /// Proxy to an object.
        Proxy = "proxy",
        /// Sign certificates of a signer.
        Sign = "sign",
        /// Replace an object.
        Update = "update",
        /// Use an object.
        Use = "use",
        /// Follow changes.
        Watch = "watch",
    }
}

const READ: [Verb; 3] = [Verb::Get, Verb::List, Verb::Watch];
const WRITE: [Verb; 5] = [Verb::Create, Verb::Delete, Verb::DeleteCollection, Verb::Patch, Verb::Update];

impl<'t> Object<'t> {
    /// The rules of a role, to add to.
    fn rules_mut(&mut self) -> Option<&mut Vec<Rule<'t>>> {
        match self {
            Object::ClusterRole { rules, .. } | Object::Controller { rules, .. } | Object::Role { rules, .. } => {
                Some(rules)
            }
            Object::ClusterRoleBinding { .. } | Object::RoleBinding { .. } => None,
        }
    }

    /// The subjects of a binding, to add to.
    fn subjects_mut(&mut self) -> Option<&mut Vec<Subject<'t>>> {
        match self {
            Object::ClusterRoleBinding { subjects, .. } | Object::RoleBinding { subjects, .. } => Some(subjects),
            Object::ClusterRole { .. } | Object::Controller { .. } | Object::Role { .. } => None,
        }
    }

    /// Kind, namespace and name. The binding of a controller has the name of its role.
    fn identity(&self) -> (&'static str, &'t str, String) {
        match self {
            Object::ClusterRole { name, .. } => ("ClusterRole", "", name.to_string()),
            Object::Controller { name, .. } => ("ClusterRole", "", controller_role(name)),
            Object::Role { namespace, name, .. } => ("Role", namespace, name.to_string()),
            Object::ClusterRoleBinding { name, .. } => ("ClusterRoleBinding", "", name.to_string()),
            Object::RoleBinding { namespace, name, .. } => ("RoleBinding", namespace, name.to_string()),
        }
    }
}

/// The name of the role of a controller, and of its binding.
pub fn controller_role(name: &str) -> String {
    format!("system:controller:{name}")
}

/// Reads the table.
///
/// # Errors
/// A line does not fit the format, or there is nothing.
pub fn parse(text: &str) -> Result<Vec<Entry<'_>>, TableError> {
    let mut entries: Vec<Entry<'_>> = Vec::new();
    for (line, row) in significant_lines(text) {
        let words: Vec<&str> = row.split_whitespace().collect();
        let read = match (row.starts_with(' '), entries.last_mut()) {
            (false, _) => head(&words).map(|object| entries.push(Entry { line, object })),
            (true, Some(entry)) => detail(&mut entry.object, &words),
            (true, None) => Err("a rule or subject before the first role or binding".into()),
        };
        read.map_err(|problem| TableError::new(line, problem))?;
    }
    not_empty(entries)
}

fn head<'t>(words: &[&'t str]) -> Result<Object<'t>, String> {
    Ok(match *words {
        ["clusterrole", name, ref options @ ..] => cluster_role(name, options)?,
        ["controller", name] => Object::Controller { name, rules: Vec::new() },
        ["role", namespace, name] => Object::Role { namespace, name, rules: Vec::new() },
        ["clusterrolebinding", name, "clusterrole", role] => {
            Object::ClusterRoleBinding { name, role, subjects: Vec::new() }
        }
        ["rolebinding", namespace, name, kind, role] => {
            Object::RoleBinding { namespace, name, role_kind: RoleKind::parse(kind)?, role, subjects: Vec::new() }
        }
        _ => return Err(format!("unknown line {:?}; the grammar is at the top of the table", words.join(" "))),
    })
}

fn cluster_role<'t>(name: &'t str, options: &[&'t str]) -> Result<Object<'t>, String> {
    let (mut part_of, mut gathers) = (Vec::new(), Vec::new());
    for option in options.chunks(2) {
        match *option {
            ["part-of", names] => part_of = list(names)?,
            ["gathers", names] => gathers = list(names)?,
            _ => return Err(format!("expected part-of A,B or gathers C, found {:?}", option.join(" "))),
        }
    }
    Ok(Object::ClusterRole { name, part_of, gathers, rules: Vec::new() })
}

/// Adds a rule to a role, or a subject to a binding.
fn detail<'t>(object: &mut Object<'t>, words: &[&'t str]) -> Result<(), String> {
    if let Some(rules) = object.rules_mut() {
        rules.push(rule(words)?);
    } else if let Some(subjects) = object.subjects_mut() {
        subjects.push(subject(words)?);
    }
    Ok(())
}

fn rule<'t>(words: &[&'t str]) -> Result<Rule<'t>, String> {
    match *words {
        ["records-events"] => Ok(Rule::Resources {
            groups: vec!["", "events.k8s.io"],
            resources: vec!["events"],
            verbs: vec![Verb::Create, Verb::Patch, Verb::Update],
            names: Vec::new(),
        }),
        ["path", paths, verbs] => {
            let paths = list(paths)?;
            match paths.iter().find(|path| !path.starts_with('/') && **path != "*") {
                Some(path) => Err(format!("{path:?} is not a path")),
                None => Ok(Rule::Paths { paths, verbs: parse_verbs(verbs)? }),
            }
        }
        [groups, resources, verbs] => resource_rule(groups, resources, verbs, Vec::new()),
        [groups, resources, verbs, "named", names] => resource_rule(groups, resources, verbs, list(names)?),
        _ => Err("expected GROUPS RESOURCES VERBS [named NAMES], path PATHS VERBS or records-events".into()),
    }
}

fn resource_rule<'t>(
    groups: &'t str,
    resources: &'t str,
    verbs: &'t str,
    names: Vec<&'t str>,
) -> Result<Rule<'t>, String> {
    let any_or_group = |text| if text == "*" { Ok(text) } else { group(text) };
    let groups = list(groups)?.into_iter().map(any_or_group).collect::<Result<_, _>>()?;
    let is_known = |byte: u8| byte.is_ascii_lowercase() || b"/*".contains(&byte);
    let resources = list(resources)?;
    match resources.iter().find(|resource| !resource.bytes().all(is_known)) {
        Some(resource) => Err(format!("{resource:?} is not a resource")),
        None => Ok(Rule::Resources { groups, resources, verbs: parse_verbs(verbs)?, names }),
    }
}

/// Sorted by their words; `read` and `write` stand for several.
fn parse_verbs(text: &str) -> Result<Vec<Verb>, String> {
    let mut verbs = Vec::new();
    for word in list(text)? {
        match word {
            "read" => verbs.extend(READ),
            "write" => verbs.extend(WRITE),
            _ => verbs.push(Verb::parse(word).map_err(|problem| format!("{problem}, read, write"))?),
        }
    }
    verbs.sort_by_key(|verb| verb.word());
    match verbs.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(format!("the verb {} is there twice", pair[0].word())),
        None => Ok(verbs),
    }
}

fn subject<'t>(words: &[&'t str]) -> Result<Subject<'t>, String> {
    match *words {
        ["group", name] => Ok(Subject::Group(name)),
        ["user", name] => Ok(Subject::User(name)),
        ["serviceaccount", full_name] => {
            let (namespace, name) = full_name.split_once('/').ok_or("expected serviceaccount NAMESPACE/NAME")?;
            Ok(Subject::ServiceAccount { namespace, name })
        }
        _ => Err("expected group NAME, user NAME or serviceaccount NAMESPACE/NAME".into()),
    }
}

/// What the build script checks beyond the form of the rows.
///
/// # Errors
/// An object is there twice, a binding names a role that is not there, a role is part of an aggregate that nothing gathers,
/// or a role has neither rules nor anything to gather.
pub fn check(entries: &[Entry<'_>]) -> Result<(), TableError> {
    for (index, entry) in entries.iter().enumerate() {
        let identity = entry.object.identity();
        let problem = match entries[..index].iter().find(|earlier| earlier.object.identity() == identity) {
            Some(earlier) => Err(format!("{} {} is already in line {}", identity.0, identity.2, earlier.line)),
            None => check_references(&entry.object, entries),
        };
        problem.map_err(|problem| TableError::new(entry.line, problem))?;
    }
    Ok(())
}

fn check_references(object: &Object<'_>, entries: &[Entry<'_>]) -> Result<(), String> {
    let exists = |kind: &'static str, namespace: &str, name: &str| {
        let found = entries.iter().any(|entry| entry.object.identity() == (kind, namespace, name.to_string()));
        if found { Ok(()) } else { Err(format!("there is no {kind} {name}")) }
    };
    match object {
        Object::ClusterRoleBinding { role, .. } => exists("ClusterRole", "", role),
        Object::RoleBinding { namespace, role, role_kind: RoleKind::Role, .. } => exists("Role", namespace, role),
        Object::RoleBinding { role, role_kind: RoleKind::ClusterRole, .. } => exists("ClusterRole", "", role),
        Object::ClusterRole { name, part_of, gathers, rules } => {
            let gathered = |label: &&&str| {
                entries.iter().any(
                    |entry| matches!(&entry.object, Object::ClusterRole { gathers, .. } if gathers.contains(label)),
                )
            };
            match part_of.iter().find(|label| !gathered(label)) {
                Some(label) => Err(format!("no ClusterRole gathers {label}")),
                None if rules.is_empty() && gathers.is_empty() => Err(format!("the ClusterRole {name} has no rules")),
                None => Ok(()),
            }
        }
        Object::Controller { name, rules } | Object::Role { name, rules, .. } => {
            if rules.is_empty() {
                Err(format!("the role of {name} has no rules"))
            } else {
                Ok(())
            }
        }
    }
}
