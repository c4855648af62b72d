//! The messages of `shard.proto`, which `make proto` generates.

use std::fmt;

include!("generated/trunkline.shard.v1.rs");

impl StepPlan {
    /// Returns the number of tokens that the step computes, without drafts.
    pub fn num_tokens(&self) -> u64 {
        self.chunks.iter().map(|chunk| u64::from(chunk.num_tokens)).sum()
    }

    /// Returns true if the step does nothing.
    pub fn is_empty(&self) -> bool {
        // Starts and copies come with chunks.
        self.chunks.is_empty()
            && self.ends.is_empty()
            && self.adapter_loads.is_empty()
            && self.restores.is_empty()
            && self.discards.is_empty()
    }
}

impl Chunk {
    /// Returns the number of positions that are computed, drafts included.
    pub fn num_rows(&self) -> u32 {
        self.num_tokens + self.draft_token_ids.len() as u32 + self.num_own_drafts
    }
}

/// Does not show the key, which is secret.
impl fmt::Debug for Watermark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { gamma, delta, key: _ } = self;
        f.debug_struct("Watermark").field("gamma", gamma).field("delta", delta).finish_non_exhaustive()
    }
}
