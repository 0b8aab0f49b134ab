//! What really lies in a store: stored bytes are recognised, counted by the version they are encoded in, and compared
//! with the version that the API servers write now.
//!
//! Nothing here reads a store; whoever does hands over keys and values. A value says itself which group, version and
//! kind it is of; the key is needed only for values that do not tell, such as encrypted ones. The same rules read our own
//! stores and a stock cluster's etcd.
//!
//! The rule of [`evaluate`]: "nothing old is stored" is said only if every value that was read is known to be in the storage
//! version in force of the cluster that was queried. Everything else is old, or is unknown, and has a named reason.

mod identity;
mod layout;
mod moves;
mod report;
mod stored_form;
mod tally;
mod target;
mod verdict;

pub use identity::{RevisionsSeen, StoreIdentity, StoredUid};
pub use layout::{FURTHER_FOLDERS, folders_of_resource, resource_of_folder};
pub use report::{ApiAnswer, CensusEvidence, CensusReport, Doubt, evaluate};
pub use stored_form::{StoredForm, uid_of};
pub use tally::{Census, CensusRow, Encoding};
pub use target::{DefinedVersions, KindTarget, StorageVersionInForce, in_force, steady};
pub use verdict::{CensusVerdict, KindVerdict, OpaqueVerdict, VerdictReason};
