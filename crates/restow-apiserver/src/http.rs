//! HTTP: connections, dispatch of requests to handlers, and responses.

mod aggregated;
pub(crate) mod body;
pub(crate) mod compress;
pub(crate) mod connections;
pub(crate) mod deadline;
pub(crate) mod dispatch;
pub(crate) mod documents;
mod health;
pub(crate) mod in_process;
mod non_resource;
pub(crate) mod record;
pub(crate) mod render;
mod request_body;
