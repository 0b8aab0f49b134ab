//! Functions on lists: the lists and sets extensions, and those of Kubernetes. Some also work on texts.

use std::cmp::Ordering;

use super::{FunctionResult, NONE, Native};
use crate::cel::collection::{Entries, Members};
use crate::cel::eval::EvalError;
use crate::cel::value::Val;
use crate::node::ListType;

/// The maximum number of items in a list that a function returns.
pub(super) const MOST_ITEMS: usize = 1_000_000;

pub(super) const TABLE: &[(&str, Native)] = &[
    ("isSorted", |a| {
        let items = only_list(a)?;
        let sorted = items.windows(2).all(|pair| pair[0].compare(&pair[1]).is_some_and(Ordering::is_le));
        Ok(Val::Bool(sorted))
    }),
    ("sum", |a| {
        let mut items = only_list(a)?.into_iter();
        let Some(first) = items.next() else { return Ok(Val::Int(0)) };
        items.try_fold(first, |sum, item| super::add(&[sum, item]))
    }),
    ("min", |a| extreme(a, "min", Ordering::is_lt)),
    ("max", |a| extreme(a, "max", Ordering::is_gt)),
    ("indexOf", |a| index_of(a, false)),
    ("lastIndexOf", |a| index_of(a, true)),
    ("slice", |a| match a {
        [list, Val::Int(from), Val::Int(to)] => {
            let items = list.items().ok_or(NONE)?;
            let range = usize::try_from(*from).ok().zip(usize::try_from(*to).ok());
            let part = range.and_then(|(from, to)| items.get(from..to));
            let part = part.map(<[Val<'_>]>::to_vec).ok_or_else(|| {
                EvalError::failed(format!("cannot slice({from}, {to}), list is length {}", items.len()))
            })?;
            Val::list(part)
        }
        _ => Err(NONE),
    }),
    ("flatten", |a| match a {
        [list] => flattened(list, 1),
        [list, Val::Int(depth)] if *depth >= 0 => flattened(list, *depth),
        [_, Val::Int(_)] => Err(EvalError::failed("level must be non-negative")),
        _ => Err(NONE),
    }),
    ("sort", |a| {
        let mut items = only_list(a)?;
        if items.windows(2).any(|pair| pair[0].compare(&pair[1]).is_none()) {
            return Err(EvalError::failed("list elements must be comparable"));
        }
        items.sort_by(|left, right| left.compare(right).unwrap_or(Ordering::Equal));
        Val::list(items)
    }),
    ("distinct", |a| Val::list(Members::of(only_list(a)?).into_values())),
    ("reverse", |a| {
        let mut items = only_list(a)?;
        items.reverse();
        Val::list(items)
    }),
    ("first", |a| at(a, |_| Some(0))),
    ("last", |a| at(a, |size| size.checked_sub(1))),
    ("lists.range", |a| match a {
        [Val::Int(count)] if *count <= 100_000 => Val::list((0..*count).map(Val::Int).collect()),
        [Val::Int(_)] => Err(EvalError::CostExceeded),
        _ => Err(NONE),
    }),
    ("sets.contains", |a| sets(a, contains_all)),
    ("sets.intersects", |a| {
        sets(a, |left, right| {
            let left = Members::of(left.to_vec());
            right.iter().any(|item| left.contains(item))
        })
    }),
    ("sets.equivalent", |a| sets(a, |left, right| contains_all(left, right) && contains_all(right, left))),
];

fn contains_all<'a>(items: &[Val<'a>], others: &[Val<'a>]) -> bool {
    let items = Members::of(items.to_vec());
    others.iter().all(|other| items.contains(other))
}

fn only_list<'a>(arguments: &[Val<'a>]) -> Result<Vec<Val<'a>>, EvalError> {
    if let [list] = arguments { list.items().ok_or(NONE) } else { Err(NONE) }
}

/// An item as an optional. Other items are not read, since the cost does not include them.
fn at<'a>(arguments: &[Val<'a>], place: impl Fn(u64) -> Option<u64>) -> FunctionResult<'a> {
    match arguments {
        [list @ (Val::List(_) | Val::JsonList(..))] => match place(list.size()) {
            Some(place) => super::index(&[list.clone(), Val::Int(place as i64)], false),
            None => Ok(Val::Optional(None)),
        },
        _ => Err(NONE),
    }
}

fn sets<'a>(arguments: &[Val<'a>], holds: impl Fn(&[Val<'a>], &[Val<'a>]) -> bool) -> FunctionResult<'a> {
    let [left, right] = arguments else { return Err(NONE) };
    Ok(Val::Bool(holds(&left.items().ok_or(NONE)?, &right.items().ok_or(NONE)?)))
}

fn extreme<'a>(arguments: &[Val<'a>], name: &str, better: fn(Ordering) -> bool) -> FunctionResult<'a> {
    let mut best: Option<Val<'a>> = None;
    for item in only_list(arguments)? {
        best = Some(match best {
            Some(best) if !better(item.compare(&best).ok_or(NONE)?) => best,
            _ => item,
        });
    }
    best.ok_or_else(|| EvalError::failed(format!("{name} called on empty list")))
}

/// The index of a value in a list, or of a text in a text.
fn index_of<'a>(arguments: &[Val<'a>], last: bool) -> FunctionResult<'a> {
    if let [Val::Text(text), Val::Text(part), rest @ ..] = arguments {
        let characters: Vec<char> = text.as_str().chars().collect();
        let part: Vec<char> = part.as_str().chars().collect();
        let offset = match rest {
            [Val::Int(offset)] => Some(*offset),
            [] => None,
            _ => return Err(NONE),
        };
        if let Some(offset) = offset.filter(|offset| *offset < 0 || *offset > characters.len() as i64) {
            return Err(EvalError::failed(format!("index out of range: {offset}")));
        }
        let offset = offset.and_then(|offset| usize::try_from(offset).ok());
        let matches_at = |place: &usize| characters.get(*place..*place + part.len()) == Some(part.as_slice());
        let places = 0..=characters.len().saturating_sub(part.len());
        let found = if last {
            places.rev().filter(|place| offset.is_none_or(|offset| *place <= offset)).find(matches_at)
        } else {
            places.filter(|place| offset.is_none_or(|offset| *place >= offset)).find(matches_at)
        };
        return Ok(Val::Int(found.map_or(-1, |place| place as i64)));
    }
    let [list, value] = arguments else { return Err(NONE) };
    let items = list.items().ok_or(NONE)?;
    let found = if last {
        items.iter().rposition(|item| item.equals(value))
    } else {
        items.iter().position(|item| item.equals(value))
    };
    Ok(Val::Int(found.map_or(-1, |place| place as i64)))
}

fn flattened<'a>(list: &Val<'a>, depth: i64) -> FunctionResult<'a> {
    let mut out = Vec::new();
    flatten(list.items().ok_or(NONE)?, depth, &mut out)?;
    Val::list(out)
}

fn flatten<'a>(items: Vec<Val<'a>>, depth: i64, out: &mut Vec<Val<'a>>) -> Result<(), EvalError> {
    for item in items {
        match item.items().filter(|_| depth > 0) {
            Some(inner) => flatten(inner, depth - 1, out)?,
            None => out.push(item),
        }
        if out.len() > MOST_ITEMS {
            return Err(EvalError::CostExceeded);
        }
    }
    Ok(())
}

/// Concatenates lists of type `set` and `map` without duplicates: an item on the right replaces the one with the same
/// keys on the left.
pub(super) fn concatenate<'a>(whole: &Val<'a>, left: Vec<Val<'a>>, right: Vec<Val<'a>>) -> FunctionResult<'a> {
    if left.len() + right.len() > MOST_ITEMS {
        return Err(EvalError::CostExceeded);
    }
    let list_type = match whole {
        Val::JsonList(_, Some(node)) => &node.list_type,
        _ => &ListType::Atomic,
    };
    let mut items = left;
    match list_type {
        ListType::Set => {
            let known = Members::of(items.clone());
            let mut added = Members::of(right.into_iter().filter(|item| !known.contains(item))).into_values();
            items.append(&mut added);
        }
        ListType::Map(keys) if !keys.is_empty() => {
            let mut places = Entries::default();
            for (place, item) in items.iter().enumerate() {
                places.insert(keys_of(keys, item)?, Val::Int(place as i64))?;
            }
            for item in right {
                let keys = keys_of(keys, &item)?;
                match places.get(&keys) {
                    Some(Val::Int(place)) => items[*place as usize] = item,
                    _ => {
                        places.insert(keys, Val::Int(items.len() as i64))?;
                        items.push(item);
                    }
                }
            }
        }
        _ => items.extend(right),
    }
    Val::list(items)
}

/// The keys of an item of a list of type `map`.
fn keys_of<'a>(keys: &[Box<str>], item: &Val<'a>) -> FunctionResult<'a> {
    Val::list(keys.iter().map(|key| item.field(key).map_or(Val::Optional(None), Val::some)).collect())
}
