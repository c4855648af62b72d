//! The engine: the task that drives the scheduler, the link to the shard, the object tier and the feed of KV events.
//!
//! The [`driver`] owns the scheduler and runs on a thread of its own ([`step_thread`]). [`shard`] speaks gRPC with the
//! shard process, [`object`] shares blocks with other servers, and [`kv_events`] tells readers what is cached. Nothing
//! here knows HTTP or text: requests are token ids. It may use `trunkline-base`. Begin with [`driver`].

mod collector;
pub mod driver;
pub mod kv_events;
pub mod object;
pub mod shard;
pub mod step_thread;
