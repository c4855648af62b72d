//! The engine: the task that drives the scheduler, the link to the shard and the object tier.

mod collector;
pub mod driver;
pub mod object;
pub mod shard;
pub(crate) mod step_thread;
