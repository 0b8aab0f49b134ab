//! How each genre is rewritten.

use super::super::list::{Position, Span};
use super::*;
use std::path::PathBuf;

/// The body of a function after mutants at the places marked by `§` were put behind switches, in the order of the marks.
fn rewritten(marked: &str, mutants: &[(Genre, &str)]) -> String {
    let marked = format!("fn f() {{ {marked} }}");
    let mut text = String::new();
    let mut places = Vec::new();
    for part in marked.split('§') {
        text.push_str(part);
        places.push(text.chars().count() + 1);
    }
    let mutants: Vec<Mutant> = (1..)
        .zip(mutants.iter().zip(&places))
        .map(|(number, ((genre, replacement), column))| Mutant {
            number,
            name: String::new(),
            package: String::new(),
            file: PathBuf::new(),
            genre: *genre,
            replacement: (*replacement).to_owned(),
            span: Span { start: Position { line: 1, column: *column } },
        })
        .collect();
    let rewritten = rewrite(&text, &mutants.iter().collect::<Vec<_>>()).unwrap();
    syn::parse_file(&rewritten.text).unwrap();
    let body = rewritten.text.strip_prefix("fn f() {").and_then(|text| text.strip_suffix('}')).unwrap();
    body.trim().replace("crate::restow_mutant", "on")
}

#[test]
fn a_function_returns_another_value() {
    assert_eq!(rewritten("§g()", &[(Genre::FnValue, "None")]), "if on(1) { return None; }  g()");
    assert_eq!(rewritten("§§g()", &[(Genre::FnValue, "0"), (Genre::FnValue, "1")]), {
        "if on(1) { return 0; } if on(2) { return 1; }  g()"
    });
}

#[test]
fn an_operator_is_replaced() {
    assert_eq!(
        rewritten("if é §< §b {}", &[(Genre::BinaryOperator, ">")]),
        "if (if on(1) { (é) > (b) } else { é < b }) {}"
    );
    assert_eq!(
        rewritten("x §§+= y;", &[(Genre::BinaryOperator, "-="), (Genre::BinaryOperator, "*=")]),
        "(if on(1) { (x) -= (y) } else if on(2) { (x) *= (y) } else { x += y });"
    );
}

#[test]
fn operators_are_nested() {
    assert_eq!(
        rewritten(
            "a §== b §&& §!c",
            &[(Genre::BinaryOperator, "!="), (Genre::BinaryOperator, "||"), (Genre::UnaryOperator, "")]
        ),
        "(if on(2) { (a == b) || (!c) } else { (if on(1) { (a) != (b) } else { a == b }) && (if on(3) { c } else { !c }) })"
    );
}

#[test]
fn a_chain_with_let_keeps_its_operators() {
    let chain = "if a §&& let Some(b) = c {}";
    assert_eq!(rewritten(chain, &[(Genre::BinaryOperator, "||")]), chain.replace('§', ""));
}

#[test]
fn a_match_arm_is_deleted() {
    assert_eq!(
        rewritten("match a { §A => 1, _ => 2 }", &[(Genre::MatchArm, "")]),
        "match a { A if !on(1) => 1, _ => 2 }"
    );
    assert_eq!(
        rewritten("match a { §A if §b => 1, _ => 2 }", &[(Genre::MatchArm, ""), (Genre::MatchArmGuard, "true")]),
        "match a { A if (if on(1) { false } else { (if on(2) { true } else { b }) }) => 1, _ => 2 }"
    );
}

#[test]
fn a_match_arm_stays_if_no_other_takes_everything() {
    let guarded = "match a { §A => 1, B => 2, _ if b => 3 }";
    assert_eq!(rewritten(guarded, &[(Genre::MatchArm, "")]), guarded.replace('§', ""));
}

#[test]
fn a_field_is_taken_from_the_base_of_a_struct() {
    assert_eq!(
        rewritten("S { §a: 1, ..Default::default() }", &[(Genre::StructField, "")]),
        "S { a: (if on(1) { (<S as Default>::default()).a } else { 1 }), ..Default::default() }"
    );
    assert_eq!(
        rewritten("S { §a, ..*s }", &[(Genre::StructField, "")]),
        "S { a: (if on(1) { (*s).a } else { a }), ..*s }"
    );
}

#[test]
fn a_constant_has_no_switches() {
    assert_eq!(rewritten("const A: u8 = 1 §+ 2;", &[(Genre::BinaryOperator, "-")]), "const A: u8 = 1 + 2;");
}
