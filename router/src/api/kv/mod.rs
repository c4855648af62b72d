//! `/v1/kv/...`: the KV cache as operators and tenants see it.

pub mod events;
pub mod node;
pub mod tree;
