//! Writing a list as JSON. What is stored in the version asked for is copied without being parsed.

use crate::codec::{Opening, Typed};
use crate::error::ApiError;
use crate::http::negotiate::Shape;
use crate::printing;
use crate::resource::{Origin, Resource};
use crate::verbs::Call;
use restow_api::GroupVersion;
use restow_store::Entry;
use serde_json::Value;
use std::sync::Arc;

/// Writes the items of one list.
pub(super) struct ItemWriter {
    resource: Arc<Resource>,
    version: GroupVersion,
    shape: Shape,
    /// How objects open that can be copied.
    opening: Option<Opening>,
    /// Kubernetes says the type of each item for custom resources only.
    typed: Typed,
    begun: bool,
}

impl ItemWriter {
    pub(super) fn new(call: &Call<'_>) -> Self {
        let resource = call.resource.clone();
        ItemWriter {
            opening: resource.reads_as_stored().then(|| resource.opening(&call.version)),
            typed: if resource.origin == Origin::Custom { Typed::Yes } else { Typed::No },
            resource,
            version: call.version.clone(),
            shape: call.accepted.shape,
            begun: false,
        }
    }

    /// What these objects are of.
    pub(super) fn resource(&self) -> &Arc<Resource> {
        &self.resource
    }

    /// Begins the list, with room for these entries.
    pub(super) fn begin(&self, metadata: &Value, entries: &[Entry]) -> Vec<u8> {
        let (kind, version) = match self.shape {
            Shape::Whole => (self.resource.names.list_kind.as_str(), self.version.to_string()),
            _ => ("PartialObjectMetadataList", "meta.k8s.io/v1".into()),
        };
        let mut json = Vec::with_capacity(self.room(entries) + 256);
        let (kind, version) = (Value::from(kind), Value::from(version));
        let head = format!(r#"{{"kind":{kind},"apiVersion":{version},"metadata":{metadata},"items":["#);
        json.extend_from_slice(head.as_bytes());
        json
    }

    /// About how many bytes these entries take in the list.
    pub(super) fn room(&self, entries: &[Entry]) -> usize {
        match self.shape {
            Shape::Whole => entries.iter().map(|entry| entry.value.len() + 40).sum(),
            _ => entries.len() * 512,
        }
    }

    /// Writes the next items.
    pub(super) async fn write(&mut self, entries: &[Entry], json: &mut Vec<u8>) -> Result<(), ApiError> {
        let opening = self.opening.as_ref();
        let as_stored = |entry: &Entry| opening.filter(|opening| opening.opens(&entry.value));
        let others: Vec<Entry> = entries.iter().filter(|entry| as_stored(entry).is_none()).cloned().collect();
        let mut decoded = self.resource.decode_all(&others, &self.version).await?.into_iter();
        for entry in entries {
            if std::mem::replace(&mut self.begun, true) {
                json.push(b',');
            }
            match (as_stored(entry), self.shape) {
                (Some(opening), Shape::Whole) => opening.splice(&entry.value, entry.mod_revision, self.typed, json),
                (Some(opening), _) => opening.splice_metadata(&entry.value, entry.mod_revision, json),
                (None, shape) => {
                    let lost = || ApiError::Internal("the conversion lost an object".into());
                    let mut object = decoded.next().ok_or_else(lost)?;
                    if self.typed == Typed::No {
                        object.set("apiVersion", None);
                        object.set("kind", None);
                    }
                    let value = match shape {
                        Shape::Whole => object.into_value(),
                        _ => printing::metadata_only(&object),
                    };
                    let written = serde_json::to_writer(&mut *json, &value);
                    written.map_err(|error| ApiError::Internal(error.to_string()))?;
                }
            }
        }
        Ok(())
    }

    /// Ends the list.
    pub(super) fn end(&self, json: &mut Vec<u8>) {
        json.extend_from_slice(b"]}");
    }
}
