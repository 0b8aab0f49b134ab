//! A simulated controller of `restow-migrate`.

use super::World;
use crate::network::Destination;
use jiff::SignedDuration;
use kube::Client;
use restow_host::simulated::{Process, WallClock};
use restow_migrate::cluster::Cluster;
use restow_migrate::controller::{self, ControllerConfig, Metrics, ResourceFilter};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::watch;

/// A place for a controller: one process after another runs there.
pub(crate) struct ControllerSlot {
    number: usize,
    state: Mutex<SlotState>,
}

struct SlotState {
    process: Option<Arc<Process>>,
    lives: u64,
    wall_clock: WallClock,
}

impl ControllerSlot {
    pub(crate) fn new(number: usize) -> Self {
        let wall_clock = WallClock::Ahead(SignedDuration::ZERO);
        ControllerSlot { number, state: Mutex::new(SlotState { process: None, lives: 0, wall_clock }) }
    }

    fn state(&self) -> MutexGuard<'_, SlotState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn name(&self) -> String {
        format!("controller-{}", self.number)
    }

    /// Starts a new process here.
    pub(crate) fn start(&self, world: &Arc<World>) {
        let process = {
            let mut state = self.state();
            if state.process.as_ref().is_some_and(|process| !process.has_crashed()) {
                return;
            }
            state.lives += 1;
            let seed = world.seed ^ (self.number as u64 + 11).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ (state.lives << 32);
            let process = Process::new(seed, Duration::from_secs(7_000), state.wall_clock);
            state.process = Some(process.clone());
            process
        };
        world.checker.tell(|| format!("{} starts", self.name()));
        let (network, name) = (world.network.clone(), self.name());
        let resources = if world.shape.custom_only { ResourceFilter::Custom } else { ResourceFilter::All };
        process.spawn(async move {
            let client = |destination| Client::new(network.connect(&name, destination), "default");
            let each = {
                let (network, name) = (network.clone(), name.clone());
                move |address: &str| {
                    Client::new(network.connect(&name, Destination::Address(address.to_owned())), "default")
                }
            };
            let cluster = Cluster::from_clients(client(Destination::Any), each);
            let namespace = "kube-system".to_owned();
            let config = ControllerConfig { identity: name, namespace, resources, ..ControllerConfig::default() };
            let (_running, stop) = watch::channel(false);
            controller::run(cluster, config, Metrics::default(), stop).await;
        });
    }

    /// Crashes the process, and starts another one later.
    pub(crate) fn crash_for(self: &Arc<Self>, world: &Arc<World>, pause: Duration) {
        let Some(process) = self.state().process.take() else { return };
        world.checker.count(|statistics| statistics.crashes += 1);
        process.crash();
        let (slot, world) = (self.clone(), world.clone());
        tokio::spawn(async move {
            tokio::time::sleep(pause).await;
            slot.start(&world);
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

    /// It reaches no server for so long.
    pub(crate) fn cut_for(&self, world: &World, pause: Duration) {
        let (network, name) = (world.network.clone(), self.name());
        network.set_cut(&name, true);
        tokio::spawn(async move {
            tokio::time::sleep(pause).await;
            network.set_cut(&name, false);
        });
    }

    /// The time of day jumps.
    pub(crate) fn jump_clock(&self, seconds: i64) {
        let wall_clock = WallClock::Ahead(SignedDuration::from_secs(seconds));
        let mut state = self.state();
        state.wall_clock = wall_clock;
        if let Some(process) = &state.process {
            process.set_wall_clock(wall_clock);
        }
    }

    /// Ends all faults.
    pub(crate) fn heal(&self, world: &Arc<World>) {
        world.network.set_cut(&self.name(), false);
        if let Some(process) = &self.state().process {
            process.resume();
        }
        self.start(world);
    }
}
