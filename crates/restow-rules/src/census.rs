//! The census: recognises stored bytes, counts them by the version that they are encoded in, and compares that with the
//! version that the API servers write now.
//!
//! Nothing here reads a store; the caller passes keys and values. A value names its group, version and kind; the key is
//! needed only for values that do not, such as encrypted ones. The same rules apply to Restow's stores and to the etcd of a
//! stock cluster.
//!
//! The rule of [`evaluate`]: the verdict is "nothing old is stored" only if every value is known to be in the storage
//! version in force of the cluster that was queried. Everything else is old or unknown, with a named reason.

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
