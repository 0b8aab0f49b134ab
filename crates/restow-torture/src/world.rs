//! A world: servers, controllers and users on one store. It carries out a plan, then ends all faults and waits until
//! everything has settled.

mod actions;
mod controller;
pub(crate) mod convergence;
mod server;
pub(crate) mod setup;
pub(crate) mod user;

use crate::checks::{Checker, Rule, Violation};
use crate::dice::Dice;
use crate::network::Network;
use crate::panics::panics;
use crate::plan::{Event, Plan, PlannedEvent, Shape, Voting};
use crate::story::{Statistics, StoryLine, Telling};
use crate::triggers::Triggers;
use crate::webhooks::Webhooks;
use actions::Actions;
use controller::ControllerSlot;
use rand::Rng;
use restow_store::conformance::{Model, ModelStore};
use server::ServerSlot;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::time::Instant;
use user::User;

/// How long everything may take to settle after the last fault.
const SETTLES_WITHIN: Duration = Duration::from_secs(300);
/// The namespace that users write to.
pub(crate) const NAMESPACE: &str = "torture";
/// The namespace with a quota.
pub(crate) const LIMITED: &str = "limited";

/// What a run found.
#[derive(Clone, Debug)]
pub struct Report {
    /// The rule that was broken first, if one was.
    pub violation: Option<Violation>,
    /// A digest of everything that was stored, and when. Two runs of one plan have the same.
    pub digest: u64,
    /// What happened, if it was to be told.
    pub story: Vec<StoryLine>,
    /// How much happened.
    pub statistics: Statistics,
}

/// Everything that exists.
pub(crate) struct World {
    pub(crate) seed: u64,
    pub(crate) store: Arc<ModelStore>,
    pub(crate) dice: Arc<Dice>,
    pub(crate) network: Arc<Network>,
    pub(crate) checker: Arc<Checker>,
    pub(crate) servers: Vec<Arc<ServerSlot>>,
    pub(crate) controllers: Vec<Arc<ControllerSlot>>,
    pub(crate) shape: Shape,
    pub(crate) triggers: Arc<Triggers>,
    pub(crate) webhooks: Arc<Webhooks>,
    /// How many users came to write at the same moment.
    pub(crate) crowd: AtomicUsize,
    /// Whether the plan is over.
    pub(crate) is_over: AtomicBool,
}

/// A store as it is before anything happens, and the time that it took to get there.
#[derive(Clone)]
pub(crate) struct Prepared {
    store: Model,
    elapsed: Duration,
    /// The rule that was broken before anything happened, if one was.
    violation: Option<Violation>,
}

/// Prepares a store for worlds of this shape: everything is installed, and nobody runs any more.
pub(crate) async fn prepare(shape: Shape) -> Prepared {
    restow_host::simulated::begin(Duration::ZERO);
    let plan = Plan { seed: 0, shape, events: Vec::new(), duration: Duration::ZERO };
    let world = World::new(&plan, Telling::Nothing);
    world.begin().await;
    let prepared = async {
        setup::create_objects(&world).await;
        world.wait_until_settled().await;
    };
    if tokio::time::timeout(2 * SETTLES_WITHIN, prepared).await.is_err() {
        world.checker.violated(Rule::ItGetsThere, "what every world begins with cannot be created".to_owned());
    }
    setup::forget_leaders(&world).await;
    let violation = world.checker.violation();
    Prepared { store: world.store.back_up(), elapsed: restow_host::simulated::elapsed(), violation }
}

/// Lives a whole plan.
pub(crate) async fn live(plan: &Plan, telling: Telling, prepared: Prepared) -> Report {
    restow_host::simulated::begin(prepared.elapsed);
    if let Some(violation) = prepared.violation {
        return Report { violation: Some(violation), digest: 0, story: Vec::new(), statistics: Statistics::default() };
    }
    let world = World::new(plan, telling);
    world.store.restore(prepared.store);
    world.checker.catch_up(&world.store, None);
    let lived = async {
        world.begin().await;
        world.live(plan).await;
        world.settle().await;
    };
    tokio::select! {
        biased;
        () = world.violated() => {}
        () = world.dice.too_many.notified() => {
            world.checker.violated(Rule::ItGetsThere, "messages are sent without end".to_owned());
        }
        () = lived => {}
    }
    for panic in panics() {
        world.checker.violated(Rule::NoPanic, panic);
    }
    world.checker.catch_up(&world.store, None);
    let (violation, digest, story, statistics) = world.checker.finish();
    let statistics = Statistics { simulated: restow_host::simulated::elapsed(), ..statistics };
    Report { violation, digest, story, statistics }
}

impl World {
    fn new(plan: &Plan, telling: Telling) -> Arc<Self> {
        let dice = Arc::new(Dice::new(plan.seed));
        let triggers = Arc::<Triggers>::default();
        let names: BTreeMap<usize, String> =
            (0..plan.shape.servers).map(|number| (number, server::identity(number))).collect();
        Arc::new(World {
            seed: plan.seed,
            store: Arc::new(ModelStore::default()),
            network: Network::new(dice.clone(), triggers.clone()),
            triggers,
            webhooks: Webhooks::new(dice.clone()),
            crowd: AtomicUsize::new(0),
            dice,
            checker: Checker::new(names, plan.shape.voting == Voting::Strict, telling),
            servers: (0..plan.shape.servers).map(|number| Arc::new(ServerSlot::new(number))).collect(),
            controllers: (0..plan.shape.controllers).map(|number| Arc::new(ControllerSlot::new(number))).collect(),
            shape: plan.shape,
            is_over: AtomicBool::new(false),
        })
    }

    /// Starts everybody, without faults.
    async fn begin(self: &Arc<Self>) {
        for server in &self.servers {
            server.start(self);
        }
        for controller in &self.controllers {
            controller.start(self);
        }
    }

    /// Carries out the plan while the users write.
    async fn live(self: &Arc<Self>, plan: &Plan) {
        for number in 0..plan.shape.users {
            tokio::spawn(User::new(self, number).write_until_the_end());
        }
        let began = Instant::now();
        for planned in &plan.events {
            tokio::time::sleep_until(began + planned.at).await;
            self.happens(*planned);
        }
        tokio::time::sleep_until(began + plan.duration).await;
    }

    /// Carries out an event, now or when the moment has come that it waits for.
    fn happens(self: &Arc<Self>, planned: PlannedEvent) {
        let world = self.clone();
        let happen = move || {
            world.checker.tell(|| format!("EVENT {planned}"));
            world.checker.count(|statistics| statistics.events += 1);
            world.carry_out(planned.event);
        };
        let Some(trigger) = planned.after else { return happen() };
        let world = self.clone();
        tokio::spawn(async move {
            world.triggers.wait_for(trigger).await;
            // Sometimes a little later.
            if world.dice.roll().random_bool(0.5) {
                world.dice.under_way().await;
            }
            if !world.is_over.load(Ordering::Relaxed) {
                happen();
            }
        });
    }

    /// Ends all faults and waits until everything has settled.
    async fn settle(self: &Arc<Self>) {
        let settled = tokio::time::timeout(2 * SETTLES_WITHIN, self.heal_and_wait()).await;
        if settled.is_err() {
            self.checker.violated(Rule::ItGetsThere, "the CRD or a namespace cannot be created again".to_owned());
        }
    }

    async fn heal_and_wait(self: &Arc<Self>) {
        self.checker.tell(|| "all faults end".to_owned());
        self.is_over.store(true, Ordering::Relaxed);
        for server in &self.servers {
            server.heal(self);
        }
        for controller in &self.controllers {
            controller.heal(self);
        }
        self.webhooks.heal();
        self.actions().restore_crd_and_namespace().await;
        self.wait_until_settled().await;
    }

    async fn wait_until_settled(self: &Arc<Self>) {
        let began = Instant::now();
        loop {
            tokio::time::sleep(Duration::from_secs(1)).await;
            let open = convergence::what_is_open(self);
            if open.is_empty() {
                return;
            }
            if began.elapsed() > SETTLES_WITHIN {
                let words = format!("{} s after the last fault: {}", SETTLES_WITHIN.as_secs(), open.join("; "));
                return self.checker.violated(Rule::ItGetsThere, words);
            }
        }
    }

    async fn violated(&self) {
        loop {
            self.checker.violated.notified().await;
            if self.checker.violation().is_some() {
                return;
            }
        }
    }

    pub(crate) fn actions(self: &Arc<Self>) -> Actions {
        Actions::new(self)
    }

    fn carry_out(self: &Arc<Self>, event: Event) {
        let server = |number: usize| self.servers[number].clone();
        let controller = |number: usize| self.controllers[number].clone();
        let actions = self.actions();
        match event {
            Event::Crash(number, pause) => server(number).crash_for(self, pause),
            Event::Stop(number, pause) => server(number).stop_for(self, pause),
            Event::Suspend(number, pause) => server(number).suspend_for(self, pause),
            Event::Zombie(number, pause) => server(number).replace_for(self, pause),
            Event::Upgrade(number) => server(number).restart_as(self, |kind| kind.newer = true),
            Event::Downgrade(number) => server(number).restart_as(self, |kind| kind.newer = false),
            Event::ReportsOff(number) => server(number).restart_as(self, |kind| kind.reports = false),
            Event::ReportsOn(number) => server(number).restart_as(self, |kind| kind.reports = true),
            Event::Cut(number, pause) => server(number).link.cut(pause),
            Event::Outage(pause) => self.servers.iter().for_each(|server| server.link.cut(pause)),
            Event::Slow(number, pause) => server(number).link.slow_down(pause),
            Event::DoubleRequests(pause) => self.network.double_requests(pause),
            Event::Webhooks(fault, pause) => self.webhooks.misbehave(fault, pause),
            Event::WriteAtOnce(crowd) => User::write_at_once(self, crowd),
            Event::SpoilElection => drop(tokio::spawn(actions.spoil_election())),
            Event::StallWatches(number, pause) => server(number).link.stall_watches(pause),
            Event::BreakWatches(number) => server(number).link.break_watches(),
            Event::Transaction(number, choice, fault) => server(number).link.plan_fault(choice, fault),
            Event::ServerClock(number, seconds) => server(number).jump_clock(seconds),
            Event::ServerClockStops(number) => server(number).stop_clock(),
            Event::CrashController(number, pause) => controller(number).crash_for(self, pause),
            Event::SuspendController(number, pause) => controller(number).suspend_for(self, pause),
            Event::CutController(number, pause) => controller(number).cut_for(self, pause),
            Event::ControllerClock(number, seconds) => controller(number).jump_clock(seconds),
            Event::FlipStorageVersion => drop(tokio::spawn(actions.flip_storage_version())),
            Event::ToggleVersion => drop(tokio::spawn(actions.toggle_version())),
            Event::DeleteCrd(pause) => drop(tokio::spawn(actions.delete_crd(pause))),
            Event::DeleteLease(number) => drop(tokio::spawn(actions.delete_lease(server::identity(number)))),
            Event::SpoilReport(number) => drop(tokio::spawn(actions.spoil_report(server::identity(number)))),
            Event::DeleteReport(_) => drop(tokio::spawn(actions.delete_report())),
            Event::AskForMigration => drop(tokio::spawn(actions.ask_for_migration())),
            Event::DeleteNamespace => drop(tokio::spawn(actions.delete_namespace())),
            Event::Compact => drop(tokio::spawn(actions.compact())),
        }
    }
}
