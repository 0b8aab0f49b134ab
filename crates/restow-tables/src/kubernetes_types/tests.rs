//! Lookups, and malformed text is refused.

#![allow(clippy::unwrap_used)]

use super::*;

const SOUND: &str = "package a/v1 openapi=io.a.v1 group=a.io\nstruct Item\n 2 name string\n 1 port int32 default=80\n\
    struct Thing kind\n 0 <inline> Item\n 1 items2 []Item patch=merge key=name list=map keys=name,port\n 2 m *map[string]Item\n\
    special Time time\n\npackage b/v1 openapi=io.b.v1\nscalar S string\n";

#[test]
fn a_sound_table_is_read_and_looked_up() {
    let types = Types::parse(SOUND).unwrap();
    types.check(SOUND).unwrap();
    let thing = types.kind("a.io/v1", "Thing").unwrap();
    assert_eq!(types.type_by_name("a/v1.Thing"), Some(thing));
    assert_eq!(types.type_name(thing), "a/v1.Thing");
    assert_eq!(types.kind("a.io/v1", "Item"), None, "it is no kind");
    assert!(types.follow(thing, &["m", "x", "port"]).is_ok());
    assert_eq!(types.follow(thing, &["m", "x", "prot"]).unwrap_err(), "a/v1.Thing has no field \"m.x.prot\"");
    let numbers = types.fields_by_number(types.type_by_name("a/v1.Item").unwrap()).map(|field| field.number);
    assert_eq!(numbers.collect::<Vec<_>>(), [1, 2]);
}

#[test]
fn errors_name_the_line_and_what_is_wrong() {
    for (text, problem) in [
        ("", "line 1: the table has no types"),
        ("struct", "line 1: a type needs a name"),
        ("struct A", "line 1: a type before the first package"),
        ("package", "line 1: a package needs a name"),
        ("package a", "line 1: a package needs openapi=PREFIX"),
        (
            "package a opnapi=x",
            "line 1: unknown word \"opnapi=x\" after a package; expected openapi=PREFIX or group=GROUP",
        ),
        ("package b openapi=b\nstruct A\npackage a openapi=a", "line 3: package a is not sorted, or there twice"),
        ("package a openapi=a\nstruct B\nstruct A", "line 3: type A is not sorted, or there twice"),
        ("package a openapi=a\nstruct A\nstruct A", "line 3: type A is not sorted, or there twice"),
        ("package a openapi=a\nstruct A\n x b string", "line 3: \"x\" is not the number of a field"),
        ("package a openapi=a\nstruct A\n 1 b", "line 3: expected NUMBER NAME TYPE"),
        ("package a openapi=a\nstruct A\n 1 b Nothing", "line 3: unknown type \"Nothing\""),
        ("package a openapi=a\nstruct A\n 1 b c.D", "line 3: unknown package \"c\""),
        ("package a openapi=a\nstruct A\n 1 b map[string", "line 3: a map type without its bracket"),
        ("package a openapi=a\nstruct A\n 1 b string\n 2 b string", "line 4: the field b is there twice"),
        ("package a openapi=a\nstruct A\n 1 b string\n 1 c string", "line 4: the number 1 is there twice"),
        ("package a openapi=a\nscalar A string\n 1 b string", "line 3: a field outside a struct"),
        ("package a openapi=a\nscalar A", "line 2: expected a name and one definition"),
        (
            "package a openapi=a\nscalar A text",
            "line 2: unknown basic type \"text\"; expected one of: string, bool, int32, int64, float64",
        ),
        (
            "package a openapi=a\nstruct A\n 1 b []string list=sett",
            "line 3: unknown list type \"sett\"; expected one of: atomic, map, set",
        ),
    ] {
        assert_eq!(Types::parse(text).unwrap_err().to_string(), problem, "{text}");
    }
    for (text, line) in [
        ("package a openapi=a\nclass A", 2),
        ("package a openapi=a\nstruct A knd", 2),
        ("package a openapi=a\nstruct A\n 1 b string nonsense", 3),
        ("package a openapi=a\nstruct A\n 1 b string patch=merg", 3),
        ("package a openapi=a\nstruct A\n 1 b string map=grainy", 3),
        ("package a openapi=a\nspecial A tim", 2),
    ] {
        let error = Types::parse(text).unwrap_err().to_string();
        assert!(error.starts_with(&format!("line {line}: unknown ")), "{text}: {error}");
    }
}

#[test]
fn facts_about_fields_must_fit_their_types() {
    for (field, problem) in [
        ("1 b string default=1", "the value does not fit its type, string"),
        ("1 b int32 default=\"1\"", "the value does not fit its type, int32"),
        ("1 b string default=x", "\"x\" is not a JSON value (without spaces, escapes and fractions)"),
        ("1 b string list=set", "list=set is only for lists"),
        ("1 b []A list=map", "list=map and keys= belong together"),
        ("1 b []A list=map keys=c", "the items of b have no field \"c\""),
        ("1 b []A patch=merge key=c", "the items of b have no field \"c\""),
        ("1 b string key=c", "key= and keys= are only for lists"),
        ("1 b A default={\"c\":1}", "a.A has no field \"c\""),
        ("0 <inline> string", "what is inlined must be a struct"),
    ] {
        let text: &'static str = format!("package a openapi=a\nstruct A\n {field}").leak();
        let types = Types::parse(text).unwrap();
        assert_eq!(types.check(text).unwrap_err().to_string(), format!("line 3: {problem}"), "{field}");
    }
}
