//! A model of aggregated servers, which write to a store of their own and report to the main API server, checked in every state
//! that it can reach.
//!
//! Two servers share the own store. One starts with either version. They pause (whatever they do can happen at any later time, or never),
//! end and start again with the same identity; their writes stay in flight for as long as you like. One can be replaced
//! while it is paused, and report when it resumes. Servers also sweep: they read the leases at the main API server, then those in
//! the own store, and delete what [`ended`] returns. The collector of the own store may consider any lease expired. The
//! collector of the main API server removes the entries of servers without a lease.
//!
//! The rule: a write is committed only while the entry of its server at the main API server names its version. Without any one
//! of the precautions the checker must find how it breaks.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use restow_rules::collect::{MainLease, OwnLeases, ended};
use stateright::{Checker, HasDiscoveries, Model, Property};

const SERVERS: usize = 2;
const RULE: &str = "report before write, in two stores";
const IT_GETS_THERE: &str = "what a server that is gone has reported can be removed";

type Uid = u8;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Version {
    V1,
    V2,
}

/// How far a process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Process {
    Down,
    Started {
        version: Version,
    },
    /// It has the lease in its own store.
    Fenced {
        version: Version,
        own: Uid,
    },
    /// It has the lease at the main API server, too.
    Joined {
        version: Version,
        own: Uid,
    },
    /// It has reported.
    Writing {
        version: Version,
        own: Uid,
    },
    /// It stops, and has released the lease in its own store; or does not know whether it has.
    Leaving {
        main: Uid,
    },
}

/// A lease at the main API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Lease {
    uid: Uid,
    own: Uid,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Write {
    server: usize,
    version: Version,
    own: Uid,
}

/// What a sweep has read so far: at the main API server, and in the own store.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
struct Sweep {
    main: Option<[Option<Lease>; SERVERS]>,
    own: Option<[Option<Uid>; SERVERS]>,
}

/// A process that was replaced by another one with the same identity, and is about to report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Zombie {
    version: Version,
    /// Its lease at the main API server.
    own: Uid,
    /// How often the entry had been written when it read the report.
    read: Option<u8>,
    has_checked: bool,
}

/// The server that can be replaced while it is paused.
const REPLACED: usize = 0;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    processes: [Process; SERVERS],
    own: [Option<Uid>; SERVERS],
    main: [Option<Lease>; SERVERS],
    entries: [Option<Version>; SERVERS],
    /// How often the entry of the server was written that can be replaced.
    entry_writes: u8,
    zombie: Option<Zombie>,
    in_flight: Option<Write>,
    sweep: Sweep,
    next_uid: Uid,
    starts: u8,
    broken: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Action {
    Start(usize, Version),
    End(usize),
    Leave(usize),
    Step(usize),
    ExpireOwn(usize),
    ExpireMain(usize),
    Collect(usize),
    Send(usize),
    Land,
    ReadMain,
    ReadOwn,
    Sweep,
    Replace(Version),
    ZombieReads,
    ZombieChecks,
    ZombieWrites,
}

/// The precautions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Precautions {
    /// A lease at the main API server does not expire by time.
    no_expiry: bool,
    /// The main API server's leases are read before those in the own store.
    main_first: bool,
    /// A lease is deleted only if it is still the one that was read.
    uid_compared: bool,
    /// A server takes the lease in its own store before the one at the main API server.
    own_first: bool,
    /// A server that leaves keeps its lease at the main API server unless the one in its own store is gone.
    leaves_fenced: bool,
    /// A server checks that it still has its lease at the main API server after it has read the report that it replaces.
    lease_checked_after_read: bool,
}

const ALL: Precautions = Precautions {
    no_expiry: true,
    main_first: true,
    uid_compared: true,
    own_first: true,
    leaves_fenced: true,
    lease_checked_after_read: true,
};

struct TwoStores(Precautions);

impl State {
    fn fresh(&mut self) -> Uid {
        self.next_uid += 1;
        self.next_uid
    }

    /// The next step of a process that joins or leaves.
    fn step(&mut self, index: usize, precautions: Precautions) {
        self.processes[index] = match self.processes[index] {
            Process::Started { version } => {
                let own = self.fresh();
                match precautions.own_first {
                    true => self.own[index] = Some(own),
                    false => self.main[index] = Some(Lease { uid: self.next_uid, own }),
                }
                Process::Fenced { version, own }
            }
            Process::Fenced { version, own } => {
                let uid = self.fresh();
                match precautions.own_first {
                    true => self.main[index] = Some(Lease { uid, own }),
                    false => self.own[index] = Some(own),
                }
                Process::Joined { version, own }
            }
            // The main API server accepts the report of a server that has a lease.
            Process::Joined { version, own } if self.main[index].is_some_and(|lease| lease.own == own) => {
                self.write_entry(index, version);
                Process::Writing { version, own }
            }
            Process::Joined { .. } => Process::Down,
            Process::Leaving { main } => {
                if self.main[index].is_some_and(|lease| lease.uid == main) {
                    self.main[index] = None;
                }
                Process::Down
            }
            other => other,
        };
    }

    fn leave(&mut self, index: usize, precautions: Precautions) {
        let Process::Writing { own, .. } = self.processes[index] else { return };
        let main = self.main[index].filter(|lease| lease.own == own).map(|lease| lease.uid);
        if precautions.leaves_fenced && self.own[index] == Some(own) {
            self.own[index] = None;
        }
        self.processes[index] = main.map_or(Process::Down, |main| Process::Leaving { main });
    }

    fn write_entry(&mut self, index: usize, version: Version) {
        self.entries[index] = Some(version);
        self.entry_writes += u8::from(index == REPLACED);
    }

    /// The next steps of a process that was replaced: it reads the report, checks its lease, and writes the report if nobody
    /// has written it since.
    fn zombie_actions(&self, precautions: Precautions, actions: &mut Vec<Action>) {
        let Some(zombie) = self.zombie else { return };
        actions.push(match (zombie.read, zombie.has_checked, precautions.lease_checked_after_read) {
            (None, false, true) | (None, true, false) => Action::ZombieReads,
            (Some(_), false, true) | (None, false, false) => Action::ZombieChecks,
            _ => Action::ZombieWrites,
        });
    }

    fn zombie_checks(&mut self) {
        let lease = self.main[REPLACED];
        let has_lease = |zombie: &Zombie| lease.is_some_and(|lease| lease.own == zombie.own);
        self.zombie = self.zombie.filter(has_lease).map(|zombie| Zombie { has_checked: true, ..zombie });
    }

    fn zombie_writes(&mut self) {
        if let Some(zombie) = self.zombie.take()
            && zombie.read == Some(self.entry_writes)
        {
            self.write_entry(REPLACED, zombie.version);
        }
    }

    fn sweep(&mut self, precautions: Precautions) {
        let Sweep { main: Some(main), own: Some(own) } = std::mem::take(&mut self.sweep) else { return };
        let known = main.iter().enumerate().filter_map(|(index, lease)| {
            let lease = (*lease)?;
            Some(MainLease { id: index.to_string(), uid: lease.uid.to_string(), own_lease: lease.own.to_string() })
        });
        let uids = own.iter().flatten().map(Uid::to_string).collect();
        for lease in ended(known.collect(), &OwnLeases { uids, ..OwnLeases::default() }) {
            let found = &mut self.main[lease.id.parse::<usize>().unwrap()];
            if found.is_some_and(|found| !precautions.uid_compared || found.uid.to_string() == lease.uid) {
                *found = None;
            }
        }
    }
}

impl Model for TwoStores {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            processes: [Process::Down; SERVERS],
            own: [None; SERVERS],
            main: [None; SERVERS],
            entries: [None; SERVERS],
            entry_writes: 0,
            zombie: None,
            in_flight: None,
            sweep: Sweep::default(),
            next_uid: 0,
            starts: 3,
            broken: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for index in 0..SERVERS {
            match state.processes[index] {
                Process::Down if state.starts > 0 => {
                    let versions: &[Version] =
                        if index == REPLACED { &[Version::V1, Version::V2] } else { &[Version::V2] };
                    actions.extend(versions.iter().map(|version| Action::Start(index, *version)));
                }
                Process::Down => {}
                Process::Writing { .. } => {
                    actions.extend([Action::End(index), Action::Leave(index)]);
                    if state.in_flight.is_none() {
                        actions.push(Action::Send(index));
                    }
                }
                _ => actions.extend([Action::End(index), Action::Step(index)]),
            }
            if state.own[index].is_some() {
                actions.push(Action::ExpireOwn(index));
            }
            if state.main[index].is_some() && !self.0.no_expiry {
                actions.push(Action::ExpireMain(index));
            }
            if state.main[index].is_none() && state.entries[index].is_some() {
                actions.push(Action::Collect(index));
            }
        }
        if state.in_flight.is_some() {
            actions.push(Action::Land);
        }
        if matches!(state.processes[REPLACED], Process::Joined { .. }) && state.starts > 0 && state.zombie.is_none() {
            actions.extend([Version::V1, Version::V2].map(Action::Replace));
        }
        state.zombie_actions(self.0, actions);
        match (&state.sweep.main, &state.sweep.own, self.0.main_first) {
            (None, None, true) | (None, Some(_), false) => actions.push(Action::ReadMain),
            (Some(_), None, true) | (None, None, false) => actions.push(Action::ReadOwn),
            _ => actions.push(Action::Sweep),
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Start(index, version) => {
                state.processes[index] = Process::Started { version };
                state.starts -= 1;
            }
            Action::End(index) => state.processes[index] = Process::Down,
            Action::Leave(index) => state.leave(index, self.0),
            Action::Step(index) => state.step(index, self.0),
            Action::ExpireOwn(index) => state.own[index] = None,
            Action::ExpireMain(index) => state.main[index] = None,
            Action::Collect(index) => {
                state.entries[index] = None;
                state.entry_writes += u8::from(index == REPLACED);
            }
            Action::Send(index) => {
                let Process::Writing { version, own } = state.processes[index] else { return None };
                state.in_flight = Some(Write { server: index, version, own });
            }
            Action::Land => {
                let write = state.in_flight.take()?;
                let is_committed = state.own[write.server] == Some(write.own);
                state.broken |= is_committed && state.entries[write.server] != Some(write.version);
            }
            Action::ReadMain => state.sweep.main = Some(state.main),
            Action::ReadOwn => state.sweep.own = Some(state.own),
            Action::Sweep => state.sweep(self.0),
            Action::Replace(next) => {
                let Process::Joined { version, own } = state.processes[REPLACED] else { return None };
                state.zombie = Some(Zombie { version, own, read: None, has_checked: false });
                state.processes[REPLACED] = Process::Started { version: next };
                state.starts -= 1;
            }
            Action::ZombieReads => {
                let read = Some(state.entry_writes);
                state.zombie = state.zombie.map(|zombie| Zombie { read, ..zombie });
            }
            Action::ZombieChecks => state.zombie_checks(),
            Action::ZombieWrites => state.zombie_writes(),
        }
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let is_removed = |_: &Self, state: &State| {
            let is_gone = |index: usize| state.entries[index].is_none() && state.processes[index] == Process::Down;
            state.starts == 0 && (0..SERVERS).all(is_gone)
        };
        vec![
            Property::always(RULE, |_: &Self, state: &State| !state.broken),
            Property::sometimes(IT_GETS_THERE, is_removed),
        ]
    }
}

#[test]
fn no_write_is_committed_without_its_report_at_the_main_api_server() {
    let checker = TwoStores(ALL).checker().spawn_dfs().join();
    println!("{} states", checker.unique_state_count());
    checker.assert_properties();
}

#[test]
fn without_any_one_precaution_a_write_is_committed_without_its_report() {
    for precautions in [
        Precautions { no_expiry: false, ..ALL },
        Precautions { main_first: false, ..ALL },
        Precautions { uid_compared: false, ..ALL },
        Precautions { own_first: false, ..ALL },
        Precautions { leaves_fenced: false, ..ALL },
        Precautions { lease_checked_after_read: false, ..ALL },
    ] {
        let checker = TwoStores(precautions).checker().finish_when(HasDiscoveries::AnyOf([RULE].into()));
        let path = checker.spawn_bfs().join().assert_any_discovery(RULE);
        println!("{precautions:?}:");
        path.into_actions().iter().for_each(|action| println!("  {action:?}"));
    }
}
