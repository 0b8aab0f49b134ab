//! What is going to happen in a world, from a seed: its shape, and a list of events that can be shortened.

mod scenarios;
mod themes;

use crate::store_client::{TxnChoice, TxnFault};
use crate::triggers::Trigger;
use crate::webhooks::WebhookFault;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use scenarios::{Scenario, Step};
use std::fmt;
use std::time::Duration;
use themes::{Theme, event};

/// What is going to happen in a world.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The seed that it was made from. It also decides all delays, and what the users write.
    pub seed: u64,
    /// Who is there.
    pub shape: Shape,
    /// The events, in order of their time, each with its number in the whole plan.
    pub events: Vec<PlannedEvent>,
    /// How long events happen.
    pub duration: Duration,
}

/// Who is in a world.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Shape {
    /// API servers.
    pub servers: usize,
    /// Controllers.
    pub controllers: usize,
    /// Users who write.
    pub users: usize,
    /// Whether the servers vote on storage versions.
    pub voting: Voting,
    /// Whether the controllers migrate custom resources only.
    pub custom_only: bool,
    /// Whether custom resources have a conversion webhook and admission webhooks.
    pub webhooks: bool,
    /// Whether a policy refuses changes of a CRD's storage version while its objects are migrated.
    pub guarded: bool,
}

/// How the servers of a world choose their storage versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Voting {
    /// Each stores what its release prefers, and reports it.
    No,
    /// They vote, and no write is committed in another version than the selected one.
    Strict,
    /// They vote, and writes in flight may still be committed in the version that was selected before.
    Loose,
}

/// An event with its time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PlannedEvent {
    /// Its number in the whole plan.
    pub number: usize,
    /// When it happens.
    pub at: Duration,
    /// What it waits for then, if it does not happen at that moment.
    pub after: Option<Trigger>,
    /// What happens.
    pub event: Event,
}

/// Something that happens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Event {
    /// A server crashes, and is started again after a while.
    Crash(usize, Duration),
    /// A server is stopped as an administrator does, and started again.
    Stop(usize, Duration),
    /// A server does not run for so long.
    Suspend(usize, Duration),
    /// A server is suspended, and another process with the same identity is started in its place; so much later the first one
    /// goes on.
    Zombie(usize, Duration),
    /// A server is replaced by one of the newer release.
    Upgrade(usize),
    /// A server is replaced by one of the older release.
    Downgrade(usize),
    /// A server is started again without storage version reports.
    ReportsOff(usize),
    /// A server is started again with storage version reports.
    ReportsOn(usize),
    /// A server cannot reach the store for so long.
    Cut(usize, Duration),
    /// Nobody can reach the store for so long.
    Outage(Duration),
    /// Every message between a server and the store is slow for so long.
    Slow(usize, Duration),
    /// The store's watch delivers nothing to a server for so long.
    StallWatches(usize, Duration),
    /// The store's watches of a server end with an error.
    BreakWatches(usize),
    /// Something happens to one of the next transactions of a server.
    Transaction(usize, TxnChoice, TxnFault),
    /// The time of day of a server jumps by so many seconds.
    ServerClock(usize, i64),
    /// The time of day of a server stands still.
    ServerClockStops(usize),
    /// A controller crashes, and is started again after a while.
    CrashController(usize, Duration),
    /// A controller does not run for so long.
    SuspendController(usize, Duration),
    /// A controller reaches no server for so long.
    CutController(usize, Duration),
    /// The time of day of a controller jumps by so many seconds.
    ControllerClock(usize, i64),
    /// Requests of controllers and administrators arrive twice for so long.
    DoubleRequests(Duration),
    /// The webhooks misbehave for so long.
    Webhooks(WebhookFault, Duration),
    /// Many users write at the same moment.
    WriteAtOnce(Crowd),
    /// A user makes the other version of the CRD its storage version.
    FlipStorageVersion,
    /// A user adds a version to the CRD, or removes it.
    ToggleVersion,
    /// A user deletes the CRD, and creates it again after a while.
    DeleteCrd(Duration),
    /// A user deletes the identity lease of a server.
    DeleteLease(usize),
    /// A user writes nonsense into the status of a StorageVersion.
    SpoilReport(usize),
    /// A user deletes a StorageVersion.
    DeleteReport(usize),
    /// A user writes nonsense into the election of a storage version.
    SpoilElection,
    /// A user asks for a migration.
    AskForMigration,
    /// A user deletes the namespace that they write to, and creates it again.
    DeleteNamespace,
    /// An administrator compacts the store.
    Compact,
}

/// What many users do at the same moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crowd {
    /// They create more config maps than the quota allows.
    ConfigMaps,
    /// They create Services with the same node ports.
    Services,
    /// They apply EndpointSlices.
    EndpointSlices,
}

/// How long everybody goes on at least after the last event.
const AFTER_THE_LAST: Duration = Duration::from_secs(1);

impl Plan {
    /// The plan of a seed.
    pub fn new(seed: u64) -> Self {
        let mut random = StdRng::seed_from_u64(seed);
        let theme = Theme::of(&mut random);
        let shape = theme.shape(&mut random);
        let duration = Duration::from_millis(match random.random_range(0..4) {
            0 => random.random_range(10_000..20_000),
            _ => random.random_range(3_000..10_000),
        });
        let scenario = Scenario::of(&mut random, theme, shape);
        let shape = scenario.map_or(shape, |scenario| scenario.shape(shape));
        let count = random.random_range(if scenario.is_some() { 0..=6 } else { 2..=12 });
        let mut events: Vec<PlannedEvent> = times(&mut random, duration, count)
            .into_iter()
            .map(|at| {
                let event = event(&mut random, shape, theme);
                PlannedEvent { number: 0, at, after: trigger(&mut random, event), event }
            })
            .collect();
        if let Some(scenario) = scenario {
            let begin = duration.mul_f64(random.random_range(0.0..0.5));
            events.extend(in_order(begin, scenario.steps(&mut random, shape)));
        }
        events.sort_by_key(|event| event.at);
        events.iter_mut().enumerate().for_each(|(number, event)| event.number = number);
        let duration = events.last().map_or(duration, |last| duration.max(last.at + AFTER_THE_LAST));
        Plan { seed, shape, events, duration }
    }

    /// The same with only these events.
    pub fn keeping(&self, numbers: &[usize]) -> Self {
        let events = self.events.iter().filter(|event| numbers.contains(&event.number)).copied().collect();
        Plan { events, ..self.clone() }
    }

    /// The numbers of its events.
    pub fn numbers(&self) -> Vec<usize> {
        self.events.iter().map(|event| event.number).collect()
    }
}

/// The events of a scenario that begins then.
fn in_order(begin: Duration, steps: Vec<Step>) -> Vec<PlannedEvent> {
    let mut at = begin;
    let planned = steps.into_iter().map(|Step { pause, after, event }| {
        at += pause;
        PlannedEvent { number: 0, at, after, event }
    });
    planned.collect()
}

/// The times of events. Half of the plans have them in a few groups, so that they meet.
fn times(random: &mut StdRng, duration: Duration, count: usize) -> Vec<Duration> {
    let groups: Vec<f64> = (0..random.random_range(1..=3)).map(|_| random.random_range(0.0..0.9)).collect();
    let is_grouped = random.random_bool(0.5);
    let mut times: Vec<Duration> = (0..count)
        .map(|_| match is_grouped {
            true => {
                let apart = random.random_range(0.0..1.0_f64).powi(3) * 2.0;
                duration.mul_f64(groups[random.random_range(0..groups.len())]) + Duration::from_secs_f64(apart)
            }
            false => duration.mul_f64(random.random_range(0.0..1.0)),
        })
        .map(|time| time.min(duration))
        .collect();
    times.sort();
    times
}

/// What an event waits for: some wait for the moment in which they do most harm.
fn trigger(random: &mut StdRng, event: Event) -> Option<Trigger> {
    let is_waiting = random.random_bool(0.25);
    let trigger = Trigger::ALL[random.random_range(0..Trigger::ALL.len())];
    let can_wait = !matches!(event, Event::Transaction(..) | Event::WriteAtOnce(_) | Event::AskForMigration);
    (is_waiting && can_wait).then_some(trigger)
}

impl fmt::Display for PlannedEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{} at {:.3} s: {:?}", self.number, self.at.as_secs_f64(), self.event)?;
        self.after.map_or(Ok(()), |trigger| write!(f, ", when {trigger}"))
    }
}
