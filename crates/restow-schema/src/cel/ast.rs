//! Expressions as they are written, macros recognised but nothing resolved.

use super::source::Fault;

/// How many expressions may stand inside of each other; CEL has the same limit. Whatever walks an expression (checking,
/// evaluating, dropping it) recurses as deep as that and no deeper.
const DEEPEST: u16 = 250;

/// An expression and where it stands: the byte at which its operator or first token begins.
#[derive(Debug)]
pub(crate) struct Expr {
    pub(crate) at: usize,
    pub(crate) kind: ExprKind,
    /// One more than the deepest of its parts has.
    depth: u16,
}

/// The forms of expressions.
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
        presence: Presence,
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
    /// An expression of parts that are there already.
    ///
    /// # Errors
    ///
    /// It is too deep.
    pub(crate) fn new(at: usize, kind: ExprKind) -> Result<Expr, Fault> {
        let depth = kind.deepest_part() + 1;
        if depth > DEEPEST {
            return Err(Fault::new(at, format!("expression recursion limit exceeded: {DEEPEST}")));
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

/// What a selection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Presence {
    /// The value; an error where there is none.
    Needed,
    /// Whether there is one: `has(a.b)`.
    Tested,
    /// An optional: `a.?b`.
    Optional,
}

/// A macro that goes through a list or a map.
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
