//! The rules by which API servers agree on storage versions, and by which migrations are triggered.
//!
//! **This crate does no I/O, reads no clock and draws no random numbers.** Every rule is a plain function from what was
//! read (and the time, as an argument) to what is to be written. Whoever calls it reads, calls, and writes under the
//! preconditions that the answer names; a write that is refused means: read again, decide again.
//!
//! | module | the question it answers |
//! |---|---|
//! | [`register`](mod@register) | A server wants to write a resource: what does it have to report first? |
//! | [`consensus`](fn@consensus) | Do all servers that take part store a resource in the same version? |
//! | [`collect`] | Servers went away: what of theirs may be removed, and in which order? |
//! | [`vote`] | Servers vote on the version: which one is selected, and may this server write? |
//! | [`disagreement`](fn@disagreement) | Who stores what while the servers do not agree, and since when? |
//! | [`census`] | In which versions do objects really lie in the store, and is any of them old? |
//! | [`trigger`] | The storage version may have changed: what has to be migrated, and what is known to be stored? |
//! | [`migrate`] | Objects are being rewritten: what do the answers mean, how fast may it go, when is it done? |
//! | [`leader_election`] | Several controllers run: which of them acts? |
//! | [`ownership`] | There are keys in a store: are they ours? |
//! | [`LeaseWatch`] | A lease was read again and again: has it expired? |
//! | [`Rejoin`] | A server was shut out: how long does it wait before it joins again? |
//!
//! # What makes it safe
//!
//! A server is a *participant* as long as the key of its identity lease exists, expired or not. Its entries are removed
//! only after that key is gone, and each of its writes compares the key's create-revision with the one that it
//! registered under. So a server whose entry was removed cannot write, however long it slept before. The right to write
//! belongs to the encoding that was reported. A server that takes part without reporting anything is not overlooked: while
//! it has a lease and no entry, nobody agrees. The model in `tests/model` checks this in every reachable state, and shows
//! what happens without each of these rules.

pub mod census;
pub mod collect;
pub mod leader_election;
pub mod migrate;
pub mod ownership;
pub mod register;
pub mod trigger;
pub mod vote;

mod agreement;
mod disagreement;
mod lease_watch;
mod participants;
mod rejoin;
mod server_report;

pub use agreement::{Consensus, consensus, set_common_encoding_version};
pub use disagreement::{Disagreement, disagreement};
pub use lease_watch::{LeaseWatch, ReadTime, SeenLease, USUAL_DURATION};
pub use participants::{Participants, Presence};
pub use register::{Registration, is_reported, register, withdraw};
pub use rejoin::Rejoin;
pub use server_report::{InvalidReport, ServerReport};
