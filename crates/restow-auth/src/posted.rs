//! Objects that clients post to have something done, as far as they are read: reviews and token requests.

use serde::Deserialize;

/// A posted object.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(crate) struct Posted<S> {
    pub(crate) metadata: Metadata,
    pub(crate) spec: S,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(crate) struct Metadata {
    pub(crate) name: String,
    pub(crate) namespace: String,
    pub(crate) uid: String,
}
