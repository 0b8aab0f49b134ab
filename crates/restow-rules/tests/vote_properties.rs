//! Elections under random joins, leaves, crashes, upgrades and downgrades.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use proptest::prelude::*;
use restow_api::ServerId;
use restow_api::kube_apiserver_internal::StorageVersion;
use restow_rules::Participants;
use restow_rules::vote::{Ballot, ElectionResult, collect, vote};
use std::collections::{BTreeMap, BTreeSet};

const NAMES: [&str; 4] = ["a", "b", "c", "d"];
const VERSIONS: [&str; 3] = ["v1beta1", "v1", "v2"];

#[derive(Clone, Debug)]
enum Event {
    /// A server starts or restarts, takes its lease and votes; perhaps the participants cannot be read.
    Vote { server: usize, version: usize, readable: bool },
    /// A server takes its lease and does not vote, because it dies or does not know of voting.
    LeaseOnly { server: usize },
    /// A server's lease is deleted.
    LeaseGone { server: usize },
    /// The collector runs.
    Collect { readable: bool },
}

fn event() -> impl Strategy<Value = Event> {
    let server = 0..NAMES.len();
    let readable = prop::bool::weighted(0.8);
    prop_oneof![
        5 => (server.clone(), 0..VERSIONS.len(), readable)
            .prop_map(|(server, version, readable)| Event::Vote { server, version, readable }),
        1 => server.clone().prop_map(|server| Event::LeaseOnly { server }),
        2 => server.prop_map(|server| Event::LeaseGone { server }),
        2 => readable.prop_map(|readable| Event::Collect { readable }),
    ]
}

fn id(server: usize) -> ServerId {
    NAMES[server].parse().unwrap()
}

#[derive(Default)]
struct World {
    leases: BTreeSet<usize>,
    election: Option<StorageVersion>,
}

impl World {
    fn participants(&self, readable: bool) -> Participants {
        match readable {
            true => Participants::listed(self.leases.iter().map(|server| id(*server))),
            false => Participants::unreadable(),
        }
    }

    fn votes(&self) -> BTreeMap<String, String> {
        let votes = self.election.iter().flat_map(|election| &election.candidate_versions);
        votes.map(|vote| (vote.api_server_id.clone(), vote.preferred_version.clone())).collect()
    }

    fn selected(&self) -> Option<&str> {
        self.election.as_ref().map(|election| election.selected_version.as_str())
    }

    fn apply(&mut self, event: &Event) {
        match event {
            Event::LeaseOnly { server } => drop(self.leases.insert(*server)),
            Event::LeaseGone { server } => drop(self.leases.remove(server)),
            Event::Vote { server, version, readable } => {
                self.leases.insert(*server);
                let ballot = Ballot { id: id(*server), preferred: VERSIONS[*version].parse().unwrap() };
                let tally = vote(self.election.as_ref(), &self.participants(*readable), &ballot);
                self.write(tally, *readable);
                assert_eq!(self.votes().get(NAMES[*server]).map(String::as_str), Some(VERSIONS[*version]));
                let again = vote(self.election.as_ref(), &self.participants(*readable), &ballot);
                assert_eq!(again.candidate_versions, self.election.as_ref().unwrap().candidate_versions);
                assert_eq!(Some(again.selected_version.as_str()), self.selected(), "voting again changes nothing");
            }
            Event::Collect { readable } => {
                let Some(election) = &self.election else { return };
                let tally = collect(election, &self.participants(*readable));
                assert!(*readable || tally.is_none(), "nothing is collected unread");
                match tally {
                    Some(tally) if tally.candidate_versions.is_empty() => self.election = None,
                    Some(tally) => self.write(tally, *readable),
                    None => {}
                }
            }
        }
    }

    fn write(&mut self, tally: ElectionResult, readable: bool) {
        for name in &tally.dropped {
            assert!(readable && self.leases.iter().all(|server| NAMES[*server] != name), "{name} was dropped");
        }
        let election = self.election.get_or_insert_with(|| StorageVersion::new(&"pods".parse().unwrap()));
        election.selected_version = tally.selected_version;
        election.candidate_versions = tally.candidate_versions;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn the_selection_changes_only_when_all_votes_are_equal(events in prop::collection::vec(event(), 1..40)) {
        let mut world = World::default();
        for event in &events {
            let before = world.selected().map(str::to_owned);
            world.apply(event);
            let votes = world.votes();
            prop_assert_eq!(votes.len(), world.election.as_ref().map_or(0, |election| election.candidate_versions.len()));
            let (Some(before), Some(after)) = (before, world.selected()) else { continue };
            if before != after {
                let all_equal = world.leases.iter().all(|server| votes.get(NAMES[*server]).is_some_and(|vote| vote == after));
                prop_assert!(all_equal, "{} was selected although not all votes are equal: {:?}", after, votes);
            }
        }
    }
}
