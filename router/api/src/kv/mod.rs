//! Routes below `/v1/kv`, with which operators and tenants inspect the KV cache.

pub mod events;
pub mod node;
mod number;
pub mod tree;
