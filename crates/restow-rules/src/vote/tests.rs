//! The scenarios of the proposal: the first release that votes, a rolling upgrade, releases x to x+3 upward and downward,
//! and the release that was skipped.

use super::*;
use crate::Participants;
use restow_api::kube_apiserver_internal::{StorageVersion, VersionCandidate};
use restow_api::{GroupResource, GroupVersion};
use std::collections::{BTreeMap, BTreeSet};

fn version(text: &str) -> GroupVersion {
    text.parse().unwrap()
}

fn pods() -> GroupResource {
    "pods".parse().unwrap()
}

/// What a release supports and what it prefers.
#[derive(Clone, Copy)]
struct Release {
    supports: &'static [&'static str],
    prefers: &'static str,
}

/// The fastest evolution that Kubernetes' deprecation policy allows.
const RELEASES: [Release; 4] = [
    Release { supports: &["v1"], prefers: "v1" },
    Release { supports: &["v1", "v2"], prefers: "v1" },
    Release { supports: &["v1", "v2"], prefers: "v2" },
    Release { supports: &["v2"], prefers: "v2" },
];

/// A cluster that votes. `running` are the servers whose lease exists.
#[derive(Default)]
struct Cluster {
    election: Option<StorageVersion>,
    running: BTreeMap<&'static str, Release>,
}

impl Cluster {
    fn participants(&self) -> Participants {
        Participants::listed(self.running.keys().map(|id| id.parse().unwrap()))
    }

    /// Starts a server, or restarts it with another release.
    fn start(&mut self, id: &'static str, release: Release) {
        self.running.insert(id, release);
        let ballot = Ballot { id: id.parse().unwrap(), preferred: version(release.prefers) };
        let tally = vote(self.election.as_ref(), &self.participants(), &ballot);
        self.write(tally);
    }

    /// A server's lease is deleted, and the collector looks.
    fn lose(&mut self, id: &str) {
        self.running.remove(id);
        let election = self.election.take().unwrap();
        match collect(&election, &self.participants()) {
            None => self.election = Some(election),
            Some(tally) if tally.candidate_versions.is_empty() => {}
            Some(tally) => self.write(tally),
        }
    }

    fn write(&mut self, tally: ElectionResult) {
        let mut object = StorageVersion::new(&pods());
        object.selected_version = tally.selected_version;
        object.candidate_versions = tally.candidate_versions;
        self.election = Some(object);
    }

    fn selected(&self) -> &str {
        &self.election.as_ref().unwrap().selected_version
    }

    fn writing(&self, id: &str) -> Writing {
        let versions: BTreeSet<GroupVersion> = self.running[id].supports.iter().map(|text| version(text)).collect();
        let codec = Codec { encodable: versions.clone(), decodable: versions };
        writing(&pods(), self.selected(), &codec)
    }

    fn everybody_writes(&self) -> bool {
        self.running.keys().all(|id| self.writing(id) == Writing::Encode(version(self.selected())))
    }
}

#[test]
fn scenario_1_the_first_release_that_votes() {
    let mut cluster = Cluster::default();
    // b and c run a release that knows nothing of voting, but their leases exist.
    cluster.running.insert("b", RELEASES[1]);
    cluster.running.insert("c", RELEASES[1]);
    cluster.start("a", RELEASES[2]);
    assert_eq!(cluster.selected(), "v2", "the first voter selects what it prefers");
    cluster.start("b", RELEASES[2]);
    assert_eq!(cluster.selected(), "v2");
    cluster.start("c", RELEASES[2]);
    assert_eq!(cluster.selected(), "v2");
    assert!(cluster.everybody_writes());
}

#[test]
fn scenario_1_a_later_voter_does_not_turn_over_the_selection_alone() {
    let mut cluster = Cluster::default();
    cluster.running.insert("c", RELEASES[1]);
    cluster.start("a", RELEASES[1]);
    cluster.start("a", RELEASES[2]);
    assert_eq!(cluster.selected(), "v1", "c has not voted yet, so the selection waits for it");
}

#[test]
fn scenario_2_a_rolling_upgrade_moves_with_its_last_server() {
    let mut cluster = Cluster::default();
    for id in ["a", "b", "c"] {
        cluster.start(id, RELEASES[1]);
    }
    assert_eq!(cluster.selected(), "v1");
    cluster.start("a", RELEASES[2]);
    cluster.start("b", RELEASES[2]);
    assert_eq!(cluster.selected(), "v1", "c still prefers v1");
    assert!(cluster.everybody_writes());
    cluster.start("c", RELEASES[2]);
    assert_eq!(cluster.selected(), "v2");
    assert!(cluster.everybody_writes());
}

#[test]
fn the_last_old_server_may_also_leave_instead_of_being_upgraded() {
    let mut cluster = Cluster::default();
    for id in ["a", "b", "c"] {
        cluster.start(id, RELEASES[1]);
    }
    cluster.start("a", RELEASES[2]);
    cluster.start("b", RELEASES[2]);
    cluster.lose("c");
    assert_eq!(cluster.selected(), "v2");
}

/// Walks three servers from release to release, one server at a time, and checks after every step that all can write.
fn roll(path: &[usize], expected: &[&str]) {
    let mut cluster = Cluster::default();
    for (release, selected) in path.iter().zip(expected) {
        for id in ["a", "b", "c"] {
            cluster.start(id, RELEASES[*release]);
            assert!(cluster.everybody_writes(), "on the way to release x+{release}, {id} being the last to go");
        }
        assert_eq!(cluster.selected(), *selected, "at release x+{release}");
    }
}

#[test]
fn the_selected_version_is_supported_by_all_from_x_to_x_plus_3_and_back() {
    roll(&[0, 1, 2, 3], &["v1", "v1", "v2", "v2"]);
    roll(&[3, 2, 1, 0], &["v2", "v2", "v1", "v1"]);
    roll(&[1, 2, 1, 2], &["v1", "v2", "v1", "v2"]);
}

#[test]
fn a_skipped_release_refuses_writes_and_names_the_versions() {
    let mut cluster = Cluster::default();
    for id in ["a", "b", "c"] {
        cluster.start(id, RELEASES[1]);
    }
    cluster.start("a", RELEASES[3]);
    assert_eq!(cluster.selected(), "v1");
    let Writing::RefuseWrites(refusal) = cluster.writing("a") else {
        panic!("a wrote a version that it does not support")
    };
    let message = refusal.to_string();
    assert!(
        message.contains("cannot write pods") && message.contains("in v1") && message.contains("supports v2"),
        "{message}"
    );
    assert_eq!(cluster.writing("b"), Writing::Encode(version("v1")), "the others go on");
    cluster.start("b", RELEASES[3]);
    cluster.start("c", RELEASES[3]);
    assert_eq!(cluster.selected(), "v2", "with the last server the selection moves, and writes go on");
    assert!(cluster.everybody_writes());
}

#[test]
fn a_server_must_be_able_to_read_what_it_stores() {
    let set = |texts: &[&str]| texts.iter().map(|text| version(text)).collect::<BTreeSet<_>>();
    let codec = Codec { encodable: set(&["v1"]), decodable: set(&["v2"]) };
    let Writing::RefuseWrites(refusal) = writing(&pods(), "v1", &codec) else { panic!("it wrote what it cannot read") };
    assert!(refusal.to_string().contains("supports no version"));
}

#[test]
fn votes_of_the_gone_are_dropped_and_of_the_unknown_kept() {
    let vote_of = |id: &str, preferred: &str| VersionCandidate {
        api_server_id: id.to_owned(),
        preferred_version: preferred.to_owned(),
    };
    let mut election = StorageVersion::new(&pods());
    election.selected_version = "v1".into();
    election.candidate_versions = vec![vote_of("gone", "v1"), vote_of("a", "v2")];
    let ballot = Ballot { id: "b".parse().unwrap(), preferred: version("v2") };

    let listed = Participants::listed(["a", "b"].map(|id| id.parse().unwrap()));
    let tally = vote(Some(&election), &listed, &ballot);
    assert_eq!(tally.candidate_versions, [vote_of("a", "v2"), vote_of("b", "v2")]);
    assert_eq!((tally.selected_version.as_str(), tally.dropped.as_slice()), ("v2", ["gone".to_owned()].as_slice()));

    let tally = vote(Some(&election), &Participants::unreadable(), &ballot);
    assert_eq!(tally.candidate_versions, [vote_of("gone", "v1"), vote_of("a", "v2"), vote_of("b", "v2")]);
    assert_eq!((tally.selected_version.as_str(), tally.dropped.len()), ("v1", 0));
    assert_eq!(collect(&election, &Participants::unreadable()), None);
}

#[test]
fn unanimity_among_the_readable_is_not_unanimity() {
    let mut election = StorageVersion::new(&pods());
    election.selected_version = "v1".into();
    let participants = Participants::listed(["b".parse().unwrap()]).with_unread("quiet".parse().unwrap());
    let tally = vote(Some(&election), &participants, &Ballot { id: "b".parse().unwrap(), preferred: version("v2") });
    assert_eq!(tally.selected_version, "v1");
}

#[test]
fn the_election_of_a_removed_resource_is_deleted() {
    let mut cluster = Cluster::default();
    cluster.start("a", RELEASES[0]);
    // The next release no longer serves the resource, so b never votes on it.
    cluster.running.insert("b", RELEASES[0]);
    cluster.lose("a");
    assert_eq!(cluster.election, None);
}

/// An election with these votes, in which v1 is selected.
fn election(votes: &[(&str, &str)]) -> StorageVersion {
    let mut election = StorageVersion::new(&pods());
    election.selected_version = "v1".into();
    let vote = |(id, version): &(&str, &str)| VersionCandidate {
        api_server_id: (*id).into(),
        preferred_version: (*version).into(),
    };
    election.candidate_versions = votes.iter().map(vote).collect();
    election
}

fn listed(ids: &[&str]) -> Participants {
    Participants::listed(ids.iter().map(|id| id.parse().unwrap()))
}

#[test]
fn an_election_is_written_only_if_a_vote_or_the_selection_changes() {
    let both = election(&[("a", "v2"), ("b", "v1")]);
    assert_eq!(collect(&both, &listed(&["a", "b"])), None);
    // The selection stays, because nobody is gone who kept it.
    let with_old = election(&[("a", "v1"), ("b", "v1")]);
    let dropped = collect(&with_old, &listed(&["a"])).unwrap();
    assert_eq!((dropped.selected_version.as_str(), dropped.dropped), ("v1", vec!["b".to_owned()]));
    // The last server that had not voted is gone.
    let waiting = election(&[("a", "v2")]);
    assert_eq!(collect(&waiting, &listed(&["a", "b"])), None);
    let selected = collect(&waiting, &listed(&["a"])).unwrap();
    assert_eq!((selected.selected_version.as_str(), selected.dropped.len()), ("v2", 0));
}

#[test]
fn a_server_withdraws_its_own_vote_and_the_selection_stays() {
    let current = election(&[("a", "v2"), ("b", "v2")]);
    let withdrawn = withdraw(&current, &"a".parse().unwrap()).unwrap();
    let left = election(&[("b", "v2")]).candidate_versions;
    let expected = ElectionResult { selected_version: "v1".into(), candidate_versions: left, dropped: Vec::new() };
    assert_eq!(withdrawn, expected);
    assert_eq!(withdraw(&current, &"c".parse().unwrap()), None);
}

#[test]
fn one_transaction_drops_a_bounded_number_of_votes() {
    let names: Vec<String> = (0..=crate::collect::MOST_DROPPED).map(|number| format!("dead-{number}")).collect();
    let votes: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "v1")).collect();
    let tally = collect(&election(&votes), &listed(&["a"])).unwrap();
    assert_eq!((tally.dropped.len(), tally.candidate_versions.len()), (crate::collect::MOST_DROPPED, 1));
}
