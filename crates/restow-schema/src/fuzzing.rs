//! Entry points for fuzzing. Each returns soon for any bytes, and asserts its invariants.
//!
//! The targets in `fuzz/` and the API server's test `tests/fuzzing.rs` run the same functions.

use crate::Schema;
use crate::cel::{PER_CALL_LIMIT, Program};
use serde_json::Value;

/// The variables that expressions are compiled with.
const VARIABLES: [&str; 3] = ["object", "oldObject", "self"];

/// Input: a schema, an object and an older object, each on a line of JSON.
pub fn schema(data: &[u8]) {
    let mut lines = values(data);
    let Some(Ok(schema)) = lines.next().map(|schema| Schema::compile(&schema, "schema")) else { return };
    let Some(mut object) = lines.next() else { return };
    let old = lines.next();
    schema.prune(&mut object);
    schema.default(&mut object);
    let once = object.clone();
    assert!(schema.prune(&mut object).is_empty(), "pruning is done after one time");
    schema.default(&mut object);
    assert!(object == once, "defaulting is done after one time");
    for problem in schema.validate(&object, old.as_ref()) {
        assert!(!problem.to_string().is_empty());
    }
}

/// Input: an expression, then values for its variables, each on a line of JSON.
pub fn cel(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let (expression, rest) = text.split_once('\n').unwrap_or((text, ""));
    let given: Vec<Value> = values(rest.as_bytes()).take(VARIABLES.len()).collect();
    let values: Vec<Option<&Value>> = (0..VARIABLES.len()).map(|index| given.get(index)).collect();
    for compile in [Program::compile, Program::compile_change] {
        let Ok(program) = compile(expression, &VARIABLES) else { continue };
        let evaluated = program.evaluate(&values, PER_CALL_LIMIT);
        assert!(evaluated.value.is_err() || evaluated.cost <= PER_CALL_LIMIT, "what costs too much yields nothing");
    }
}

fn values(data: &[u8]) -> impl Iterator<Item = Value> + '_ {
    data.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok())
}
