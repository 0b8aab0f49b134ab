//! The syntax tree of expressions: macros are recognized, but names are not resolved.

use super::source::ExpressionError;

/// The maximum nesting of expressions; CEL has the same limit. Checking, evaluating and dropping an expression recurse
/// at most this deep.
const DEEPEST: u16 = 250;

/// An expression and its position: the byte at which its operator or first token begins.
#[derive(Debug)]
pub(crate) struct Expr {
    pub(crate) at: usize,
    pub(crate) kind: ExprKind,
    /// One more than the depth of its deepest part.
    depth: u16,
}

/// The kinds of expressions.
#[derive(Debug)]
pub(crate) enum ExprKind {
    Null,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Double(f64),
    Text(String),
    Bytes(Vec<u8>),
    Ident(String),
    Select {
        operand: Box<Expr>,
        field: String,
        presence: Selection,
    },
    Call {
        function: String,
        target: Option<Box<Expr>>,
        arguments: Vec<Expr>,
    },
    List(Vec<(Expr, bool)>),
    Map(Vec<(Expr, Expr, bool)>),
    Fold(Box<Fold>),
    /// `optional.optMap(variable, expression)` and `optFlatMap`.
    OptionalMap {
        target: Box<Expr>,
        variable: String,
        body: Box<Expr>,
        flat: bool,
    },
}

impl Expr {
    /// An expression of existing parts.
    ///
    /// # Errors
    ///
    /// It is nested too deeply.
    pub(crate) fn new(at: usize, kind: ExprKind) -> Result<Expr, ExpressionError> {
        let depth = kind.deepest_part() + 1;
        if depth > DEEPEST {
            return Err(ExpressionError::new(at, format!("expression recursion limit exceeded: {DEEPEST}")));
        }
        Ok(Expr { at, kind, depth })
    }
}

impl ExprKind {
    fn deepest_part(&self) -> u16 {
        let deepest = |parts: &mut dyn Iterator<Item = &Expr>| parts.map(|part| part.depth).max().unwrap_or(0);
        match self {
            ExprKind::Select { operand, .. } => operand.depth,
            ExprKind::Call { target, arguments, .. } => deepest(&mut target.as_deref().into_iter().chain(arguments)),
            ExprKind::List(items) => deepest(&mut items.iter().map(|(item, _)| item)),
            ExprKind::Map(entries) => deepest(&mut entries.iter().flat_map(|(key, value, _)| [key, value])),
            ExprKind::Fold(fold) => {
                deepest(&mut std::iter::once(&fold.range).chain(&fold.condition).chain(&fold.result))
            }
            ExprKind::OptionalMap { target, body, .. } => target.depth.max(body.depth),
            _ => 0,
        }
    }
}

/// How a field is selected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Selection {
    /// The value; an error if it is absent.
    Needed,
    /// Whether the value exists: `has(a.b)`.
    Tested,
    /// An optional: `a.?b`.
    Optional,
}

/// A macro that iterates over a list or a map.
#[derive(Debug)]
pub(crate) struct Fold {
    pub(crate) kind: FoldKind,
    pub(crate) range: Expr,
    /// The item, or with a second variable the index or key.
    pub(crate) first: String,
    pub(crate) second: Option<String>,
    pub(crate) condition: Option<Expr>,
    pub(crate) result: Option<Expr>,
}

/// The macros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FoldKind {
    All,
    Exists,
    ExistsOne,
    /// `map` and `transformList`.
    List,
    Filter,
    /// `transformMap`: the result is the value.
    MapValues,
    /// `transformMapEntry`: the result is a map with the new entries.
    MapEntries,
}
