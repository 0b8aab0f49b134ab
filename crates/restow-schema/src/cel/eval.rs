//! Evaluates checked expressions with a cost limit.

use std::rc::Rc;

use super::ast::{FoldKind, Selection};
use super::code::{Code, FoldCode};
use super::collection::{Entries, shallow};
use super::cost;
use super::library::authorizer::{self, Authorizer};
use super::value::{Text, Val};

/// Why an evaluation failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EvalError {
    /// A function was called with arguments of the wrong types.
    #[error("no such overload")]
    NoSuchOverload,
    /// The evaluation exceeded its cost limit.
    #[error("operation cancelled: actual cost limit exceeded")]
    CostExceeded,
    /// Another error, with CEL's message.
    #[error("{0}")]
    Failed(String),
}

impl EvalError {
    /// An error with CEL's message.
    pub(crate) fn failed(message: impl Into<String>) -> EvalError {
        EvalError::Failed(message.into())
    }
}

/// One evaluation.
pub(crate) struct Evaluation<'a> {
    variables: &'a [Option<Val<'a>>],
    locals: Vec<Val<'a>>,
    cost: u64,
    limit: u64,
    /// Decides authorization checks.
    authorizer: Option<&'a dyn Authorizer>,
}

type Result<'a> = std::result::Result<Val<'a>, EvalError>;

impl<'a> Evaluation<'a> {
    /// An evaluation with these variables and this cost limit.
    pub(crate) fn new(variables: &'a [Option<Val<'a>>], limit: u64) -> Evaluation<'a> {
        Evaluation { variables, locals: Vec::new(), cost: 0, limit, authorizer: None }
    }

    /// The same, with an authorizer.
    pub(crate) fn asking(self, authorizer: &'a dyn Authorizer) -> Evaluation<'a> {
        Evaluation { authorizer: Some(authorizer), ..self }
    }

    /// The cost so far.
    pub(crate) fn cost(&self) -> u64 {
        self.cost
    }

    fn spend(&mut self, amount: u64) -> std::result::Result<(), EvalError> {
        self.cost = self.cost.saturating_add(amount);
        if self.cost > self.limit { Err(EvalError::CostExceeded) } else { Ok(()) }
    }

    /// The value of an expression.
    pub(crate) fn run(&mut self, code: &'a Code) -> Result<'a> {
        match code {
            Code::Null => Ok(Val::Null),
            Code::Bool(flag) => Ok(Val::Bool(*flag)),
            Code::Int(number) => Ok(Val::Int(*number)),
            Code::Uint(number) => Ok(Val::Uint(*number)),
            Code::Double(number) => Ok(Val::Double(*number)),
            Code::Text(text) => Ok(Val::Text(Text::Borrowed(text))),
            Code::Bytes(bytes) => Ok(Val::Bytes(Rc::from(bytes.as_ref()))),
            Code::Type(name) => Ok(Val::Type(name)),
            Code::Variable(place) => {
                self.spend(1)?;
                let value = self.variables.get(*place).cloned().flatten();
                value.ok_or_else(|| EvalError::failed("no such attribute(s)"))
            }
            Code::Local(place) => {
                self.spend(1)?;
                self.locals.get(*place).cloned().ok_or_else(|| EvalError::failed("no such attribute(s)"))
            }
            Code::Select { operand, field, presence } => self.select(operand, field, *presence),
            Code::And(left, right) => self.logic(left, right, false),
            Code::Or(left, right) => self.logic(left, right, true),
            Code::If(parts) => match self.run(&parts.0)? {
                Val::Bool(true) => self.run(&parts.1),
                Val::Bool(false) => self.run(&parts.2),
                _ => Err(EvalError::NoSuchOverload),
            },
            Code::Matches { text, regex, pattern_length } => match self.run(text)? {
                Val::Text(text) => {
                    let sizes = |index| if index == 0 { text.as_str().len() as u64 } else { *pattern_length };
                    self.spend(cost::actual("matches", &sizes, 2))?;
                    Ok(Val::Bool(regex.is_match(text.as_str())))
                }
                _ => Err(EvalError::NoSuchOverload),
            },
            Code::Call { native, name, arguments } => {
                let mut values = Vec::with_capacity(arguments.len());
                for argument in arguments {
                    values.push(self.run(argument)?);
                }
                let sizes = |index: usize| values.get(index).map_or(1, Val::size);
                self.spend(cost::actual(name, &sizes, values.len()))?;
                if let ("check", Some(authorizer)) = (*name, self.authorizer) {
                    let question = authorizer::check(&values).ok_or(EvalError::NoSuchOverload)?;
                    return Ok(authorizer::decision(authorizer.decide(&question)));
                }
                // CEL names the function only if it checks the type of the single argument before the call.
                let result = native(&values).map_err(|error| match error {
                    EvalError::NoSuchOverload if *name == "size" => EvalError::failed("no such overload: size"),
                    error => error,
                })?;
                self.spend(cost::of_result(name, || result.size()))?;
                shallow(result)
            }
            Code::List(items) => self.list(items),
            Code::Map(entries) => self.map(entries),
            Code::Fold(fold) => self.fold(fold),
            Code::OptionalMap { target, body, flat } => match self.run(target)? {
                Val::Optional(None) => Ok(Val::Optional(None)),
                Val::Optional(Some(inner)) => {
                    self.locals.push(inner.as_ref().clone());
                    let value = self.run(body);
                    self.locals.pop();
                    if *flat { value } else { value.map(Val::some).and_then(shallow) }
                }
                _ => Err(EvalError::NoSuchOverload),
            },
        }
    }

    fn select(&mut self, operand: &'a Code, field: &str, presence: Selection) -> Result<'a> {
        let operand = self.run(operand)?;
        let (container, was_optional) = match operand {
            Val::Optional(None) if presence == Selection::Tested => return Ok(Val::Bool(false)),
            Val::Optional(None) => return Ok(Val::Optional(None)),
            Val::Optional(Some(inner)) => (inner.as_ref().clone(), true),
            other => (other, false),
        };
        let is_map = matches!(container, Val::JsonMap(..) | Val::Map(_));
        let found = container.field(field);
        match (presence, found) {
            (Selection::Tested, found) if is_map => Ok(Val::Bool(found.is_some())),
            (_, Some(value)) => {
                self.spend(1)?;
                if was_optional || presence == Selection::Optional { Ok(Val::some(value)) } else { Ok(value) }
            }
            (Selection::Optional, None) if is_map => Ok(Val::Optional(None)),
            (Selection::Needed, None) if is_map && was_optional => Ok(Val::Optional(None)),
            (Selection::Needed, None) if is_map => Err(EvalError::failed(format!("no such key: {field}"))),
            _ => Err(EvalError::NoSuchOverload),
        }
    }

    /// `&&` and `||`: one side can determine the result, even if the other one fails.
    fn logic(&mut self, left: &'a Code, right: &'a Code, decisive: bool) -> Result<'a> {
        let left = self.run(left);
        match &left {
            Ok(Val::Bool(flag)) if *flag == decisive => return left,
            Err(EvalError::CostExceeded) => return left,
            _ => {}
        }
        let right = self.run(right);
        match (&left, &right) {
            (_, Ok(Val::Bool(flag))) if *flag == decisive => right,
            (_, Err(EvalError::CostExceeded)) => right,
            (Err(_), _) => left,
            (_, Err(_)) => right,
            (Ok(Val::Bool(_)), Ok(Val::Bool(_))) => right,
            _ => Err(EvalError::NoSuchOverload),
        }
    }

    fn list(&mut self, items: &'a [(Code, bool)]) -> Result<'a> {
        self.spend(10)?;
        let mut values = Vec::with_capacity(items.len());
        for (item, optional) in items {
            match (self.run(item)?, optional) {
                (Val::Optional(inner), true) => values.extend(inner.map(|inner| inner.as_ref().clone())),
                (value, _) => values.push(value),
            }
        }
        Val::list(values)
    }

    fn map(&mut self, entries: &'a [(Code, Code, bool)]) -> Result<'a> {
        self.spend(30)?;
        let mut values = Entries::default();
        for (key, value, optional) in entries {
            let key = self.run(key)?;
            let value = match (self.run(value)?, optional) {
                (Val::Optional(None), true) => continue,
                (Val::Optional(Some(inner)), true) => inner.as_ref().clone(),
                (value, _) => value,
            };
            if !values.insert(key, value)? {
                return Err(EvalError::failed("duplicate key"));
            }
        }
        Ok(Val::Map(Rc::new(values)))
    }

    fn fold(&mut self, fold: &'a FoldCode) -> Result<'a> {
        let range = self.run(&fold.range)?;
        let pairs = pairs(&range, fold.two_variables).ok_or(EvalError::NoSuchOverload)?;
        self.spend(match fold.kind {
            FoldKind::Filter | FoldKind::List => 11,
            FoldKind::MapValues | FoldKind::MapEntries => 31,
            _ => 1,
        })?;
        let mut state = FoldState::default();
        for (first, second) in pairs {
            self.spend(match fold.kind {
                FoldKind::All => 3,
                FoldKind::Exists => 4,
                FoldKind::ExistsOne => 2,
                _ => 12,
            })?;
            let locals = self.locals.len();
            self.locals.push(first.clone());
            self.locals.extend(second);
            let outcome = self.fold_step(fold, first, &mut state);
            self.locals.truncate(locals);
            if outcome? {
                break;
            }
        }
        state.finish(fold.kind)
    }

    /// One iteration. Returns whether it determines the result.
    fn fold_step(
        &mut self,
        fold: &'a FoldCode,
        first: Val<'a>,
        state: &mut FoldState<'a>,
    ) -> std::result::Result<bool, EvalError> {
        let holds = match &fold.condition {
            None => true,
            Some(condition) => match self.run(condition) {
                Ok(Val::Bool(holds)) => holds,
                Err(EvalError::CostExceeded) => return Err(EvalError::CostExceeded),
                failed if matches!(fold.kind, FoldKind::All | FoldKind::Exists) => {
                    // A later item may still determine the result. If none does, the error is the result.
                    let error = failed.err().unwrap_or(EvalError::NoSuchOverload);
                    state.failure.get_or_insert(error);
                    return Ok(false);
                }
                Ok(_) => return Err(EvalError::NoSuchOverload),
                Err(error) => return Err(error),
            },
        };
        match fold.kind {
            FoldKind::All if !holds => state.decided = true,
            FoldKind::Exists if holds => state.decided = true,
            FoldKind::ExistsOne if holds => state.count += 1,
            FoldKind::Filter if holds => state.items.push(first),
            FoldKind::List | FoldKind::MapValues | FoldKind::MapEntries if holds => {
                let Some(result) = &fold.result else { return Ok(false) };
                let value = self.run(result)?;
                match fold.kind {
                    FoldKind::List => state.items.push(value),
                    FoldKind::MapValues => state.insert(first, value)?,
                    _ => {
                        for (key, value) in value.entries().ok_or(EvalError::NoSuchOverload)? {
                            state.insert(key, value)?;
                        }
                    }
                }
            }
            _ => {}
        }
        Ok(state.decided)
    }
}

#[derive(Default)]
struct FoldState<'a> {
    decided: bool,
    count: usize,
    items: Vec<Val<'a>>,
    entries: Entries<'a>,
    failure: Option<EvalError>,
}

impl<'a> FoldState<'a> {
    fn insert(&mut self, key: Val<'a>, value: Val<'a>) -> std::result::Result<(), EvalError> {
        if self.entries.insert(key.clone(), value)? {
            return Ok(());
        }
        let key = super::functions::plain(&key)?;
        Err(EvalError::failed(format!("insert failed: key {key} already exists")))
    }

    fn finish(self, kind: FoldKind) -> Result<'a> {
        match kind {
            FoldKind::All | FoldKind::Exists => match (self.decided, self.failure) {
                (false, Some(failure)) => Err(failure),
                (decided, _) => Ok(Val::Bool(decided == (kind == FoldKind::Exists))),
            },
            FoldKind::ExistsOne => Ok(Val::Bool(self.count == 1)),
            FoldKind::List | FoldKind::Filter => Val::list(self.items),
            FoldKind::MapValues | FoldKind::MapEntries => Ok(Val::Map(Rc::new(self.entries))),
        }
    }
}

type Pair<'a> = (Val<'a>, Option<Val<'a>>);

/// The values of the variables of a macro in each iteration.
fn pairs<'a>(range: &Val<'a>, two_variables: bool) -> Option<Vec<Pair<'a>>> {
    if let Some(items) = range.items() {
        let pair = |(index, item): (usize, Val<'a>)| match two_variables {
            true => (Val::Int(index as i64), Some(item)),
            false => (item, None),
        };
        return Some(items.into_iter().enumerate().map(pair).collect());
    }
    let entries = range.entries()?;
    Some(entries.into_iter().map(|(key, value)| (key, two_variables.then_some(value))).collect())
}
