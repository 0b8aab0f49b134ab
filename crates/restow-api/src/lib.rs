//! Names, hashes and wire types of the Kubernetes APIs that Restow serves and uses.
//!
//! This crate contains no policy and does no I/O. The rules that act on these types are in `restow-rules`. Every type has
//! the JSON form that Kubernetes' clients expect; our additions are optional fields that older clients ignore.
//!
//! | module | API group | kinds |
//! |---|---|---|
//! | [`internal_apiserver`] | `internal.apiserver.k8s.io/v1alpha1` | StorageVersion, reported by API servers |
//! | [`kube_apiserver_internal`] | `kube-apiserver.internal.k8s.io/v1alpha1` | StorageVersion, voted on by API servers |
//! | [`migration`] | `migration.k8s.io/v1alpha1` | StorageVersionMigration and StorageState |

pub mod internal_apiserver;
pub mod kube_apiserver_internal;
pub mod migration;
pub mod validation;

mod names;
mod object_meta;
mod resource_version;
mod server_id;
mod storage_version_hash;
mod time;
mod version_priority;

pub use names::{GroupResource, GroupVersion, GroupVersionKind, GroupVersionResource, InvalidName};
pub use object_meta::{ListMeta, ObjectMeta};
pub use resource_version::ResourceVersion;
pub use server_id::ServerId;
pub use storage_version_hash::{StorageVersionHash, storage_version_hash};
pub use time::{MicroTime, Time};
pub use version_priority::{Stability, VersionPriority, compare_versions};
