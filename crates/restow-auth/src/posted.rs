//! Objects that clients post and the server does not store: reviews and token requests. Only the fields that are read.

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
