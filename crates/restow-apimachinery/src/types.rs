//! Kubernetes' built-in types as one table of facts, and what is done with it: protobuf to JSON and back, finding unknown
//! fields and wrong types in requests, strategic merge patches, and OpenAPI schemas.
//!
//! Objects are `serde_json::Value` throughout; nothing here knows HTTP, storage, or custom resources. A kind that the
//! table does not have is reported as such, never guessed. The data is `types/kubernetes.types`.

mod json;
mod openapi;
mod protobuf;
mod quantity;
mod shape;
mod strategic;
mod table;
mod time;
mod walking;

pub use json::exceeds_depth;
pub use json::{Decoded, FieldProblem, JsonError, check_fields, decode_json, normalize, strict_decoding_error};
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
