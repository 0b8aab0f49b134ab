//! Flow control: limits on requests in flight, and a fair queue for CPU-heavy work.

pub(crate) mod fair_queue;
pub(crate) mod limits;
