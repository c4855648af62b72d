//! The stores on disk that the shards of several lanes read, so that a conversation can move to another lane with its
//! blocks.
//!
//! A store belongs to the shard of one lane, which alone writes it. The shards of the other lanes read it: a sequence
//! that no longer runs where its blocks are is restored from there. The index of a lost shard's store is kept for them,
//! because nothing is written until another shard opens the store.
//!
//! A shard that opens the store anew may overwrite what others still read. That is no danger, because a read verifies
//! the key and the checksum of each block.

use std::collections::BTreeMap;
use std::sync::Arc;

use trunkline_kv::{PrefixHit, RestoredBlock, StoreIndex};

use crate::event::LaneId;
use crate::lane::Lane;
use crate::lifecycle::Lifecycle;
use crate::roles::is_prefill;
use crate::sequence::{Sequence, SequenceKey};
use crate::shard::Shard;

/// A store is not read by a lane any more after so many failures in a row, until a shard opens it anew.
const MAX_FAILURES: u32 = 3;

/// A store that a sequence of another lane is restored from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreSource {
    pub lane: LaneId,
    /// The opening in which the blocks were found. In a later one, the slots may hold others.
    opening: u64,
}

/// A lane's store, as the other lanes see it, and their stores, as this one does.
#[derive(Debug, Default)]
pub(crate) struct SharedStore {
    /// The folder from which the shards of other lanes read; none if they cannot.
    folder: Option<Arc<str>>,
    /// True if the lane's shard reads the stores of others.
    reads_others: bool,
    /// Counts the shards that have opened the store.
    opening: u64,
    /// The index while the lane has no shard.
    lost: Option<StoreIndex>,
    /// The failures in a row of reads from other stores.
    failures: BTreeMap<LaneId, (StoreSource, u32)>,
}

impl SharedStore {
    /// Notes that a shard has opened the store.
    pub(crate) fn open(&mut self, folder: Option<Arc<str>>, reads_others: bool) {
        self.close();
        (self.folder, self.reads_others) = (folder, reads_others);
    }

    /// Notes that another shard is connected, which has not opened the store yet.
    pub(crate) fn close(&mut self) {
        *self = Self { opening: self.opening + 1, ..Self::default() };
    }

    /// Keeps the index of a shard that is lost.
    pub(crate) fn lose(&mut self, store: Option<StoreIndex>) {
        self.lost = store.filter(|_| self.folder.is_some());
    }

    pub(crate) fn reads_others(&self) -> bool {
        self.reads_others
    }

    fn is_readable(&self, source: StoreSource) -> bool {
        let failures = self.failures.get(&source.lane).filter(|(failed, _)| *failed == source);
        self.reads_others && failures.is_none_or(|(_, count)| *count < MAX_FAILURES)
    }

    fn note_read(&mut self, source: StoreSource, has_failed: bool) {
        let (failed, count) = self.failures.entry(source.lane).or_insert((source, 0));
        *count = if has_failed && *failed == source { *count + 1 } else { has_failed.into() };
        *failed = source;
    }
}

impl Lane {
    fn source(&self) -> StoreSource {
        StoreSource { lane: self.id, opening: self.shared.opening }
    }

    /// Returns true if a shard is connected whose store other lanes can read.
    pub(crate) fn has_shared_store(&self) -> bool {
        self.shard.is_some() && self.shared_index().is_some()
    }

    /// Returns the index of the store, if other lanes can read it.
    fn shared_index(&self) -> Option<&StoreIndex> {
        self.shared.folder.as_ref()?;
        self.shard.as_ref().map_or(self.shared.lost.as_ref(), |shard| shard.kv.store())
    }

    fn shared_index_mut(&mut self) -> Option<&mut StoreIndex> {
        match &mut self.shard {
            Some(shard) => shard.kv.store_mut(),
            None => self.shared.lost.as_mut(),
        }
    }
}

/// Returns the stores of other lanes that the lane of an event or plan can read.
fn readable<'a>(parts: &'a Lifecycle<'_>) -> impl Iterator<Item = (StoreSource, &'a StoreIndex)> {
    let others = parts.others.iter().filter(|_| parts.lane.shared.reads_others);
    let readable = others.filter(|lane| parts.lane.shared.is_readable(lane.source()));
    readable.filter_map(|lane| Some((lane.source(), lane.shared_index()?)))
}

/// Returns the prefix hit of a waiting sequence on the lane, and the store of another lane that has its stored blocks,
/// if the own one has fewer.
pub(crate) fn lookup(parts: &Lifecycle<'_>, key: SequenceKey) -> (PrefixHit, Option<StoreSource>) {
    let sequence = &parts.sequences[key];
    let kv = &parts.lane.shard().kv;
    kv.lookup_with(&sequence.request.salt, sequence.shareable(), readable(parts))
}

/// Returns how many of a sequence's tokens each lane need not compute. Tokens that it reads from another lane's store
/// count less, by the time that reading takes. The second number is the most that a lane for decodes has or can read.
pub(crate) fn cached_tokens(parts: &Lifecycle<'_>, sequence: &Sequence) -> (Vec<u32>, u32) {
    let mut cached_tokens = vec![0; parts.lanes().count()];
    let mut num_readable = 0;
    for lane in parts.lanes() {
        let num_cached = lane.num_cached_tokens(sequence);
        cached_tokens[lane.id.0 as usize] = num_cached;
        if !is_prefill(parts.config, lane.id) {
            num_readable = num_readable.max(num_cached);
        }
    }
    let Some((source, num_tokens)) = longest(parts, sequence) else { return (cached_tokens, num_readable) };
    for lane in parts.lanes().filter(|lane| lane.id != source.lane && lane.shared.is_readable(source)) {
        let Some(shard) = &lane.shard else { continue };
        let cached = &mut cached_tokens[lane.id.0 as usize];
        let num_read = num_tokens.saturating_sub(*cached);
        *cached += lane.throughput.spared_by_reading(num_read, shard.limits.block_size);
    }
    (cached_tokens, num_readable.max(num_tokens))
}

/// Returns the store that has the longest prefix of a sequence, and its tokens.
fn longest(parts: &Lifecycle<'_>, sequence: &Sequence) -> Option<(StoreSource, u32)> {
    if parts.lanes().count() == 1 {
        return None;
    }
    let block_size = parts.lanes().find_map(|lane| lane.shard.as_ref())?.limits.block_size;
    let shareable = sequence.shareable();
    let usable = &shareable[..shareable.len().saturating_sub(1)];
    let root = sequence.request.salt.root_key();
    let stores = parts.lanes().filter_map(|lane| {
        let num_blocks = lane.shared_index()?.find(root, usable, block_size as usize).len() as u32;
        (num_blocks > 0).then_some((lane.source(), num_blocks * block_size))
    });
    stores.max_by_key(|(_, num_tokens)| *num_tokens)
}

/// Returns the index and the folder of a store that was just found by [`lookup`].
pub(crate) fn index_of(lane: &mut Lane) -> Option<(&mut StoreIndex, Arc<str>)> {
    let folder = lane.shared.folder.clone()?;
    Some((lane.shared_index_mut()?, folder))
}

/// Ends reads of another lane's store. The first `num_good` succeeded.
pub(crate) fn end_reads(
    parts: &mut Lifecycle<'_>,
    source: StoreSource,
    restored: &[RestoredBlock],
    num_good: usize,
) {
    parts.lane.shared.note_read(source, num_good < restored.len());
    release(parts, source, restored);
}

/// Ends the reads of a lost shard from other lanes' stores.
pub(crate) fn end_lost_reads(parts: &mut Lifecycle<'_>, lost: &Shard) {
    let awaited = lost.restores.awaiting().filter_map(|key| parts.sequences[key].run().restore.as_ref());
    let awaited = awaited.map(|restore| (restore.source, restore.blocks.clone()));
    let abandoned = lost.restores.abandoned().map(|restore| (restore.source, restore.blocks.clone()));
    let reads: Vec<_> = awaited.chain(abandoned).collect();
    for (source, blocks) in reads {
        if let Some(source) = source {
            release(parts, source, &blocks);
        }
    }
}

fn release(parts: &mut Lifecycle<'_>, source: StoreSource, restored: &[RestoredBlock]) {
    let lane = parts.others.get_mut(source.lane);
    if lane.source() == source
        && let Some(store) = lane.shared_index_mut()
    {
        // Only the store's own shard finds blocks damaged. Another one may have no access to the files.
        restored.iter().for_each(|block| store.end_read(block.slot, false));
    }
}
