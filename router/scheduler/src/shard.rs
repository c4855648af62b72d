//! The scheduler's view of one connected shard: its limits, its KV index, and the plans and restores in flight.

use std::sync::Arc;

use trunkline_kv::{BlockTable, KvCache, PrefixHit, StoreIndex, StorePins};

use crate::adapters::Adapters;
use crate::config::SchedulerConfig;
use crate::event::{AdapterUse, RejectReason, ShardLimits, StoreContents};
use crate::in_flight::StepsInFlight;
use crate::message_size::{MAX_SEQUENCE_TOKENS, max_step_sequences};
use crate::outbox::Outbox;
use crate::plan::{BlockRestore, BlockStore, Restore};
use crate::restores::Restores;
use crate::sequence::{Run, RunRestore, Sequence, SequenceKey};
use crate::shared_store::StoreSource;
use crate::stats::Stats;

/// The most blocks of one sequence that one step stores; with more, the step would wait for the disk.
/// The limit does not apply to a model whose layers have windows, because a block that has lost its window part cannot
/// be stored any more.
const MAX_STORES_PER_CHUNK: usize = 16;
/// The same for a step that decodes the sequence, because copying 16 blocks takes about as long as such a step.
const MAX_STORES_PER_DECODE: usize = 4;

/// Everything that is lost when the shard is lost.
#[derive(Debug)]
pub(crate) struct Shard {
    pub(crate) limits: ShardLimits,
    pub(crate) kv: KvCache,
    pub(crate) steps: StepsInFlight,
    pub(crate) outbox: Outbox,
    pub(crate) restores: Restores,
    pub(crate) adapters: Adapters,
    /// Failed writes and reads of the store since the last that worked.
    pub(crate) num_store_failures: u32,
}

impl Shard {
    /// A shard with an empty pool and no store.
    pub(crate) fn new(limits: ShardLimits, config: &SchedulerConfig, records_events: bool) -> Self {
        let limits = ShardLimits {
            block_size: limits.block_size.max(1),
            max_step_tokens: limits.max_step_tokens.max(1),
            max_step_sequences: max_step_sequences(&limits),
            ..limits
        };
        let policy = config.eviction.build(limits.num_blocks);
        let mut kv = KvCache::with_policy(limits.block_size, limits.num_blocks, policy);
        kv.record_events(records_events);
        if let Some(windows) = limits.windows {
            kv.device_mut().set_windows(windows);
        }
        kv.set_shares(&config.shares);
        kv.set_max_pinned_blocks(config.max_pinned_blocks(limits.num_blocks));
        let (steps, outbox, restores) = (StepsInFlight::default(), Outbox::default(), Restores::default());
        let adapters = Adapters::new(limits.num_adapter_slots, limits.adapter_bytes);
        Self { limits, kv, steps, outbox, restores, adapters, num_store_failures: 0 }
    }

    /// Adds a store with these contents and pins.
    pub(crate) fn add_store(&mut self, contents: StoreContents, pins: StorePins, config: &SchedulerConfig) {
        let mut store = StoreIndex::new(contents.num_slots, contents.blocks);
        store.set_in_memory(contents.is_in_memory);
        store.set_max_offers(config.max_offered_blocks);
        store.set_pins(pins, config.max_pinned_blocks(contents.num_slots));
        self.kv.set_store(store);
    }

    /// The number of blocks that `num_positions` positions need.
    pub(crate) fn blocks_for(&self, num_positions: u32) -> u32 {
        num_positions.div_ceil(self.limits.block_size)
    }

    /// Why a sequence can never run on this shard, if it cannot. The last output token is never computed.
    pub(crate) fn misfit(
        &self,
        highest_token_id: u32,
        num_prompt_tokens: u32,
        max_new_tokens: u32,
        adapter: Option<&AdapterUse>,
    ) -> Option<RejectReason> {
        if adapter.is_some() && self.limits.num_adapter_slots == 0 {
            return Some(RejectReason::NoAdapters);
        }
        let pool_tokens = u64::from(self.limits.num_blocks) * u64::from(self.limits.block_size);
        let max_total_tokens = (pool_tokens + 1).min(u64::from(MAX_SEQUENCE_TOKENS));
        if u64::from(num_prompt_tokens) + u64::from(max_new_tokens.max(1)) > max_total_tokens {
            return Some(RejectReason::TooLong {
                prompt_tokens: num_prompt_tokens,
                max_new_tokens,
                max_total_tokens,
            });
        }
        let ShardLimits { vocab_size, adapter_bytes, .. } = self.limits;
        if highest_token_id >= vocab_size {
            let message = format!("the prompt has a token that is not below the vocabulary of {vocab_size}");
            return Some(RejectReason::Invalid { message });
        }
        let num_bytes = adapter.map_or(0, |adapter| adapter.num_bytes);
        (num_bytes > adapter_bytes).then(|| RejectReason::Invalid {
            message: format!(
                "its adapter takes {num_bytes} bytes, but adapters have only {adapter_bytes} bytes"
            ),
        })
    }

    /// Why a sequence can never run on this shard, if it cannot.
    pub(crate) fn misfit_of(&self, sequence: &Sequence) -> Option<RejectReason> {
        let &Sequence { highest_token_id, num_prompt_tokens, ref request, .. } = sequence;
        self.misfit(highest_token_id, num_prompt_tokens, request.max_new_tokens, request.adapter.as_deref())
    }

    /// Returns true if a sequence can run on this shard, and go on there with the same numbers.
    pub(crate) fn takes(&self, sequence: &Sequence) -> bool {
        let is_other = sequence.has_results() && sequence.numerics != self.limits.numerics;
        !is_other && self.misfit_of(sequence).is_none()
    }

    /// The number of blocks that must be available for a sequence to compute all its `num_tokens` tokens after a hit.
    /// Hit blocks that no sequence holds are themselves available, so they count as needed.
    pub(crate) fn needed_blocks(&self, hit: &PrefixHit, num_tokens: u32) -> u32 {
        let num_held = hit.block_ids().iter().filter(|&&block| self.kv.device().is_held(block)).count();
        self.blocks_for(num_tokens) - num_held as u32
    }

    /// Begins to store the blocks of a table that are full once `num_positions` are computed.
    pub(crate) fn begin_stores(&mut self, run: &mut Run, num_positions: u32) -> Vec<BlockStore> {
        let num_full_blocks = (num_positions / self.limits.block_size) as usize;
        // Another lane waits for all blocks of a sequence that is handed over.
        let takes_all = self.limits.windows.is_some() || run.hand_over_at.is_some();
        let next = std::iter::from_fn(|| self.kv.begin_store(&mut run.table, num_full_blocks));
        let most = match num_positions - run.planned {
            _ if takes_all => usize::MAX,
            1 => MAX_STORES_PER_DECODE,
            _ => MAX_STORES_PER_CHUNK,
        };
        next.take(most)
            .map(|(block_idx, slot)| BlockStore { block_index: block_idx as u32, slot: slot.0 })
            .collect()
    }

    /// Begins to read the stored blocks of a hit into a table that has already grown by as many. The restore goes with
    /// the plan that is being made. `other` is the store that has the blocks, if it is not the own one.
    pub(crate) fn begin_restore(
        &mut self,
        key: SequenceKey,
        table: &mut BlockTable,
        hit: &PrefixHit,
        other: Option<(StoreSource, Arc<str>, &mut StoreIndex)>,
    ) -> Option<RunRestore> {
        if hit.stored().is_empty() {
            return None;
        }
        let (source, store_folder, index) = match other {
            Some((source, folder, index)) => (Some(source), folder.to_string(), Some(index)),
            None => (None, String::new(), None),
        };
        let blocks = self.kv.begin_restore(table, hit, index);
        let restore_id = self.restores.begin(key, blocks.len() as u32, self.steps.next_step_id());
        let message = |block: &trunkline_kv::RestoredBlock| BlockRestore {
            slot: block.slot.0,
            block_id: block.block.0,
            key: block.key.as_bytes().to_vec(),
            base_only: block.base_only,
        };
        let restored = blocks.iter().map(message).collect();
        self.outbox.restore(Restore { restore_id, blocks: restored, store_folder });
        Some(RunRestore { restore_id, blocks, source })
    }

    /// Adds the gauges of blocks and steps.
    pub(crate) fn add_gauges(&self, stats: &mut Stats) {
        let counts = self.kv.device().counts();
        stats.steps_in_flight += self.steps.len() as u64;
        stats.blocks_free += u64::from(counts.free);
        stats.blocks_held += u64::from(counts.held);
        stats.blocks_cached += u64::from(counts.cached);
        stats.blocks_total += u64::from(counts.total);
        stats.blocks_pinned += u64::from(self.kv.pin_counts().num_blocks);
        let windows = self.kv.device().window_counts().unwrap_or_default();
        stats.window_parts_free += u64::from(windows.free);
        stats.window_parts_needed += u64::from(windows.needed);
        stats.window_parts_total += u64::from(windows.total);
        let store = self.kv.store().map(StoreIndex::counts).unwrap_or_default();
        stats.store_blocks += u64::from(store.stored);
        let store_pins = self.kv.store().map(StoreIndex::pins);
        stats.store_blocks_pinned += u64::from(store_pins.map_or(0, StorePins::num_blocks));
        stats.store_slots += u64::from(store.total);
        stats.blocks_late += self.restores.abandoned_blocks().count() as u64;
        stats.offered_blocks += u64::from(store.offered);
        stats.adapter_slots += u64::from(self.adapters.num_slots());
        stats.adapter_slots_loaded += u64::from(self.adapters.num_loaded());
    }

    /// Adds the counters that the KV index and the slots of adapters keep, which are lost with the shard.
    pub(crate) fn add_counters(&self, stats: &mut Stats) {
        stats.evicted_blocks += self.kv.device().num_evicted();
        stats.dropped_window_parts += self.kv.device().window_counts().unwrap_or_default().dropped;
        let pins = self.kv.pin_counts();
        stats.pins_granted += pins.granted;
        stats.pins_refused += pins.refused;
        stats.pins_dropped += pins.dropped;
        let store = self.kv.store().map(StoreIndex::counts).unwrap_or_default();
        stats.store_evicted_blocks += store.evicted;
        stats.unoffered_blocks += store.unoffered;
        stats.adapter_loads += self.adapters.num_loads();
        stats.adapter_load_failures += self.adapters.num_failures();
        stats.adapter_evictions += self.adapters.num_evictions();
    }
}
