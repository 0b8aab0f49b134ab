//! Validation rules of a schema (`x-kubernetes-validations`): compiling them with their limits, and applying them.

use std::rc::Rc;

use serde_json::Value;

use crate::cel::{self, CompileError, Decl, Program, Type, Variable};
use crate::json_path::{Brackets, field_path};
use crate::keywords::{Around, around_items, around_property};
use crate::node::{Additional, Node};
use crate::problem::Problem;
use crate::raw::Raw;

mod apply;

pub(crate) use apply::check;

/// The maximum estimated cost of one rule.
const MOST_PER_RULE: u64 = 10_000_000;
/// The maximum estimated cost of all rules of a schema.
const MOST_PER_SCHEMA: u64 = 100_000_000;
/// The size of the largest request.
const LARGEST_REQUEST: u64 = 3 * 1024 * 1024;

/// A compiled rule.
#[derive(Debug)]
pub(crate) struct ValidationRule {
    pub(crate) program: Program,
    pub(crate) text: Box<str>,
    pub(crate) message: Box<str>,
    pub(crate) message_program: Option<Program>,
    pub(crate) reason: Box<str>,
    pub(crate) field_path: Box<str>,
    pub(crate) uses_old: bool,
    pub(crate) optional_old: bool,
}

/// Compiles all rules of a schema.
pub(crate) fn compile(raw: Raw<'_>, node: &mut Node, path: &str) -> Vec<Problem> {
    let mut compiler = Compiler { problems: Vec::new(), total: 0, expensive: Vec::new() };
    let decl = cel::declare(raw, true);
    let place = Place { path: path.to_string(), around: Around::default(), cardinality: Some(1), is_root: true };
    compiler.level(raw, node, decl, &place);
    if compiler.total > MOST_PER_SCHEMA {
        let words = "contributed to estimated rule cost total exceeding cost limit for entire OpenAPIv3 schema";
        compiler.expensive.sort_by_key(|(_, cost)| std::cmp::Reverse(*cost));
        compiler.expensive.truncate(4);
        compiler.problems.extend(compiler.expensive.iter().map(|(path, _)| Problem::forbidden(path, words)));
        let name = "x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema";
        compiler.problems.push(Problem::forbidden(path, too_expensive(name, compiler.total, MOST_PER_SCHEMA)));
    }
    compiler.problems
}

struct Compiler {
    problems: Vec<Problem>,
    total: u64,
    expensive: Vec<(String, u64)>,
}

struct Place {
    path: String,
    around: Around,
    /// The maximum number of values of this level in an object, if it is bounded.
    cardinality: Option<u64>,
    is_root: bool,
}

impl Compiler {
    fn level(&mut self, raw: Raw<'_>, node: &mut Node, decl: Option<Rc<Decl>>, place: &Place) {
        let factor = most_elements(raw);
        let cardinality = place.cardinality.zip(factor).map(|(outer, factor)| outer.saturating_mul(factor));
        for (name, child) in &mut node.properties {
            let Some(written) = raw.property(name) else { continue };
            let child_decl = cel::escape(name).and_then(|escaped| decl.as_ref()?.field(&escaped));
            let child_place = Place {
                path: format!("{}.properties[{name}]", place.path),
                around: around_property(raw, name, &place.around, place.is_root, &place.path),
                cardinality,
                is_root: false,
            };
            self.level(written, child, child_decl, &child_place);
            node.below.rules |= child.below.rules;
        }
        let element = || decl.as_ref().and_then(|decl| decl.element());
        if let (Some(written), Additional::Schema(child)) = (raw.additional_schema(), &mut node.additional) {
            let path = format!("{}.additionalProperties", place.path);
            self.level(
                written,
                child,
                element(),
                &Place { path, around: place.around.clone(), cardinality, is_root: false },
            );
            node.below.rules |= child.below.rules;
        }
        if let (Some(written), Some(child)) = (raw.item(), &mut node.items) {
            let around = around_items(raw, &place.around, &place.path);
            let path = format!("{}.items", place.path);
            self.level(written, child, element(), &Place { path, around, cardinality, is_root: false });
            node.below.rules |= child.below.rules;
        }
        let rules = raw.rules();
        if rules.is_empty() {
            return;
        }
        node.below.rules = true;
        let embedded = place.is_root || raw.flag("x-kubernetes-embedded-resource");
        let Some(decl) = decl.or_else(|| cel::declare(raw, embedded)) else {
            let words = "internal error: failed to construct type information for x-kubernetes-validations rules: unable to convert structural schema to CEL declarations";
            self.problems.push(Problem::internal(format!("{}.x-kubernetes-validations", place.path), words));
            return;
        };
        node.rules =
            rules.iter().enumerate().filter_map(|(index, rule)| self.rule(raw, *rule, index, &decl, place)).collect();
    }

    fn rule(
        &mut self,
        raw: Raw<'_>,
        rule: Raw<'_>,
        index: usize,
        decl: &Rc<Decl>,
        place: &Place,
    ) -> Option<ValidationRule> {
        let path = format!("{}.x-kubernetes-validations[{index}]", place.path);
        let optional_old = rule.flag("optionalOldSelf");
        let ty = decl.ty();
        let old_type = if optional_old { Type::Optional(Rc::new(ty.clone())) } else { ty.clone() };
        let variables = [
            Variable { name: "self", ty, decl: Some(decl.clone()) },
            Variable { name: "oldSelf", ty: old_type, decl: Some(decl.clone()) },
        ];
        let program = match Program::compile_typed(rule.text("rule"), &variables) {
            Ok(program) if program.yields_bool() => program,
            Ok(_) => {
                self.broken(rule, format!("{path}.rule"), "cel expression must evaluate to a bool".to_string());
                return None;
            }
            Err(fault) => {
                let words = match fault {
                    CompileError::Compilation(text) => format!("compilation failed: {text}"),
                    CompileError::Instantiation(text) => format!("program instantiation failed: {text}"),
                };
                self.broken(rule, format!("{path}.rule"), words);
                return None;
            }
        };
        let times = place.cardinality.unwrap_or(LARGEST_REQUEST / (decl.min_size + 1));
        self.charge(format!("{path}.rule"), "estimated rule cost", program.max_cost.saturating_mul(times));
        let message_program = self.message(rule, &path, &variables);
        let uses_old = program.used.get(1).copied().unwrap_or(false);
        if uses_old {
            if let Some(above) = &place.around.uncorrelatable {
                let words =
                    format!("oldSelf cannot be used on the uncorrelatable portion of the schema within {above}");
                self.problems.push(Problem::invalid(format!("{path}.rule"), rule.text("rule"), words));
            }
        } else if let Some(set) = rule.get("optionalOldSelf") {
            let words = "may not be set if oldSelf is not used in rule";
            self.problems.push(Problem::invalid(format!("{path}.optionalOldSelf"), set.clone(), words));
        }
        let shown_path =
            field_path(rule.text("fieldPath"), raw, Brackets::Allowed).map_or(String::new(), |(shown, _)| shown);
        Some(ValidationRule {
            program,
            text: rule.text("rule").into(),
            message: rule.text("message").into(),
            message_program,
            reason: rule.text("reason").into(),
            field_path: shown_path.into(),
            uses_old,
            optional_old,
        })
    }

    fn message(&mut self, rule: Raw<'_>, path: &str, variables: &[Variable]) -> Option<Program> {
        let text = rule.text("messageExpression");
        if text.is_empty() {
            return None;
        }
        let place = format!("{path}.messageExpression");
        match Program::compile_typed(text, variables) {
            Ok(program) if program.yields_text() => {
                self.charge(place, "estimated messageExpression cost", program.max_cost);
                Some(program)
            }
            Ok(_) => {
                self.broken(rule, place, "messageExpression must evaluate to a string".to_string());
                None
            }
            Err(fault) => {
                let words = match fault {
                    CompileError::Compilation(text) => format!("messageExpression compilation failed: {text}"),
                    CompileError::Instantiation(text) => format!("messageExpression instantiation failed: {text}"),
                };
                self.broken(rule, place, words);
                None
            }
        }
    }

    fn charge(&mut self, path: String, name: &str, cost: u64) {
        if cost > MOST_PER_RULE {
            self.problems.push(Problem::forbidden(&path, too_expensive(name, cost, MOST_PER_RULE)));
        }
        self.total = self.total.saturating_add(cost);
        if cost >= MOST_PER_SCHEMA / 100 {
            self.expensive.push((path, cost));
        }
    }

    /// The message contains the whole rule, with its fields in Kubernetes' order.
    fn broken(&mut self, rule: Raw<'_>, path: String, detail: String) {
        let show = |name: &str| {
            let mut text = String::new();
            let empty = Value::String(String::new());
            restow_apimachinery::go_syntax::write_json(rule.get(name).unwrap_or(&empty), &mut text);
            text
        };
        let nullable = |name: &str| if rule.get(name).is_some() { show(name) } else { "null".to_string() };
        let shown = format!(
            "{{\"Rule\":{},\"Message\":{},\"MessageExpression\":{},\"Reason\":{},\"FieldPath\":{},\"OptionalOldSelf\":{}}}",
            show("rule"),
            show("message"),
            show("messageExpression"),
            nullable("reason"),
            show("fieldPath"),
            nullable("optionalOldSelf"),
        );
        self.problems.push(Problem::invalid_omitted(path, format!("{shown}: {detail}")));
    }
}

/// The maximum number of items of a level; `None` if it is not bounded.
fn most_elements(raw: Raw<'_>) -> Option<u64> {
    let bound = |keyword| raw.integer(keyword).map(|limit| u64::try_from(limit).unwrap_or(0));
    match raw.kind() {
        "object" if raw.additional_properties().is_some() => bound("maxProperties"),
        "array" => bound("maxItems"),
        _ => Some(1),
    }
}

fn too_expensive(name: &str, cost: u64, limit: u64) -> String {
    let factor = cost as f64 / limit as f64;
    let factor = if factor > 100.0 {
        "more than 100x".to_string()
    } else if factor < 1.5 {
        format!("{factor:.6}x")
    } else {
        format!("{factor:.1}x")
    };
    format!(
        "{name} exceeds budget by factor of {factor} (try simplifying the rule, or adding maxItems, maxProperties, and \
         maxLength where arrays, maps, and strings are declared)"
    )
}
