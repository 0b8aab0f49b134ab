//! HTTP: connections, finding the handler of a request, and writing its answer.

pub(crate) mod body;
pub(crate) mod compress;
pub(crate) mod connections;
pub(crate) mod deadline;
pub(crate) mod dispatch;
pub(crate) mod documents;
mod health;
pub(crate) mod record;
pub(crate) mod render;
