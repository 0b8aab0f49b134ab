//! Rows are read, and each kind of error is found.

#![allow(clippy::unwrap_used)]

use super::*;

const TYPES: &str = "package a/v1 openapi=a\nspecial Port intorstring\nstruct Spec\n 1 count *int32\n 2 name string\n 3 port Port\n \
    4 labels map[string]string\n 5 tags []string\nstruct Thing\n 1 spec Spec\n 2 specs []Spec\n";

fn checked(text: &str) -> Result<(), TableError> {
    check(&parse(text)?, &Types::parse(TYPES).unwrap())
}

#[test]
fn rows_are_read() {
    let text = "a/v1.Thing specs[].name! one-of \"\" A : it must be when you say when spec.name=x\n\
        a/v1.Spec tags[*]? label\na/v1.Spec . any-of name port : x\na/v1.Spec count within 1 *\na/v1.Thing specs unique name\n\
        a/v1.Spec name needed : when it is there\n";
    let rows = parse(text).unwrap();
    assert_eq!(
        rows[0].steps.iter().map(|it| (it.name, it.items)).collect::<Vec<_>>(),
        [("specs", Items::Each), ("name", Items::None)]
    );
    assert_eq!((rows[0].unset, &rows[0].rule), (Unset::Counts, &CheckRule::OneOf(vec!["", "A"])));
    assert_eq!(rows[0].detail, Some("it must be when you say"));
    assert_eq!(rows[0].when, Some(When { path: vec!["spec", "name"], text: "x" }));
    assert_eq!((rows[1].steps[0].items, rows[1].unset), (Items::AsOne, Unset::PassesIfMissing));
    assert_eq!((rows[2].steps.len(), &rows[2].rule), (0, &CheckRule::AnyOf(vec!["name", "port"])));
    assert_eq!(rows[3].rule, CheckRule::Within(Some(1), None));
    assert_eq!((rows[5].detail, &rows[5].when), (Some("when it is there"), &None));
    assert_eq!(checked(text), Ok(()));
}

#[test]
fn errors_name_the_line_and_what_is_wrong() {
    for (row, problem) in [
        ("a/v1.Spec name", "expected TYPE PATH RULE [: WORDS] [when PATH=TEXT]"),
        ("a/v1.Spec na-me needed", "\"na-me\" is not a path of field names"),
        ("a/v1.Spec count within 1 x", "\"x\" is neither a number nor *"),
        ("a/v1.Spec count within 1", "within cannot be followed by \"1\""),
        ("a/v1.Spec port share hole", "share cannot be followed by \"hole\""),
        ("a/v1.Spec name one-of", "one-of cannot be followed by \"\""),
        ("a/v1.Spec name label x", "label takes no words"),
        ("a/v1.Spec . needed", "any-of checks the value itself, at \".\", and all other rules check fields"),
        ("a/v1.Spec name needed when name", "expected \"when PATH=TEXT\", found \"when name\""),
        ("a/v1.Spce name needed", "there is no type \"a/v1.Spce\" in kubernetes.types"),
        ("a/v1.Thing spec.nmae needed", "a/v1.Thing has no field \"nmae\" on the path"),
        ("a/v1.Thing spec[].name needed", "\"spec\" is not a list"),
        ("a/v1.Spec count one-of A", "the rule does not fit the field, which is int32"),
        ("a/v1.Spec name within 1 2", "the rule does not fit the field, which is string"),
        ("a/v1.Spec name port", "the rule does not fit the field, which is string"),
        ("a/v1.Spec tags labels", "the rule does not fit the field, which is a list"),
        ("a/v1.Spec name unique", "unique is only for lists"),
        ("a/v1.Thing specs unique nmae", "the items have no field \"nmae\""),
        ("a/v1.Spec . any-of nmae", "a/v1.Spec has no field \"nmae\""),
        ("a/v1.Spec name needed when nmae=x", "a/v1.Spec has no field \"nmae\""),
        ("a/v1.Spec labels labels", "the check is already in line 1"),
    ] {
        let text = format!("a/v1.Spec labels labels\n{row}");
        assert_eq!(checked(&text).unwrap_err().to_string(), format!("line 2: {problem}"), "{row}");
    }
    let unknown = parse("a/v1.Spec name labell").unwrap_err().to_string();
    assert!(unknown.starts_with("line 1: unknown rule \"labell\"; expected one of: needed, "), "{unknown}");
    assert!(unknown.contains("unique, any-of; or label, subdomain, "), "{unknown}");
    assert_eq!(parse("").unwrap_err().to_string(), "line 1: the table has no rows");
}
