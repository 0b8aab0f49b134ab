//! Compiled expressions.

use serde_json::{Map, Value};
use std::rc::Rc;

use super::check::{CompileFault, Variable, check};
use super::code::Code;
use super::eval::{EvalError, Evaluation};
use super::library::authorizer::{AuthorizationCheck, Authorizer};
use super::library::{AUTHORIZER, Opaque, RESOURCE_CHECK};
use super::parse::{Literals, parse};
use super::source::Source;
use super::types::Type;
use super::value::Val;

/// A compiled expression.
#[derive(Debug)]
pub struct Program {
    code: Code,
    pub(crate) used: Box<[bool]>,
    result: ResultType,
    result_type: String,
    /// The most that it can cost, as far as that is known.
    pub max_cost: u64,
}

/// What an expression was found to yield.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResultType {
    Bool,
    Text,
    Dyn,
    Other,
}

/// What came of an evaluation, and what it cost.
#[derive(Debug)]
pub struct Evaluated {
    /// The value, as JSON.
    pub value: Result<Value, EvalError>,
    /// The cost.
    pub cost: u64,
}

impl Program {
    /// Compiles an expression over variables of which only the names are known, as admission policies have them:
    /// `object`, `oldObject`, `request`, `params`, `namespaceObject`, `variables`, and at the end `authorizer` and
    /// `authorizer.requestResource`, if they are there.
    ///
    /// # Errors
    ///
    /// What is wrong with the expression, with the place in it.
    pub fn compile(text: &str, variables: &[&'static str]) -> Result<Program, String> {
        Program::compile_with(text, variables, Literals::Plain)
    }

    /// Compiles an expression that says what to change: it may make an `Object` or a list of `JSONPatch`.
    ///
    /// # Errors
    ///
    /// What is wrong with the expression, with the place in it.
    pub fn compile_change(text: &str, variables: &[&'static str]) -> Result<Program, String> {
        Program::compile_with(text, variables, Literals::Changes)
    }

    fn compile_with(text: &str, variables: &[&'static str], literals: Literals) -> Result<Program, String> {
        let ty = |name: &str| match name {
            "authorizer" => Type::Opaque(AUTHORIZER),
            "authorizer.requestResource" => Type::Opaque(RESOURCE_CHECK),
            _ => Type::Dyn,
        };
        let variables: Vec<Variable> =
            variables.iter().map(|name| Variable { name, ty: ty(name), decl: None }).collect();
        Program::compile_all(text, &variables, literals).map_err(|fault| match fault {
            CompileFault::Compilation(text) | CompileFault::Instantiation(text) => text,
        })
    }

    pub(crate) fn compile_typed(text: &str, variables: &[Variable]) -> Result<Program, CompileFault> {
        Program::compile_all(text, variables, Literals::Plain)
    }

    fn compile_all(text: &str, variables: &[Variable], literals: Literals) -> Result<Program, CompileFault> {
        let source = Source { text };
        let expression = parse(&source, literals).map_err(|fault| CompileFault::Compilation(source.show(&[fault])))?;
        let outcome = check(&source, &expression, variables)?;
        let result = match outcome.checked.ty {
            Type::Bool => ResultType::Bool,
            Type::Text => ResultType::Text,
            Type::Dyn => ResultType::Dyn,
            _ => ResultType::Other,
        };
        let (result_type, max_cost) = (outcome.checked.ty.to_string(), outcome.checked.cost.max);
        Ok(Program { code: outcome.checked.code, used: outcome.used.into(), result, result_type, max_cost })
    }

    /// The type of what the expression yields, as CEL calls it; `dyn` where that is not known.
    pub fn result_type(&self) -> &str {
        &self.result_type
    }

    /// Whether the expression yields a bool, as far as its types tell.
    pub fn yields_bool(&self) -> bool {
        matches!(self.result, ResultType::Bool)
    }

    /// Whether the expression yields a text, as far as its types tell.
    pub fn yields_text(&self) -> bool {
        matches!(self.result, ResultType::Text)
    }

    /// Evaluates the expression. The values stand in the order of the names that it was compiled with; `None` is a
    /// variable that is not there.
    pub fn evaluate(&self, values: &[Option<&Value>], limit: u64) -> Evaluated {
        let variables: Vec<Option<Val<'_>>> =
            values.iter().map(|value| value.map(|value| Val::from_json(value, None))).collect();
        let mut evaluation = Evaluation::new(&variables, limit);
        let value = evaluation.run(&self.code).and_then(|value| to_json(&value));
        Evaluated { value, cost: evaluation.cost() }
    }

    /// Evaluates an expression that may ask `authorizer`, which together with `authorizer.requestResource`, the question
    /// given here, stands behind the values.
    pub fn evaluate_asking(
        &self,
        values: &[Option<&Value>],
        (authorizer, resource): (&dyn Authorizer, &AuthorizationCheck),
        limit: u64,
    ) -> Evaluated {
        let mut variables: Vec<Option<Val<'_>>> =
            values.iter().map(|value| value.map(|value| Val::from_json(value, None))).collect();
        let asked = [Opaque::Authorizer(AuthorizationCheck::default()), Opaque::Check(resource.clone())];
        variables.extend(asked.map(|value| Some(Val::Opaque(Rc::new(value)))));
        let mut evaluation = Evaluation::new(&variables, limit).asking(authorizer);
        let value = evaluation.run(&self.code).and_then(|value| to_json(&value));
        Evaluated { value, cost: evaluation.cost() }
    }

    /// The expression itself, to be evaluated with values of one's own.
    pub(crate) fn code(&self) -> &Code {
        &self.code
    }
}

/// The most that a result may hold: bytes of texts, and some for each value.
const LARGEST_RESULT: usize = 16 << 20;
/// What a value counts as, besides its text.
const PER_VALUE: usize = 8;
/// How deep a result may be nested: it may be a part of the next one.
const DEEPEST_RESULT: usize = 250;

fn to_json(value: &Val<'_>) -> Result<Value, EvalError> {
    convert(value, DEEPEST_RESULT, &mut LARGEST_RESULT.clone())
}

/// A value as JSON. Values are shared and JSON is not, so it is counted how much there is left to fill.
fn convert(value: &Val<'_>, depth: usize, left: &mut usize) -> Result<Value, EvalError> {
    let depth = depth.checked_sub(1).ok_or(EvalError::CostExceeded)?;
    let fill = |left: &mut usize, amount: usize| {
        *left = left.checked_sub(amount).ok_or(EvalError::CostExceeded)?;
        Ok(())
    };
    fill(left, PER_VALUE)?;
    Ok(match value {
        Val::Null | Val::Optional(None) => Value::Null,
        Val::Bool(flag) => Value::Bool(*flag),
        Val::Int(number) => Value::from(*number),
        Val::Uint(number) => Value::from(*number),
        Val::Double(number) => Value::from(*number),
        Val::Optional(Some(inner)) => return convert(inner, depth, left),
        other => match (other.items(), other.entries()) {
            (Some(items), _) => items.iter().map(|item| convert(item, depth, left)).collect::<Result<_, _>>()?,
            (_, Some(entries)) => {
                let mut fields = Map::new();
                for (key, value) in entries {
                    let key = super::functions::plain(&key)?;
                    fill(left, key.len())?;
                    fields.insert(key, convert(&value, depth, left)?);
                }
                Value::Object(fields)
            }
            _ => {
                let text = super::functions::plain(other)?;
                fill(left, text.len())?;
                Value::String(text)
            }
        },
    })
}
