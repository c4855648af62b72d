//! The limits of a simulated shard, for all examples.

use trunkline_scheduler::ShardLimits;

/// Returns the limits of a shard that only samples tokens.
pub fn shard_limits(
    block_size: u32,
    num_blocks: u32,
    max_step_sequences: u32,
    vocab_size: u32,
) -> ShardLimits {
    ShardLimits {
        block_size,
        num_blocks,
        max_step_tokens: 8_192,
        max_step_sequences,
        vocab_size,
        vector_size: 0,
        windows: None,
        numerics: 0,
        max_draft_tokens: 0,
        max_own_drafts: 0,
        num_adapter_slots: 0,
        adapter_bytes: 0,
    }
}
