//! Checked expressions, ready for evaluation.

use std::sync::Arc;

use regex::Regex;

use super::ast::{FoldKind, Selection};
use super::functions::Native;

/// A checked expression.
#[derive(Debug)]
pub(crate) enum Code {
    Null,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Double(f64),
    Text(Box<str>),
    Bytes(Arc<[u8]>),
    Type(&'static str),
    /// A variable of the environment, by its index.
    Variable(usize),
    /// A variable of a macro, by its index on the stack.
    Local(usize),
    Select {
        operand: Box<Code>,
        field: Box<str>,
        presence: Selection,
    },
    And(Box<Code>, Box<Code>),
    Or(Box<Code>, Box<Code>),
    If(Box<(Code, Code, Code)>),
    /// A regular expression that is a literal is compiled once.
    Matches {
        text: Box<Code>,
        regex: Regex,
        pattern_length: u64,
    },
    Call {
        native: Native,
        name: &'static str,
        arguments: Box<[Code]>,
    },
    List(Box<[(Code, bool)]>),
    Map(Box<[(Code, Code, bool)]>),
    Fold(Box<FoldCode>),
    OptionalMap {
        target: Box<Code>,
        body: Box<Code>,
        flat: bool,
    },
}

/// A macro that iterates over a list or map.
#[derive(Debug)]
pub(crate) struct FoldCode {
    pub(crate) kind: FoldKind,
    pub(crate) range: Code,
    pub(crate) two_variables: bool,
    pub(crate) condition: Option<Code>,
    pub(crate) result: Option<Code>,
}
