//! A simulated world that tries to break Restow's rules.
//!
//! API servers, controllers and users run in one thread, in simulated time, on a store in memory with the semantics of a real
//! one. They are the API servers and the controllers of production: what is simulated is time, random numbers and the
//! network ([`restow_host::simulated`]), never the code. One seed decides everything: when a message arrives, which answer is
//! lost, who crashes before which write, whose clock jumps, and what the users do. So a seed that breaks a rule breaks it
//! again, until the cause is mended.
//!
//! | file | what is in it |
//! |---|---|
//! | `plan.rs` | what is going to happen, from a seed: a list of events that can be shortened |
//! | `plan/` | what the events are about, and scenarios of events that do harm together |
//! | `world.rs`, `world/` | the servers, controllers and users, and carrying out the plan |
//! | `triggers.rs` | moments that events wait for |
//! | `webhooks.rs` | webhooks that misbehave |
//! | `store_client.rs` | how a simulated server reaches the store, and the faults on the way |
//! | `network.rs` | how clients reach servers |
//! | `checks.rs`, `checks/` | the rules, checked on the history of the store after every revision |
//! | `simulation.rs` | runs a plan in simulated time |
//! | `story.rs`, `panics.rs` | what happened, for people; what panicked |
//! | `processes.rs`, `processes/` | the same with real processes, a real etcd and a real network |
//! | `campaign.rs` | runs many seeds |
//! | `shrink.rs` | finds the fewest events that still break the rule |

mod campaign;
mod checks;
mod dice;
mod network;
mod panics;
mod plan;
pub mod processes;
mod shrink;
mod simulation;
mod store_client;
mod story;
mod triggers;
mod webhooks;
mod world;

pub use campaign::{Campaign, CampaignReport};
pub use checks::{Rule, Violation};
pub use plan::{Crowd, Event, Plan, PlannedEvent, Shape, Voting};
pub use shrink::shrink;
pub use simulation::{repeats_exactly, run};
pub use store_client::{TxnChoice, TxnFault};
pub use story::{Statistics, StoryLine, Telling};
pub use triggers::Trigger;
pub use webhooks::WebhookFault;
pub use world::Report;
