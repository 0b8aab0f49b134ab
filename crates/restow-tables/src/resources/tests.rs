//! Rows are read, and each kind of error is found.

#![allow(clippy::unwrap_used)]

use super::*;

const TYPES: &str = "package a/v1 openapi=a group=a.io\nstruct Options kind\nstruct Thing kind\n";
const HEAD: &str = "a.io things Thing thing namespaced";

fn checked(text: &str) -> Result<(), TableError> {
    check(&parse(text)?, &Types::parse(TYPES).unwrap())
}

#[test]
fn a_block_is_a_resource() {
    let text = format!(
        "{HEAD}\n  verbs create,get\n  short th\n  categories all\n  rules crd,generation\n  fields spec.a\n  \
         sub status get\n  sub proxy create a.io/v1/Options\n  shares core/others\n  decodes v1 core/v1beta1\n  \
         1.28 v1alpha1,v1 stored v1\n  1.30 v1 unstored\n  1.31 gone\n"
    );
    let resources = parse(&text).unwrap();
    let resource = &resources[0];
    assert_eq!((resource.group, resource.resource, resource.scope), ("a.io", "things", Scope::Namespaced));
    assert_eq!(resource.verbs, [Verb::Create, Verb::Get]);
    assert_eq!(resource.rules, [StrategyRule::CustomResourceDefinition, StrategyRule::Generation]);
    assert_eq!(resource.shares, Some(("", "others")));
    let api_versions: Vec<String> = resource.decodable.iter().map(Version::api_version).collect();
    assert_eq!(api_versions, ["a.io/v1", "v1beta1"]);
    let kind = resource.subresources[1].kind.unwrap();
    assert_eq!((kind.version.unwrap().api_version().as_str(), kind.kind), ("a.io/v1", "Options"));
    let history: Vec<_> =
        resource.history.iter().map(|it| (it.since_minor, it.versions.len(), it.stored.is_some())).collect();
    assert_eq!(history, [(28, 2, true), (30, 1, false), (31, 0, false)]);
    assert_eq!(parse(HEAD).unwrap()[0].verbs.len(), 8);
    assert_eq!(checked(&format!("{HEAD}\n  1.28 v1 stored v1")), Ok(()));
}

#[test]
fn errors_name_the_line_and_what_is_wrong() {
    for (row, problem) in [
        ("a.io things", "expected GROUP RESOURCE KIND SINGULAR SCOPE"),
        ("A things Thing thing cluster", "\"A\" is not an API group"),
        ("a.io Things Thing thing cluster", "\"Things\" is not a name in lower case"),
        ("a.io things thing thing cluster", "\"thing\" is not a kind"),
        ("a.io things Thing thing clustr", "unknown scope \"clustr\"; expected one of: namespaced, cluster"),
        ("  short a,,b", "an empty item in the list \"a,,b\""),
        ("  sub proxy get a.io/x/Options", "\"a.io/x\" is not a version"),
        ("  shares others", "expected shares GROUP/RESOURCE"),
        ("  decodes v1 v2gamma1", "\"v2gamma1\" is not a version"),
        ("  1.27 v1 stored v1", "\"1.27\" is not a release from 1.28 to 1.37"),
        ("  1.3O v1 stored v1", "\"1.3O\" is not a release from 1.28 to 1.37"),
        ("  1.30 v1 sotred v1", "unknown line \"1.30 v1 sotred v1\"; the grammar is at the top of the table"),
        ("  shrot a", "unknown line \"shrot a\"; the grammar is at the top of the table"),
    ] {
        let error = parse(&format!("{HEAD}\n{row}")).unwrap_err().to_string();
        assert_eq!(error, format!("line 2: {problem}"), "{row}");
    }
    for row in ["  verbs creat", "  rules genration", "  sub status gett"] {
        let error = parse(&format!("{HEAD}\n{row}")).unwrap_err().to_string();
        assert!(error.starts_with("line 2: unknown "), "{error}");
    }
    assert_eq!(parse("  short a").unwrap_err().to_string(), "line 1: a detail before the first resource");
    assert_eq!(parse("").unwrap_err().to_string(), "line 1: the table has no rows");
}

#[test]
fn rows_are_checked_against_each_other_and_the_types() {
    for (text, problem) in [
        (format!("{HEAD}\n  1.28 v1 stored v1\n\n{HEAD}\n  1.28 v1 stored v1"), "line 4: things is already in line 1"),
        (HEAD.to_string(), "line 1: things is in no release"),
        (format!("{HEAD}\n  1.30 v1 stored v1\n  1.29 gone"), "line 1: the releases of things are not in order"),
        (
            format!("{HEAD}\n  shares core/x\n  1.28 v1 stored v1"),
            "line 1: there is no resource x to share objects with",
        ),
        (format!("{HEAD}\n  1.28 v2 stored v2"), "line 1: there is no kind Thing of a.io/v2 in kubernetes.types"),
        (
            format!("{HEAD}\n  sub proxy get Optoins\n  1.28 v1 stored v1"),
            "line 1: there is no kind Optoins of a.io/v1 in kubernetes.types",
        ),
        (
            format!(
                "{HEAD}\n  short t\n  1.28 v1 stored v1\na.io others Options options cluster\n  short t\n  1.28 v1 stored v1"
            ),
            "line 4: the short name t is that of another kind",
        ),
    ] {
        assert_eq!(checked(&text).unwrap_err().to_string(), problem);
    }
}
