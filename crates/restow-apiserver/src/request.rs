//! A request: the resource and verb that its path and method mean, its options, and the content types it accepts.
//!
//! Nothing here reads a connection or a store.

pub(crate) mod body;
pub(crate) mod headers;
pub(crate) mod negotiation;
pub(crate) mod options;
pub(crate) mod query;
pub(crate) mod request_info;
mod resource_request;

pub(crate) use resource_request::Request;
