//! A model of aggregated servers, which write to a store of their own and report to the main API server, checked in every state
//! that it can reach.
//!
//! Two servers share the own store. One starts with either version. They pause (whatever they do can happen at any later time, or never),
//! end and start again with the same identity; their writes stay in flight for as long as you like. One can be replaced
//! while it is paused, and take its lease, report or withdraw when it resumes; it can also be a process without an identity, which
//! withdraws what an earlier one reported. Servers also sweep: they read the leases at the main API server, then those in the own
//! store, and delete what [`ended`] returns. The collector of the own store may consider any lease expired. The collector of
//! the main API server removes the entries of servers without a lease.
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

/// A process that was replaced by another one with the same identity, and goes on where it was paused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Zombie {
    /// What it reports; `None` if it withdraws its report.
    report: Option<Version>,
    /// The lease in its own store; `None` if it has no identity.
    own: Option<Uid>,
    step: ZombieStep,
}

/// What it has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum ZombieStep {
    /// It is about to take the lease at the main API server.
    Fenced,
    /// It has found this one there.
    Found(Option<Lease>),
    /// It may take its place.
    Ended(Option<Lease>),
    Joined,
    /// It has checked that it has its lease.
    Checked,
    /// It has read its report, which had been written so often.
    Read(u8),
    /// Both.
    CheckedAndRead(u8),
}

/// The server that can be replaced while it is paused.
const REPLACED: usize = 0;
/// The one that is down at that time.
const OTHER: usize = 1;

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
    /// It is replaced by a process that reports this version; whether it was about to withdraw its report.
    Replace(Version, bool),
    /// A process without an identity begins to withdraw, and is paused.
    BeginAnonymous,
    /// The next step of the one that was replaced.
    Zombie,
}

/// The precautions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Precautions {
    /// A lease at the main API server does not expire by time, and a finalizer keeps it if somebody deletes it.
    stays: bool,
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
    /// It checks that before it withdraws a report, too.
    lease_checked_before_withdrawal: bool,
    /// A server takes the place of another lease only if the lease in the own store that it names is gone.
    replaces_ended: bool,
    /// The first report under a lease is written even if an equal one is there.
    first_report_written: bool,
}

const ALL: Precautions = Precautions {
    stays: true,
    main_first: true,
    uid_compared: true,
    own_first: true,
    leaves_fenced: true,
    lease_checked_after_read: true,
    lease_checked_before_withdrawal: true,
    replaces_ended: true,
    first_report_written: true,
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
                if precautions.first_report_written || self.entries[index] != Some(version) {
                    self.write_entry(index, Some(version));
                }
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

    fn write_entry(&mut self, index: usize, entry: Option<Version>) {
        self.entries[index] = entry;
        self.entry_writes += u8::from(index == REPLACED);
    }

    /// The next step of the process that was replaced. It gives up if it notices.
    fn zombie_step(&mut self, precautions: Precautions) {
        let Some(zombie) = self.zombie.take() else { return };
        let lease = self.main[REPLACED];
        let has_lease = lease.map(|lease| lease.own) == zombie.own;
        let checks = match zombie.report {
            Some(_) => precautions.lease_checked_after_read,
            None => precautions.lease_checked_before_withdrawal,
        };
        let next = match zombie.step {
            ZombieStep::Fenced => Some(ZombieStep::Found(lease)),
            ZombieStep::Found(found) => {
                let has_ended = found.is_none_or(|found| self.own[REPLACED] != Some(found.own));
                (has_ended || !precautions.replaces_ended).then_some(ZombieStep::Ended(found))
            }
            ZombieStep::Ended(found) => {
                let is_same = found == lease;
                if let (true, Some(own)) = (is_same, zombie.own) {
                    self.main[REPLACED] = Some(Lease { uid: self.fresh(), own });
                }
                is_same.then_some(ZombieStep::Joined)
            }
            ZombieStep::Joined if checks || zombie.report.is_none() => Some(ZombieStep::Read(self.entry_writes)),
            ZombieStep::Joined => has_lease.then_some(ZombieStep::Checked),
            ZombieStep::Checked => Some(ZombieStep::CheckedAndRead(self.entry_writes)),
            ZombieStep::Read(writes) => (has_lease || !checks).then_some(ZombieStep::CheckedAndRead(writes)),
            ZombieStep::CheckedAndRead(writes) => {
                if writes == self.entry_writes {
                    self.write_entry(REPLACED, zombie.report);
                }
                None
            }
        };
        self.zombie = next.map(|step| Zombie { step, ..zombie });
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
            if state.main[index].is_some() && !self.0.stays {
                actions.push(Action::ExpireMain(index));
            }
            if state.main[index].is_none() && state.entries[index].is_some() {
                actions.push(Action::Collect(index));
            }
        }
        if state.in_flight.is_some() {
            actions.push(Action::Land);
        }
        // While the other server is down, and with one version where that makes no difference: so there are fewer states.
        if state.processes[OTHER] == Process::Down && state.starts > 0 && state.zombie.is_none() {
            let reports = [(Version::V1, false), (Version::V2, false)]
                .map(|(version, withdraws)| Action::Replace(version, withdraws));
            match state.processes[REPLACED] {
                Process::Fenced { .. } => actions.extend(reports),
                Process::Joined { .. } => {
                    actions.extend(reports);
                    actions.push(Action::Replace(Version::V1, true));
                }
                Process::Down => actions.push(Action::BeginAnonymous),
                _ => {}
            }
        }
        if state.zombie.is_some() {
            actions.push(Action::Zombie);
        }
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
            Action::Collect(index) => state.write_entry(index, None),
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
            Action::Replace(next, withdraws) => {
                let (version, own, step) = match state.processes[REPLACED] {
                    Process::Fenced { version, own } => (version, own, ZombieStep::Fenced),
                    Process::Joined { version, own } => (version, own, ZombieStep::Joined),
                    _ => return None,
                };
                state.zombie = Some(Zombie { report: (!withdraws).then_some(version), own: Some(own), step });
                state.processes[REPLACED] = Process::Started { version: next };
                state.starts -= 1;
            }
            Action::BeginAnonymous => {
                state.own[REPLACED] = None;
                state.zombie = Some(Zombie { report: None, own: None, step: ZombieStep::Joined });
                state.starts -= 1;
            }
            Action::Zombie => state.zombie_step(self.0),
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
        Precautions { stays: false, ..ALL },
        Precautions { main_first: false, ..ALL },
        Precautions { uid_compared: false, ..ALL },
        Precautions { own_first: false, ..ALL },
        Precautions { leaves_fenced: false, ..ALL },
        Precautions { lease_checked_after_read: false, ..ALL },
        Precautions { lease_checked_before_withdrawal: false, ..ALL },
        Precautions { replaces_ended: false, ..ALL },
        Precautions { first_report_written: false, ..ALL },
    ] {
        let checker = TwoStores(precautions).checker().finish_when(HasDiscoveries::AnyOf([RULE].into()));
        let path = checker.spawn_bfs().join().assert_any_discovery(RULE);
        println!("{precautions:?}:");
        path.into_actions().iter().for_each(|action| println!("  {action:?}"));
    }
}
