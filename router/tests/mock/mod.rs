//! A mock shard and a model without weights, shared by the router's tests and its benchmark.

// The tests and the benchmark each use only a part of this module.
#![allow(dead_code, unused_imports, clippy::unwrap_used)]

mod masks;
mod model;
mod shard;
mod store;

pub use masks::KnownMasks;
pub use model::{END, INFILL, PAD, START, VOCAB_SIZE, bytes, prompt_of, write_infill_model, write_model};
pub use shard::{MockAdapters, MockShard, MockVectors, ShardPlan, Watch};
