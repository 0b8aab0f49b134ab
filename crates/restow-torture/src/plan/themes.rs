//! What the events of a plan are mostly about.

use super::{Crowd, Event, Shape, Voting};
use crate::store_client::{TxnChoice, TxnFault};
use crate::webhooks::WebhookFault;
use rand::Rng;
use rand::rngs::StdRng;
use std::time::Duration;

/// A time that is often short, and sometimes longer than any lease.
pub(super) fn pause(random: &mut StdRng) -> Duration {
    let millis = match random.random_range(0..3) {
        0 => random.random_range(10..1_000),
        1 => random.random_range(1_000..9_000),
        _ => random.random_range(9_000..40_000),
    };
    Duration::from_millis(millis)
}

/// A time that a caller still waits for.
pub(super) fn short_pause(random: &mut StdRng) -> Duration {
    Duration::from_millis(random.random_range(10..4_000))
}

/// What the events of a plan are mostly about, so that they meet.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Theme {
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
    pub(super) fn of(random: &mut StdRng) -> Self {
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
    pub(super) fn shape(self, random: &mut StdRng) -> Shape {
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
            2 => Event::Transaction(server, choice(random, 10), TxnFault::ApplyLate(pause(random))),
            3 => Event::Transaction(server, choice(random, 10), TxnFault::AnswerLate(short_pause(random))),
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
            Theme::Crowds => Event::WriteAtOnce(crowd(random)),
        })
    }
}

fn webhook_fault(random: &mut StdRng) -> WebhookFault {
    WebhookFault::ALL[random.random_range(0..WebhookFault::ALL.len())]
}

fn crowd(random: &mut StdRng) -> Crowd {
    [Crowd::ConfigMaps, Crowd::Services, Crowd::EndpointSlices][random.random_range(0..3)]
}

/// An event, mostly of the theme.
pub(super) fn event(random: &mut StdRng, shape: Shape, theme: Theme) -> Event {
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
        49..64 => Event::Transaction(server, choice(random, 40), transaction_fault(random)),
        64..66 => Event::ServerClock(server, jump),
        66..67 => Event::ServerClockStops(server),
        67..69 => Event::CrashController(controller, pause(random)),
        69..72 => Event::SuspendController(controller, pause(random)),
        72..74 => Event::CutController(controller, pause(random)),
        74..75 => Event::ControllerClock(controller, jump),
        75..77 => Event::DoubleRequests(pause(random)),
        77 => Event::WriteAtOnce(crowd(random)),
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

fn choice(random: &mut StdRng, most: u32) -> TxnChoice {
    match random.random_range(0..10) {
        0 => TxnChoice::NextReport,
        1 => TxnChoice::NextWrite,
        _ => TxnChoice::After(random.random_range(0..most)),
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
