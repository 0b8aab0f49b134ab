//! Expressions as they are written, macros recognised but nothing resolved.

/// An expression and where it stands: the byte at which its operator or first token begins.
#[derive(Debug)]
pub(crate) struct Expr {
    pub(crate) at: usize,
    pub(crate) kind: ExprKind,
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
