//! The steps of servers, collector, migrator and users.

use crate::rules;
use crate::state::{
    Crd, Gate, History, Lease, Left, OBJECTS, Object, Process, Record, Revision, SERVERS, Server, State, Store, Version,
};
use stateright::{Model, Property};
use std::fmt;

/// The protocol, with the comparisons that it makes and a bound on what may happen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Protocol {
    pub(crate) comparisons: Comparisons,
    pub(crate) budget: Budget,
}

/// The comparisons of transactions besides the revision of the written key, and other rules that the protocol relies on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Comparisons {
    /// Each write of an object: the create-revision of the writer's identity lease.
    pub(crate) fence: bool,
    /// A write that is skipped, because the object is stored as it would be written: the same as one that is not.
    pub(crate) skipped: bool,
    /// Each removal of entries: that the leases of the removed servers do not exist.
    pub(crate) absence: bool,
    /// The end of a migration: the revision of the StorageVersion.
    pub(crate) agreement: bool,
    /// Each write of the StorageVersion: that no server has taken a lease since the participants were read.
    pub(crate) joined: bool,
    /// A report lets its server write in the reported version, and in no other.
    pub(crate) grant: bool,
    /// A participant without an entry ends the agreement.
    pub(crate) all_must_report: bool,
    /// A server that stops reporting withdraws its earlier reports.
    pub(crate) withdrawal: bool,
}

/// How often things may happen.
pub(crate) type Budget = Left;

impl Comparisons {
    /// The protocol as it is.
    pub(crate) const ALL: Comparisons = Comparisons {
        fence: true,
        skipped: true,
        absence: true,
        agreement: true,
        joined: true,
        grant: true,
        all_must_report: true,
        withdrawal: true,
    };
}

/// One step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Crash(usize),
    Start(usize, Version, Gate),
    AcquireLease(usize),
    LoseLease(usize),
    Flip,
    Hear(usize),
    BeginReport(usize),
    Register(usize),
    Send(usize, usize),
    Land(usize),
    LandOrphan,
    Pause(usize),
    Wake(usize),
    Expire(usize),
    Renew(usize),
    PlanRemovals,
    Remove,
    BeginMigration,
    Rewrite(usize, usize),
    EndMigration,
}

impl Protocol {
    pub(crate) fn new(comparisons: Comparisons, budget: Budget) -> Self {
        Protocol { comparisons, budget }
    }

    /// A resource whose storage version is never changed by a CRD is a built-in one: a server stores what its release
    /// prefers, and does not change it while it runs.
    pub(crate) fn resource(&self) -> Resource {
        if self.budget.flips > 0 { Resource::Custom } else { Resource::Builtin }
    }
}

/// Where the storage version comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resource {
    Builtin,
    Custom,
}

impl Model for Protocol {
    type State = State;
    type Action = Action;

    /// Three servers that serve v1, one object that exists and one that does not.
    fn init_states(&self) -> Vec<State> {
        let serving = Process::Serving { version: Version::V1, lease: Revision::CURRENT };
        let mut objects = [None; OBJECTS];
        objects[0] = Some(Object { revision: Revision::CURRENT, version: Version::V1 });
        vec![State {
            store: Store {
                storage_version: Some(Record {
                    revision: Revision::CURRENT,
                    entries: [Some(Version::V1); SERVERS],
                    common: Some(Version::V1),
                }),
                leases: [Some(Lease { created: Revision::CURRENT, expired: false }); SERVERS],
                joined: Revision::CURRENT,
                crd: Crd { revision: Revision::CURRENT, storage_version: Version::V1 },
                objects,
            },
            servers: [Server {
                process: serving,
                paused: false,
                in_flight: None,
                heard: Revision::CURRENT,
                reporting: None,
                gate: Gate::Open,
            }; SERVERS],
            orphan: None,
            collector: Vec::new(),
            migration: None,
            proof: None,
            left: self.budget,
            history: History::default(),
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for server in 0..SERVERS {
            state.server_actions(server, self.resource(), actions);
        }
        if state.left.flips > 0 {
            actions.push(Action::Flip);
        }
        if state.orphan.is_some() {
            actions.push(Action::LandOrphan);
        }
        state.collector_actions(actions);
        state.migrator_actions(actions);
    }

    fn next_state(&self, before: &State, action: Action) -> Option<State> {
        let mut state = before.clone();
        match action {
            Action::Crash(server) => state.crash(server),
            Action::Start(server, version, gate) => state.start(server, version, gate),
            Action::AcquireLease(server) => state.acquire_lease(server),
            Action::LoseLease(server) => state.lose_lease(server),
            Action::Flip => state.flip(),
            Action::Hear(server) => state.hear(server),
            Action::BeginReport(server) => state.begin_report(server),
            Action::Register(server) => state.register(server, self.comparisons),
            Action::Send(server, object) => state.send(server, object),
            Action::Land(server) => state.land(server, self.comparisons),
            Action::LandOrphan => state.land_orphan(self.comparisons),
            Action::Pause(server) => state.pause(server),
            Action::Wake(server) => state.servers[server].paused = false,
            Action::Expire(server) => state.expire(server),
            Action::Renew(server) => state.renew(server),
            Action::PlanRemovals => state.plan_removals(self.comparisons),
            Action::Remove => state.remove(self.comparisons),
            Action::BeginMigration => state.begin_migration(),
            Action::Rewrite(object, server) => state.rewrite(object, server, self.comparisons),
            Action::EndMigration => state.end_migration(self.comparisons),
        }
        state.renumber();
        (state != *before).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(rules::REPORT_BEFORE_WRITE, rules::report_before_write),
            Property::always(rules::AGREEMENT_IS_TRUE, rules::agreement_is_true),
            Property::always(rules::NO_POLLUTED_MIGRATION, rules::no_polluted_migration),
            Property::always(rules::A_PROOF_STAYS_TRUE, rules::a_proof_stays_true),
            Property::sometimes(rules::A_MIGRATION_SUCCEEDS, rules::a_migration_succeeds),
        ]
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |server: &usize| ["A", "B", "C"][*server];
        match self {
            Action::Crash(server) => write!(f, "{} crashes", name(server)),
            Action::Start(server, version, Gate::Open) => write!(f, "{} starts with {version:?}", name(server)),
            Action::Start(server, version, Gate::Closed) => {
                write!(f, "{} starts with {version:?} and reports nothing", name(server))
            }
            Action::LoseLease(server) => write!(f, "a user deletes the lease of {}", name(server)),
            Action::Flip => write!(f, "the CRD's storage version is changed"),
            Action::Hear(server) => write!(f, "{} sees the CRD's storage version", name(server)),
            Action::BeginReport(server) => write!(f, "{} reads which version it has to report", name(server)),
            Action::AcquireLease(server) => write!(f, "{} creates its identity lease again", name(server)),
            Action::Register(server) => write!(f, "{} reports its version and begins to serve", name(server)),
            Action::Send(server, object) => write!(f, "{} encodes object {object} and sends the write", name(server)),
            Action::Land(server) => write!(f, "the write of {} reaches the store", name(server)),
            Action::LandOrphan => write!(f, "the write of a dead process reaches the store"),
            Action::Pause(server) => write!(f, "{} is paused", name(server)),
            Action::Wake(server) => write!(f, "{} wakes", name(server)),
            Action::Expire(server) => write!(f, "the lease of {} expires", name(server)),
            Action::Renew(server) => write!(f, "{} renews its lease, or finds it gone", name(server)),
            Action::PlanRemovals => write!(f, "the collector reads and decides"),
            Action::Remove => write!(f, "the collector carries out its next removal"),
            Action::BeginMigration => write!(f, "a migration to the common version begins"),
            Action::Rewrite(object, server) => {
                write!(f, "the migrator has object {object} rewritten by {}", name(server))
            }
            Action::EndMigration => write!(f, "the migration ends"),
        }
    }
}
