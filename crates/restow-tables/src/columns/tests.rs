//! Rows are read, and each kind of error is found.

#![allow(clippy::unwrap_used)]

use super::*;

const TYPES: &str =
    "package a/v1 openapi=a group=a\nstruct Part\n 1 name string\nstruct Thing kind\n 1 parts []Part\n 2 size int32\n";
const RESOURCES: &str = "a things Thing thing cluster\n  1.28 v1 stored v1\n";

fn checked(text: &str) -> Result<(), TableError> {
    check(&parse(text)?, &crate::resources::parse(RESOURCES).unwrap(), &Types::parse(TYPES).unwrap())
}

#[test]
fn the_name_is_first_and_the_age_last_unless_a_row_says_otherwise() {
    let titles = |text: &str| {
        let rows = parse(format!("a/things {text}").leak()).unwrap();
        rows[0].columns.iter().map(|column| (column.title, column.wide)).collect::<Vec<_>>()
    };
    assert_eq!(titles("A_b=x"), [("Name", false), ("A_b", false), ("Age", false)]);
    assert_eq!(titles("A=x Age +B=y"), [("Name", false), ("A", false), ("Age", false), ("B", true)]);
    assert_eq!(titles("A=x +Name -Age"), [("A", false), ("Name", true)]);
}

#[test]
fn cells_are_paths_and_functions() {
    assert_eq!(parse_cell("a.b"), Ok(Cell::Path(vec!["a", "b"])));
    assert_eq!(parse_cell("is()"), Ok(Cell::Text("")));
    let count = Box::new(Cell::Of(Function::Count, vec!["a"]));
    assert_eq!(parse_cell("or(count(a),<none>)"), Ok(Cell::First(count, Box::new(Cell::Text("<none>")))));
    assert_eq!(parse_cell("special(endpoints)"), Ok(Cell::Special(Special::Endpoints)));
    assert_eq!(checked("a/things Parts=join(parts.name) +Size=or(size,0)"), Ok(()));
}

#[test]
fn errors_name_the_line_and_what_is_wrong() {
    for (row, problem) in [
        ("things Size=size", "expected GROUP/RESOURCE TITLE=CELL ..."),
        ("A!/things Size=size", "\"A!\" is not an API group"),
        ("a/things Size", "expected TITLE=CELL, Name, Age or -Age, found \"Size\""),
        ("a/things Size=", "\"\" is not a path of field names"),
        ("a/things Size=count(size", "\"count(size\" lacks its closing parenthesis"),
        ("a/things Size=or(size),0)", "the parentheses of \"size),0\" do not match"),
        ("a/things Size=or(size)", "or cannot have 1 arguments"),
        ("a/things Size=of(size,size,size)", "of cannot have 3 arguments"),
        ("a/things Size=count(a,b)", "\"a,b\" is not a path of field names"),
        ("b/things Size=size", "there is no resource b/things in resources.txt"),
        ("a/things Size=sise", "Thing has no field \"sise\" in any version"),
        ("a/things Parts=join(parts.nmae)", "Thing has no field \"parts.nmae\" in any version"),
        ("a/things Size=size Size=size", "there are two columns Size"),
    ] {
        assert_eq!(
            checked(&format!("# columns\n{row}")).unwrap_err().to_string(),
            format!("line 2: {problem}"),
            "{row}"
        );
    }
    let unknown = checked("a/things Size=cuont(size)").unwrap_err().to_string();
    assert!(unknown.starts_with("line 1: unknown function \"cuont\"; expected one of: of, in, "), "{unknown}");
    assert!(unknown.ends_with(", ports, modes, age"), "{unknown}");
    let unknown = checked("a/things Size=special(sise)").unwrap_err().to_string();
    assert!(unknown.starts_with("line 1: unknown special cell \"sise\"; expected one of: "), "{unknown}");
    let twice = checked("a/things Size=size\na/things Size=size").unwrap_err().to_string();
    assert_eq!(twice, "line 2: a/things is already in line 1");
    assert_eq!(checked("").unwrap_err().to_string(), "line 1: the table has no rows");
}
