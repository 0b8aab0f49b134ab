//! What really lies in a store: stored bytes are recognised, counted by the version they are encoded in, and compared
//! with the version that the API servers write now.
//!
//! Nothing here reads a store; whoever does hands over keys and values. A value says itself which group, version and
//! kind it is of, so the layout of the keys does not matter: the same rules read our own stores and a stock cluster's
//! etcd.

mod stored_form;
mod tally;
mod verdict;

pub use stored_form::StoredForm;
pub use tally::{Census, CensusRow, Encoding};
pub use verdict::{KindVerdict, Target, Verdict, judge};
