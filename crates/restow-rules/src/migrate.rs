//! The rules of a migration: what a response means, how many objects may be in flight, when it is proven that nothing old
//! is left, and when the stored versions of a CRD may be trimmed.
//!
//! | module | the question it answers |
//! |---|---|
//! | [`api_servers`] | Which API servers exist, and which storage version do all of them encode? |
//! | [`aggregation`] | Which groups do aggregated API servers serve, and what do their reports prove? |
//! | [`processes`] | Which process answers at each address: were all of them queried, and are they the same at the end? |
//! | [`response`] | The server answered the rewrite of one object: what does that mean? |
//! | [`pacer`] | How many objects may be in flight? |
//! | [`passes`] | All objects were processed once: is the migration done, and is that proven? |
//! | [`stored_versions`] | May `status.storedVersions` be trimmed? |
//! | [`difference`] | A write that should change nothing changed the object: which field? |
//! | [`key_rotation`] | The encryption key was changed: is the old one still needed? |
//! | [`managed_fields`] | Which managedFields entries name a version that is going to be removed? |
//! | [`guard`] | May a CRD be changed like this while its objects are migrated? |
//! | [`maintenance_window`] | May objects be rewritten at this time? |

pub mod aggregation;
pub mod api_servers;
pub mod difference;
pub mod guard;
pub mod key_rotation;
pub mod maintenance_window;
pub mod managed_fields;
pub mod marks;
pub mod pacer;
pub mod passes;
pub mod processes;
pub mod response;
pub mod stored_versions;
