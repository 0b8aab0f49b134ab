//! How a migration is carried out: what an answer of the API server means, how hard to push, when it is proven that
//! nothing old is left, and what may then be said about a CRD.
//!
//! | module | the question it answers |
//! |---|---|
//! | [`api_servers`] | Which API servers are there, and which storage version do all of them encode? |
//! | [`aggregation`] | Which groups are served by aggregated API servers, of which nothing can be proven? |
//! | [`processes`] | Which process answers at each address: was every one of them asked, and is it the same at the end? |
//! | [`response`] | The server answered the rewriting of one object: what does that mean for it? |
//! | [`pacer`] | How many objects may be in flight? |
//! | [`passes`] | All objects were gone through once: is it done, and is that proven? |
//! | [`stored_versions`] | May `status.storedVersions` be trimmed, and does the mark on a CRD stay? |
//! | [`difference`] | A write that should change nothing changed the object: which field? |
//! | [`key_rotation`] | The encryption key was changed: what is known about the old one? |
//! | [`managed_fields`] | Which owners of fields name a version that is about to go? |
//! | [`guard`] | May a CRD be changed like this while its objects are migrated? |
//! | [`maintenance_window`] | Is this a time at which objects may be rewritten? |

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
