//! Writing a list as protobuf. It cannot be sent in parts, since it begins with its length, but it is read page by page:
//! what lies in memory whole is what is sent, and not the objects that it is made of.

use crate::error::ApiError;
use crate::http::negotiate::{Media, Shape};
use crate::object::Object;
use crate::printing;
use crate::types::{self, ProtobufError};
use crate::verbs::{Answer, Call};
use bytes::Bytes;
use serde_json::Value;

/// How many bytes are kept free for the beginning, which is known last.
const HEAD: usize = 512;

/// Writes a list.
pub(super) struct ProtobufList<'a> {
    call: &'a Call<'a>,
    version: String,
    bytes: Vec<u8>,
}

impl<'a> ProtobufList<'a> {
    pub(super) fn new(call: &'a Call<'a>) -> Self {
        let version = match call.accepted.shape {
            Shape::Whole => call.version.to_string(),
            _ => "meta.k8s.io/v1".to_string(),
        };
        ProtobufList { call, version, bytes: vec![0; HEAD] }
    }

    /// Writes the next items.
    pub(super) fn write(&mut self, objects: Vec<Object>) -> Result<(), ApiError> {
        for object in objects {
            let (kind, item) = match self.call.accepted.shape {
                Shape::Whole => (self.call.resource.names.kind.as_str(), object.into_value()),
                _ => ("PartialObjectMetadata", printing::metadata_only(object)),
            };
            types::encode_list_item(&self.version, kind, &item, &mut self.bytes).map_err(internal)?;
        }
        Ok(())
    }

    /// The whole list.
    pub(super) fn finish(mut self, metadata: &Value) -> Result<Answer, ApiError> {
        let kind = match self.call.accepted.shape {
            Shape::Whole => self.call.resource.names.list_kind.as_str(),
            _ => "PartialObjectMetadataList",
        };
        let items = self.bytes.len() - HEAD;
        let head = types::encode_list_head(&self.version, kind, metadata, items).map_err(internal)?;
        let body = match HEAD.checked_sub(head.len()) {
            Some(start) => {
                self.bytes[start..HEAD].copy_from_slice(&head);
                Bytes::from(self.bytes).slice(start..)
            }
            None => {
                self.bytes.splice(..HEAD, head);
                self.bytes.into()
            }
        };
        Ok(Answer::Bytes { code: 200, body, media: Media::Protobuf })
    }
}

fn internal(error: ProtobufError) -> ApiError {
    ApiError::Internal(format!("cannot write protobuf: {error}"))
}
