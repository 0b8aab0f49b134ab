//! What a server does by itself, for the whole cluster: one of the servers on a store does it, the others wait.

mod garbage;
mod leadership;

pub(crate) use garbage::collect_garbage;
