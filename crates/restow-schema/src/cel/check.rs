//! Checking an expression: names are resolved, types are found, and the worst cost is estimated, all in one pass.
//!
//! The estimates follow those of Kubernetes step by step, because a CRD whose rules are too expensive is refused
//! by them. A size is known from a literal, from what the schema says of the value at that path, or from the type.

use std::rc::Rc;

use super::ast::{Expr, ExprKind, Selection};
use super::code::Code;
use super::cost::{Range, Sized, SizedKind, equality_cost};
use super::eval::Evaluation;
use super::functions;
use super::signatures::Signatures;
use super::source::{ExpressionError, Source};
use super::types::{Bindings, Decl, Type, assignable, join, substitute, unescape};

mod fold;

/// The maximum nesting of types.
const DEEPEST_TYPE: usize = 250;

/// A variable of an expression.
#[derive(Clone, Debug)]
pub(crate) struct Variable {
    pub(crate) name: &'static str,
    pub(crate) ty: Type,
    pub(crate) decl: Option<Rc<Decl>>,
}

/// A checked expression with the type and size of its value.
pub(crate) struct Checked {
    pub(crate) code: Code,
    pub(crate) ty: Type,
    pub(crate) cost: Range,
    pub(crate) size: Option<Range>,
    pub(crate) decl: Option<Rc<Decl>>,
}

struct Local {
    name: String,
    ty: Type,
    size: Option<Range>,
    decl: Option<Rc<Decl>>,
}

/// The state of a check.
pub(crate) struct Checker<'a> {
    variables: &'a [Variable],
    locals: Vec<Local>,
    faults: Vec<ExpressionError>,
    used: Vec<bool>,
    signatures: Rc<Signatures>,
    /// Whether lists may contain values of several types: only as arguments of `format`.
    mixed: bool,
    /// The error of converting a literal that is never valid.
    instantiation: Option<String>,
}

/// The result of a check.
pub(crate) struct CheckResult {
    pub(crate) checked: Checked,
    /// For each variable, whether it is used.
    pub(crate) used: Vec<bool>,
}

/// Why an expression cannot be compiled.
pub(crate) enum CompileError {
    /// The expression is invalid; the message shows the positions.
    Compilation(String),
    /// The expression can never be evaluated.
    Instantiation(String),
}

/// Checks a parsed expression.
pub(crate) fn check(
    source: &Source<'_>,
    expression: &Expr,
    variables: &[Variable],
) -> Result<CheckResult, CompileError> {
    let mut checker = Checker {
        variables,
        locals: Vec::new(),
        faults: Vec::new(),
        used: vec![false; variables.len()],
        signatures: Signatures::table(),
        mixed: false,
        instantiation: None,
    };
    let checked = checker.expression(expression);
    if !checker.faults.is_empty() {
        checker.faults.truncate(20);
        return Err(CompileError::Compilation(source.show(&checker.faults)));
    }
    match checker.instantiation {
        Some(error) => Err(CompileError::Instantiation(error)),
        None => Ok(CheckResult { checked, used: checker.used }),
    }
}

impl Checked {
    fn literal(code: Code, ty: Type, size: u64) -> Checked {
        Checked { code, ty, cost: Range::ZERO, size: Some(Range::exactly(size)), decl: None }
    }

    /// The properties of a value that cost formulas need.
    fn sized(&self) -> Sized {
        let element = match (&self.ty, &self.decl) {
            (Type::List(item), decl) => {
                let element = decl.as_ref().and_then(|decl| decl.element());
                Some((
                    matches!(**item, Type::Text | Type::Bytes),
                    element.map(|element| Range::up_to(element.max_elements)),
                ))
            }
            _ => None,
        };
        let literal = match &self.code {
            Code::Int(number) => Some(*number),
            _ => None,
        };
        let kind = match &self.ty {
            Type::Text => SizedKind::Text,
            Type::Bytes => SizedKind::Bytes,
            Type::Opaque(_) => SizedKind::Opaque,
            _ => SizedKind::Other,
        };
        Sized { size: self.size.unwrap_or(Range::UNKNOWN), element, literal, kind, cost: self.cost }
    }
}

impl Checker<'_> {
    fn fault(&mut self, at: usize, message: String) -> Checked {
        self.faults.push(ExpressionError::new(at, message));
        Checked { code: Code::Null, ty: Type::Dyn, cost: Range::ZERO, size: None, decl: None }
    }

    fn expression(&mut self, expression: &Expr) -> Checked {
        let checked = self.form(expression);
        // Macros nest types without nesting the expression.
        if checked.ty.depth() > DEEPEST_TYPE {
            return self.fault(expression.at, format!("type recursion limit exceeded: {DEEPEST_TYPE}"));
        }
        checked
    }

    fn form(&mut self, expression: &Expr) -> Checked {
        let at = expression.at;
        match &expression.kind {
            ExprKind::Null => Checked::literal(Code::Null, Type::Null, 1),
            ExprKind::Bool(flag) => Checked::literal(Code::Bool(*flag), Type::Bool, 1),
            ExprKind::Int(number) => Checked::literal(Code::Int(*number), Type::Int, 1),
            ExprKind::Uint(number) => Checked::literal(Code::Uint(*number), Type::Uint, 1),
            ExprKind::Double(number) => Checked::literal(Code::Double(*number), Type::Double, 1),
            ExprKind::Text(text) => {
                let size = text.chars().count() as u64;
                Checked::literal(Code::Text(text.as_str().into()), Type::Text, size)
            }
            ExprKind::Bytes(bytes) => {
                Checked::literal(Code::Bytes(bytes.as_slice().into()), Type::Bytes, bytes.len() as u64)
            }
            ExprKind::Ident(name) => self.ident(at, name),
            ExprKind::Select { operand, field, presence } => self.select(at, operand, field, *presence),
            ExprKind::Call { function, target, arguments } => self.call(at, function, target.as_deref(), arguments),
            ExprKind::List(items) => self.list(at, items),
            ExprKind::Map(entries) => self.map(at, entries),
            ExprKind::Fold(fold) => self.fold(at, fold),
            ExprKind::OptionalMap { target, variable, body, flat } => {
                self.optional_map(at, target, variable, body, *flat)
            }
        }
    }

    fn ident(&mut self, at: usize, name: &str) -> Checked {
        if let Some(place) = self.locals.iter().rposition(|local| local.name == name) {
            let local = &self.locals[place];
            return Checked {
                code: Code::Local(place),
                ty: local.ty.clone(),
                cost: Range::ONE,
                size: local.size,
                decl: local.decl.clone(),
            };
        }
        if let Some(place) = self.variables.iter().position(|variable| variable.name == name) {
            self.used[place] = true;
            let variable = &self.variables[place];
            let (ty, decl) = (variable.ty.clone(), variable.decl.clone());
            let size = size_of(decl.as_deref(), &ty);
            return Checked { code: Code::Variable(place), ty, cost: Range::ONE, size, decl };
        }
        const TYPES: &[&str] =
            &["bool", "bytes", "double", "int", "list", "map", "null_type", "string", "type", "uint"];
        if let Some(name) = TYPES.iter().find(|known| **known == name) {
            return Checked { cost: Range::ONE, ..Checked::literal(Code::Type(name), Type::OfTypes, 1) };
        }
        self.fault(at, format!("undeclared reference to '{name}' (in container '')"))
    }

    fn select(&mut self, at: usize, operand: &Expr, field: &str, presence: Selection) -> Checked {
        if let Some(name) = dotted(operand).filter(|_| presence == Selection::Needed) {
            const TYPES: &[&str] = &["google.protobuf.Timestamp", "google.protobuf.Duration"];
            let full = format!("{name}.{field}");
            if let Some(name) = TYPES.iter().find(|known| **known == full) {
                return Checked { cost: Range::ONE, ..Checked::literal(Code::Type(name), Type::OfTypes, 1) };
            }
            // A variable may have a dot in its name.
            if self.variables.iter().any(|variable| variable.name == full) {
                return self.ident(at, &full);
            }
        }
        let operand = self.expression(operand);
        // A selection from an optional is an optional again.
        let (inner, was_optional) = match &operand.ty {
            Type::Optional(inner) => (inner.as_ref().clone(), true),
            other => (other.clone(), false),
        };
        let (ty, name, decl) = match &inner {
            Type::Object(object) => match object.field(field) {
                Some(decl) => (decl.ty(), unescape(field), Some(decl)),
                None => return self.fault(at, format!("undefined field '{field}'")),
            },
            Type::Map(key, value) if assignable(key, &Type::Text, &mut Bindings::default()) => {
                (value.as_ref().clone(), field.to_string(), None)
            }
            Type::Dyn => (Type::Dyn, field.to_string(), None),
            other => return self.fault(at, format!("type '{other}' does not support field selection")),
        };
        let step = match (presence, &inner) {
            (Selection::Tested, _) => Range::ZERO,
            (_, Type::Map(..) | Type::Object(_)) => Range::ONE,
            _ => Range::ZERO,
        };
        let size = size_of(decl.as_deref(), &ty);
        let ty = match presence {
            Selection::Tested => Type::Bool,
            _ if was_optional || presence == Selection::Optional => Type::Optional(Rc::new(ty)),
            _ => ty,
        };
        let code = Code::Select { operand: Box::new(operand.code), field: name.into(), presence };
        Checked {
            code,
            size: if presence == Selection::Tested { Some(Range::ONE) } else { size },
            ty,
            cost: operand.cost.add(step),
            decl,
        }
    }

    fn list(&mut self, at: usize, items: &[(Expr, bool)]) -> Checked {
        let mut cost = Range::exactly(10);
        let mut item_type: Option<Type> = None;
        let mut codes = Vec::with_capacity(items.len());
        for (item, optional) in items {
            let checked = self.expression(item);
            cost = cost.add(checked.cost);
            let ty = match (&checked.ty, optional) {
                (Type::Optional(inner), true) => inner.as_ref().clone(),
                (ty, _) => ty.clone(),
            };
            item_type = Some(self.aggregate(item.at, item_type, ty));
            codes.push((checked.code, *optional));
        }
        let _ = at;
        Checked {
            code: Code::List(codes.into()),
            ty: Type::List(Rc::new(item_type.unwrap_or(Type::Dyn))),
            cost,
            size: Some(Range::exactly(items.len() as u64)),
            decl: None,
        }
    }

    fn map(&mut self, _at: usize, entries: &[(Expr, Expr, bool)]) -> Checked {
        let mut cost = Range::exactly(30);
        let (mut key_type, mut value_type) = (None, None);
        let mut codes = Vec::with_capacity(entries.len());
        for (key, value, optional) in entries {
            let checked_key = self.expression(key);
            let checked = self.expression(value);
            cost = cost.add(checked_key.cost).add(checked.cost);
            let ty = match (&checked.ty, optional) {
                (Type::Optional(inner), true) => inner.as_ref().clone(),
                (ty, _) => ty.clone(),
            };
            // In CEL, keys of other types fail during evaluation. Types never branch because of them.
            if checked_key.ty.depth() > 1 {
                self.fault(key.at, format!("unsupported key type: {}", checked_key.ty));
                continue;
            }
            key_type = Some(self.aggregate(key.at, key_type, checked_key.ty.clone()));
            value_type = Some(self.aggregate(value.at, value_type, ty));
            codes.push((checked_key.code, checked.code, *optional));
        }
        Checked {
            code: Code::Map(codes.into()),
            ty: Type::Map(Rc::new(key_type.unwrap_or(Type::Dyn)), Rc::new(value_type.unwrap_or(Type::Dyn))),
            cost,
            size: Some(Range::exactly(entries.len() as u64)),
            decl: None,
        }
    }

    /// The type of a list or map literal, whose values all have one type.
    fn aggregate(&mut self, at: usize, so_far: Option<Type>, next: Type) -> Type {
        match so_far {
            None => next,
            Some(so_far) => match join(&so_far, &next) {
                Some(joined) => joined,
                None if self.mixed => Type::Dyn,
                None => {
                    self.fault(at, format!("expected type '{so_far}' but found '{next}'"));
                    so_far
                }
            },
        }
    }

    fn call(&mut self, at: usize, function: &str, target: Option<&Expr>, arguments: &[Expr]) -> Checked {
        // `sets.contains(a, b)` is written like a call on a value, but `sets` is a part of the name.
        let namespaced = target.and_then(dotted).map(|name| format!("{name}.{function}"));
        let namespaced = namespaced.filter(|name| {
            let first = name.split('.').next().unwrap_or_default();
            !self.signatures.of(name).is_empty() && !self.locals.iter().any(|local| local.name == first)
        });
        let (name, target) = match &namespaced {
            Some(name) => (name.as_str(), None),
            None => (function, target),
        };
        if target.is_none() && matches!(name, "_&&_" | "_||_" | "_?_:_") {
            return self.logic(at, name, arguments);
        }
        let mut checked: Vec<Checked> = Vec::with_capacity(arguments.len() + 1);
        let mixed = std::mem::replace(&mut self.mixed, name == "format");
        for argument in target.into_iter().chain(arguments) {
            checked.push(self.expression(argument));
        }
        self.mixed = mixed;
        let Some(ty) = self.resolve(name, target.is_some(), &checked) else {
            return self.no_overload(at, name, target.is_some(), &checked);
        };
        let places: Vec<usize> = arguments.iter().map(|argument| argument.at).collect();
        if let Some(fault) = literal_fault(name, &checked, &places) {
            return self.fault(fault.at, fault.message);
        }
        self.build_call(at, name, target.is_some(), checked, ty)
    }

    /// The type of a call's result: the join of all matching signatures.
    fn resolve(&self, name: &str, is_member: bool, arguments: &[Checked]) -> Option<Type> {
        let mut result: Option<Type> = None;
        for signature in self.signatures.of(name) {
            if signature.is_member != is_member || signature.parameters.len() != arguments.len() {
                continue;
            }
            let mut bindings = Bindings::default();
            let pairs = signature.parameters.iter().zip(arguments);
            if !pairs.into_iter().all(|(expected, actual)| assignable(expected, &actual.ty, &mut bindings)) {
                continue;
            }
            let ty = substitute(&signature.result, &bindings);
            result = Some(match result {
                None => ty,
                Some(earlier) if std::mem::discriminant(&earlier) == std::mem::discriminant(&ty) => earlier,
                Some(_) => Type::Dyn,
            });
        }
        result
    }

    fn no_overload(&mut self, at: usize, name: &str, is_member: bool, arguments: &[Checked]) -> Checked {
        if self.signatures.of(name).is_empty() {
            return self.fault(at, format!("undeclared reference to '{name}' (in container '')"));
        }
        let types: Vec<String> = arguments.iter().map(|argument| argument.ty.to_string()).collect();
        let applied = match types.split_first() {
            Some((receiver, rest)) if is_member => format!("{receiver}.({})", rest.join(", ")),
            _ => format!("({})", types.join(", ")),
        };
        self.fault(at, format!("found no matching overload for '{name}' applied to '{applied}'"))
    }

    fn build_call(&mut self, at: usize, name: &str, is_member: bool, mut checked: Vec<Checked>, ty: Type) -> Checked {
        let sized: Vec<Sized> = checked.iter().map(Checked::sized).collect();
        let estimate = super::cost::estimate(name, is_member, &sized);
        let arguments_cost = sized.iter().fold(Range::ZERO, |sum, argument| sum.add(argument.cost));
        let decl = match (name, checked.first()) {
            ("_[_]" | "_[?_]", Some(container)) => container.decl.as_ref().and_then(|decl| decl.element()),
            ("dyn" | "oldSelf", Some(argument)) => argument.decl.clone(),
            _ => None,
        };
        let cost = match name {
            "_==_" | "_!=_" | "_<_" | "_<=_" | "_>_" | "_>=_" => equality_cost(&sized).add(arguments_cost),
            _ => estimate.cost.add(arguments_cost),
        };
        let size = estimate.size.or_else(|| size_of(decl.as_deref(), &ty));
        if let ("matches", Some(Code::Text(pattern))) = (name, checked.get(1).map(|pattern| &pattern.code))
            && let Ok(regex) = crate::pattern::compile(pattern)
        {
            let pattern_length = pattern.chars().count() as u64;
            let text = Box::new(checked.swap_remove(0).code);
            return Checked { code: Code::Matches { text, regex, pattern_length }, ty, cost, size, decl };
        }
        if matches!(name, "int" | "uint" | "double" | "bool" | "string" | "bytes")
            && let Some(error) = folding_error(name, checked.first().map(|argument| &argument.code))
        {
            self.instantiation.get_or_insert(error);
        }
        let Some((name, native)) = functions::find(name, is_member) else {
            return self.fault(at, format!("undeclared reference to '{name}' (in container '')"));
        };
        let arguments = checked.into_iter().map(|argument| argument.code).collect();
        Checked { code: Code::Call { native, name, arguments }, ty, cost, size, decl }
    }

    fn logic(&mut self, at: usize, name: &str, arguments: &[Expr]) -> Checked {
        let mut checked: Vec<Checked> = arguments.iter().map(|argument| self.expression(argument)).collect();
        let Some(ty) = self.resolve(name, false, &checked) else { return self.no_overload(at, name, false, &checked) };
        if name == "_?_:_" {
            let (Some(no), Some(yes), Some(condition)) = (checked.pop(), checked.pop(), checked.pop()) else {
                return self.fault(at, "internal error".to_string());
            };
            let size = yes.size.unwrap_or(Range::UNKNOWN).union(no.size.unwrap_or(Range::UNKNOWN));
            let cost = condition.cost.add(yes.cost.union(no.cost));
            let code = Code::If(Box::new((condition.code, yes.code, no.code)));
            return Checked { code, ty, cost, size: Some(size), decl: None };
        }
        let (Some(right), Some(left)) = (checked.pop(), checked.pop()) else {
            return self.fault(at, "internal error".to_string());
        };
        let cost = Range { min: left.cost.min, max: left.cost.add(right.cost).max };
        let (left, right) = (Box::new(left.code), Box::new(right.code));
        let code = if name == "_&&_" { Code::And(left, right) } else { Code::Or(left, right) };
        Checked { code, ty, cost, size: Some(Range::ONE), decl: None }
    }

    fn optional_map(&mut self, at: usize, target: &Expr, variable: &str, body: &Expr, flat: bool) -> Checked {
        let target = self.expression(target);
        let inner = match &target.ty {
            Type::Optional(inner) => inner.as_ref().clone(),
            Type::Dyn => Type::Dyn,
            other => return self.fault(at, format!("found no matching overload for 'optMap' applied to '{other}'")),
        };
        // The content of an optional has no position in the schema.
        let size = size_of(None, &inner);
        self.locals.push(Local { name: variable.to_string(), ty: inner, size, decl: None });
        let body = self.expression(body);
        self.locals.pop();
        let ty = if flat { body.ty } else { Type::Optional(Rc::new(body.ty)) };
        let cost = target.cost.add(body.cost).add(Range::exactly(12));
        let code = Code::OptionalMap { target: Box::new(target.code), body: Box::new(body.code), flat };
        Checked { code, ty, cost, size: body.size, decl: None }
    }
}

/// Why a conversion of a literal is never valid.
fn folding_error(name: &str, argument: Option<&Code>) -> Option<String> {
    let literal = argument.filter(|code| {
        matches!(code, Code::Text(_) | Code::Int(_) | Code::Uint(_) | Code::Double(_) | Code::Bool(_) | Code::Bytes(_))
    })?;
    let (_, native) = functions::find(name, false)?;
    let value = Evaluation::new(&[], 100).run(literal).ok()?;
    native(&[value]).err().map(|error| error.to_string())
}

/// The error of a literal argument: reported now and not in every evaluation.
fn literal_fault(name: &str, checked: &[Checked], places: &[usize]) -> Option<ExpressionError> {
    let text = |index: usize| match checked.get(index).map(|argument| &argument.code) {
        Some(Code::Text(text)) => Some(text.as_ref()),
        _ => None,
    };
    let last = places.last().copied()?;
    let sound = match name {
        "matches" | "find" | "findAll" => crate::pattern::compile(text(1)?).is_ok(),
        "duration" => restow_apimachinery::go_syntax::parse_duration(text(0)?).is_some(),
        "timestamp" => super::time::parse_timestamp(text(0)?).is_some(),
        "format" => {
            let Some(Code::List(given)) = checked.get(1).map(|list| &list.code) else { return None };
            let expected = text(0)?.replace("%%", "").matches('%').count();
            if given.len() <= expected {
                return None;
            }
            let words =
                format!("too many arguments supplied to string.format (expected {expected}, got {})", given.len());
            return Some(ExpressionError::new(last, words));
        }
        _ => return None,
    };
    let name = if name.starts_with("find") { "matches" } else { name };
    (!sound).then(|| ExpressionError::new(last, format!("invalid {name} argument")))
}

/// The size of a value: from its position in the schema, or from its type.
fn size_of(decl: Option<&Decl>, ty: &Type) -> Option<Range> {
    if let Some(decl) = decl {
        return Some(Range::up_to(decl.max_elements));
    }
    let mut ty = ty;
    while let Type::Optional(inner) = ty {
        ty = inner;
    }
    let is_scalar = matches!(ty, Type::Bool | Type::Int | Type::Uint | Type::Double | Type::Duration | Type::Timestamp);
    is_scalar.then_some(Range::ONE)
}

/// `a.b.c` as one name.
fn dotted(expression: &Expr) -> Option<String> {
    match &expression.kind {
        ExprKind::Ident(name) => Some(name.clone()),
        ExprKind::Select { operand, field, presence: Selection::Needed } => {
            Some(format!("{}.{field}", dotted(operand)?))
        }
        _ => None,
    }
}
