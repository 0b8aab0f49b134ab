//! Encodes a list as JSON. Objects that are stored in the requested version are copied without parsing, as far as
//! possible.

use crate::error::ApiError;
use crate::error::corrupt::{CorruptObject, MAX_REPORTED};
use crate::flow_control::fair_queue::{self, YieldBudget};
use crate::handlers::Call;
use crate::printing;
use crate::request::negotiation::{IncludeObject, Representation};
use crate::resource::codec::{self, Opening, Typed};
use crate::resource::{Origin, Resource};
use jiff::Timestamp;
use restow_api::GroupVersion;
use restow_apimachinery::object::Object;
use restow_store::Entry;
use serde_json::Value;
use std::sync::Arc;

/// Encodes the items of one list.
pub(super) struct ItemWriter {
    resource: Arc<Resource>,
    version: GroupVersion,
    shape: Representation,
    /// The stored prefix of objects that can be copied.
    opening: Option<Opening>,
    /// Kubernetes sets `kind` and `apiVersion` of items only for custom resources.
    typed: Typed,
    /// The time of the request, for the age column of tables.
    now: Timestamp,
    begun: bool,
}

impl ItemWriter {
    pub(super) fn new(call: &Call<'_>) -> Self {
        let resource = call.resource.clone();
        // A schema may add defaults to everything but the metadata.
        let copied = resource.reads_as_stored() || call.accepted.shape == Representation::MetadataOnly;
        ItemWriter {
            opening: copied.then(|| resource.opening(&call.version)),
            typed: if resource.origin == Origin::Custom { Typed::Yes } else { Typed::No },
            resource,
            version: call.version.clone(),
            shape: call.accepted.shape,
            now: restow_host::now(),
            begun: false,
        }
    }

    /// The resource of the items.
    pub(super) fn resource(&self) -> &Arc<Resource> {
        &self.resource
    }

    /// Begins the list, with capacity for these entries.
    pub(super) fn begin(&self, metadata: &Value, entries: &[Entry]) -> Vec<u8> {
        let (kind, version, items) = match self.shape {
            Representation::Whole => {
                (self.resource.names.list_kind.as_str(), self.version.to_string(), r#""items":["#.into())
            }
            Representation::MetadataOnly => {
                ("PartialObjectMetadataList", "meta.k8s.io/v1".into(), r#""items":["#.into())
            }
            Representation::Table(_) => {
                let definitions = Value::Array(printing::definitions(&self.resource));
                ("Table", "meta.k8s.io/v1".into(), format!(r#""columnDefinitions":{definitions},"rows":["#))
            }
        };
        let (kind, version) = (Value::from(kind), Value::from(version));
        let head = format!(r#"{{"kind":{kind},"apiVersion":{version},"metadata":{metadata},{items}"#);
        let mut json = Vec::with_capacity(head.len() + self.room(entries));
        json.extend_from_slice(head.as_bytes());
        json
    }

    /// The estimated size of these entries in the list, and of its end.
    pub(super) fn room(&self, entries: &[Entry]) -> usize {
        match self.shape {
            Representation::Whole | Representation::Table(IncludeObject::Object) => {
                entries.iter().map(|entry| entry.value.len() + 40).sum::<usize>() + 2
            }
            Representation::MetadataOnly | Representation::Table(_) => entries.len() * 512 + 2,
        }
    }

    /// Encodes the next items.
    pub(super) async fn write(&mut self, entries: &[Entry], json: &mut Vec<u8>) -> Result<(), ApiError> {
        let opening = self.opening.clone();
        let as_stored = |entry: &Entry| opening.as_ref().filter(|opening| opening.opens(&entry.value));
        fair_queue::wait_for_turn(entries.iter().map(|entry| entry.value.len()).sum()).await;
        let mut breath = YieldBudget::default();
        let mut corrupt = Vec::new();
        for entry in entries.iter().filter(|entry| as_stored(entry).is_some()) {
            if let Err(error) = codec::check(&entry.value) {
                corrupt.push(CorruptObject::new(entry, &error));
            }
            if corrupt.len() >= MAX_REPORTED {
                break;
            }
            breath.spend(entry.value.len()).await;
        }
        let others: Vec<Entry> = entries.iter().filter(|entry| as_stored(entry).is_none()).cloned().collect();
        let mut decoded = match self.resource.decode_all(&others, &self.version).await {
            Err(ApiError::CorruptList { objects, .. }) => {
                corrupt.extend(objects);
                Vec::new()
            }
            decoded => decoded?,
        }
        .into_iter();
        corrupt.sort_by(|one, other| one.key.cmp(&other.key));
        corrupt.truncate(MAX_REPORTED);
        self.resource.readable(corrupt)?;
        for entry in entries {
            breath.spend(entry.value.len()).await;
            match as_stored(entry) {
                Some(opening) => {
                    self.separate(json);
                    match self.shape {
                        Representation::Whole => opening.splice(&entry.value, entry.mod_revision, self.typed, json),
                        Representation::MetadataOnly => opening.splice_metadata(&entry.value, entry.mod_revision, json),
                        Representation::Table(beside) => {
                            let cells = Value::Array(self.cells(entry)?);
                            json.extend_from_slice(format!(r#"{{"cells":{cells},"object":"#).as_bytes());
                            match beside {
                                IncludeObject::Nothing => json.extend_from_slice(b"null"),
                                IncludeObject::Metadata => {
                                    opening.splice_metadata(&entry.value, entry.mod_revision, json)
                                }
                                IncludeObject::Object => {
                                    opening.splice(&entry.value, entry.mod_revision, Typed::Yes, json)
                                }
                            }
                            json.push(b'}');
                        }
                    }
                }
                None => {
                    let lost = || ApiError::Internal("the conversion lost an object".into());
                    self.write_object(decoded.next().ok_or_else(lost)?, json)?;
                }
            }
        }
        Ok(())
    }

    /// Encodes the next item.
    pub(super) fn write_object(&mut self, mut object: Object, json: &mut Vec<u8>) -> Result<(), ApiError> {
        self.separate(json);
        let value = match self.shape {
            Representation::Whole => {
                if self.typed == Typed::No {
                    object.set("apiVersion", None);
                    object.set("kind", None);
                }
                object.into_value()
            }
            Representation::MetadataOnly => printing::metadata_only(object),
            Representation::Table(beside) => printing::row(&self.resource, object, self.now, beside),
        };
        serde_json::to_writer(json, &value).map_err(|error| ApiError::Internal(error.to_string()))
    }

    /// The cells of a table row for an object that need not be converted.
    fn cells(&self, entry: &Entry) -> Result<Vec<Value>, ApiError> {
        let object = codec::decode_briefly(&entry.value);
        let object = object.map_err(|error| ApiError::Corrupt(CorruptObject::new(entry, &error)))?;
        Ok(printing::cells(&self.resource, &object, self.now))
    }

    fn separate(&mut self, json: &mut Vec<u8>) {
        if std::mem::replace(&mut self.begun, true) {
            json.push(b',');
        }
    }

    /// Ends the list.
    pub(super) fn end(&self, json: &mut Vec<u8>) {
        json.extend_from_slice(b"]}");
    }
}
