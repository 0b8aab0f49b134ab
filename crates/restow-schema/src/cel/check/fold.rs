//! Checks the macros that iterate over lists and maps.

use std::rc::Rc;

use super::{Checked, Checker, Local};
use crate::cel::ast::{Fold, FoldKind};
use crate::cel::code::{Code, FoldCode};
use crate::cel::cost::Range;
use crate::cel::types::{Decl, Type};

impl Checker<'_> {
    pub(super) fn fold(&mut self, at: usize, fold: &Fold) -> Checked {
        let range = self.expression(&fold.range);
        let element = range.decl.as_ref().and_then(|decl| decl.element());
        let (first, second) = match (&range.ty, fold.second.is_some()) {
            (Type::List(item), false) => (item.as_ref().clone(), None),
            (Type::List(item), true) => (Type::Int, Some(item.as_ref().clone())),
            (Type::Map(key, _), false) => (key.as_ref().clone(), None),
            (Type::Map(key, value), true) => (key.as_ref().clone(), Some(value.as_ref().clone())),
            (Type::Dyn, two) => (Type::Dyn, two.then_some(Type::Dyn)),
            (other, _) => {
                let words = format!(
                    "expression of type '{other}' cannot be range of a comprehension (must be list, map, or dynamic)"
                );
                return self.fault(fold.range.at, words);
            }
        };
        let is_map = matches!(range.ty, Type::Map(..));
        let locals = self.locals.len();
        // As in Kubernetes' estimate, the keys of a map count as empty, and values without a position in the schema
        // count as large as the largest request.
        let keys = Range::up_to(0);
        let whole = self
            .variables
            .first()
            .and_then(|variable| variable.decl.as_ref())
            .map(|decl| Range::up_to(decl.max_elements));
        let has_place = range.decl.is_some();
        let item = element.clone().filter(|_| second.is_none() && !is_map);
        let size = if has_place && is_map { Some(keys) } else { whole.filter(|_| !has_place) };
        self.push_local(&fold.first, first, item, size);
        if let (Some(name), Some(ty)) = (&fold.second, second) {
            self.push_local(name, ty, element, whole.filter(|_| !has_place));
        }
        let condition = fold.condition.as_ref().map(|condition| (condition.at, self.expression(condition)));
        let result = fold.result.as_ref().map(|result| self.expression(result));
        self.locals.truncate(locals);
        if let Some((at, condition)) = &condition
            && !matches!(condition.ty, Type::Bool | Type::Dyn)
        {
            let words = match fold.kind {
                FoldKind::All | FoldKind::Exists => format!("expected type 'bool' but found '{}'", condition.ty),
                _ => format!("found no matching overload for '_?_:_' applied to '(bool, {})'", condition.ty),
            };
            self.fault(*at, words);
        }
        let condition = condition.map(|(_, condition)| condition);
        self.build(at, fold, range, condition, result)
    }

    fn push_local(&mut self, name: &str, ty: Type, decl: Option<Rc<Decl>>, size: Option<Range>) {
        let size = size.or_else(|| super::size_of(decl.as_deref(), &ty));
        self.locals.push(Local { name: name.to_string(), ty, size, decl });
    }

    fn build(
        &mut self,
        _at: usize,
        fold: &Fold,
        range: Checked,
        condition: Option<Checked>,
        result: Option<Checked>,
    ) -> Checked {
        let count = range.size.unwrap_or(Range::UNKNOWN);
        let condition_cost = condition.as_ref().map_or(Range::ZERO, |condition| condition.cost);
        let result_cost = result.as_ref().map_or(Range::ZERO, |result| result.cost);
        let each = match fold.kind {
            FoldKind::All => Range { min: 3, max: condition_cost.add(Range::exactly(3)).max },
            FoldKind::Exists => Range { min: 4, max: condition_cost.add(Range::exactly(4)).max },
            FoldKind::ExistsOne => condition_cost.add(Range { min: 1, max: 2 }),
            FoldKind::Filter => condition_cost.add(Range { min: 1, max: 13 }),
            FoldKind::List | FoldKind::MapValues | FoldKind::MapEntries => {
                let step = result_cost.add(Range::exactly(12));
                if condition.is_some() { condition_cost.add(Range { min: 1, max: step.max }) } else { step }
            }
        };
        let (start, end) = match fold.kind {
            FoldKind::All | FoldKind::Exists => (0, 1),
            FoldKind::ExistsOne => (0, 2),
            FoldKind::Filter | FoldKind::List => (10, 1),
            FoldKind::MapValues | FoldKind::MapEntries => (30, 1),
        };
        let cost = range.cost.add(Range::exactly(start + end)).add(count.multiply(each));
        let item =
            |checked: &Option<Checked>| Rc::new(checked.as_ref().map_or(Type::Dyn, |checked| checked.ty.clone()));
        let (ty, size) = match fold.kind {
            FoldKind::All | FoldKind::Exists | FoldKind::ExistsOne => (Type::Bool, Range::ONE),
            FoldKind::List => (Type::List(item(&result)), count),
            FoldKind::Filter => match &range.ty {
                Type::Map(key, _) => (Type::List(key.clone()), count),
                other => (other.clone(), count),
            },
            FoldKind::MapValues => {
                let key = match &range.ty {
                    Type::Map(key, _) => key.clone(),
                    _ => Rc::new(Type::Int),
                };
                (Type::Map(key, item(&result)), count)
            }
            FoldKind::MapEntries => (result.as_ref().map_or(Type::Dyn, |result| result.ty.clone()), count),
        };
        let code = FoldCode {
            kind: fold.kind,
            range: range.code,
            two_variables: fold.second.is_some(),
            condition: condition.map(|condition| condition.code),
            result: result.map(|result| result.code),
        };
        Checked { code: Code::Fold(Box::new(code)), ty, cost, size: Some(size), decl: None }
    }
}
