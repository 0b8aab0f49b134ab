//! When a migration is done, and when that is proven.
//!
//! A pass goes through all objects once and asks for each to be rewritten. The server leaves an object alone, and its
//! resource version as it was, if it is stored already as the server would store it. So a pass in which no resource
//! version changed is evidence that nothing old was left. A conflict is none: whoever wrote the object may have been a
//! server that still encodes the old version.

/// What one pass through all objects came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PassReport {
    /// Objects whose resource version changed by our asking.
    pub rewritten: u64,
    /// Objects that were left alone, because they are stored as they should be.
    pub current: u64,
    /// Objects that others kept writing, so that nothing is known about them.
    pub unsettled: u64,
    /// Objects that are gone.
    pub gone: u64,
    /// Objects that could not be rewritten.
    pub failed: u64,
    /// Whether the listing could not be continued where it was, or began in the middle: it may have missed objects.
    pub has_gaps: bool,
    /// Whether every server that can be reached was asked about every object. One server's judgement is none of another's.
    pub on_each: bool,
}

/// What is to be done after a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterPass {
    /// Go through all objects once more.
    GoOn,
    /// Nothing old is left.
    Proven,
    /// Some objects cannot be rewritten. More passes would not change that.
    SomeFailed,
    /// Objects keep changing their stored version: a server writes another one.
    NeverSettles,
}

/// How many passes may change objects before it is clear that someone changes them back. The first one is the work, a
/// second one catches what was written beside it, more need a reason.
pub const MOST_PASSES: usize = 12;

impl PassReport {
    /// Whether the pass found nothing to do.
    pub fn is_clean(&self) -> bool {
        self.rewritten == 0 && self.unsettled == 0 && self.failed == 0
    }
}

/// What is to be done after these passes, oldest first.
///
/// A clean pass with gaps may have missed objects, but only such as were created while it ran. Two of them in a row are
/// taken for one without, or a resource that takes longer to go through than history is kept could never be proven.
///
/// Where objects failed, passes go on until nothing else changes: then the failed ones are the only ones in doubt, and a
/// later run need not look at the others ([`is_settled`]).
pub fn after_passes(passes: &[PassReport]) -> AfterPass {
    let Some(last) = passes.last() else { return AfterPass::GoOn };
    if last.failed > 0 && last.rewritten == 0 && last.unsettled == 0 && last.on_each {
        return AfterPass::SomeFailed;
    }
    let before_was_clean = passes.len() > 1 && passes[passes.len() - 2].is_clean();
    if last.is_clean() && last.on_each && (!last.has_gaps || before_was_clean) {
        return AfterPass::Proven;
    }
    match passes.len() >= MOST_PASSES {
        true if last.failed > 0 => AfterPass::SomeFailed,
        true => AfterPass::NeverSettles,
        false => AfterPass::GoOn,
    }
}

/// Whether an object is known to be in the target version because an earlier run, relying on the same agreement, left all
/// but the objects that it names in that version: the object was not written since, and is none of those.
///
/// Resource versions that are no numbers cannot be compared; then nothing is known.
pub fn is_settled(resource_version: &str, settled_at: &str) -> bool {
    match (resource_version.parse::<u64>(), settled_at.parse::<u64>()) {
        (Ok(written), Ok(settled)) => written <= settled,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const WORK: PassReport =
        PassReport { rewritten: 5, current: 1, unsettled: 0, gone: 1, failed: 0, has_gaps: false, on_each: false };
    const CLEAN: PassReport = PassReport { rewritten: 0, current: 5, gone: 0, on_each: true, ..WORK };
    const CLEAN_ON_ONE: PassReport = PassReport { on_each: false, ..CLEAN };
    const CLEAN_WITH_GAPS: PassReport = PassReport { has_gaps: true, ..CLEAN };
    const UNSETTLED: PassReport = PassReport { unsettled: 1, ..CLEAN };

    #[test]
    fn only_a_pass_that_changes_nothing_proves_anything() {
        for (passes, expected) in [
            (&[][..], AfterPass::GoOn),
            (&[WORK], AfterPass::GoOn),
            (&[CLEAN], AfterPass::Proven),
            (&[WORK, CLEAN], AfterPass::Proven),
            (&[CLEAN_ON_ONE], AfterPass::GoOn),
            (&[CLEAN_ON_ONE, CLEAN], AfterPass::Proven),
            (&[WORK, UNSETTLED], AfterPass::GoOn),
            (&[CLEAN_WITH_GAPS], AfterPass::GoOn),
            (&[WORK, CLEAN_WITH_GAPS, CLEAN_WITH_GAPS], AfterPass::Proven),
            (&[PassReport { failed: 1, ..WORK }], AfterPass::GoOn),
            (&[PassReport { failed: 1, ..WORK }, PassReport { failed: 1, ..CLEAN }], AfterPass::SomeFailed),
            (&[PassReport { failed: 1, ..WORK }; MOST_PASSES], AfterPass::SomeFailed),
            (&[WORK; MOST_PASSES], AfterPass::NeverSettles),
        ] {
            assert_eq!(after_passes(passes), expected, "{passes:?}");
        }
    }

    #[test]
    fn only_what_was_not_written_since_is_settled() {
        for (written, settled_at, expected) in
            [("5", "5", true), ("4", "10", true), ("11", "10", false), ("x", "10", false), ("5", "", false)]
        {
            assert_eq!(is_settled(written, settled_at), expected, "{written} {settled_at}");
        }
    }

    proptest! {
        #[test]
        fn what_is_proven_had_a_last_pass_without_change(
            passes in prop::collection::vec(
                (0u64..2, 0u64..2, 0u64..2, any::<bool>(), any::<bool>()).prop_map(
                    |(rewritten, unsettled, failed, has_gaps, on_each)| PassReport {
                        rewritten, current: 3, unsettled, gone: 0, failed, has_gaps, on_each,
                    }
                ),
                0..15,
            )
        ) {
            if after_passes(&passes) == AfterPass::Proven {
                prop_assert!(passes.last().is_some_and(|last| last.is_clean() && last.on_each));
            }
        }
    }
}
