//! Encodes a list as protobuf. It cannot be streamed, since its length comes first. But it is read page by page, so
//! that only the response is in memory as a whole, not the objects.

use crate::error::ApiError;
use crate::error::corrupt::CorruptObject;
use crate::flow_control::fair_queue::{self, YieldBudget};
use crate::handlers::{Call, HandlerResponse};
use crate::printing;
use crate::request::negotiation::{Media, Representation};
use crate::resource::codec::{Opening, Typed};
use restow_apimachinery::object::Object;
use restow_apimachinery::types::{ProtobufError, ProtobufList};
use restow_store::Entry;
use serde_json::Value;

/// Encodes the items of one list.
pub(super) struct ProtobufWriter<'a> {
    call: &'a Call<'a>,
    list: ProtobufList,
    /// The stored prefix of objects that need not be decoded.
    opening: Option<Opening>,
    /// The JSON of one object.
    json: Vec<u8>,
}

impl<'a> ProtobufWriter<'a> {
    pub(super) fn new(call: &'a Call<'a>) -> Result<Self, ApiError> {
        let list = match call.accepted.shape {
            Representation::Whole => ProtobufList::new(&call.version.to_string(), &call.resource.names.kind),
            _ => ProtobufList::new("meta.k8s.io/v1", "PartialObjectMetadata"),
        };
        let opening = call.resource.reads_as_stored().then(|| call.resource.opening(&call.version));
        Ok(ProtobufWriter { call, list: list.map_err(internal)?, opening, json: Vec::new() })
    }

    /// Encodes the next items.
    pub(super) async fn write(&mut self, entries: &[Entry]) -> Result<(), ApiError> {
        fair_queue::wait_for_turn(entries.iter().map(|entry| entry.value.len()).sum()).await;
        let mut breath = YieldBudget::default();
        for entry in entries {
            breath.spend(entry.value.len()).await;
            let Some(opening) = self.opening.as_ref().filter(|opening| opening.opens(&entry.value)) else {
                let object = self.call.resource.decode(entry, &self.call.version).await?;
                self.write_object(object)?;
                continue;
            };
            self.json.clear();
            match self.call.accepted.shape {
                Representation::Whole => opening.splice(&entry.value, entry.mod_revision, Typed::No, &mut self.json),
                _ => opening.splice_metadata(&entry.value, entry.mod_revision, &mut self.json),
            }
            if let Err(error) = self.list.push_json(&self.json) {
                self.call.resource.readable(vec![CorruptObject::new(entry, &error)])?;
            }
        }
        Ok(())
    }

    /// Encodes the next item.
    pub(super) fn write_object(&mut self, object: Object) -> Result<(), ApiError> {
        let item = match self.call.accepted.shape {
            Representation::Whole => object.into_value(),
            _ => printing::metadata_only(object),
        };
        self.list.push(&item).map_err(internal)
    }

    /// The complete list.
    pub(super) fn finish(self, metadata: &Value) -> Result<HandlerResponse, ApiError> {
        let body = match self.call.accepted.shape {
            Representation::Whole => {
                self.list.finish(&self.call.version.to_string(), &self.call.resource.names.list_kind, metadata)
            }
            _ => self.list.finish("meta.k8s.io/v1", "PartialObjectMetadataList", metadata),
        };
        Ok(HandlerResponse::Bytes { code: 200, body: body.map_err(internal)?, media: Media::Protobuf })
    }
}

fn internal(error: ProtobufError) -> ApiError {
    ApiError::Internal(format!("cannot write protobuf: {error}"))
}
