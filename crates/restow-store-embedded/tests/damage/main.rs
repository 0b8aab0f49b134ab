//! What becomes of a store whose files are damaged, cut or gone: everything that was acknowledged is there, or the store is
//! refused by name and left as it is. Nothing in between.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod cases;
mod loss_accepted;
mod upgrade;
mod witness;
mod world;
