//! The state of the model: the store, the servers, and writes in flight.
//!
//! Of revisions only one thing ever matters: whether a remembered one is still that of the key. So after each step they
//! are renumbered to "current" or "stale" (a stale one never becomes current again), which makes the states finite.

/// How many API servers there are.
pub(crate) const SERVERS: usize = 3;
/// How many objects the resource has.
pub(crate) const OBJECTS: usize = 2;

/// The version in which an object is encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Version {
    V1,
    V2,
}

/// The revision of one key, in the store or as a process remembers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Revision(u8);

impl Revision {
    /// The key does not exist.
    pub(crate) const ABSENT: Revision = Revision(0);
    /// The revision of an existing key between two steps.
    pub(crate) const CURRENT: Revision = Revision(1);
    /// The revision of a key that was written in this step.
    pub(crate) const NEW: Revision = Revision(2);
    /// A revision that the key no longer has.
    pub(crate) const STALE: Revision = Revision(3);

    /// Renumbers a remembered revision, given the key's own before renumbering.
    fn renumber(&mut self, key: Revision) {
        *self = match *self == key {
            true if key == Revision::ABSENT => Revision::ABSENT,
            true => Revision::CURRENT,
            false => Revision::STALE,
        };
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct State {
    pub(crate) store: Store,
    pub(crate) servers: [Server; SERVERS],
    /// A write whose process died while it was in flight.
    pub(crate) orphan: Option<Write>,
    /// The decisions that the collector has not carried out yet, the next one first.
    pub(crate) collector: Vec<Removal>,
    pub(crate) migration: Option<Migration>,
    /// The proof of the last successful migration.
    pub(crate) proof: Option<Proof>,
    pub(crate) left: Left,
    pub(crate) history: History,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Store {
    pub(crate) storage_version: Option<Record>,
    pub(crate) leases: [Option<Lease>; SERVERS],
    /// The key that changes whenever a server takes its lease.
    pub(crate) joined: Revision,
    /// The CRD of a custom resource; it never changes for a built-in resource.
    pub(crate) crd: Crd,
    pub(crate) objects: [Option<Object>; OBJECTS],
}

/// The CRD of a custom resource, with the key that names the storage version in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Crd {
    pub(crate) revision: Revision,
    pub(crate) storage_version: Version,
}

/// The StorageVersion.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Record {
    pub(crate) revision: Revision,
    pub(crate) entries: [Option<Version>; SERVERS],
    pub(crate) common: Option<Version>,
}

/// An identity lease. Renewals do not change the create-revision, which is the one that counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Lease {
    pub(crate) created: Revision,
    pub(crate) expired: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Object {
    pub(crate) revision: Revision,
    pub(crate) version: Version,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Server {
    pub(crate) process: Process,
    pub(crate) paused: bool,
    /// A write that was sent and not yet answered.
    pub(crate) in_flight: Option<Write>,
    /// The CRD that the server encodes by.
    pub(crate) heard: Revision,
    /// The report of a custom resource that is under way: the version that it says.
    pub(crate) reporting: Option<Version>,
    /// Whether the server's feature gate is on: whether it reports.
    pub(crate) gate: Gate,
}

/// Whether a server reports its storage version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Gate {
    Open,
    Closed,
}

/// How far a server is on its way to serving writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Process {
    Down,
    Starting { version: Version },
    Leased { version: Version, lease: Revision },
    Serving { version: Version, lease: Revision },
}

/// A write transaction: put the object in this version if it still has this revision and, with the fence, the server's lease
/// still has that one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Write {
    pub(crate) server: usize,
    pub(crate) version: Version,
    pub(crate) fence: Revision,
    pub(crate) in_force: Revision,
    pub(crate) gate: Gate,
    pub(crate) object: usize,
    pub(crate) expects: Revision,
}

/// A decision of the collector.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Removal {
    Lease {
        server: usize,
        created: Revision,
    },
    /// `after` is `None` if the whole object is removed.
    Entries {
        revision: Revision,
        joined: Revision,
        absent: [bool; SERVERS],
        after: Option<Box<Record>>,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Migration {
    pub(crate) target: Version,
    /// The revision of the agreement that it relies on.
    pub(crate) agreement: Revision,
    /// The objects still to be rewritten, with the revisions at which they were listed.
    pub(crate) to_do: [Option<Revision>; OBJECTS],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Proof {
    pub(crate) version: Version,
    pub(crate) agreement: Revision,
}

/// How often each event may still happen; this makes the model finite.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Left {
    pub(crate) crashes: u8,
    pub(crate) pauses: u8,
    pub(crate) writes: u8,
    pub(crate) migrations: u8,
    /// How often the CRD's storage version is changed. The resource is a custom one where it can be.
    pub(crate) flips: u8,
    /// How often a server starts with its gate closed.
    pub(crate) closed_gates: u8,
    /// How often a user deletes the lease of a live server.
    pub(crate) lost_leases: u8,
}

/// Past events that cannot be seen in the rest of the state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct History {
    pub(crate) unreported_write: bool,
    pub(crate) polluted_migration: bool,
    pub migrated_to_v2: bool,
}

impl Store {
    pub(crate) fn lease_revision(&self, server: usize) -> Revision {
        self.leases[server].map_or(Revision::ABSENT, |lease| lease.created)
    }

    pub(crate) fn object_revision(&self, object: usize) -> Revision {
        self.objects[object].map_or(Revision::ABSENT, |object| object.revision)
    }

    pub(crate) fn record_revision(&self) -> Revision {
        self.storage_version.as_ref().map_or(Revision::ABSENT, |record| record.revision)
    }
}

impl State {
    /// Renumbers all revisions.
    pub(crate) fn renumber(&mut self) {
        let leases: [Revision; SERVERS] = std::array::from_fn(|server| self.store.lease_revision(server));
        let objects: [Revision; OBJECTS] = std::array::from_fn(|object| self.store.object_revision(object));
        let record = self.store.record_revision();
        let (crd, joined) = (self.store.crd.revision, self.store.joined);

        let in_flight = self.servers.iter_mut().filter_map(|server| server.in_flight.as_mut());
        for write in in_flight.chain(&mut self.orphan) {
            write.fence.renumber(leases[write.server]);
            write.expects.renumber(objects[write.object]);
            write.in_force.renumber(crd);
        }
        for (server, created) in self.servers.iter_mut().zip(leases) {
            server.heard.renumber(crd);
            if let Process::Leased { lease, .. } | Process::Serving { lease, .. } = &mut server.process {
                lease.renumber(created);
            }
        }
        for removal in &mut self.collector {
            match removal {
                Removal::Lease { server, created } => created.renumber(leases[*server]),
                Removal::Entries { revision, joined: seen, .. } => {
                    revision.renumber(record);
                    seen.renumber(joined);
                }
            }
        }
        if let Some(migration) = &mut self.migration {
            migration.agreement.renumber(record);
            for (listed, current) in migration.to_do.iter_mut().zip(objects) {
                listed.iter_mut().for_each(|listed| listed.renumber(current));
            }
        }
        // A proof for an earlier StorageVersion no longer counts.
        self.proof = self.proof.filter(|proof| proof.agreement == record);
        self.proof.iter_mut().for_each(|proof| proof.agreement.renumber(record));
        self.renumber_store();
    }

    fn renumber_store(&mut self) {
        self.store.joined = Revision::CURRENT;
        self.store.crd.revision = Revision::CURRENT;
        self.store.storage_version.iter_mut().for_each(|record| record.revision = Revision::CURRENT);
        self.store.leases.iter_mut().flatten().for_each(|lease| lease.created = Revision::CURRENT);
        self.store.objects.iter_mut().flatten().for_each(|object| object.revision = Revision::CURRENT);
    }

    /// The same state with the servers in a fixed order: their order makes no difference.
    pub(crate) fn representative(&self) -> State {
        let mut order: Vec<usize> = (0..SERVERS).collect();
        order.sort_by_cached_key(|server| self.all_about(*server));
        let place = |server: usize| order.iter().position(|other| *other == server).unwrap();

        let mut state = self.clone();
        let renamed = |write: Option<Write>| write.map(|write| Write { server: place(write.server), ..write });
        let sorted = |entries: &[Option<Version>; SERVERS]| std::array::from_fn(|index| entries[order[index]]);
        state.servers = std::array::from_fn(|index| {
            let server = self.servers[order[index]];
            Server { in_flight: renamed(server.in_flight), ..server }
        });
        state.orphan = renamed(self.orphan);
        state.store.leases = std::array::from_fn(|index| self.store.leases[order[index]]);
        state.store.storage_version.iter_mut().for_each(|record| record.entries = sorted(&record.entries));
        for removal in &mut state.collector {
            match removal {
                Removal::Lease { server, .. } => *server = place(*server),
                Removal::Entries { absent, after, .. } => {
                    *absent = std::array::from_fn(|index| absent[order[index]]);
                    after.iter_mut().for_each(|record| record.entries = sorted(&record.entries));
                }
            }
        }
        state
    }

    /// The whole state of one server, without its number.
    fn all_about(&self, index: usize) -> impl Ord + use<> {
        let unnamed = |write: Option<Write>| write.map(|write| Write { server: 0, ..write });
        let server = Server { in_flight: unnamed(self.servers[index].in_flight), ..self.servers[index] };
        let orphan = unnamed(self.orphan.filter(|write| write.server == index));
        let entry = self.store.storage_version.as_ref().map(|record| record.entries[index]);
        let removals: Vec<(bool, Option<Version>)> = self
            .collector
            .iter()
            .map(|removal| match removal {
                Removal::Lease { server, .. } => (*server == index, None),
                Removal::Entries { absent, after, .. } => {
                    (absent[index], after.as_ref().and_then(|record| record.entries[index]))
                }
            })
            .collect();
        (server, self.store.leases[index], entry, orphan, removals)
    }
}
