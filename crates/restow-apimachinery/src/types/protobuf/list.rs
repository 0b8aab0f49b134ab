//! Encodes lists item by item; only the encoded bytes are in memory.

use super::node::Node;
use super::wire::Writer;
use super::{ProtobufError, begin, encode, end, find, node};
use crate::types::table::{TypeId, TypeTable};
use bytes::Bytes;
use serde_json::Value;

/// The bytes that are reserved for the beginning of the list, which is known last.
const HEAD: usize = 512;

/// A list that is being encoded.
pub struct ProtobufList {
    item: TypeId,
    writer: Writer,
}

impl ProtobufList {
    /// A list of objects of this version and kind.
    ///
    /// # Errors
    /// The kind is not a built-in one.
    pub fn new(api_version: &str, kind: &str) -> Result<Self, ProtobufError> {
        let mut writer = Writer::default();
        writer.raw(&[0; HEAD]);
        Ok(ProtobufList { item: find(api_version, kind)?, writer })
    }

    /// Adds an item.
    ///
    /// # Errors
    /// A value does not fit its field.
    pub fn push(&mut self, item: &Value) -> Result<(), ProtobufError> {
        self.push_node(&node(item)?)
    }

    /// Adds an item that is there as JSON text.
    ///
    /// # Errors
    /// The text is no JSON, or a value does not fit its field.
    pub fn push_json(&mut self, item: &[u8]) -> Result<(), ProtobufError> {
        self.push_node(&Node::parse(item)?)
    }

    fn push_node(&mut self, item: &Node<'_>) -> Result<(), ProtobufError> {
        let id = self.item;
        // All list types have their items in the same field.
        self.writer.message(2, |writer| encode::message(TypeTable::shared(), writer, id, item, 1))
    }

    /// The whole list, of this version and kind and with this metadata.
    ///
    /// # Errors
    /// The kind is not a built-in one, or a value does not fit its field.
    pub fn finish(self, api_version: &str, kind: &str, metadata: &Value) -> Result<Bytes, ProtobufError> {
        let list = Node::Fields(vec![("metadata".into(), metadata.into())]);
        let mut fields = Writer::default();
        encode::message(TypeTable::shared(), &mut fields, find(api_version, kind)?, &list, 0)?;
        let fields = fields.finish();
        let mut writer = self.writer;
        let length = writer.len() - HEAD + fields.len();
        end(&mut writer);
        let mut bytes = writer.finish();
        let mut head = Writer::default();
        begin(&mut head, api_version, kind)?;
        head.opening(2, length);
        head.raw(&fields);
        let head = head.finish();
        match HEAD.checked_sub(head.len()) {
            Some(start) => {
                bytes[start..HEAD].copy_from_slice(&head);
                Ok(Bytes::from(bytes).slice(start..))
            }
            None => {
                bytes.splice(..HEAD, head);
                Ok(bytes.into())
            }
        }
    }
}
