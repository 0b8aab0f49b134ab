//! Compares the writes of the aggregated server in its own store with its reports at the main API servers.
//!
//! A write was committed between its beginning and its end; a report was there from one revision of etcd to another, whose times are
//! known within bounds. What may have been at the same time counts as such, so whatever is found is certain.

use super::revision_times::Answers;
use crate::checks::Rule;
use std::time::Duration;

/// The reports about the resource from a revision of etcd on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ReportedState {
    pub(crate) revision: u64,
    /// What the server has reported.
    pub(crate) reported: Option<String>,
    /// The version agreed on.
    pub(crate) common: Option<String>,
}

/// A time from a moment to another, since boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Period {
    pub(crate) from: Duration,
    pub(crate) until: Duration,
}

/// A transaction that may have made a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Attempt {
    pub(crate) version: String,
    /// It was committed in this time, if at all.
    pub(crate) committed: Period,
}

/// A write of a plant that is in the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PlantWrite {
    pub(crate) token: String,
    /// The transactions that may have made it.
    pub(crate) attempts: Vec<Attempt>,
}

/// Compares all writes with all reports, oldest first, and returns the rules that were broken.
pub(crate) fn check(writes: &[PlantWrite], states: &[ReportedState], answers: &Answers) -> Vec<(Rule, String)> {
    let mut broken = Vec::new();
    for state in states {
        if let (Some(reported), Some(common)) = (&state.reported, &state.common)
            && reported != common
        {
            let words = format!("reported is {reported}, and commonEncodingVersion is {common}");
            broken.push((Rule::AgreementIsTrue, format!("revision {}: {words}", state.revision)));
        }
    }
    for write in writes {
        let findings = write.attempts.iter().map(|attempt| findings(attempt, states, answers));
        // One of the attempts has made it, so the best one counts.
        let fewest = findings.min_by_key(Vec::len).unwrap_or_default();
        let words = |what: &str| format!("{}: {what}; {:?}", write.token, write.attempts);
        broken.extend(fewest.iter().map(|(rule, what)| (*rule, words(what))));
    }
    broken
}

/// Which rules an attempt breaks, if it made the write.
fn findings(attempt: &Attempt, states: &[ReportedState], answers: &Answers) -> Vec<(Rule, String)> {
    let possible = states_during(attempt.committed, states, answers);
    let version = Some(&attempt.version);
    let mut findings = Vec::new();
    if possible.iter().all(|state| state.reported.as_ref() != version) {
        let words =
            format!("it was written in {}, and the reports at the main server were {possible:?}", attempt.version);
        findings.push((Rule::ReportBeforeWrite, words));
    }
    if possible.iter().all(|state| state.common.is_some() && state.common.as_ref() != version) {
        let words = format!("it was written in {} while the agreement was {possible:?}", attempt.version);
        findings.push((Rule::AgreementIsTrue, words));
    }
    findings
}

/// The states that may have been there at some time in a period.
fn states_during(period: Period, states: &[ReportedState], answers: &Answers) -> Vec<ReportedState> {
    let nothing = ReportedState::default();
    let begins = states.iter().map(|state| answers.not_before(state.revision));
    let ends = states.iter().map(|state| answers.not_after(state.revision)).chain([Duration::MAX]);
    let all = [&nothing].into_iter().chain(states).zip([Duration::ZERO].into_iter().chain(begins).zip(ends));
    let possible = all.filter(|(_, (begins, ends))| *begins <= period.until && *ends >= period.from);
    possible.map(|(state, _)| state.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::super::revision_times::RevisionAnswer;
    use super::*;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn period(from: u64, until: u64) -> Period {
        Period { from: seconds(from), until: seconds(until) }
    }

    /// Revision 10 was made at second 10, and so on.
    fn answers() -> Answers {
        let mut answers = Answers::default();
        for second in 0..100 {
            let (asked, answered) = (seconds(second), seconds(second));
            answers.add(RevisionAnswer { asked, answered, revision: second });
        }
        answers
    }

    fn state(revision: u64, version: Option<&str>) -> ReportedState {
        let version = version.map(str::to_owned);
        ReportedState { revision, reported: version.clone(), common: version }
    }

    fn write(version: &str, committed: (u64, u64)) -> PlantWrite {
        let committed = period(committed.0, committed.1);
        let attempt = Attempt { version: version.to_owned(), committed };
        PlantWrite { token: "t".to_owned(), attempts: vec![attempt] }
    }

    fn rules(writes: &[PlantWrite]) -> Vec<Rule> {
        let states = [state(10, Some("v1")), state(20, None), state(30, Some("v2")), state(40, Some("v1"))];
        check(writes, &states, &answers()).into_iter().map(|(rule, _)| rule).collect()
    }

    #[test]
    fn a_write_while_its_version_is_reported_breaks_no_rule() {
        for committed in [(12, 13), (5, 12), (18, 25), (42, 43)] {
            assert_eq!(rules(&[write("v1", committed)]), [], "{committed:?}");
        }
    }

    #[test]
    fn a_write_without_a_report_or_in_another_version_than_agreed_on_is_found() {
        use Rule::{AgreementIsTrue, ReportBeforeWrite};
        assert_eq!(rules(&[write("v1", (2, 8))]), [ReportBeforeWrite]);
        assert_eq!(rules(&[write("v1", (22, 28))]), [ReportBeforeWrite]);
        assert_eq!(rules(&[write("v1", (32, 33))]), [ReportBeforeWrite, AgreementIsTrue]);
    }

    #[test]
    fn an_agreement_on_another_version_than_reported_is_found() {
        let states = [ReportedState { common: Some("v2".to_owned()), ..state(10, Some("v1")) }];
        assert_eq!(check(&[], &states, &answers()).len(), 1);
    }

    #[test]
    fn a_write_is_fine_if_one_of_its_transactions_was() {
        let (mut twice, fine) = (write("v1", (22, 28)), write("v1", (12, 13)));
        twice.attempts.extend(fine.attempts);
        assert_eq!(rules(&[twice]), []);
    }
}
