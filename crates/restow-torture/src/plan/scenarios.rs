//! Events that do harm only together, and in this order. Some plans contain such a scenario, with other events in between.

use super::themes::{pause, short_pause};
use super::{Crowd, Event, Shape, Theme};
use crate::store_client::{TxnChoice, TxnFault};
use crate::triggers::Trigger;
use crate::webhooks::WebhookFault;
use rand::Rng;
use rand::rngs::StdRng;
use std::time::Duration;

/// A sequence of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scenario {
    /// A write arrives after its server gave up on it and stores another version.
    LateWrite,
    /// A server does not see that a CRD was deleted and created again.
    StaleCrd,
    /// The storage version changes while a server that returns reports.
    ChangeDuringReport,
    /// A server joins, and does not report, while another one concludes an agreement.
    SilentJoin,
    /// All servers leave, and one returns that does not report.
    AllLeave,
    /// A server returns as another release, and does not report.
    SilentReturn,
    /// Webhooks refuse objects in the middle of a migration.
    RefusedInTheMiddle,
    /// A CRD changes while a migration of it ends.
    ChangeAtTheEnd,
}

/// One event of a scenario.
pub(super) struct Step {
    /// The time since the step before.
    pub(super) pause: Duration,
    pub(super) after: Option<Trigger>,
    pub(super) event: Event,
}

impl Scenario {
    /// A scenario of a theme that fits a world of this shape.
    pub(super) fn of(random: &mut StdRng, theme: Theme, shape: Shape) -> Option<Self> {
        let scenarios: &[Scenario] = match theme {
            Theme::StorageVersion => {
                &[Scenario::LateWrite, Scenario::StaleCrd, Scenario::ChangeDuringReport, Scenario::ChangeAtTheEnd]
            }
            Theme::Leases => &[Scenario::ChangeDuringReport],
            Theme::Silence if shape.servers > 2 => &[Scenario::SilentJoin, Scenario::AllLeave, Scenario::SilentReturn],
            Theme::Silence => &[Scenario::AllLeave, Scenario::SilentReturn],
            Theme::Webhooks => &[Scenario::RefusedInTheMiddle],
            Theme::Anything | Theme::Releases | Theme::Votes | Theme::Crowds => return None,
        };
        random.random_bool(0.5).then(|| scenarios[random.random_range(0..scenarios.len())])
    }

    /// The world that it happens in.
    pub(super) fn shape(self, shape: Shape) -> Shape {
        match self {
            // Else the policy refuses the second change.
            Scenario::ChangeDuringReport => Shape { guarded: false, ..shape },
            _ => shape,
        }
    }

    /// Its events.
    pub(super) fn steps(self, random: &mut StdRng, shape: Shape) -> Vec<Step> {
        let server = random.random_range(0..shape.servers);
        let (second, third) = ((server + 1) % shape.servers, (server + 2) % shape.servers);
        match self {
            Scenario::LateWrite => {
                // A server waits for an answer for five seconds.
                let late = TxnFault::ApplyLate(millis(random, 5_000, 12_000));
                let mut steps = vec![at_once(Event::Transaction(server, TxnChoice::NextWrite, late))];
                steps.push(later(millis(random, 0, 2_000), Event::Transaction(server, TxnChoice::NextWrite, late)));
                steps.push(later(millis(random, 0, 4_000), Event::FlipStorageVersion));
                steps
            }
            Scenario::StaleCrd => vec![
                at_once(Event::FlipStorageVersion),
                later(millis(random, 1_000, 4_000), Event::StallWatches(server, millis(random, 5_000, 20_000))),
                later(millis(random, 0, 500), Event::DeleteCrd(short_pause(random))),
            ],
            Scenario::ChangeDuringReport => {
                let late = TxnFault::AnswerLate(millis(random, 1_000, 4_000));
                vec![
                    at_once(Event::Stop(server, millis(random, 2_000, 4_000))),
                    later(millis(random, 100, 1_000), Event::FlipStorageVersion),
                    later(millis(random, 900, 1_000), Event::Transaction(server, TxnChoice::NextReport, late)),
                    Step { after: Some(Trigger::Report), ..at_once(Event::FlipStorageVersion) },
                ]
            }
            Scenario::SilentJoin => {
                let (down, late) = (millis(random, 1_000, 3_000), TxnFault::ArriveLate(millis(random, 1_000, 4_000)));
                let write = Event::WriteAtOnce(Crowd::EndpointSlices);
                vec![
                    at_once(Event::Upgrade(second)),
                    later(millis(random, 0, 500), Event::ReportsOff(server)),
                    // What starts after a crash is of the newer release, and its old report is still there.
                    later(millis(random, 3_000, 5_000), Event::Crash(third, down)),
                    at_once(Event::Upgrade(third)),
                    at_once(Event::Transaction(third, TxnChoice::NextReport, late)),
                    at_once(Event::Stop(server, down + millis(random, 200, 3_000))),
                    Step { after: Some(Trigger::Agreement), ..later(down + millis(random, 200, 1_000), write) },
                ]
            }
            Scenario::AllLeave => {
                let mut steps = vec![at_once(Event::Upgrade(server))];
                for other in (0..shape.servers).filter(|other| *other != server) {
                    steps.push(later(millis(random, 0, 2_000), Event::Stop(other, pause(random))));
                }
                steps.push(later(millis(random, 0, 1_000), Event::ReportsOff(server)));
                steps
            }
            Scenario::SilentReturn => {
                vec![at_once(Event::Upgrade(server)), later(millis(random, 0, 400), Event::ReportsOff(server))]
            }
            Scenario::RefusedInTheMiddle => {
                let fault = [WebhookFault::Refuse, WebhookFault::RefuseSome][random.random_range(0..2)];
                let refuse = Event::Webhooks(fault, pause(random));
                vec![
                    at_once(Event::FlipStorageVersion),
                    Step { after: Some(Trigger::Rewrite), ..later(millis(random, 0, 500), refuse) },
                ]
            }
            Scenario::ChangeAtTheEnd => vec![
                at_once(Event::FlipStorageVersion),
                Step { after: Some(Trigger::CrdRead), ..later(millis(random, 500, 3_000), Event::FlipStorageVersion) },
            ],
        }
    }
}

fn millis(random: &mut StdRng, from: u64, to: u64) -> Duration {
    Duration::from_millis(random.random_range(from..to))
}

fn at_once(event: Event) -> Step {
    later(Duration::ZERO, event)
}

fn later(pause: Duration, event: Event) -> Step {
    Step { pause, after: None, event }
}
