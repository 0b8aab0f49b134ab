//! What is going to happen in a world, from a seed: its shape, and a list of events that can be shortened.

use crate::store_client::TxnFault;
use crate::triggers::Trigger;
use crate::webhooks::WebhookFault;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::fmt;
use std::time::Duration;

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
    /// Something happens to a transaction of a server, after so many others.
    Transaction(usize, u32, TxnFault),
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
    /// Many users create objects at the same moment: config maps under a quota, or Services with the same node ports.
    CreateAtOnce(Crowd),
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

/// What many users create at the same moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crowd {
    /// More config maps than the quota allows.
    ConfigMaps,
    /// Services with the same node ports.
    Services,
}

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
        let count = random.random_range(2..=12);
        let events = times(&mut random, duration, count)
            .into_iter()
            .enumerate()
            .map(|(number, at)| {
                let event = event(&mut random, shape, theme);
                PlannedEvent { number, at, after: trigger(&mut random, event), event }
            })
            .collect();
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

/// A time that is often short, and sometimes longer than any lease.
fn pause(random: &mut StdRng) -> Duration {
    let millis = match random.random_range(0..3) {
        0 => random.random_range(10..1_000),
        1 => random.random_range(1_000..9_000),
        _ => random.random_range(9_000..40_000),
    };
    Duration::from_millis(millis)
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
    let can_wait = !matches!(event, Event::Transaction(..) | Event::CreateAtOnce(_) | Event::AskForMigration);
    (is_waiting && can_wait).then_some(trigger)
}

/// A time that a caller still waits for.
fn short_pause(random: &mut StdRng) -> Duration {
    Duration::from_millis(random.random_range(10..4_000))
}

/// What the events of a plan are mostly about, so that they meet.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Theme {
    Anything,
    /// Servers of different releases.
    Releases,
    /// The same with voting.
    Votes,
    /// A CRD whose storage version changes.
    StorageVersion,
    /// Servers that lose their identity lease.
    Leases,
    /// Servers that report, and servers that do not.
    Silence,
    /// Webhooks that hang, refuse and mutate.
    Webhooks,
    /// Users who want the same.
    Crowds,
}

impl Theme {
    fn of(random: &mut StdRng) -> Self {
        match random.random_range(0..10) {
            0 | 1 => Theme::Anything,
            2 => Theme::Releases,
            3 => Theme::Votes,
            4 | 5 => Theme::StorageVersion,
            6 => Theme::Leases,
            7 => Theme::Silence,
            8 => Theme::Webhooks,
            _ => Theme::Crowds,
        }
    }

    /// Who is in a world of this theme.
    fn shape(self, random: &mut StdRng) -> Shape {
        let votes = match self {
            Theme::Votes => true,
            Theme::Anything | Theme::Silence => random.random_bool(0.2),
            _ => false,
        };
        Shape {
            servers: random.random_range(2..=3),
            controllers: if random.random_bool(0.6) { 1 } else { 2 },
            users: random.random_range(2..=3),
            voting: match votes {
                true if random.random_bool(0.7) => Voting::Strict,
                true => Voting::Loose,
                false => Voting::No,
            },
            custom_only: !matches!(self, Theme::Releases | Theme::Votes) && random.random_bool(0.8),
            webhooks: self == Theme::Webhooks,
            guarded: random.random_bool(0.6),
        }
    }

    /// An event of the theme.
    fn event(self, random: &mut StdRng, server: usize) -> Option<Event> {
        let slow = match random.random_range(0..6) {
            0 => Event::StallWatches(server, pause(random)),
            1 => Event::Suspend(server, pause(random)),
            2 => Event::Transaction(server, random.random_range(0..10), TxnFault::ApplyLate(pause(random))),
            3 => Event::Transaction(server, random.random_range(0..10), TxnFault::AnswerLate(short_pause(random))),
            4 => Event::Slow(server, pause(random)),
            _ => Event::Cut(server, pause(random)),
        };
        let is_own = random.random_bool(0.5);
        Some(match self {
            Theme::Anything => return None,
            _ if !is_own => slow,
            Theme::Releases | Theme::Votes if random.random_bool(0.7) => Event::Upgrade(server),
            Theme::Votes if random.random_bool(0.2) => Event::SpoilElection,
            Theme::Releases | Theme::Votes => Event::Downgrade(server),
            Theme::StorageVersion if random.random_bool(0.8) => Event::FlipStorageVersion,
            Theme::StorageVersion => Event::AskForMigration,
            Theme::Leases => match random.random_range(0..4) {
                0 => Event::Outage(pause(random)),
                1 => Event::Zombie(server, pause(random)),
                _ => Event::DeleteLease(server),
            },
            Theme::Silence => match random.random_range(0..4) {
                0 => Event::Upgrade(server),
                1 => Event::ReportsOn(server),
                _ => Event::ReportsOff(server),
            },
            Theme::Webhooks if random.random_bool(0.6) => Event::Webhooks(webhook_fault(random), pause(random)),
            Theme::Webhooks => Event::FlipStorageVersion,
            Theme::Crowds => Event::CreateAtOnce(crowd(random)),
        })
    }
}

fn webhook_fault(random: &mut StdRng) -> WebhookFault {
    WebhookFault::ALL[random.random_range(0..WebhookFault::ALL.len())]
}

fn crowd(random: &mut StdRng) -> Crowd {
    if random.random_bool(0.5) { Crowd::ConfigMaps } else { Crowd::Services }
}

fn event(random: &mut StdRng, shape: Shape, theme: Theme) -> Event {
    let server = random.random_range(0..shape.servers);
    if let Some(event) = theme.event(random, server).filter(|_| random.random_bool(0.6)) {
        return event;
    }
    let controller = random.random_range(0..shape.controllers);
    let jump = [-7200, -60, -15, 15, 60, 7200][random.random_range(0..6)];
    match random.random_range(0..100) {
        0..8 => Event::Crash(server, pause(random)),
        8..11 => Event::Stop(server, pause(random)),
        11..19 => Event::Suspend(server, pause(random)),
        19..22 => Event::Zombie(server, pause(random)),
        22..27 => Event::Upgrade(server),
        27..30 => Event::Downgrade(server),
        30..32 => Event::ReportsOff(server),
        32..34 => Event::ReportsOn(server),
        34..38 => Event::Cut(server, pause(random)),
        38 => Event::Outage(pause(random)),
        39..43 => Event::StallWatches(server, pause(random)),
        43..46 => Event::Slow(server, pause(random)),
        46..49 => Event::BreakWatches(server),
        49..64 => Event::Transaction(server, random.random_range(0..40), transaction_fault(random)),
        64..66 => Event::ServerClock(server, jump),
        66..67 => Event::ServerClockStops(server),
        67..69 => Event::CrashController(controller, pause(random)),
        69..72 => Event::SuspendController(controller, pause(random)),
        72..74 => Event::CutController(controller, pause(random)),
        74..75 => Event::ControllerClock(controller, jump),
        75..77 => Event::DoubleRequests(pause(random)),
        77 => Event::CreateAtOnce(crowd(random)),
        78 if shape.webhooks => Event::Webhooks(webhook_fault(random), pause(random)),
        78..86 => Event::FlipStorageVersion,
        86..88 => Event::ToggleVersion,
        88..90 => Event::DeleteCrd(pause(random)),
        90..94 => Event::DeleteLease(server),
        94..95 => Event::SpoilReport(server),
        95..96 => Event::DeleteReport(server),
        96..98 => Event::AskForMigration,
        98 if shape.voting != Voting::No && random.random_bool(0.5) => Event::SpoilElection,
        98 => Event::DeleteNamespace,
        _ => Event::Compact,
    }
}

fn transaction_fault(random: &mut StdRng) -> TxnFault {
    match random.random_range(0..7) {
        0 => TxnFault::Refuse,
        1 => TxnFault::LoseAnswer,
        2 => TxnFault::ApplyLate(pause(random)),
        3 => TxnFault::ArriveLate(short_pause(random)),
        4 => TxnFault::AnswerLate(short_pause(random)),
        5 => TxnFault::CrashBefore,
        _ => TxnFault::CrashAfter,
    }
}

impl fmt::Display for PlannedEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{} at {:.3} s: {:?}", self.number, self.at.as_secs_f64(), self.event)?;
        self.after.map_or(Ok(()), |trigger| write!(f, ", when {trigger}"))
    }
}
