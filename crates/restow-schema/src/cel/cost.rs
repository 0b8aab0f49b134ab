//! Costs: the maximum cost of an expression, and the actual cost of a call.

/// The cost of a character.
const PER_CHARACTER: f64 = 0.1;
/// The cost of a character of a regular expression.
const PER_PATTERN_CHARACTER: f64 = 0.25;

/// A minimum and a maximum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) min: u64,
    pub(crate) max: u64,
}

/// The size of an argument.
pub(crate) struct Sized {
    pub(crate) size: Range,
    /// For lists: whether the items are texts, and their size if it is known.
    pub(crate) element: Option<(bool, Option<Range>)>,
    pub(crate) literal: Option<i64>,
    pub(crate) kind: SizedKind,
    pub(crate) cost: Range,
}

/// The kinds of arguments with different costs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum SizedKind {
    Text,
    Bytes,
    /// A type of a library, which is compared in one step.
    Opaque,
    Other,
}

/// The cost of a call without its arguments, and the size of its result if it is known.
pub(crate) struct Estimate {
    pub(crate) cost: Range,
    pub(crate) size: Option<Range>,
}

impl Range {
    pub(crate) const ZERO: Range = Range { min: 0, max: 0 };
    pub(crate) const ONE: Range = Range { min: 1, max: 1 };
    pub(crate) const UNKNOWN: Range = Range { min: 0, max: u64::MAX };

    pub(crate) fn exactly(amount: u64) -> Range {
        Range { min: amount, max: amount }
    }

    pub(crate) fn up_to(amount: u64) -> Range {
        Range { min: 0, max: amount }
    }

    pub(crate) fn add(self, other: Range) -> Range {
        Range { min: self.min.saturating_add(other.min), max: self.max.saturating_add(other.max) }
    }

    pub(crate) fn multiply(self, other: Range) -> Range {
        Range { min: self.min.saturating_mul(other.min), max: self.max.saturating_mul(other.max) }
    }

    pub(crate) fn union(self, other: Range) -> Range {
        Range { min: self.min.min(other.min), max: self.max.max(other.max) }
    }

    fn times(self, factor: f64) -> Range {
        Range { min: scale(self.min, factor), max: scale(self.max, factor) }
    }
}

fn scale(amount: u64, factor: f64) -> u64 {
    let product = (amount as f64 * factor).ceil();
    if product >= u64::MAX as f64 { u64::MAX } else { product as u64 }
}

/// The cost of comparing two values: that of the smaller one.
pub(crate) fn equality_cost(arguments: &[Sized]) -> Range {
    if arguments.iter().all(|argument| argument.kind == SizedKind::Opaque) {
        return Range::ONE;
    }
    let smallest = arguments.iter().map(|argument| argument.size.max).min().unwrap_or(0);
    Range { min: u64::from(smallest > 0), max: smallest }.times(PER_CHARACTER)
}

/// The cost of a call. The receiver, if there is one, is the first argument.
pub(crate) fn estimate(name: &str, is_member: bool, arguments: &[Sized]) -> Estimate {
    let size = |index: usize| arguments.get(index).map_or(Range::UNKNOWN, |argument| argument.size);
    let plain = |cost: Range| Estimate { cost, size: None };
    let traversal = size(0).times(PER_CHARACTER);
    match name {
        "startsWith" | "endsWith" => plain(size(1).times(PER_CHARACTER)),
        "contains" if is_member => plain(size(0).times(PER_CHARACTER).multiply(size(1).times(PER_CHARACTER))),
        "matches" => plain(pattern_cost(size(0), size(1))),
        "find" | "findAll" => Estimate { cost: pattern_cost(size(0), size(1)), size: Some(Range::up_to(size(0).max)) },
        "@in" => plain(size(1)),
        "_+_" => {
            let result = size(0).add(size(1));
            let is_list = arguments.first().is_some_and(|argument| argument.element.is_some());
            let cost = if is_list { Range::ONE } else { result.times(PER_CHARACTER) };
            Estimate { cost, size: Some(result) }
        }
        "bytes" | "string" => match (name, arguments.first().map(|argument| argument.kind)) {
            ("bytes", Some(SizedKind::Text)) => {
                let result = Range { min: size(0).min, max: size(0).max.saturating_mul(4) };
                Estimate { cost: traversal, size: Some(result) }
            }
            ("string", Some(SizedKind::Bytes)) => {
                Estimate { cost: traversal, size: Some(Range { min: size(0).min / 4, max: size(0).max }) }
            }
            _ => plain(Range::ONE),
        },
        "dyn" => Estimate { cost: Range::ONE, size: Some(size(0)) },
        "strings.quote" => {
            let result = Range { min: size(0).min + 2, max: size(0).max.saturating_mul(2).saturating_add(2) };
            Estimate { cost: traversal, size: Some(result) }
        }
        "format" => plain(traversal),
        "url" | "isURL" | "lowerAscii" | "upperAscii" | "substring" | "trim" | "reverse" => {
            Estimate { cost: traversal, size: Some(size(0)) }
        }
        "ip" if is_member => plain(Range::ONE),
        "cidr" | "isIP" | "isCIDR" | "ip" | "quantity" | "isQuantity" | "semver" | "isSemver" => plain(traversal),
        "jsonpatch.escapeKey" => Estimate { cost: traversal, size: Some(Range::up_to(size(0).max.saturating_mul(2))) },
        "ip.isCanonical" => plain(size(0).times(2.0 * PER_CHARACTER)),
        "validate" => plain(size(1).times(PER_CHARACTER).times(128.0 * PER_PATTERN_CHARACTER)),
        "replace" => {
            Estimate { cost: size(0).times(2.0 * PER_CHARACTER), size: Some(replaced(size(0), size(1), size(2))) }
        }
        "split" => {
            let most = arguments.get(2).and_then(|limit| limit.literal).and_then(|limit| u64::try_from(limit).ok());
            Estimate { cost: size(0).times(2.0 * PER_CHARACTER), size: Some(Range::up_to(most.unwrap_or(size(0).max))) }
        }
        "join" => {
            let items = size(0);
            let item =
                arguments.first().and_then(|list| list.element).and_then(|(_, size)| size).unwrap_or(Range::UNKNOWN);
            let gaps = Range { min: items.min.saturating_sub(1), max: items.max.saturating_sub(1) };
            let separator = if arguments.len() > 1 { size(1) } else { Range::ZERO };
            let result = items.multiply(item).add(separator.multiply(gaps));
            Estimate { cost: result.times(PER_CHARACTER), size: Some(result) }
        }
        "isSorted" | "sum" | "max" | "min" | "indexOf" | "lastIndexOf" | "includes" | "sort" | "distinct" => {
            match arguments.first().and_then(|list| list.element) {
                Some((true, item)) => {
                    let item = item.unwrap_or(Range::UNKNOWN).times(PER_CHARACTER);
                    Estimate { cost: size(0).multiply(Range::ONE.add(item)), size: None }
                }
                Some((false, _)) => plain(size(0)),
                None => plain(traversal),
            }
        }
        "sets.contains" | "sets.intersects" | "sets.equivalent" => {
            let factor = if name == "sets.equivalent" { Range::exactly(2) } else { Range::ONE };
            plain(size(0).multiply(size(1)).multiply(factor).add(Range::ONE))
        }
        _ => plain(Range::ONE),
    }
}

fn pattern_cost(text: Range, pattern: Range) -> Range {
    text.add(Range::ONE).times(PER_CHARACTER).multiply(pattern.times(PER_PATTERN_CHARACTER))
}

/// The size of a text after replacements.
fn replaced(text: Range, old: Range, new: Range) -> Range {
    let max = if old.min == 0 {
        text.max.saturating_add(1).saturating_mul(new.max).saturating_add(text.max)
    } else if new.max <= old.min {
        text.max
    } else {
        text.max.div_ceil(old.min).saturating_mul(new.max)
    };
    Range { min: 0, max }
}

/// The actual cost of a call.
pub(crate) fn actual(name: &str, sizes: &dyn Fn(usize) -> u64, count: usize) -> u64 {
    let characters = |amount: u64| scale(amount, PER_CHARACTER);
    match name {
        "startsWith" | "endsWith" => characters(sizes(1)),
        "contains" | "containsIP" | "containsCIDR" => characters(sizes(0)).saturating_mul(characters(sizes(1))).max(1),
        "matches" | "find" | "findAll" => {
            characters(sizes(0).saturating_add(1)).saturating_mul(scale(sizes(1), PER_PATTERN_CHARACTER))
        }
        "@in" | "indexOf" | "lastIndexOf" | "includes" | "isSorted" | "sum" | "min" | "max" => {
            sizes(usize::from(name == "@in"))
        }
        "_==_" | "_!=_" | "_<_" | "_<=_" | "_>_" | "_>=_" => characters(sizes(0).min(sizes(1))),
        "_+_" if count == 2 => characters(sizes(0).saturating_add(sizes(1))).max(1),
        "join" | "sort" | "distinct" | "flatten" | "slice" => sizes(0).max(1),
        "sets.contains" | "sets.intersects" | "sets.equivalent" => sizes(0).saturating_mul(sizes(1)).saturating_add(1),
        "replace" | "split" => scale(sizes(0), 2.0 * PER_CHARACTER).max(1),
        "lowerAscii" | "upperAscii" | "substring" | "trim" | "reverse" | "format" | "string" | "bytes" | "url"
        | "isURL" | "ip" | "isIP" | "cidr" | "isCIDR" | "quantity" | "isQuantity" | "semver" | "isSemver"
        | "strings.quote" => characters(sizes(0)).max(1),
        "validate" => scale(sizes(1), PER_CHARACTER * 32.0).max(1),
        _ => 1,
    }
}

/// The additional cost of the result of a call: small arguments can have a large result.
pub(crate) fn of_result(name: &str, size: impl FnOnce() -> u64) -> u64 {
    match name {
        "join" => scale(size(), 2.0 * PER_CHARACTER),
        "replace" | "format" | "string" | "strings.quote" => scale(size(), PER_CHARACTER),
        "lists.range" | "flatten" => size(),
        _ => 0,
    }
}
