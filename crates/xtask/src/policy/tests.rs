//! Made-up objects become rows, and a reader of the table gets the same objects back.

use std::fs;

use super::*;
use crate::policy::objects::{Rule, Subject};

const RBAC: &str = "rbac.authorization.k8s.io";

fn object(kind: &str, name: &str, more_labels: &str, rest: &str) -> String {
    format!(
        "- apiVersion: {RBAC}/v1\n  kind: {kind}\n  metadata:\n    annotations:\n      \
         rbac.authorization.kubernetes.io/autoupdate: \"true\"\n    labels:\n      \
         kubernetes.io/bootstrapping: rbac-defaults\n{more_labels}    name: {name}\n{rest}"
    )
}

fn list(items: &[String]) -> String {
    format!("apiVersion: v1\nitems:\n{}kind: List\nmetadata: {{}}\n", items.concat())
}

fn cluster_roles() -> String {
    let aggregated = object(
        "ClusterRole",
        "boss",
        "      rbac.authorization.k8s.io/aggregate-to-chief: \"true\"\n",
        "  aggregationRule:\n    clusterRoleSelectors:\n    - matchLabels:\n        \
         rbac.authorization.k8s.io/aggregate-to-boss: \"true\"\n  rules: null\n",
    );
    let rules = "  rules:\n  - apiGroups:\n    - \"\"\n    - apps\n    resources:\n    - pods\n    - pods/log\n    verbs:\n    \
                 - create\n    - get\n    - list\n    - watch\n  - nonResourceURLs:\n    - /healthz\n    verbs:\n    - get\n  \
                 - apiGroups:\n    - \"\"\n    - events.k8s.io\n    resources:\n    - events\n    verbs:\n    - create\n    \
                 - patch\n    - update\n  - apiGroups:\n    - \"\"\n    resourceNames:\n    - one\n    - two\n    resources:\n    \
                 - nodes\n    verbs:\n    - create\n    - delete\n    - deletecollection\n    - patch\n    - update\n";
    list(&[aggregated, object("ClusterRole", "system:worker", "", rules)])
}

const CONTROLLER_RULES: &str =
    "  rules:\n  - apiGroups:\n    - ''\n    resources:\n    - pods\n    verbs:\n    - get\n";

fn controller_binding(account: &str) -> String {
    let rest = format!(
        "  roleRef:\n    apiGroup: {RBAC}\n    kind: ClusterRole\n    name: system:controller:mill\n  subjects:\n  \
         - kind: ServiceAccount\n    name: {account}\n    namespace: kube-system\n"
    );
    list(&[object("ClusterRoleBinding", "system:controller:mill", "", &rest)])
}

fn cluster_role_bindings() -> String {
    let rest = format!(
        "  roleRef:\n    apiGroup: {RBAC}\n    kind: ClusterRole\n    name: boss\n  subjects:\n  - apiGroup: {RBAC}\n    \
         kind: Group\n    name: system:masters\n  - apiGroup: {RBAC}\n    kind: User\n    name: system:one\n"
    );
    list(&[object("ClusterRoleBinding", "boss", "", &rest)])
}

fn namespaced_roles() -> String {
    list(&[object("Role", "reader\n    namespace: kube-public", "", CONTROLLER_RULES)])
}

fn namespaced_bindings() -> String {
    let rest = format!(
        "  roleRef:\n    apiGroup: {RBAC}\n    kind: Role\n    name: reader\n  subjects:\n  - kind: ServiceAccount\n    \
         name: mill\n    namespace: kube-system\n"
    );
    list(&[object("RoleBinding", "reader\n    namespace: kube-public", "", &rest)])
}

const TABLE: &str = "
clusterrole boss part-of chief gathers boss
clusterrole system:worker
  core,apps pods,pods/log read,create
  path /healthz get
  records-events
  core nodes write named one,two

controller mill
  core pods get

clusterrolebinding boss clusterrole boss
  group system:masters
  user system:one

role kube-public reader
  core pods get

rolebinding kube-public reader role reader
  serviceaccount kube-system/mill
";

fn generated(cluster_roles: &str, controller_bindings: &str) -> Result<String> {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join(FOLDER);
    fs::create_dir_all(&folder).unwrap();
    let controller_roles = list(&[object("ClusterRole", "system:controller:mill", "", CONTROLLER_RULES)]);
    for (name, text) in [
        ("cluster-roles.yaml", cluster_roles),
        ("controller-roles.yaml", &controller_roles),
        ("controller-role-bindings.yaml", controller_bindings),
        ("cluster-role-bindings.yaml", &cluster_role_bindings()),
        ("namespace-roles.yaml", &namespaced_roles()),
        ("namespace-role-bindings.yaml", &namespaced_bindings()),
    ] {
        fs::write(folder.join(name), text).unwrap();
    }
    generate(root.path())
}

#[test]
fn objects_become_rows() {
    assert_eq!(generated(&cluster_roles(), &controller_binding("mill")).unwrap(), TABLE);
}

#[test]
fn objects_that_the_table_cannot_express_are_refused() {
    let roles = cluster_roles();
    let binding = controller_binding("mill");
    for (roles, binding, problem) in [
        (roles.replace("    - get\n    - list", "    - list\n    - get"), &binding, "are not sorted"),
        (roles.replace("- pods/log", "- a,b"), &binding, "`a,b` cannot be a word of the table"),
        (roles.replace("autoupdate: \"true\"", "autoupdate: \"false\""), &binding, "its annotations are"),
        (roles.replace("aggregate-to-chief: \"true\"", "aggregate-to-chief: \"no\""), &binding, "is not understood"),
        (roles.replace("kubernetes.io/bootstrapping", "other"), &binding, "the label other=rbac-defaults"),
        (roles.replace("  rules: null", "  surprise: null"), &binding, "surprise"),
        (
            roles.replace("nonResourceURLs", "resourceNames: [a]\n    nonResourceURLs"),
            &binding,
            "paths and on resources",
        ),
        (roles.replace("kind: ClusterRole\n", "kind: Role\n"), &binding, "a Role among ClusterRole objects"),
        (roles.clone(), &controller_binding("other"), "in place of"),
    ] {
        let error = format!("{:#}", generated(&roles, binding).unwrap_err());
        assert!(error.contains(problem), "{error}\nshould contain\n{problem}");
    }
}

/// A role's name with its rules, as a reader that knows only the explanation at the table's top gets them.
fn read_rules(table: &str) -> Vec<(String, Vec<Rule>)> {
    let split = |list: &str| list.split(',').map(str::to_owned).collect::<Vec<String>>();
    let verbs = |list: &str| {
        let mut verbs: Vec<String> = split(
            &list.replace("read", "get,list,watch").replace("write", "create,delete,deletecollection,patch,update"),
        );
        verbs.sort();
        verbs
    };
    let mut roles: Vec<(String, Vec<Rule>)> = Vec::new();
    for line in table.lines().filter(|line| !line.is_empty()) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let rule = match words.as_slice() {
            ["clusterrole", name, ..] | ["controller", name] | ["role", _, name] => {
                roles.push(((*name).to_owned(), Vec::new()));
                continue;
            }
            ["path", paths, list] => Rule { non_resource_urls: split(paths), verbs: verbs(list), ..Rule::default() },
            ["records-events"] => Rule {
                api_groups: vec![String::new(), "events.k8s.io".into()],
                resources: vec!["events".into()],
                verbs: verbs("create,patch,update"),
                ..Rule::default()
            },
            [groups, resources, list, named @ ..] if line.starts_with(' ') => Rule {
                api_groups: split(groups).into_iter().map(|group| group.replace("core", "")).collect(),
                resources: split(resources),
                verbs: verbs(list),
                resource_names: named.get(1).map(|names| split(names)).unwrap_or_default(),
                ..Rule::default()
            },
            _ => continue,
        };
        roles.last_mut().unwrap().1.push(rule);
    }
    roles
}

#[test]
fn a_reader_of_the_table_gets_the_rules_back() {
    let table = generated(&cluster_roles(), &controller_binding("mill")).unwrap();
    let read = read_rules(&table);
    let names: Vec<&str> = read.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["boss", "system:worker", "mill", "reader"]);
    let originals = objects::parse(&cluster_roles()).unwrap();
    for (object, (_, rules)) in originals.into_iter().zip(&read) {
        assert_eq!(&object.rules.unwrap_or_default(), rules, "{}", object.metadata.name);
    }
}

#[test]
fn a_reader_of_the_table_gets_the_subjects_back() {
    let table = generated(&cluster_roles(), &controller_binding("mill")).unwrap();
    let subject = |kind: &str, name: &str| Subject {
        kind: kind.into(),
        name: name.into(),
        namespace: None,
        api_group: Some(RBAC.into()),
    };
    let read: Vec<Subject> = table
        .lines()
        .filter_map(|line| match line.split_whitespace().collect::<Vec<_>>().as_slice() {
            ["group", name] => Some(subject("Group", name)),
            ["user", name] => Some(subject("User", name)),
            _ => None,
        })
        .collect();
    let originals = objects::parse(&cluster_role_bindings()).unwrap();
    assert_eq!(read, originals.into_iter().flat_map(|object| object.subjects.unwrap_or_default()).collect::<Vec<_>>());
}
