//! Window parts of running sequences: which are released or copied, and whether a waiting sequence would lack any.

use trunkline_kv::PrefixHit;

use crate::lane::Lane;
use crate::plan::BlockCopy;
use crate::sequence::{Phase, SequenceKey};
use crate::sequences::Sequences;

/// Releases the window parts that no later position reads. O(running).
///
/// This is done when a new plan begins, because the shard drops parts before anything else that a plan says, and
/// earlier plans may read them.
pub(crate) fn pass_windows(sequences: &mut Sequences, lane: &mut Lane) {
    let Some(shard) = lane.shard.as_mut().filter(|shard| shard.limits.windows.is_some()) else { return };
    for &key in lane.running.keys() {
        let run = sequences[key].run_mut();
        shard.kv.device_mut().pass_window(&mut run.table, run.planned);
    }
}

/// Copies the state that one of the running sequences offers to later prompts. O(running) where layers are recurrent.
pub(crate) fn copy_state(sequences: &mut Sequences, lane: &mut Lane) -> Option<BlockCopy> {
    let shard = lane.shard.as_mut().filter(|shard| shard.limits.is_recurrent())?;
    let mut copy = |&key: &SequenceKey| shard.kv.device_mut().copy_state(&mut sequences[key].run_mut().table);
    let (source, destination) = lane.running.keys().iter().find_map(&mut copy)?;
    Some(BlockCopy {
        source_block_id: source.0,
        destination_block_id: destination.0,
        num_tokens: shard.limits.block_size,
    })
}

/// Returns true if a sequence with this hit and all running ones would soon need more window parts than there are,
/// whether or not stored blocks are restored. It is false if only abandoned restores need parts, which leave enough for
/// one sequence.
pub(crate) fn lacks_parts(sequences: &Sequences, lane: &Lane, hit: &PrefixHit, num_tokens: u32) -> bool {
    let Some(shard) = &lane.shard else { return false };
    let Some(windows) = shard.limits.windows else { return false };
    let most = windows.least_parts(shard.limits.block_size);
    let reserved = lane.running.keys().iter().map(|&key| {
        let sequence = &sequences[key];
        let run = sequence.run();
        if run.phase != Phase::Running || sequence.is_finishing(run) {
            return 0;
        }
        let soon = (shard.blocks_for(sequence.num_tokens()) + 1).min(most);
        soon.saturating_sub(run.table.num_needed_parts() as u32)
    });
    // A part of the hit that no sequence needs now is itself available, so it counts as needed.
    let own = (shard.blocks_for(num_tokens) + 1).min(most);
    let mut num_shared = shard.kv.device().num_shared_parts(hit);
    if !hit.stored().is_empty() {
        num_shared = num_shared.min(shard.kv.device().num_shared_parts(&hit.clone().without_stored()));
    }
    reserved.sum::<u32>() + own.saturating_sub(num_shared) > shard.kv.device().available_parts()
}
