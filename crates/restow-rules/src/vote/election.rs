//! Casts a vote, drops votes of servers that are gone, and selects.

use crate::Participants;
use crate::collect::MOST_DROPPED;
use restow_api::kube_apiserver_internal::{StorageVersion, VersionCandidate};
use restow_api::{GroupVersion, ServerId};

/// One server's vote: the version that its release prefers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ballot {
    /// The voting server.
    pub id: ServerId,
    /// The version that it prefers.
    pub preferred: GroupVersion,
}

/// The state of an election, to be written. As with registration, the preconditions are the revision that was read, and
/// that the leases of all dropped servers still do not exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ElectionResult {
    /// The version that every server stores from now on.
    pub selected_version: String,
    /// The votes.
    pub candidate_versions: Vec<VersionCandidate>,
    /// The servers whose votes are dropped.
    pub dropped: Vec<String>,
}

/// The election after this server has voted. If there is none yet, the first voter's preference is selected.
///
/// The server must hold its identity lease before it votes, and stores the version that is selected *after* its vote.
pub fn vote(current: Option<&StorageVersion>, participants: &Participants, own: &Ballot) -> ElectionResult {
    let own_vote = VersionCandidate { api_server_id: own.id.to_string(), preferred_version: own.preferred.to_string() };
    let Some(current) = current.filter(|object| !object.selected_version.is_empty()) else {
        // The first voter decides alone.
        let selected_version = own_vote.preferred_version.clone();
        return ElectionResult { selected_version, candidate_versions: vec![own_vote], dropped: Vec::new() };
    };
    let others = current.candidate_versions.iter().filter(|candidate| candidate.api_server_id != own.id.as_str());
    let (mut candidate_versions, dropped) = split(others, participants);
    let before_own = current.candidate_versions.iter().take_while(|vote| vote.api_server_id != own.id.as_str());
    let place = before_own.filter(|vote| !participants.is_gone(&vote.api_server_id)).count();
    candidate_versions.insert(place, own_vote);
    let selected_version = select(&current.selected_version, &candidate_versions, participants);
    ElectionResult { selected_version, candidate_versions, dropped }
}

/// The election after servers are gone; `None` if it does not change. A tally without votes means that the object can be
/// deleted: no server stores this resource any more.
pub fn collect(current: &StorageVersion, participants: &Participants) -> Option<ElectionResult> {
    participants.all()?;
    let (candidate_versions, dropped) = split(current.candidate_versions.iter(), participants);
    let selected_version = select(&current.selected_version, &candidate_versions, participants);
    let unchanged = dropped.is_empty() && selected_version == current.selected_version;
    (!unchanged || candidate_versions.is_empty()).then_some(ElectionResult {
        selected_version,
        candidate_versions,
        dropped,
    })
}

/// The election without the vote of this server, which does not vote on the resource any more; `None` if it has no vote.
/// The selection stays: a participant without a vote is waited for.
pub fn withdraw(current: &StorageVersion, own: &ServerId) -> Option<ElectionResult> {
    let is_own = |vote: &VersionCandidate| vote.api_server_id == own.as_str();
    current.candidate_versions.iter().any(is_own).then(|| ElectionResult {
        selected_version: current.selected_version.clone(),
        candidate_versions: current.candidate_versions.iter().filter(|vote| !is_own(vote)).cloned().collect(),
        dropped: Vec::new(),
    })
}

/// Separates the votes that count from those of servers that are gone, up to the number that one transaction can compare.
fn split<'a>(
    votes: impl Iterator<Item = &'a VersionCandidate>,
    participants: &Participants,
) -> (Vec<VersionCandidate>, Vec<String>) {
    let (mut kept, mut gone) = (Vec::new(), Vec::new());
    for vote in votes {
        if gone.len() < MOST_DROPPED && participants.is_gone(&vote.api_server_id) {
            gone.push(vote.api_server_id.clone());
        } else {
            kept.push(vote.clone());
        }
    }
    (kept, gone)
}

/// The version that all prefer, if every participant has voted and all votes are the same; else the one selected before. A
/// participant without a vote does not support voting, or has yet to vote: it is waited for.
fn select(before: &str, votes: &[VersionCandidate], participants: &Participants) -> String {
    let Some(first) = votes.first() else {
        return before.to_owned();
    };
    let unanimous = votes.iter().all(|vote| vote.preferred_version == first.preferred_version);
    let everybody_voted = participants.all().is_some_and(|all| {
        all.iter().all(|participant| votes.iter().any(|vote| vote.api_server_id == participant.as_str()))
    });
    if unanimous && everybody_voted { first.preferred_version.clone() } else { before.to_owned() }
}
