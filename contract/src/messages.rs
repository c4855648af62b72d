//! Limits of the messages between router and shard. Both sides take them from here, the shard through its kernels.

/// The largest message from the shard. The scheduler plans no step whose result could be larger.
pub const MAX_RESULT_MESSAGE_BYTES: usize = 16 << 20;
/// The largest message to the shard. The scheduler makes no plan that could be larger.
pub const MAX_PLAN_MESSAGE_BYTES: usize = 256 << 20;
/// The most tokens to which a mask gives a penalty.
pub const MAX_MASK_PENALTIES: usize = 1024;
/// The most bytes of `SequenceError.message`. The shard cuts longer ones.
pub const MAX_ERROR_MESSAGE_BYTES: usize = 512;
