//! The start of a sequence on its shard.

use trunkline_contract::proto::PooledPrompt;

use crate::plan::{BlockCopy, SequenceStart, StepPlan};
use crate::sequence::Sequence;
use crate::shard::Shard;

/// Adds the start and the partial copy of a sequence to the plan, if they have not been planned.
pub(crate) fn start_on_shard(plan: &mut StepPlan, shard: &Shard, sequence: &mut Sequence) {
    let run = sequence.run.as_mut().expect("the sequence does not wait");
    if !run.is_on_shard {
        run.is_on_shard = true;
        plan.starts.push(SequenceStart {
            sequence_id: run.wire_id,
            token_ids: sequence.tokens.clone(),
            num_prompt_tokens: sequence.num_prompt_tokens,
            sampling: Some(sequence.request.sampling.clone().into()),
            root_key: shard
                .kv
                .store()
                .map_or_else(Vec::new, |_| sequence.request.salt.root_key().as_bytes().to_vec()),
            pooled: sequence.request.pooling.map(|pooled| PooledPrompt { second_text: pooled.second_text }),
            adapter_slot: run.adapter_slot,
            adapter_scale: sequence.request.adapter.as_ref().map_or(0.0, |adapter| adapter.scale),
        });
    }
    if let Some(copy) = run.copy.take() {
        // The copied tokens and the chunk's first ones are in the same block.
        let destination = &run.table.blocks()[(run.planned / shard.limits.block_size) as usize];
        plan.copies.push(BlockCopy {
            source_block_id: copy.source.0,
            destination_block_id: destination.id().0,
            num_tokens: copy.num_tokens,
        });
    }
}
