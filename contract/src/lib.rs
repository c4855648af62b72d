//! Plain data that crosses the seams between crates.
//!
//! The router's KV index, the store, the object tier and the kernels all name blocks and slots. They share these types
//! here, so that none of them depends on another one's logic. From the scheduler to the kernels, plans and results are
//! the messages of `shard.proto`. Sampling parameters pass the same way and are declared here once, with the range of
//! each. So are the limits of messages that both sides of the wire to the shard keep.

mod block_key;
mod ids;
mod mask;
mod messages;
#[allow(missing_docs, clippy::all)]
pub mod proto;
mod sampling;

pub use block_key::{BlockKey, KEY_BYTES};
pub use ids::{BlockId, SlotId};
pub use mask::TokenMask;
pub use messages::{
    MAX_ERROR_MESSAGE_BYTES, MAX_MASK_PENALTIES, MAX_PLAN_MESSAGE_BYTES, MAX_RESULT_MESSAGE_BYTES,
};
pub use proto::Watermark;
pub use sampling::{OutOfRange, RequestNumbers, SamplingParams, range};
