//! The pure rules: how API servers agree on storage versions, and when and how objects are migrated.
//!
//! **This crate does no I/O, reads no clock and draws no random numbers.** Every rule is a function from what was read (and
//! the time, as an argument) to what has to be written. The caller reads, calls, and writes under the preconditions that
//! the result names. If a write is refused, the caller reads and decides again.
//!
//! | module | the question it answers |
//! |---|---|
//! | [`register`](mod@register) | A server wants to write a resource: what does it have to report first? |
//! | [`consensus`](fn@consensus) | Do all participating servers store a resource in the same version? |
//! | [`collect`] | Servers are gone: what of theirs may be removed, and in which order? |
//! | [`vote`] | Servers vote on the version: which one is selected, and may this server write? |
//! | [`disagreement`](fn@disagreement) | Which server stores which version while they disagree, and since when? |
//! | [`census`] | In which versions are objects really stored, and is any of them old? |
//! | [`trigger`] | The storage version may have changed: what has to be migrated, and what may be stored? |
//! | [`migrate`] | Objects are being rewritten: what do responses mean, how many may be in flight, when is it proven? |
//! | [`leader_election`] | Several controllers run: which of them acts? |
//! | [`ownership`] | A store has keys: did Restow write them? |
//! | [`LeaseWatch`] | A lease was read repeatedly: has it expired? |
//! | [`Rejoin`] | A server lost its lease: how long does it wait before it joins again? |
//!
//! # What makes it safe
//!
//! A server is a *participant* as long as the key of its identity lease exists, expired or not. Its entries are removed
//! only after that key is deleted, and each of its writes compares the key's create revision with the one that it
//! registered under. So a server whose entry was removed cannot write, however long it was paused. The right to write
//! belongs to the encoding that was reported. While a server has a lease and no entry, there is no agreement. The model in
//! `tests/model` checks this in every reachable state, and shows what goes wrong without each of these rules. For servers that
//! report to a main API server and have a store of their own, `tests/two_stores.rs` does the same.

pub mod census;
pub mod collect;
pub mod leader_election;
pub mod migrate;
pub mod ownership;
pub mod register;
pub mod trigger;
pub mod vote;

mod agreement;
mod client_reports;
mod disagreement;
mod lease_watch;
mod participants;
mod rejoin;
mod server_report;

pub use agreement::{Consensus, consensus, set_common_encoding_version};
pub use client_reports::{client_entries, own_reporters};
pub use disagreement::{Disagreement, disagreement};
pub use lease_watch::{LeaseWatch, ReadTime, SeenLease, USUAL_DURATION};
pub use participants::{Participants, Presence};
pub use register::{Registration, is_reported, register, withdraw};
pub use rejoin::Rejoin;
pub use server_report::{InvalidReport, ServerReport};
