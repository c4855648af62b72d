//! Plain data that crosses the seams between crates.
//!
//! The router's KV index, the store, the object tier and the kernels all name blocks and slots. They share these types
//! here, so that none of them depends on another one's logic. Sampling parameters pass from the router through the
//! scheduler to the kernels, and are declared here once with the range of each. So are the limits of messages that both
//! sides of the wire to the shard keep.

mod block_key;
mod ids;
mod mask;
mod messages;
mod sampling;

pub use block_key::{BlockKey, KEY_BYTES};
pub use ids::{BlockId, SlotId};
pub use mask::TokenMask;
pub use messages::{
    MAX_ERROR_MESSAGE_BYTES, MAX_MASK_PENALTIES, MAX_PLAN_MESSAGE_BYTES, MAX_RESULT_MESSAGE_BYTES,
};
pub use sampling::{OutOfRange, SamplingParams, Watermark, range};
