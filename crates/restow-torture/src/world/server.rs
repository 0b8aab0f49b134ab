//! A simulated API server: its process, its link to the store, and what it is started as.

use super::World;
use crate::checks::WritingProcess;
use crate::plan::Voting;
use crate::store_client::{Link, StoreClient};
use jiff::SignedDuration;
use restow_api::GroupVersion;
use restow_apiserver::builtin::{self, RuntimeConfig};
use restow_apiserver::error::ApiError;
use restow_apiserver::resource::Resource;
use restow_apiserver::resource::registry::Registry;
use restow_apiserver::{
    AccessConfig, AgreementConfig, ApiServer, AuthorizationMode, Gates, Guarantee, LoadLimits, ServerConfig,
    StorageVersions,
};
use restow_auth::authenticate::Authenticators;
use restow_host::simulated::{Process, WallClock};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The releases before and after the upgrade. EndpointSlices and ValidatingAdmissionPolicies are stored in another version.
const OLDER: &str = "1.30";
const NEWER: &str = "1.31";
/// How long a server that is stopped may take to leave.
const STOPS_WITHIN: Duration = Duration::from_secs(10);
/// How long a process goes on after it was resumed and another one has taken its place.
const ZOMBIE_LIVES: Duration = Duration::from_secs(20);
/// The delay before a server that could not start is started again.
const RESTART_DELAY: Duration = Duration::from_secs(1);

/// The resources that the servers of a simulation serve. More would take longer, and are handled by the same code.
const RESOURCES: &[&str] = &[
    "configmaps",
    "customresourcedefinitions.apiextensions.k8s.io",
    "endpointslices.discovery.k8s.io",
    "leases.coordination.k8s.io",
    "mutatingwebhookconfigurations.admissionregistration.k8s.io",
    "namespaces",
    "resourcequotas",
    "services",
    "storageversions.internal.apiserver.k8s.io",
    "storageversions.kube-apiserver.internal.k8s.io",
    "validatingadmissionpolicies.admissionregistration.k8s.io",
    "validatingadmissionpolicybindings.admissionregistration.k8s.io",
    "validatingwebhookconfigurations.admissionregistration.k8s.io",
];

/// What a server is started as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ServerKind {
    /// Whether it is of the newer release.
    pub(crate) newer: bool,
    /// Whether it reports its storage versions.
    pub(crate) reports: bool,
}

/// A place for an API server: one process after another runs there.
pub(crate) struct ServerSlot {
    pub(crate) number: usize,
    pub(crate) link: Arc<Link>,
    state: Mutex<SlotState>,
}

struct SlotState {
    kind: ServerKind,
    process: Option<Arc<Process>>,
    /// How many processes ran here.
    lives: u64,
    wall_clock: WallClock,
}

/// The identity of a server, which stays the same when it is restarted.
pub(crate) fn identity(number: usize) -> String {
    format!("apiserver-{}", ["a", "b", "c"][number])
}

fn address(number: usize) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1 + u8::try_from(number).unwrap_or_default()], 6443))
}

impl ServerSlot {
    pub(crate) fn new(number: usize) -> Self {
        let state = SlotState {
            kind: ServerKind { newer: false, reports: true },
            process: None,
            lives: 0,
            wall_clock: WallClock::Ahead(SignedDuration::ZERO),
        };
        ServerSlot { number, link: Arc::default(), state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, SlotState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a new process here, and watches over it as a supervisor does.
    pub(crate) fn start(self: &Arc<Self>, world: &Arc<World>) {
        let (kind, process) = {
            let mut state = self.state();
            if state.process.as_ref().is_some_and(|process| !process.has_crashed()) {
                return;
            }
            state.lives += 1;
            let seed = world.seed ^ (self.number as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ (state.lives << 32);
            let uptime = Duration::from_secs(1_000 * (self.number as u64 + 1));
            let process = Process::new(seed, uptime, state.wall_clock);
            state.process = Some(process.clone());
            (state.kind, process)
        };
        world.checker.tell(|| format!("{} starts as {kind:?}", identity(self.number)));
        let (slot, world) = (self.clone(), world.clone());
        tokio::spawn(async move {
            let started = process.spawn(start(world.clone(), slot.clone(), process.clone(), kind)).await;
            if let Ok(Err(error)) = started {
                world.checker.tell(|| format!("{} does not start: {error}", identity(slot.number)));
                process.crash();
            }
            while !process.has_crashed() {
                tokio::time::sleep(RESTART_DELAY).await;
            }
            slot.ended(&world, &process);
            tokio::time::sleep(RESTART_DELAY).await;
            // Whoever ended it on purpose starts it again.
            if slot.state().process.as_ref().is_some_and(|last| Arc::ptr_eq(last, &process)) {
                slot.start(&world);
            }
        });
    }

    /// The process has ended: nobody can reach it any more.
    fn ended(&self, world: &World, process: &Arc<Process>) {
        if self.state().process.as_ref().is_none_or(|last| Arc::ptr_eq(last, process)) {
            drop(world.network.close(&address(self.number).to_string()));
        }
    }

    fn take_process(&self) -> Option<Arc<Process>> {
        self.state().process.take()
    }

    /// Crashes the process, and starts another one later.
    pub(crate) fn crash_for(self: &Arc<Self>, world: &Arc<World>, pause: Duration) {
        world.checker.count(|statistics| statistics.crashes += 1);
        self.crash(world);
        self.start_after(world, pause);
    }

    fn crash(&self, world: &World) {
        if let Some(process) = self.take_process() {
            process.crash();
        }
        drop(world.network.close(&address(self.number).to_string()));
    }

    fn start_after(self: &Arc<Self>, world: &Arc<World>, pause: Duration) {
        let (slot, world) = (self.clone(), world.clone());
        tokio::spawn(async move {
            tokio::time::sleep(pause).await;
            slot.start(&world);
        });
    }

    /// Stops the process as an administrator does, and starts another one later.
    pub(crate) fn stop_for(self: &Arc<Self>, world: &Arc<World>, pause: Duration) {
        let Some(process) = self.take_process() else { return };
        let server = world.network.close(&address(self.number).to_string());
        let (slot, world) = (self.clone(), world.clone());
        tokio::spawn(async move {
            if let Some(server) = server {
                let leaving = process.spawn(async move { server.leave().await });
                let _ = tokio::time::timeout(STOPS_WITHIN, leaving).await;
            }
            process.crash();
            slot.start_after(&world, pause);
        });
    }

    /// Suspends the process for so long.
    pub(crate) fn suspend_for(&self, world: &World, pause: Duration) {
        let Some(process) = self.state().process.clone() else { return };
        world.checker.count(|statistics| statistics.suspensions += 1);
        process.suspend();
        tokio::spawn(async move {
            tokio::time::sleep(pause).await;
            process.resume();
        });
    }

    /// Suspends the process, starts another one in its place, and resumes the first one so much later.
    pub(crate) fn replace_for(self: &Arc<Self>, world: &Arc<World>, pause: Duration) {
        let Some(process) = self.take_process() else { return };
        world.checker.count(|statistics| statistics.suspensions += 1);
        process.suspend();
        drop(world.network.close(&address(self.number).to_string()));
        self.start(world);
        tokio::spawn(async move {
            tokio::time::sleep(pause).await;
            process.resume();
            // Its supervisor ends it when it notices.
            tokio::time::sleep(ZOMBIE_LIVES).await;
            process.crash();
        });
    }

    /// Replaces the process by one of another kind, as an upgrade does.
    pub(crate) fn restart_as(self: &Arc<Self>, world: &Arc<World>, change: impl FnOnce(&mut ServerKind)) {
        change(&mut self.state().kind);
        self.stop_for(world, Duration::from_millis(500));
    }

    /// The time of day jumps.
    pub(crate) fn jump_clock(&self, seconds: i64) {
        self.set_clock(WallClock::Ahead(SignedDuration::from_secs(seconds)));
    }

    /// The time of day stands still.
    pub(crate) fn stop_clock(&self) {
        self.set_clock(WallClock::StandsAt(restow_host::simulated::right_time_of_day()));
    }

    fn set_clock(&self, wall_clock: WallClock) {
        let mut state = self.state();
        state.wall_clock = wall_clock;
        if let Some(process) = &state.process {
            process.set_wall_clock(wall_clock);
        }
    }

    /// Ends all faults. In the end there are only servers of the newer release that report.
    pub(crate) fn heal(self: &Arc<Self>, world: &Arc<World>) {
        self.link.heal();
        if let Some(process) = &self.state().process {
            process.resume();
        }
        let last = ServerKind { newer: true, reports: true };
        let runs = self.state().process.as_ref().is_some_and(|process| !process.has_crashed());
        if self.state().kind != last || !runs {
            self.state().kind = last;
            self.crash(world);
            self.start(world);
        }
    }
}

/// Starts a server, and lets clients reach it.
async fn start(
    world: Arc<World>,
    slot: Arc<ServerSlot>,
    process: Arc<Process>,
    kind: ServerKind,
) -> Result<(), ApiError> {
    let store = StoreClient {
        store: world.store.clone(),
        writer: WritingProcess { server: slot.number, reports: kind.reports, is_observant: false },
        process: process.clone(),
        link: slot.link.clone(),
        dice: world.dice.clone(),
        checker: world.checker.clone(),
        triggers: world.triggers.clone(),
    };
    process.set_outbound(world.webhooks.clone());
    let server = ApiServer::new(config(store, slot.number, kind, world.shape.voting)?).await?;
    if !slot.state().process.as_ref().is_some_and(|last| Arc::ptr_eq(last, &process)) {
        return Err(ApiError::Internal("another process listens at this address".to_owned()));
    }
    world.network.listen(&address(slot.number).to_string(), process, server.clone());
    server.ready().await?;
    world.checker.tell(|| format!("{} is ready", identity(slot.number)));
    Ok(())
}

fn config(store: StoreClient, number: usize, kind: ServerKind, voting: Voting) -> Result<ServerConfig, ApiError> {
    let gates = match (kind.reports, voting) {
        (false, _) => "StorageVersionAPI=false",
        (true, Voting::No) => "",
        (true, Voting::Strict | Voting::Loose) => "StorageVersionVoting=true",
    };
    let invalid = |what: String| ApiError::Internal(what);
    let gates: Gates = gates.parse().map_err(|error| invalid(format!("{error}")))?;
    let identity = identity(number).parse().map_err(|error| invalid(format!("{error}")))?;
    let release = if kind.newer { NEWER } else { OLDER };
    let release = release.parse().map_err(|error| invalid(format!("{error}")))?;
    let storage_versions = match voting {
        _ if !kind.reports => StorageVersions::Report,
        Voting::No => StorageVersions::Report,
        Voting::Strict => StorageVersions::Vote(Guarantee::Strict),
        Voting::Loose => StorageVersions::Vote(Guarantee::Loose),
    };
    let mut agreement = AgreementConfig::new(identity, "host", &gates);
    agreement.storage_versions = storage_versions;
    let internal = |group: &str| GroupVersion::new(group, "v1alpha1").map(|version| (version, true)).ok();
    let groups = ["internal.apiserver.k8s.io", "kube-apiserver.internal.k8s.io"];
    let runtime =
        RuntimeConfig { versions: groups.into_iter().filter_map(internal).collect(), ..RuntimeConfig::default() };
    let is_wanted = |resource: &Resource| RESOURCES.contains(&resource.group_resource.to_string().as_str());
    let resources = builtin::resources(release, &runtime).into_iter().filter(is_wanted);
    Ok(ServerConfig {
        store: Arc::new(store),
        registry: Registry::new(resources.map(Arc::new)),
        release,
        address: address(number),
        access: AccessConfig { authenticators: Authenticators::default(), authorization: AuthorizationMode::Rbac },
        limits: LoadLimits::default(),
        audit: None,
        root_ca: None,
        aggregator: Default::default(),
        gates,
        agreement,
    })
}
