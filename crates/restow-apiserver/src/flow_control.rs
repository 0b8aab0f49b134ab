//! Flow control: how much work the server takes on at once, and who gets the next turn.

pub(crate) mod fair_queue;
pub(crate) mod limits;
