//! Entries are read, and each kind of error is found.

#![allow(clippy::unwrap_used)]

use super::*;

#[test]
fn roles_and_bindings_are_read() {
    let text = "clusterrole view part-of edit gathers view\ncontroller c\n  records-events\n  core,apps pods,pods/log read,delete named a,b\n\
        role ns r\n  path /a,/b/* get\nclusterrolebinding b clusterrole view\nrolebinding ns rb role r\n  group g\n  user u\n  \
        serviceaccount ns/s\n";
    let entries = parse(text).unwrap();
    let names = |entry: &Entry<'_>| entry.object.identity().2;
    assert_eq!(entries.iter().map(names).collect::<Vec<_>>(), ["view", "system:controller:c", "r", "b", "rb"]);
    let Object::Controller { rules, .. } = &entries[1].object else { panic!("{:?}", entries[1]) };
    let Rule::Resources { groups, resources, verbs, names } = &rules[1] else { panic!("{rules:?}") };
    assert_eq!((groups.as_slice(), resources.as_slice()), (&["", "apps"][..], &["pods", "pods/log"][..]));
    assert_eq!(verbs.iter().map(|verb| verb.word()).collect::<Vec<_>>(), ["delete", "get", "list", "watch"]);
    assert_eq!(names, &["a", "b"]);
    let Object::RoleBinding { subjects, .. } = &entries[4].object else { panic!("{:?}", entries[4]) };
    assert_eq!(subjects.len(), 3);
}

#[test]
fn errors_name_the_line_and_what_is_wrong() {
    let role = "expected GROUPS RESOURCES VERBS [named NAMES], path PATHS VERBS or records-events";
    for (row, problem) in [
        ("clusterrole", "unknown line \"clusterrole\"; the grammar is at the top of the table"),
        ("binding a", "unknown line \"binding a\"; the grammar is at the top of the table"),
        ("clusterrole a gathers", "expected part-of A,B or gathers C, found \"gathers\""),
        ("clusterrole a prat-of b", "expected part-of A,B or gathers C, found \"prat-of b\""),
        ("rolebinding ns a rol b", "unknown kind of role \"rol\"; expected one of: role, clusterrole"),
        ("  x", role),
        ("  core pods get as x", role),
        ("  record-events", role),
        ("  Core pods get", "\"Core\" is not an API group"),
        ("  core Pods get", "\"Pods\" is not a resource"),
        ("  core pods,,nodes get", "an empty item in the list \"pods,,nodes\""),
        ("  core pods read,get", "the verb get is there twice"),
        ("  path api get", "\"api\" is not a path"),
    ] {
        let error = parse(&format!("controller a\n{row}")).unwrap_err().to_string();
        assert_eq!(error, format!("line 2: {problem}"), "{row}");
    }
    let unknown = parse("controller a\n  core pods gett").unwrap_err().to_string();
    assert!(unknown.starts_with("line 2: unknown verb \"gett\"; expected one of: *, approve, "), "{unknown}");
    let subject = parse("clusterrolebinding a clusterrole b\n  gruop x").unwrap_err().to_string();
    assert_eq!(subject, "line 2: expected group NAME, user NAME or serviceaccount NAMESPACE/NAME");
    let account = parse("clusterrolebinding a clusterrole b\n  serviceaccount x").unwrap_err().to_string();
    assert_eq!(account, "line 2: expected serviceaccount NAMESPACE/NAME");
    assert_eq!(
        parse("  core pods get").unwrap_err().to_string(),
        "line 1: a rule or subject before the first role or binding"
    );
    assert_eq!(parse("").unwrap_err().to_string(), "line 1: the table has no rows");
}

#[test]
fn entries_are_checked_against_each_other() {
    for (text, problem) in [
        (
            "clusterrole a\n  core pods get\nclusterrole a\n  core pods get",
            "line 3: ClusterRole a is already in line 1",
        ),
        ("clusterrolebinding b clusterrole a", "line 1: there is no ClusterRole a"),
        ("role x r\n  core pods get\nrolebinding y b role r", "line 3: there is no Role r"),
        ("clusterrole a part-of viwe\n  core pods get", "line 1: no ClusterRole gathers viwe"),
        ("clusterrole a", "line 1: the ClusterRole a has no rules"),
        ("controller a", "line 1: the role of a has no rules"),
    ] {
        assert_eq!(check(&parse(text).unwrap()).unwrap_err().to_string(), problem, "{text}");
    }
    assert_eq!(
        check(&parse("controller a\n  core pods get\nclusterrolebinding b clusterrole system:controller:a").unwrap()),
        Ok(())
    );
}
