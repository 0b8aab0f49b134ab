//! Kubernetes' built-in types as a table, and functions on it: protobuf to JSON and back, unknown fields and wrong
//! types in requests, strategic merge patches, and OpenAPI schemas.
//!
//! Objects are `serde_json::Value`; this module does not know HTTP, storage, or custom resources. A kind that is not in
//! the table is reported as unknown. The data is `types/kubernetes.types`.

mod json;
mod merge_rule;
mod openapi;
mod protobuf;
mod quantity;
mod shape;
mod strategic;
mod table;
mod time;
mod walking;

pub use json::exceeds_depth;
pub use json::{Decoded, JsonError, check_fields, decode_json, normalize, strict_decoding_error};
pub use merge_rule::MergeRule;
pub use openapi::{group_version_roots, openapi_v2_definitions, openapi_v3, openapi_v3_schemas, schema_name};
pub use protobuf::{
    ProtobufError, ProtobufList, decode_protobuf, decode_watch_frame, encode_openapi_v2, encode_protobuf,
    encode_watch_frame, is_protobuf, transcode_protobuf, transcode_watch_frame,
};
pub use quantity::{Amount, compare_quantities};
pub use quantity::{QuantityError, canonical_quantity};
pub use strategic::{PatchError, strategic_merge_patch};
pub use table::{TypeId, TypeTable};
pub use walking::FieldShape;
