//! A shard without a model and a model without weights: shared by the tests of the router and its benchmark.

// Each of the two uses its own part.
#![allow(dead_code, unused_imports, clippy::unwrap_used)]

mod model;
mod shard;
mod store;

pub use model::{END, bytes, prompt_of, write_model};
pub use shard::{MockShard, ShardPlan, Watch};
