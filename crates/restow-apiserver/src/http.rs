//! HTTP: reading requests, writing answers, and the connections they travel on.

pub(crate) mod body;
pub(crate) mod compress;
pub(crate) mod connections;
pub(crate) mod deadline;
pub(crate) mod dispatch;
pub(crate) mod documents;
pub(crate) mod headers;
pub(crate) mod limits;
pub(crate) mod negotiate;
pub(crate) mod options;
pub(crate) mod query;
pub(crate) mod record;
pub(crate) mod render;
pub(crate) mod request_info;
