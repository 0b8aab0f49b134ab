//! When a migration is done, and when that is proven.
//!
//! A pass rewrites all objects once. The server leaves an object and its resource version unchanged if it would store the
//! same bytes. So a pass that changed no resource version is evidence that nothing old was left. A conflict is not: the
//! object may have been written by a server that still encodes the old version.

/// The result of one pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PassReport {
    /// Objects whose resource version was changed by this pass.
    pub rewritten: u64,
    /// Objects that were left unchanged, because they are stored in the target version.
    pub current: u64,
    /// Objects that others kept writing; their version is unknown.
    pub unsettled: u64,
    /// Objects that are deleted.
    pub gone: u64,
    /// Objects that could not be rewritten.
    pub failed: u64,
    /// Whether the list was interrupted, or began in the middle: it may have missed objects.
    pub has_gaps: bool,
    /// Whether it began at the token of an earlier run, and did not process the objects before it.
    pub began_in_the_middle: bool,
    /// Whether namespaces were listed one after the other: objects in deleted namespaces are missed.
    pub by_namespace: bool,
    /// Objects that were not reached, because one before them cannot be read.
    pub unreached: u64,
    /// Objects that nobody has written since the first pass began, as far as their listed resource version shows.
    pub unwritten: u64,
    /// Whether every reachable server has rewritten every object. The result of one server says nothing about another.
    pub on_each: bool,
    /// Whether it began after the settling time: all servers had shown the target version for so long that no older write
    /// can be in flight.
    pub is_after_settling: bool,
}

/// What to do after a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterPass {
    /// Another pass.
    GoOn,
    /// Nothing old is left.
    Proven,
    /// Some objects cannot be rewritten. More passes would not change that.
    SomeFailed,
    /// Objects keep changing their stored version: a server writes another one.
    NeverSettles,
}

/// The maximum number of passes, if others keep writing objects.
pub const MOST_PASSES: usize = 12;
/// The maximum number of passes that may change objects. The first is the migration, a second one finds what was written
/// meanwhile. If there are more, someone changes objects back, and they must not be rewritten forever.
pub const MOST_CHANGING_PASSES: usize = 4;

impl PassReport {
    /// Whether the pass found nothing to do.
    pub fn is_clean(&self) -> bool {
        self.rewritten == 0 && self.unsettled == 0 && self.failed == 0 && self.unreached == 0
    }

    /// Whether the pass can prove anything: on every server, and after the settling time.
    pub fn counts(&self) -> bool {
        self.on_each && self.is_after_settling
    }

    /// Whether it may have missed objects that existed all the time.
    fn is_partial(&self) -> bool {
        self.began_in_the_middle || self.by_namespace
    }

    /// Whether every object is known to be current, except for those that failed: none was missed, changed, or written by
    /// others.
    pub fn is_quiet_but_for_failures(&self) -> bool {
        let is_quiet = self.rewritten == 0 && self.unsettled == 0;
        self.counts() && is_quiet && self.unreached == 0 && !self.has_gaps && !self.is_partial()
    }

    /// Records the result of one object. An object that was changed counts as rewritten, whatever its final result.
    pub fn record(&mut self, end: ObjectEnd, changed: Changed) {
        self.rewritten += u64::from(changed == Changed::Yes);
        match (end, changed) {
            (ObjectEnd::Current, Changed::No) => self.current += 1,
            (ObjectEnd::Current, Changed::Yes) => {}
            (ObjectEnd::Gone, _) => self.gone += 1,
            (ObjectEnd::Unsettled, _) => self.unsettled += 1,
            (ObjectEnd::Failed, _) => self.failed += 1,
        }
    }
}

/// The final result of one object in a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectEnd {
    /// Every server leaves it unchanged now.
    Current,
    /// It is deleted: a read by its name says so.
    Gone,
    /// Others kept writing it.
    Unsettled,
    /// It cannot be rewritten.
    Failed,
}

/// Whether any server has changed an object, in any try.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Changed {
    /// It was not.
    #[default]
    No,
    /// It was.
    Yes,
}

/// What to do after these passes, oldest first.
///
/// A clean pass whose token expired may have missed objects, but only objects that were created meanwhile. Two of them in a
/// row count like one without a gap; else a resource that takes longer to list than history is kept could never be proven.
/// A pass that began in the middle, or went from namespace to namespace, may have missed others, and proves nothing.
///
/// If objects failed, passes go on until nothing else changes: then only the failed ones are in doubt, and a later run need
/// not process the others ([`is_settled`]).
pub fn after_passes(passes: &[PassReport]) -> AfterPass {
    let Some(last) = passes.last() else { return AfterPass::GoOn };
    let has_failed = last.failed > 0 || last.unreached > 0 || last.by_namespace;
    if has_failed && last.rewritten == 0 && last.unsettled == 0 && last.counts() {
        return AfterPass::SomeFailed;
    }
    let before = passes.iter().rev().nth(1);
    let before_was_clean = before.is_some_and(|before| before.is_clean() && !before.is_partial());
    if last.is_clean() && last.counts() && !last.is_partial() && (!last.has_gaps || before_was_clean) {
        return AfterPass::Proven;
    }
    let changing = passes.iter().filter(|pass| pass.rewritten > 0).count();
    match passes.len() >= MOST_PASSES || changing >= MOST_CHANGING_PASSES {
        true if has_failed => AfterPass::SomeFailed,
        true => AfterPass::NeverSettles,
        false => AfterPass::GoOn,
    }
}

/// Whether an object is known to be in the target version because an earlier run with the same agreement has verified it:
/// it was not written since.
///
/// Resource versions that are not numbers cannot be compared; then nothing is known.
pub fn is_settled(resource_version: &str, settled_at: &str) -> bool {
    match (resource_version.parse::<u64>(), settled_at.parse::<u64>()) {
        (Ok(written), Ok(settled)) => written <= settled,
        _ => false,
    }
}

/// Whether an object was written since a list at this revision. Resource versions that are not numbers cannot be compared;
/// then it counts as not written, which proves less.
pub fn is_written_since(resource_version: &str, listed_at: &str) -> bool {
    match (resource_version.parse::<u64>(), listed_at.parse::<u64>()) {
        (Ok(written), Ok(listed)) => written > listed,
        _ => false,
    }
}

/// Whether all failed objects can be identified. An object without a uid cannot: one that could not be read or found has
/// none, and would be mistaken for a current one.
pub fn all_are_known<'a>(mut uids: impl Iterator<Item = &'a str>) -> bool {
    uids.all(|uid| !uid.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const WORK: PassReport = PassReport {
        rewritten: 5,
        current: 1,
        unsettled: 0,
        gone: 1,
        failed: 0,
        has_gaps: false,
        began_in_the_middle: false,
        by_namespace: false,
        unreached: 0,
        unwritten: 0,
        on_each: false,
        is_after_settling: true,
    };
    const CLEAN: PassReport = PassReport { rewritten: 0, current: 5, gone: 0, on_each: true, ..WORK };
    const CLEAN_TOO_EARLY: PassReport = PassReport { is_after_settling: false, ..CLEAN };
    const CLEAN_ON_ONE: PassReport = PassReport { on_each: false, ..CLEAN };
    const CLEAN_WITH_GAPS: PassReport = PassReport { has_gaps: true, ..CLEAN };
    const CLEAN_FROM_A_TOKEN: PassReport = PassReport { began_in_the_middle: true, ..CLEAN_WITH_GAPS };
    const CLEAN_BY_NAMESPACE: PassReport = PassReport { by_namespace: true, ..CLEAN_WITH_GAPS };
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
            (&[CLEAN_TOO_EARLY], AfterPass::GoOn),
            (&[CLEAN_TOO_EARLY, CLEAN], AfterPass::Proven),
            (&[WORK, PassReport { failed: 1, ..CLEAN_TOO_EARLY }], AfterPass::GoOn),
            (&[WORK, PassReport { unreached: 3, ..CLEAN }], AfterPass::SomeFailed),
            (&[CLEAN_WITH_GAPS], AfterPass::GoOn),
            (&[WORK, CLEAN_WITH_GAPS, CLEAN_WITH_GAPS], AfterPass::Proven),
            // Neither has seen what lies in front of the token.
            (&[CLEAN_FROM_A_TOKEN, CLEAN_WITH_GAPS], AfterPass::GoOn),
            (&[CLEAN_FROM_A_TOKEN, CLEAN_WITH_GAPS, CLEAN_WITH_GAPS], AfterPass::Proven),
            (&[CLEAN_FROM_A_TOKEN, CLEAN], AfterPass::Proven),
            // None has seen what lies in a namespace that is gone.
            (&[CLEAN_BY_NAMESPACE, CLEAN_BY_NAMESPACE], AfterPass::SomeFailed),
            (&[CLEAN_BY_NAMESPACE, CLEAN_WITH_GAPS], AfterPass::GoOn),
            (&[CLEAN_BY_NAMESPACE, CLEAN], AfterPass::Proven),
            (&[PassReport { failed: 1, ..WORK }], AfterPass::GoOn),
            (&[PassReport { failed: 1, ..WORK }, PassReport { failed: 1, ..CLEAN }], AfterPass::SomeFailed),
            (&[PassReport { failed: 1, ..WORK }; MOST_CHANGING_PASSES], AfterPass::SomeFailed),
            (&[WORK; MOST_CHANGING_PASSES], AfterPass::NeverSettles),
            (&[UNSETTLED; MOST_PASSES - 1], AfterPass::GoOn),
            (&[UNSETTLED; MOST_PASSES], AfterPass::NeverSettles),
        ] {
            assert_eq!(after_passes(passes), expected, "{passes:?}");
        }
    }

    #[test]
    fn only_objects_that_were_not_written_since_are_settled() {
        for (written, settled_at, expected) in
            [("5", "5", true), ("4", "10", true), ("11", "10", false), ("x", "10", false), ("5", "", false)]
        {
            assert_eq!(is_settled(written, settled_at), expected, "{written} {settled_at}");
        }
    }

    #[test]
    fn incomparable_resource_versions_count_as_not_written() {
        for (written, listed_at, expected) in
            [("11", "10", true), ("10", "10", false), ("9", "10", false), ("x", "10", false), ("11", "", false)]
        {
            assert_eq!(is_written_since(written, listed_at), expected, "{written} {listed_at}");
        }
    }

    #[test]
    fn nothing_is_settled_where_an_object_was_missed_or_is_unknown() {
        assert!(PassReport { failed: 3, ..CLEAN }.is_quiet_but_for_failures());
        for report in [
            WORK,
            UNSETTLED,
            CLEAN_WITH_GAPS,
            CLEAN_BY_NAMESPACE,
            CLEAN_TOO_EARLY,
            PassReport { unreached: 1, ..CLEAN },
        ] {
            assert!(!report.is_quiet_but_for_failures(), "{report:?}");
        }
        assert!(all_are_known(["a", "b"].into_iter()));
        assert!(!all_are_known(["a", ""].into_iter()));
    }

    #[test]
    fn a_changed_object_counts_as_rewritten_whatever_its_end() {
        let mut report = PassReport::default();
        for end in [ObjectEnd::Current, ObjectEnd::Gone, ObjectEnd::Unsettled, ObjectEnd::Failed] {
            report.record(end, Changed::No);
            report.record(end, Changed::No);
            report.record(end, Changed::Yes);
        }
        let expected =
            PassReport { rewritten: 4, current: 2, gone: 3, unsettled: 3, failed: 3, ..PassReport::default() };
        assert_eq!(report, expected);
    }

    fn ends() -> impl Strategy<Value = Vec<(ObjectEnd, Changed)>> {
        let end = prop_oneof![
            4 => Just(ObjectEnd::Current),
            1 => Just(ObjectEnd::Gone),
            1 => Just(ObjectEnd::Unsettled),
            1 => Just(ObjectEnd::Failed),
        ];
        let changed = prop_oneof![4 => Just(Changed::No), 1 => Just(Changed::Yes)];
        prop::collection::vec((end, changed), 0..6)
    }

    proptest! {
        /// Whatever became of the objects, and in whatever order: what is proven had a last pass, through every server and
        /// after the settling time, in which each object was left unchanged or is gone.
        #[test]
        fn what_is_proven_had_a_last_pass_without_change(
            passes in prop::collection::vec((ends(), any::<bool>(), any::<bool>(), any::<bool>(), 0u64..2), 0..15)
        ) {
            let report = |(ends, has_gaps, on_each, is_after_settling, unreached): &(Vec<_>, bool, bool, bool, u64)| {
                let mut report = PassReport {
                    has_gaps: *has_gaps, on_each: *on_each, is_after_settling: *is_after_settling,
                    unreached: *unreached, ..PassReport::default()
                };
                ends.iter().for_each(|(end, changed)| report.record(*end, *changed));
                report
            };
            let reports: Vec<PassReport> = passes.iter().map(report).collect();
            if after_passes(&reports) == AfterPass::Proven {
                let (ends, _, on_each, is_after_settling, unreached) = passes.last().unwrap();
                prop_assert!(*on_each && *is_after_settling && *unreached == 0);
                for (end, changed) in ends {
                    prop_assert!(matches!(end, ObjectEnd::Current | ObjectEnd::Gone) && *changed == Changed::No);
                }
            }
        }
    }
}
