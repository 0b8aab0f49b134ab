//! The parser of CEL: recursive descent with a depth limit.

use super::ast::{Expr, ExprKind, Fold, FoldKind, Selection};
use super::lex::{Token, TokenKind, tokens};
use super::source::{ExpressionError, Source};
use super::types::RESERVED;

/// The maximum nesting of brackets and similar syntax, each of which takes several levels of recursion.
const DEEPEST: usize = 64;
/// The maximum length of an expression.
const LONGEST: usize = 100_000;

/// The literals besides those of CEL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Literals {
    /// None.
    Plain,
    /// `Object{…}`, `Object.spec{…}` and `JSONPatch{…}` of mutating admission policies.
    Changes,
}

/// Parses an expression.
pub(crate) fn parse(source: &Source<'_>, literals: Literals) -> Result<Expr, ExpressionError> {
    if source.text.len() > LONGEST {
        return Err(ExpressionError::new(
            0,
            format!("expression code point size exceeds limit: size: {}, limit {LONGEST}", source.text.len()),
        ));
    }
    let tokens = tokens(source.text)?;
    let mut parser = Parser { tokens, next: 0, depth: 0, literals };
    let expression = parser.expression()?;
    match parser.peek() {
        TokenKind::End => Ok(expression),
        _ => Err(parser.unexpected("<EOF>")),
    }
}

struct Parser {
    tokens: Vec<Token>,
    next: usize,
    depth: usize,
    literals: Literals,
}

impl Parser {
    fn peek(&self) -> &TokenKind {
        self.tokens.get(self.next).map_or(&TokenKind::End, |token| &token.kind)
    }

    fn at(&self) -> usize {
        self.tokens.get(self.next).or(self.tokens.last()).map_or(0, |token| token.at)
    }

    fn advance(&mut self) -> TokenKind {
        let kind = self.peek().clone();
        self.next += 1;
        kind
    }

    fn eat(&mut self, symbol: &str) -> bool {
        let found = matches!(self.peek(), TokenKind::Symbol(found) if *found == symbol);
        self.next += usize::from(found);
        found
    }

    fn expect(&mut self, symbol: &str) -> Result<(), ExpressionError> {
        if self.eat(symbol) { Ok(()) } else { Err(self.unexpected(&format!("'{symbol}'"))) }
    }

    fn unexpected(&self, expected: &str) -> ExpressionError {
        let found = match self.peek() {
            TokenKind::End => "<EOF>".to_string(),
            TokenKind::Symbol(symbol) => symbol.to_string(),
            TokenKind::Ident(name) => name.clone(),
            _ => self.tokens.get(self.next).map_or(String::new(), |token| token.text.clone()),
        };
        ExpressionError::new(self.at(), format!("Syntax error: mismatched input '{found}' expecting {expected}"))
    }

    fn nested<T>(&mut self, parse: impl FnOnce(&mut Self) -> Result<T, ExpressionError>) -> Result<T, ExpressionError> {
        self.depth += 1;
        if self.depth > DEEPEST {
            return Err(ExpressionError::new(self.at(), format!("expression recursion limit exceeded: {DEEPEST}")));
        }
        let result = parse(self);
        self.depth -= 1;
        result
    }

    fn expression(&mut self) -> Result<Expr, ExpressionError> {
        self.nested(|parser| {
            let condition = parser.binary(0)?;
            let at = parser.at();
            if !parser.eat("?") {
                return Ok(condition);
            }
            let yes = parser.binary(0)?;
            parser.expect(":")?;
            let no = parser.expression()?;
            call(at, "_?_:_", vec![condition, yes, no])
        })
    }

    /// Parses operators of one precedence level and of higher ones.
    fn binary(&mut self, level: usize) -> Result<Expr, ExpressionError> {
        const LEVELS: &[&[(&str, &str)]] = &[
            &[("||", "_||_")],
            &[("&&", "_&&_")],
            &[
                ("<=", "_<=_"),
                ("<", "_<_"),
                (">=", "_>=_"),
                (">", "_>_"),
                ("==", "_==_"),
                ("!=", "_!=_"),
                ("in", "@in"),
            ],
            &[("+", "_+_"), ("-", "_-_")],
            &[("*", "_*_"), ("/", "_/_"), ("%", "_%_")],
        ];
        let Some(operators) = LEVELS.get(level) else { return self.unary() };
        if let [(symbol, function)] = operators {
            return self.chain(level, symbol, function);
        }
        let mut left = self.binary(level + 1)?;
        loop {
            let at = self.at();
            let Some((_, function)) = operators.iter().find(|(symbol, _)| self.eat(symbol)) else { return Ok(left) };
            let right = self.binary(level + 1)?;
            left = call(at, function, vec![left, right])?;
        }
    }

    /// Parses terms between `||` or `&&`. They become a balanced tree, as in CEL, so that long chains are not deep.
    fn chain(&mut self, level: usize, symbol: &str, function: &str) -> Result<Expr, ExpressionError> {
        let first = self.binary(level + 1)?;
        let mut rest = Vec::new();
        loop {
            let at = self.at();
            if !self.eat(symbol) {
                let count = rest.len();
                return balanced(function, first, &mut rest.into_iter(), count);
            }
            rest.push((at, self.binary(level + 1)?));
        }
    }

    fn unary(&mut self) -> Result<Expr, ExpressionError> {
        let at = self.at();
        if self.eat("!") {
            let operand = self.nested(Self::unary)?;
            return call(at, "!_", vec![operand]);
        }
        if self.eat("-") {
            // The smallest integer has no positive counterpart, so the sign is part of the literal.
            match self.peek().clone() {
                TokenKind::Int(magnitude) => {
                    self.next += 1;
                    let value = 0i64.checked_sub_unsigned(magnitude).ok_or_else(|| invalid_int(at))?;
                    return self.member(Expr::new(at, ExprKind::Int(value))?);
                }
                TokenKind::Double(value) => {
                    self.next += 1;
                    return self.member(Expr::new(at, ExprKind::Double(-value))?);
                }
                _ => {}
            }
            let operand = self.nested(Self::unary)?;
            return call(at, "-_", vec![operand]);
        }
        let primary = self.primary()?;
        self.member(primary)
    }

    fn member(&mut self, mut operand: Expr) -> Result<Expr, ExpressionError> {
        loop {
            let at = self.at();
            if self.literals == Literals::Changes && names_change(&operand) && self.eat("{") {
                operand = self.nested(|parser| parser.change(at))?;
                continue;
            }
            if self.eat(".") {
                let optional = self.eat("?");
                let field = match self.advance() {
                    TokenKind::Ident(name) | TokenKind::EscapedIdent(name) => name,
                    TokenKind::Symbol("in") => "in".to_string(),
                    _ => {
                        self.next -= 1;
                        return Err(self.unexpected("IDENTIFIER"));
                    }
                };
                let call_at = self.at();
                operand = if !optional && self.eat("(") {
                    let arguments = self.arguments(")")?;
                    member_call(call_at, operand, field, arguments)?
                } else {
                    let presence = if optional { Selection::Optional } else { Selection::Needed };
                    Expr::new(at, ExprKind::Select { operand: Box::new(operand), field, presence })?
                };
            } else if self.eat("[") {
                let function = if self.eat("?") { "_[?_]" } else { "_[_]" };
                let index = self.expression()?;
                self.expect("]")?;
                operand = call(at, function, vec![operand, index])?;
            } else {
                return Ok(operand);
            }
        }
    }

    /// The fields of an `Object` or a `JSONPatch`. Their types are not checked further.
    fn change(&mut self, at: usize) -> Result<Expr, ExpressionError> {
        let entries = self.items("}", |parser| {
            let optional = parser.eat("?");
            let key_at = parser.at();
            let (TokenKind::Ident(field) | TokenKind::EscapedIdent(field)) = parser.advance() else {
                parser.next -= 1;
                return Err(parser.unexpected("IDENTIFIER"));
            };
            parser.expect(":")?;
            let key = Expr::new(key_at, ExprKind::Text(field))?;
            Ok((key, parser.expression()?, optional))
        })?;
        call(at, "dyn", vec![Expr::new(at, ExprKind::Map(entries))?])
    }

    fn arguments(&mut self, end: &str) -> Result<Vec<Expr>, ExpressionError> {
        let mut arguments = Vec::new();
        while !self.eat(end) {
            if !arguments.is_empty() {
                self.expect(",")?;
            }
            arguments.push(self.expression()?);
        }
        Ok(arguments)
    }

    fn primary(&mut self) -> Result<Expr, ExpressionError> {
        let at = self.at();
        let kind = match self.advance() {
            TokenKind::Int(value) => ExprKind::Int(i64::try_from(value).map_err(|_| invalid_int(at))?),
            TokenKind::Uint(value) => ExprKind::Uint(value),
            TokenKind::Double(value) => ExprKind::Double(value),
            TokenKind::Text(text) => ExprKind::Text(text),
            TokenKind::Bytes(bytes) => ExprKind::Bytes(bytes),
            TokenKind::Symbol("(") => {
                let inner = self.expression()?;
                self.expect(")")?;
                return Ok(inner);
            }
            TokenKind::Symbol("[") => self.list()?,
            TokenKind::Symbol("{") => self.map()?,
            // A leading dot names the root namespace, which is the only one.
            TokenKind::Symbol(".") if matches!(self.peek(), TokenKind::Ident(_)) => return self.primary(),
            TokenKind::Ident(name) => match name.as_str() {
                "true" => ExprKind::Bool(true),
                "false" => ExprKind::Bool(false),
                "null" => ExprKind::Null,
                _ => return self.name(at, name),
            },
            _ => {
                self.next -= 1;
                return Err(self.unexpected("an expression"));
            }
        };
        Expr::new(at, kind)
    }

    fn name(&mut self, at: usize, name: String) -> Result<Expr, ExpressionError> {
        let call_at = self.at();
        if !self.eat("(") {
            if RESERVED.contains(&name.as_str()) {
                return Err(ExpressionError::new(at, format!("reserved identifier: {name}")));
            }
            return Expr::new(at, ExprKind::Ident(name));
        }
        let mut arguments = self.arguments(")")?;
        if name != "has" {
            return call(call_at, &name, arguments);
        }
        match (arguments.pop(), arguments.is_empty()) {
            (Some(Expr { at, kind: ExprKind::Select { operand, field, presence: Selection::Needed }, .. }), true) => {
                Expr::new(at, ExprKind::Select { operand, field, presence: Selection::Tested })
            }
            (argument, _) => {
                let at = argument.map_or(call_at, |argument| argument.at);
                Err(ExpressionError::new(at, "invalid argument to has() macro"))
            }
        }
    }

    fn list(&mut self) -> Result<ExprKind, ExpressionError> {
        let items = self.items("]", |parser| {
            let optional = parser.eat("?");
            Ok((parser.expression()?, optional))
        })?;
        Ok(ExprKind::List(items))
    }

    fn map(&mut self) -> Result<ExprKind, ExpressionError> {
        let entries = self.items("}", |parser| {
            let optional = parser.eat("?");
            let key = parser.expression()?;
            parser.expect(":")?;
            Ok((key, parser.expression()?, optional))
        })?;
        Ok(ExprKind::Map(entries))
    }

    /// Parses items between commas, up to `end`. A trailing comma is allowed.
    fn items<T>(
        &mut self,
        end: &str,
        mut item: impl FnMut(&mut Self) -> Result<T, ExpressionError>,
    ) -> Result<Vec<T>, ExpressionError> {
        let mut items = Vec::new();
        while !self.eat(end) {
            if !items.is_empty() {
                self.expect(",")?;
                if self.eat(end) {
                    break;
                }
            }
            items.push(item(self)?);
        }
        Ok(items)
    }
}

/// Whether an expression is the type name of an `Object` or `JSONPatch`.
fn names_change(expression: &Expr) -> bool {
    match &expression.kind {
        ExprKind::Ident(name) => name == "Object" || name == "JSONPatch",
        ExprKind::Select { operand, presence: Selection::Needed, .. } => {
            !matches!(&operand.kind, ExprKind::Ident(name) if name == "JSONPatch") && names_change(operand)
        }
        _ => false,
    }
}

fn invalid_int(at: usize) -> ExpressionError {
    ExpressionError::new(at, "invalid int literal")
}

fn call(at: usize, function: &str, arguments: Vec<Expr>) -> Result<Expr, ExpressionError> {
    Expr::new(at, ExprKind::Call { function: function.to_string(), target: None, arguments })
}

/// The tree of a first term and the next `count` operators with their terms, as flat as possible.
fn balanced(
    function: &str,
    first: Expr,
    rest: &mut std::vec::IntoIter<(usize, Expr)>,
    count: usize,
) -> Result<Expr, ExpressionError> {
    if count == 0 {
        return Ok(first);
    }
    let left = balanced(function, first, rest, count / 2)?;
    let Some((at, middle)) = rest.next() else { return Ok(left) };
    let right = balanced(function, middle, rest, count - count / 2 - 1)?;
    call(at, function, vec![left, right])
}

/// A call on a value, unless it is a macro or a function with dots in its name.
fn member_call(at: usize, target: Expr, function: String, mut arguments: Vec<Expr>) -> Result<Expr, ExpressionError> {
    let fold_kind = match (function.as_str(), arguments.len()) {
        ("all", 2 | 3) => Some(FoldKind::All),
        ("exists", 2 | 3) => Some(FoldKind::Exists),
        ("exists_one", 2) | ("existsOne", 2 | 3) => Some(FoldKind::ExistsOne),
        ("map", 2 | 3) | ("transformList", 3 | 4) => Some(FoldKind::List),
        ("filter", 2) => Some(FoldKind::Filter),
        ("transformMap", 3 | 4) => Some(FoldKind::MapValues),
        ("transformMapEntry", 3 | 4) => Some(FoldKind::MapEntries),
        _ => None,
    };
    if let Some(kind) = fold_kind {
        return fold(at, kind, target, &function, arguments);
    }
    if let ("optMap" | "optFlatMap", 2) = (function.as_str(), arguments.len()) {
        let body = arguments.pop().map(Box::new);
        let variable = arguments.pop().and_then(variable_name);
        if let (Some(body), Some(variable)) = (body, variable) {
            let flat = function == "optFlatMap";
            return Expr::new(at, ExprKind::OptionalMap { target: Box::new(target), variable, body, flat });
        }
        return Err(ExpressionError::new(at, "argument is not an identifier"));
    }
    Expr::new(at, ExprKind::Call { function, target: Some(Box::new(target)), arguments })
}

fn fold(at: usize, kind: FoldKind, range: Expr, function: &str, arguments: Vec<Expr>) -> Result<Expr, ExpressionError> {
    let count = arguments.len();
    let two_variables = match kind {
        FoldKind::All | FoldKind::Exists | FoldKind::ExistsOne => count == 3,
        FoldKind::List => function == "transformList",
        FoldKind::Filter => false,
        FoldKind::MapValues | FoldKind::MapEntries => true,
    };
    let mut rest = arguments.into_iter();
    let mut variable = || {
        let argument = rest.next()?;
        let at = argument.at;
        Some(variable_name(argument).ok_or(at))
    };
    let simple = |name: Option<Result<String, usize>>| match name {
        Some(Ok(name)) => Ok(name),
        Some(Err(at)) => Err(ExpressionError::new(at, "argument is not an identifier")),
        None => Err(ExpressionError::new(at, "argument is not an identifier")),
    };
    let first = simple(variable())?;
    let second = if two_variables { Some(simple(variable())?) } else { None };
    let mut rest: Vec<Expr> = rest.collect();
    let last = rest.pop();
    let (condition, result) = match kind {
        FoldKind::All | FoldKind::Exists | FoldKind::ExistsOne | FoldKind::Filter => (last, None),
        _ => (rest.pop(), last),
    };
    Expr::new(at, ExprKind::Fold(Box::new(Fold { kind, range, first, second, condition, result })))
}

fn variable_name(expression: Expr) -> Option<String> {
    match expression.kind {
        ExprKind::Ident(name) => Some(name),
        _ => None,
    }
}
