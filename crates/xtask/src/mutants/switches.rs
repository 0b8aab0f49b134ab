//! Rewrites a source file so that all its mutants are in it, each behind a switch. Where an expression has mutants, it becomes
//! `if mutant(1) { other expression } else { expression }`. One mutant is on at a time, so the other expression needs no
//! switches in it, and only the last branch is rewritten further.

use super::edits::{Edits, Rewritten, Switched};
use super::list::{Genre, Mutant};
use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::ops::Range;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Arm, BinOp, Block, Expr, ExprBinary, ExprMatch, ExprStruct, ExprUnary, Pat, Signature};

/// The condition that is true where a mutant is on.
fn is_on(mutant: &Mutant) -> String {
    format!("crate::restow_mutant({})", mutant.number)
}

/// The text with all its mutants behind switches. Mutants for which there can be no switch, as in a `const fn`, are left out.
pub(crate) fn rewrite(text: &str, mutants: &[&Mutant]) -> Result<Rewritten> {
    let file = syn::parse_file(text)?;
    let mut places: BTreeMap<usize, Vec<&Mutant>> = BTreeMap::new();
    for mutant in mutants {
        let offset = mutant.span.start.offset(text).with_context(|| format!("no such place: {}", mutant.name))?;
        places.entry(offset).or_default().push(mutant);
    }
    let mut visitor = Visitor { text, places, edits: Edits::default() };
    visitor.visit_file(&file);
    Ok(visitor.edits.apply(text))
}

struct Visitor<'a> {
    text: &'a str,
    /// The mutants that have no switch yet, by where they begin.
    places: BTreeMap<usize, Vec<&'a Mutant>>,
    edits: Edits,
}

impl<'a> Visitor<'a> {
    /// The mutants of this genre that begin here.
    fn take(&mut self, genre: Genre, offset: usize) -> Vec<&'a Mutant> {
        let here = self.places.entry(offset).or_default();
        let (taken, left) = here.drain(..).partition(|mutant| mutant.genre == genre);
        *here = left;
        taken
    }

    /// Puts an expression behind the switches of mutants, each with the expression that it has instead.
    fn switch(&mut self, expression: Range<usize>, instead: Vec<(&Mutant, String)>) {
        if instead.is_empty() {
            return;
        }
        let switched = instead.into_iter().map(|(mutant, other)| Switched {
            mutant: mutant.number,
            text: format!("if {} {{ {other} }} else ", is_on(mutant)),
        });
        self.edits.wrap(expression, "(", switched.collect(), "{ ", " })");
    }

    fn function(&mut self, signature: &Signature, block: &Block) -> bool {
        if signature.constness.is_some() {
            return false;
        }
        // A function that returns `impl Trait` returns one type.
        let one_type = self.source(&signature.output).contains("impl ");
        if let Some(first) = block.stmts.first().filter(|_| !one_type) {
            let start = first.span().byte_range().start;
            let returns = self.take(Genre::FnValue, start).into_iter().map(|mutant| Switched {
                mutant: mutant.number,
                text: format!("if {} {{ return {}; }} ", is_on(mutant), mutant.replacement),
            });
            self.edits.insert(block.brace_token.span.open().byte_range().end, returns.collect());
        }
        true
    }

    fn source(&self, node: &impl Spanned) -> &'a str {
        self.text.get(node.span().byte_range()).unwrap_or_default()
    }
}

impl<'a> Visit<'a> for Visitor<'_> {
    fn visit_item_const(&mut self, _: &'a syn::ItemConst) {}
    fn visit_item_static(&mut self, _: &'a syn::ItemStatic) {}
    fn visit_impl_item_const(&mut self, _: &'a syn::ImplItemConst) {}
    fn visit_trait_item_const(&mut self, _: &'a syn::TraitItemConst) {}
    fn visit_type(&mut self, _: &'a syn::Type) {}
    fn visit_pat(&mut self, _: &'a syn::Pat) {}

    fn visit_item_fn(&mut self, function: &'a syn::ItemFn) {
        if self.function(&function.sig, &function.block) {
            visit::visit_item_fn(self, function);
        }
    }

    fn visit_impl_item_fn(&mut self, function: &'a syn::ImplItemFn) {
        if self.function(&function.sig, &function.block) {
            visit::visit_impl_item_fn(self, function);
        }
    }

    fn visit_trait_item_fn(&mut self, function: &'a syn::TraitItemFn) {
        if function.default.as_ref().is_some_and(|block| self.function(&function.sig, block)) {
            visit::visit_trait_item_fn(self, function);
        }
    }

    fn visit_expr_binary(&mut self, binary: &'a ExprBinary) {
        if !has_let(&binary.left) && !has_let(&binary.right) {
            let (left, right) = (self.source(&binary.left), self.source(&binary.right));
            let mutants = self.take(Genre::BinaryOperator, binary.op.span().byte_range().start);
            let other = |mutant: &Mutant| format!("({left}) {} ({right})", mutant.replacement);
            self.switch(
                binary.span().byte_range(),
                mutants.into_iter().map(|mutant| (mutant, other(mutant))).collect(),
            );
        }
        visit::visit_expr_binary(self, binary);
    }

    fn visit_expr_unary(&mut self, unary: &'a ExprUnary) {
        let operand = self.source(&unary.expr);
        let mutants = self.take(Genre::UnaryOperator, unary.op.span().byte_range().start);
        self.switch(
            unary.span().byte_range(),
            mutants.into_iter().map(|mutant| (mutant, operand.to_owned())).collect(),
        );
        visit::visit_expr_unary(self, unary);
    }

    fn visit_expr_match(&mut self, expression: &'a ExprMatch) {
        // An arm with a guard may match nothing; without an arm for everything else, the compiler would refuse it.
        if !expression.arms.iter().any(takes_everything) {
            for arm in &expression.arms {
                self.take(Genre::MatchArm, arm.span().byte_range().start);
            }
        }
        visit::visit_expr_match(self, expression);
    }

    fn visit_arm(&mut self, arm: &'a Arm) {
        let deleted = self.take(Genre::MatchArm, arm.span().byte_range().start);
        match &arm.guard {
            Some((_, guard)) if !has_let(guard) => {
                let range = guard.span().byte_range();
                let deleted = deleted.into_iter().map(|mutant| (mutant, "false".to_owned())).collect();
                self.switch(range.clone(), deleted);
                let mutants = self.take(Genre::MatchArmGuard, range.start);
                let instead = mutants.into_iter().map(|mutant| (mutant, mutant.replacement.clone())).collect();
                self.switch(range, instead);
            }
            Some(_) => {}
            None => {
                let guards = deleted
                    .into_iter()
                    .map(|mutant| Switched { mutant: mutant.number, text: format!(" if !{}", is_on(mutant)) });
                self.edits.insert(arm.pat.span().byte_range().end, guards.collect());
            }
        }
        visit::visit_arm(self, arm);
    }

    fn visit_expr_struct(&mut self, literal: &'a ExprStruct) {
        if let Some(rest) = &literal.rest {
            let base = match self.source(rest) {
                "Default::default()" => format!("<{} as Default>::default()", self.source(&literal.path)),
                base => base.to_owned(),
            };
            for field in &literal.fields {
                let member = self.source(&field.member);
                let mutants = self.take(Genre::StructField, field.span().byte_range().start);
                let from_base = mutants.into_iter().map(|mutant| (mutant, format!("({base}).{member}"))).collect();
                if field.colon_token.is_none() {
                    self.edits.insert_plain(field.span().byte_range().start, format!("{member}: "));
                }
                self.switch(field.expr.span().byte_range(), from_base);
            }
        }
        visit::visit_expr_struct(self, literal);
    }
}

/// Whether this is `_ =>`.
fn takes_everything(arm: &Arm) -> bool {
    arm.guard.is_none() && matches!(arm.pat, Pat::Wild(_))
}

/// Whether this is part of a chain with `let`, which can only stand in a condition.
fn has_let(expression: &Expr) -> bool {
    match expression {
        Expr::Let(_) => true,
        Expr::Binary(ExprBinary { left, right, op: BinOp::And(_), .. }) => has_let(left) || has_let(right),
        _ => false,
    }
}

#[cfg(test)]
mod tests;
