//! The stores on disk that the shards of several lanes read, so that a conversation can move to another lane with its
//! blocks.
//!
//! A store belongs to the shard of one lane, which alone writes it. The shards of the other lanes read it: a sequence
//! that no longer runs where its blocks are is restored from there. The index of a lost shard's store is kept for them,
//! because nothing is written until another shard opens the store.
//!
//! A shard that opens the store anew may overwrite what others still read. That is no danger, because a read verifies
//! the key and the checksum of each block.

use std::sync::Arc;

use trunkline_kv::{PrefixHit, RestoredBlock, StoreIndex};

use crate::config::SchedulerConfig;
use crate::lane::{Lane, OtherLanes};
use crate::sequence::Sequence;
use crate::sequences::Sequences;
use crate::shard::Shard;
use crate::shared_store::StoreSource;

/// Returns the prefix hit of a waiting sequence on a lane, and the store of another lane that has its stored blocks, if
/// the own one has fewer.
pub(crate) fn lookup(
    lane: &Lane,
    others: &OtherLanes<'_>,
    sequence: &Sequence,
) -> (PrefixHit, Option<StoreSource>) {
    let readable = others.iter().filter(|other| lane.shared.is_readable(other.source()));
    let stores = readable.filter_map(|other| Some((other.source(), other.shared_index()?)));
    lane.shard().kv.lookup_with(&sequence.request.salt, sequence.shareable(), stores)
}

/// Returns how many of a sequence's tokens each lane need not compute. Tokens that it reads from another lane's store
/// count less, by the time that reading takes. The second number is the most that a lane for decodes has or can read.
pub(crate) fn cached_tokens(
    config: &SchedulerConfig,
    lanes: &[&Lane],
    sequence: &Sequence,
) -> (Vec<u32>, u32) {
    let mut cached_tokens = vec![0; lanes.len()];
    let mut num_readable = 0;
    for lane in lanes {
        let num_cached = lane.num_cached_tokens(sequence);
        cached_tokens[lane.id.0 as usize] = num_cached;
        if !lane.is_prefill(config) {
            num_readable = num_readable.max(num_cached);
        }
    }
    let Some((source, num_tokens)) = longest(lanes, sequence) else { return (cached_tokens, num_readable) };
    for lane in lanes.iter().filter(|lane| lane.id != source.lane && lane.shared.is_readable(source)) {
        let Some(shard) = &lane.shard else { continue };
        let cached = &mut cached_tokens[lane.id.0 as usize];
        let num_read = num_tokens.saturating_sub(*cached);
        *cached += lane.throughput.spared_by_reading(num_read, shard.limits.block_size);
        if !lane.is_prefill(config) {
            num_readable = num_readable.max(num_tokens);
        }
    }
    (cached_tokens, num_readable)
}

/// Returns the store that has the longest prefix of a sequence, and its tokens.
fn longest(lanes: &[&Lane], sequence: &Sequence) -> Option<(StoreSource, u32)> {
    if lanes.len() == 1 || !lanes.iter().any(|lane| lane.shared.reads_others()) {
        return None;
    }
    let block_size = lanes.iter().find_map(|lane| lane.shard.as_ref())?.limits.block_size;
    let shareable = sequence.shareable();
    let usable = &shareable[..shareable.len().saturating_sub(1)];
    let root = sequence.request.salt.root_key();
    let stores = lanes.iter().filter_map(|lane| {
        let num_blocks = lane.shared_index()?.find(root, usable, block_size as usize).len() as u32;
        (num_blocks > 0).then_some((lane.source(), num_blocks * block_size))
    });
    stores.max_by_key(|(_, num_tokens)| *num_tokens)
}

/// Returns a store that was just found by [`lookup`], with its folder and its index.
pub(crate) fn open<'a>(
    others: &'a mut OtherLanes<'_>,
    source: StoreSource,
) -> Option<(StoreSource, Arc<str>, &'a mut StoreIndex)> {
    let lane = others.get_mut(source.lane);
    let folder = lane.shared.folder.clone()?;
    Some((source, folder, lane.shared_index_mut()?))
}

/// Ends reads of another lane's store. The first `num_good` succeeded.
pub(crate) fn end_reads(
    lane: &mut Lane,
    others: &mut OtherLanes<'_>,
    source: StoreSource,
    restored: &[RestoredBlock],
    num_good: usize,
) {
    lane.shared.note_read(source, num_good < restored.len());
    release(others, source, restored);
}

/// Ends the reads of a lost shard from other lanes' stores.
pub(crate) fn end_lost_reads(others: &mut OtherLanes<'_>, sequences: &Sequences, lost: &Shard) {
    let awaited = lost.restores.awaiting().filter_map(|key| sequences[key].run().restore.as_ref());
    let awaited = awaited.map(|restore| (restore.source, &restore.blocks));
    let abandoned = lost.restores.abandoned().map(|restore| (restore.source, &restore.blocks));
    for (source, blocks) in awaited.chain(abandoned) {
        if let Some(source) = source {
            release(others, source, blocks);
        }
    }
}

fn release(others: &mut OtherLanes<'_>, source: StoreSource, restored: &[RestoredBlock]) {
    let lane = others.get_mut(source.lane);
    if lane.source() == source
        && let Some(store) = lane.shared_index_mut()
    {
        // Only the store's own shard finds blocks damaged. Another one may have no access to the files.
        restored.iter().for_each(|block| store.end_read(block.slot, false));
    }
}
