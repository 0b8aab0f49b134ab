//! Compiled expressions.

use serde_json::{Map, Value};
use std::rc::Rc;

use super::check::{CompileError, Variable, check};
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
    /// The maximum cost, if it is known.
    pub max_cost: u64,
}

/// The type of an expression's result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResultType {
    Bool,
    Text,
    Dyn,
    Other,
}

/// The result of an evaluation and its cost.
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
            CompileError::Compilation(text) | CompileError::Instantiation(text) => text,
        })
    }

    pub(crate) fn compile_typed(text: &str, variables: &[Variable]) -> Result<Program, CompileError> {
        Program::compile_all(text, variables, Literals::Plain)
    }

    fn compile_all(text: &str, variables: &[Variable], literals: Literals) -> Result<Program, CompileError> {
        let source = Source { text };
        let expression = parse(&source, literals).map_err(|fault| CompileError::Compilation(source.show(&[fault])))?;
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

    /// CEL's name for the type of the result; `dyn` if it is not known.
    pub fn result_type(&self) -> &str {
        &self.result_type
    }

    /// Whether the expression may return a bool, by its types.
    pub fn yields_bool(&self) -> bool {
        matches!(self.result, ResultType::Bool)
    }

    /// Whether the expression may return a text, by its types.
    pub fn yields_text(&self) -> bool {
        matches!(self.result, ResultType::Text)
    }

    /// Evaluates the expression. The values are in the order of the variables that it was compiled with; `None` means
    /// that a variable is absent.
    pub fn evaluate(&self, values: &[Option<&Value>], limit: u64) -> Evaluated {
        let variables: Vec<Option<Val<'_>>> =
            values.iter().map(|value| value.map(|value| Val::from_json(value, None))).collect();
        let mut evaluation = Evaluation::new(&variables, limit);
        let value = evaluation.run(&self.code).and_then(|value| to_json(&value));
        Evaluated { value, cost: evaluation.cost() }
    }

    /// Evaluates an expression that may use `authorizer`. Together with `authorizer.requestResource`, which is given
    /// here, it comes after the values.
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

    /// The expression, for evaluation with other values.
    pub(crate) fn code(&self) -> &Code {
        &self.code
    }
}

/// The maximum size of a result: bytes of texts, and some for each value.
const LARGEST_RESULT: usize = 16 << 20;
/// The size of a value without its text.
const PER_VALUE: usize = 8;
/// The maximum nesting of a result: it may be part of another one.
const DEEPEST_RESULT: usize = 250;

fn to_json(value: &Val<'_>) -> Result<Value, EvalError> {
    convert(value, DEEPEST_RESULT, &mut LARGEST_RESULT.clone())
}

/// Converts a value to JSON. Values are shared and JSON is not, so the size is limited.
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
