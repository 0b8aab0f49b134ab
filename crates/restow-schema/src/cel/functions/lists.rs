//! Functions on lists: the lists and sets extensions, and Kubernetes' own. Some serve texts of the same name, too.

use std::cmp::Ordering;
use std::rc::Rc;

use super::{NONE, Native, Outcome};
use crate::cel::eval::EvalError;
use crate::cel::value::Val;
use crate::node::ListType;

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
            part.map(|part| Val::List(Rc::new(part.to_vec())))
                .ok_or_else(|| EvalError::failed(format!("cannot slice({from}, {to}), list is length {}", items.len())))
        }
        _ => Err(NONE),
    }),
    ("flatten", |a| match a {
        [list] => Ok(Val::List(Rc::new(flatten(list.items().ok_or(NONE)?, 1)))),
        [list, Val::Int(depth)] if *depth >= 0 => Ok(Val::List(Rc::new(flatten(list.items().ok_or(NONE)?, *depth)))),
        [_, Val::Int(_)] => Err(EvalError::failed("level must be non-negative")),
        _ => Err(NONE),
    }),
    ("sort", |a| {
        let mut items = only_list(a)?;
        if items.windows(2).any(|pair| pair[0].compare(&pair[1]).is_none()) {
            return Err(EvalError::failed("list elements must be comparable"));
        }
        items.sort_by(|left, right| left.compare(right).unwrap_or(Ordering::Equal));
        Ok(Val::List(Rc::new(items)))
    }),
    ("distinct", |a| {
        let mut seen: Vec<Val<'_>> = Vec::new();
        for item in only_list(a)? {
            if !seen.iter().any(|known| known.equals(&item)) {
                seen.push(item);
            }
        }
        Ok(Val::List(Rc::new(seen)))
    }),
    ("reverse", |a| {
        let mut items = only_list(a)?;
        items.reverse();
        Ok(Val::List(Rc::new(items)))
    }),
    ("first", |a| Ok(only_list(a)?.into_iter().next().map_or(Val::Optional(None), Val::some))),
    ("last", |a| Ok(only_list(a)?.pop().map_or(Val::Optional(None), Val::some))),
    ("lists.range", |a| match a {
        [Val::Int(count)] if *count <= 100_000 => Ok(Val::List(Rc::new((0..*count).map(Val::Int).collect()))),
        [Val::Int(_)] => Err(EvalError::CostExceeded),
        _ => Err(NONE),
    }),
    ("sets.contains", |a| sets(a, |left, right| right.iter().all(|item| has(left, item)))),
    ("sets.intersects", |a| sets(a, |left, right| right.iter().any(|item| has(left, item)))),
    ("sets.equivalent", |a| {
        sets(a, |left, right| right.iter().all(|item| has(left, item)) && left.iter().all(|item| has(right, item)))
    }),
];

fn has<'a>(items: &[Val<'a>], value: &Val<'a>) -> bool {
    items.iter().any(|item| item.equals(value))
}

fn only_list<'a>(arguments: &[Val<'a>]) -> Result<Vec<Val<'a>>, EvalError> {
    if let [list] = arguments { list.items().ok_or(NONE) } else { Err(NONE) }
}

fn sets<'a>(arguments: &[Val<'a>], holds: impl Fn(&[Val<'a>], &[Val<'a>]) -> bool) -> Outcome<'a> {
    let [left, right] = arguments else { return Err(NONE) };
    Ok(Val::Bool(holds(&left.items().ok_or(NONE)?, &right.items().ok_or(NONE)?)))
}

fn extreme<'a>(arguments: &[Val<'a>], name: &str, better: fn(Ordering) -> bool) -> Outcome<'a> {
    let mut best: Option<Val<'a>> = None;
    for item in only_list(arguments)? {
        best = Some(match best {
            Some(best) if !better(item.compare(&best).ok_or(NONE)?) => best,
            _ => item,
        });
    }
    best.ok_or_else(|| EvalError::failed(format!("{name} called on empty list")))
}

/// Where a value is in a list, or a text in a text.
fn index_of<'a>(arguments: &[Val<'a>], last: bool) -> Outcome<'a> {
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

fn flatten<'a>(items: Vec<Val<'a>>, depth: i64) -> Vec<Val<'a>> {
    let mut out = Vec::new();
    for item in items {
        match item.items() {
            Some(inner) if depth > 0 => out.extend(flatten(inner, depth - 1)),
            _ => out.push(item),
        }
    }
    out
}

/// Lists of type `set` and `map` are joined without repetitions: what stands on the right replaces its like on the left.
pub(super) fn concatenate<'a>(whole: &Val<'a>, left: Vec<Val<'a>>, right: Vec<Val<'a>>) -> Outcome<'a> {
    if left.len() + right.len() > 1_000_000 {
        return Err(EvalError::CostExceeded);
    }
    let mut items = left;
    match whole {
        Val::JsonList(_, Some(node)) if node.list_type == ListType::Set => {
            for item in right {
                if !has(&items, &item) {
                    items.push(item);
                }
            }
        }
        Val::JsonList(_, Some(node)) => {
            let keys: &[Box<str>] = match &node.list_type {
                ListType::Map(keys) => keys,
                _ => &[],
            };
            for item in right {
                let same = |known: &Val<'a>| {
                    keys.iter().all(|key| match (known.field(key), item.field(key)) {
                        (Some(known), Some(item)) => known.equals(&item),
                        (known, item) => known.is_none() && item.is_none(),
                    })
                };
                match items.iter().position(same).filter(|_| !keys.is_empty()) {
                    Some(place) => items[place] = item,
                    None => items.push(item),
                }
            }
        }
        _ => items.extend(right),
    }
    Ok(Val::List(Rc::new(items)))
}
