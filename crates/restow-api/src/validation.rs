//! Validation errors of an object's fields, with Kubernetes' messages.
//!
//! The messages are Kubernetes' to the letter: people search for them, and clients show them. The rules for single
//! values are in this module, those for whole objects next to the types.

mod field_error;
mod text;

pub use field_error::{BadValue, FieldError, FieldErrorKind};
pub use text::{is_dns1035_label, is_dns1123_subdomain, is_label_key, is_valid_api_version};
