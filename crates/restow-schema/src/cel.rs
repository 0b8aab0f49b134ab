//! CEL, the expression language of validation rules and admission policies, with the functions that Kubernetes adds.
//!
//! An expression is parsed, its names and types are checked, and the most that it can cost is estimated; then it is
//! evaluated any number of times on borrowed JSON, each time with a limit on what that may cost. Neither step takes
//! unbounded time or memory, whatever the expression.

mod ast;
mod check;
mod code;
mod collection;
mod cost;
mod eval;
mod functions;
mod lex;
mod library;
mod parse;
mod program;
mod signatures;
mod source;
mod time;
mod types;
mod value;

pub use eval::EvalError;
pub use library::authorizer::{AuthorizationCheck, AuthorizationDecision, Authorizer};
pub use program::{Evaluated, Program};

pub(crate) use check::{CompileError, Variable};
pub(crate) use eval::Evaluation;
pub(crate) use types::{Decl, Type, declare, escape};
pub(crate) use value::Val;

/// The cost limit of one evaluation: about a tenth of a second in Kubernetes.
pub const PER_CALL_LIMIT: u64 = 1_000_000;
