//! A fake shard. Instead of K and V it keeps a hash of the prefix that each slot was computed from, and it panics at
//! any plan that is not exactly right.

use std::collections::BTreeMap;
use std::ops::Range;

use trunkline_contract::{MAX_RESULT_MESSAGE_BYTES, proto};
use trunkline_scheduler::{
    AdapterLoad, AdapterUse, BlockKey, BlockRestore, Chunk, LateMask, Outcome, Pooling, SampledToken,
    SequenceResult, SequenceStart, ShardLimits, StepPlan, StepResult, TokenScore,
};

use super::model::{Known, Model};
use super::rng::{Rng, mix};
use super::scenario::adapter_bytes;
use super::store::{Record, Write};

/// The content of a slot that was not written.
const EMPTY: u64 = 0;
/// The content of a slot whose sequence failed.
const POISON: u64 = 1;

/// The shard's knowledge of a sequence.
struct ShardSequence {
    tokens: Vec<u32>,
    num_prompt_tokens: usize,
    is_scored: bool,
    /// `hashes[p]` is the hash of the first p tokens.
    hashes: Vec<u64>,
    seed: u64,
    table: Vec<u32>,
    /// The position of the next chunk; none before the first chunk, which may begin anywhere.
    next_position: Option<u32>,
    has_failed: bool,
    is_constrained: bool,
    pooling: Option<Pooling>,
    root_key: Vec<u8>,
    /// The slot of its adapter, and the adapter's content hash.
    adapter: Option<(u32, Vec<u8>)>,
    /// The chunk that awaits a mask.
    awaited_mask: Option<AwaitedMask>,
}

/// Checks that all positions are computed on which the vector of a sequence depends.
fn check_pooled(sequence: &ShardSequence, chunk: &Chunk) {
    let Some(pooling) = sequence.pooling else { return };
    assert!(!chunk.score && chunk.num_rows() == chunk.num_tokens && chunk.appended_token_ids.is_empty());
    if pooling != Pooling::Last && sequence.next_position.is_none() {
        assert_eq!(chunk.first_position, 0, "every position counts");
    }
    if pooling == Pooling::Whole {
        assert_eq!(chunk.num_tokens as usize, sequence.tokens.len(), "a prompt is one chunk");
        assert!(chunk.stores.is_empty(), "its blocks are of no use to others");
    }
}

/// A slot for adapters.
#[derive(Clone, Debug, Default, PartialEq)]
enum AdapterSlot {
    #[default]
    Empty,
    Loading(Vec<u8>),
    Loaded(Vec<u8>),
}

/// A chunk that awaits a mask.
#[derive(Clone, Copy, Debug, PartialEq)]
enum AwaitedMask {
    Waits,
    /// The chunk failed meanwhile or its step is over, so the mask has no effect.
    Failed,
}

/// The chances of faults. Each happens once in so many times, and never for 0.
#[derive(Clone, Copy, Debug, Default)]
pub struct ShardFaults {
    pub sequence_error: u64,
    pub missing_token: u64,
    pub foreign_token: u64,
    /// The load of an adapter.
    pub load: u64,
    /// An adapter whose loads all fail.
    pub broken_adapter: Option<u8>,
}

pub struct FakeShard {
    pub limits: ShardLimits,
    model: Model,
    faults: ShardFaults,
    max_prefill_beside_decodes: u32,
    slots: Vec<Vec<u64>>,
    /// The window parts, if blocks are in two parts; none for a block without its part.
    window_slots: Vec<Option<Vec<u64>>>,
    adapters: Vec<AdapterSlot>,
    sequences: BTreeMap<u64, ShardSequence>,
    last_step_id: u64,
    /// The blocks that the last step stores.
    pub writes: Vec<Write>,
}

impl FakeShard {
    pub fn new(limits: ShardLimits, faults: ShardFaults, max_prefill_beside_decodes: u32) -> Self {
        Self {
            limits,
            model: Model { vocab_size: limits.vocab_size },
            faults,
            max_prefill_beside_decodes,
            slots: vec![vec![EMPTY; limits.block_size as usize]; limits.num_blocks as usize],
            window_slots: vec![None; limits.num_blocks as usize],
            adapters: vec![AdapterSlot::Empty; limits.num_adapter_slots as usize],
            sequences: BTreeMap::new(),
            last_step_id: 0,
            writes: Vec::new(),
        }
    }

    /// Marks a block as unusable until its restore ends.
    pub fn begin_restore(&mut self, block: &BlockRestore) {
        let block_id = block.block_id;
        self.slots[block_id as usize].fill(POISON);
        assert!(self.window_slots[block_id as usize].is_none(), "block {block_id} was free");
        if !block.base_only {
            self.take_part(block_id);
            self.window_slots[block_id as usize].iter_mut().for_each(|part| part.fill(POISON));
        }
    }

    pub fn end_restore(&mut self, block: u32, hashes: Vec<u64>) {
        if let Some(part) = &mut self.window_slots[block as usize] {
            part.clone_from(&hashes);
        }
        self.slots[block as usize] = hashes;
    }

    /// Returns true if a plan computes a position of the sequence with this sampling seed.
    pub fn computes(&self, plan: &StepPlan, seed: u64, position: u32) -> bool {
        let is_in = |chunk: &&Chunk| {
            (chunk.first_position..chunk.first_position + chunk.num_rows()).contains(&position)
                && self.sequences[&chunk.sequence_id].seed == seed
        };
        plan.chunks.iter().any(|chunk| is_in(&chunk))
    }

    /// Returns true if a plan computes something of the sequence with this sampling seed.
    pub fn has(&self, plan: &StepPlan, seed: u64) -> bool {
        plan.chunks.iter().any(|chunk| self.sequences[&chunk.sequence_id].seed == seed)
    }

    /// Returns the sampling seeds of the sequences that a plan computes.
    pub fn seeds(&self, plan: &StepPlan) -> Vec<u64> {
        plan.chunks.iter().map(|chunk| self.sequences[&chunk.sequence_id].seed).collect()
    }

    pub fn num_sequences(&self) -> usize {
        self.sequences.len()
    }

    /// Executes a plan and returns its result. Panics if the plan is wrong.
    pub fn execute(&mut self, plan: &StepPlan, known: &BTreeMap<u64, Known>, rng: &mut Rng) -> StepResult {
        assert_eq!(plan.step_id, self.last_step_id + 1, "step ids have no gaps");
        self.last_step_id = plan.step_id;
        for wire_id in &plan.ends {
            assert!(self.sequences.remove(wire_id).is_some(), "only what was started is ended");
        }
        plan.adapter_loads.iter().for_each(|load| self.begin_load(load));
        self.check_adapter_bytes();
        self.start(plan, known);
        assert!(plan.window_drops.is_empty() || self.limits.windows.is_some(), "blocks are in two parts");
        for &block_id in &plan.window_drops {
            let dropped = self.window_slots[block_id as usize].take();
            // A draft model that found fewer drafts than it was asked for did not write all blocks.
            let is_there = dropped.is_some() || self.limits.max_own_drafts > 0;
            assert!(is_there, "block {block_id} has the window part that is dropped");
        }
        for copy in &plan.copies {
            assert!((1..=self.limits.block_size).contains(&copy.num_tokens), "a copy within a block");
            assert_ne!(copy.source_block_id, copy.destination_block_id);
            let count = copy.num_tokens as usize;
            let source = self.slots[copy.source_block_id as usize][..count].to_vec();
            self.slots[copy.destination_block_id as usize][..count].copy_from_slice(&source);
            if self.limits.windows.is_some() {
                let source = self.window_slots[copy.source_block_id as usize].clone();
                let source = source.expect("a block that is copied from has its window part");
                self.take_part(copy.destination_block_id);
                let part =
                    self.window_slots[copy.destination_block_id as usize].as_mut().expect("just taken");
                if self.limits.is_recurrent() {
                    assert_eq!(copy.num_tokens, self.limits.block_size, "a state is that of a whole block");
                    *part = source;
                } else {
                    part[..count].copy_from_slice(&source[..count]);
                }
            }
        }
        self.check_budget(plan);
        let mut sequences = Vec::new();
        for chunk in &plan.chunks {
            let result = self.compute(chunk, rng);
            let own_drafts = if chunk.num_own_drafts > 0 { self.own_drafts(chunk) } else { Vec::new() };
            let num_own_drafts = own_drafts.len() as u32;
            let more_tokens = self.sample_more(chunk, &own_drafts, result.as_ref());
            let outcome = result.as_ref().and_then(|result| result.outcome.as_ref());
            let is_good = !matches!(outcome, Some(Outcome::Error(_)));
            self.store(chunk, is_good);
            let scores = if is_good { self.scores(chunk) } else { Vec::new() };
            let computed = SequenceResult { sequence_id: chunk.sequence_id, ..SequenceResult::default() };
            if let Some(result) = result.or(chunk.score.then_some(computed)) {
                sequences.push(SequenceResult { scores, more_tokens, num_own_drafts, ..result });
            }
        }
        let num_rows: u32 = plan.chunks.iter().map(Chunk::num_rows).sum();
        let device_time_us = if plan.chunks.is_empty() { 0 } else { 200 + u64::from(num_rows) * 100 };
        StepResult { step_id: plan.step_id, sequences, device_time_us, draft_time_us: 0 }
    }

    fn begin_load(&mut self, load: &AdapterLoad) {
        let named = self.sequences.values().filter_map(|sequence| sequence.adapter.as_ref());
        assert!(
            named.map(|(slot, _)| slot).all(|&slot| slot != load.slot),
            "no started sequence names the slot"
        );
        let slot = &mut self.adapters[load.slot as usize - 1];
        assert!(!matches!(slot, AdapterSlot::Loading(_)), "one load at a time goes into slot {}", load.slot);
        if load.path.is_empty() {
            let taken = std::mem::take(slot);
            assert!(matches!(taken, AdapterSlot::Loaded(_)), "what is emptied has an adapter: {taken:?}");
            return;
        }
        assert!(load.path.starts_with("/adapter-") && load.content_hash.len() == 32);
        *slot = AdapterSlot::Loading(load.content_hash.clone());
    }

    /// Checks that the adapters have room.
    fn check_adapter_bytes(&self) {
        let bytes = self.adapters.iter().map(|slot| match slot {
            AdapterSlot::Empty => 0,
            AdapterSlot::Loading(hash) | AdapterSlot::Loaded(hash) => adapter_bytes(hash[0]),
        });
        assert!(
            bytes.sum::<u64>() <= self.limits.adapter_bytes,
            "adapters take too many bytes: {:?}",
            self.adapters
        );
    }

    pub fn end_load(&mut self, slot: u32, is_good: bool) {
        let slot = &mut self.adapters[slot as usize - 1];
        *slot = match std::mem::take(slot) {
            AdapterSlot::Loading(hash) if is_good => AdapterSlot::Loaded(hash),
            AdapterSlot::Loading(_) => AdapterSlot::Empty,
            slot => panic!("no load is in flight: {slot:?}"),
        };
    }

    /// Checks the slot of a start, and returns it with its adapter.
    fn slot_of(&self, start: &SequenceStart, adapter: Option<&AdapterUse>) -> Option<(u32, Vec<u8>)> {
        let scale = adapter.map_or(0.0, |adapter| adapter.scale);
        assert_eq!(start.adapter_scale.to_bits(), scale.to_bits(), "the scale is that of the request");
        let Some(adapter) = adapter else {
            assert_eq!(start.adapter_slot, 0, "the request has no adapter");
            return None;
        };
        let slot = &self.adapters[start.adapter_slot as usize - 1];
        let expected = AdapterSlot::Loaded(adapter.content_hash.0.to_vec());
        assert_eq!(*slot, expected, "a sequence starts with its adapter");
        Some((start.adapter_slot, adapter.content_hash.0.to_vec()))
    }

    /// Gives a block a window part if it has none.
    fn take_part(&mut self, block_id: u32) {
        let Some(windows) = self.limits.windows else { return };
        let size = if windows.is_recurrent { 1 } else { self.limits.block_size as usize };
        self.window_slots[block_id as usize].get_or_insert_with(|| vec![EMPTY; size]);
        let num_taken = self.window_slots.iter().flatten().count();
        assert!(num_taken <= windows.num_parts as usize, "there are {} window parts", windows.num_parts);
    }

    /// Checks the window that a chunk's layers read, and writes the positions that they compute.
    fn compute_windows(&mut self, sequence_id: u64, first: usize, end: usize, is_good: bool) {
        let Some(windows) = self.limits.windows else { return };
        let block_size = self.limits.block_size as usize;
        let sequence = &self.sequences[&sequence_id];
        let (table, hashes) = (sequence.table.clone(), sequence.hashes.clone());
        if windows.is_recurrent {
            return self.compute_states(&table, &hashes, first..end, is_good);
        }
        let window_start = (first + 1).saturating_sub(windows.window_size as usize);
        for position in window_start..end {
            let block_id = table[position / block_size];
            if position < first {
                if is_good {
                    let part = self.window_slots[block_id as usize].as_ref();
                    let part = part.unwrap_or_else(|| panic!("position {first} looks at block {block_id}"));
                    assert_eq!(part[position % block_size], hashes[position + 1], "window at {position}");
                }
                continue;
            }
            self.take_part(block_id);
            let part = self.window_slots[block_id as usize].as_mut().expect("just taken");
            part[position % block_size] = if is_good { hashes[position + 1] } else { POISON };
        }
    }

    /// Checks the state that a chunk begins with, and writes those at the ends of its last two blocks and of a first
    /// one that was partly filled. `hashes` has one for each number of leading tokens.
    fn compute_states(&mut self, table: &[u32], hashes: &[u64], positions: Range<usize>, is_good: bool) {
        let block_size = self.limits.block_size as usize;
        let Range { start: first, end } = positions;
        if first > 0 && is_good {
            let block_id = table[(first - 1) / block_size];
            let state = self.window_slots[block_id as usize].as_ref();
            let state = state.unwrap_or_else(|| panic!("block {block_id} has no state before {first}"));
            assert_eq!(state[0], hashes[first], "the state before {first}");
        }
        let last = (end - 1) / block_size;
        for index in first / block_size..=last {
            let was_begun = index == first / block_size && first % block_size > 0;
            if index + 1 < last && !was_begun {
                continue;
            }
            self.take_part(table[index]);
            let state = self.window_slots[table[index] as usize].as_mut().expect("just taken");
            state[0] = if is_good { hashes[end.min((index + 1) * block_size)] } else { POISON };
        }
    }

    fn start(&mut self, plan: &StepPlan, known: &BTreeMap<u64, Known>) {
        for start in &plan.starts {
            let request = &known[&seed_of(start)];
            let num_prompt_tokens = start.num_prompt_tokens as usize;
            assert_eq!(start.token_ids[..num_prompt_tokens], request.prompt, "the prompt stays the prompt");
            let mut hashes = vec![Model::start(request.salt)];
            for &token in &start.token_ids {
                hashes.push(Model::extend(hashes[hashes.len() - 1], token));
            }
            let sequence = ShardSequence {
                tokens: start.token_ids.clone(),
                num_prompt_tokens,
                is_scored: request.is_scored,
                hashes,
                seed: seed_of(start),
                table: Vec::new(),
                next_position: None,
                has_failed: false,
                is_constrained: request.is_constrained,
                pooling: request.pooling,
                root_key: start.root_key.clone(),
                adapter: self.slot_of(start, request.adapter.as_deref()),
                awaited_mask: None,
            };
            assert_eq!(
                start.pooled.is_some(),
                request.pooling.is_some(),
                "vectors are asked of the same requests"
            );
            assert_ne!(start.sequence_id, 0, "a wire id is not 0");
            let previous = self.sequences.insert(start.sequence_id, sequence);
            assert!(previous.is_none(), "wire ids are unique");
            assert!(
                plan.chunks.iter().any(|chunk| chunk.sequence_id == start.sequence_id),
                "a sequence that starts has a chunk"
            );
        }
    }

    /// Returns the scores of the prompt tokens that follow the positions of a chunk.
    fn scores(&self, chunk: &Chunk) -> Vec<TokenScore> {
        let sequence = &self.sequences[&chunk.sequence_id];
        let (first, end) =
            (chunk.first_position as usize, (chunk.first_position + chunk.num_tokens) as usize);
        let end = end.min(sequence.num_prompt_tokens - 1);
        assert!(!chunk.score || sequence.is_scored && first < end, "what is scored was asked for");
        let score =
            |position: usize| Model::score(sequence.hashes[position + 1], sequence.tokens[position + 1]);
        if chunk.score { (first..end).map(score).collect() } else { Vec::new() }
    }

    /// Returns the number of positions of a chunk whose logits are computed.
    fn num_rows(&self, chunk: &Chunk) -> usize {
        let num_to_score = self.sequences[&chunk.sequence_id].num_prompt_tokens - 1;
        let positions = chunk.first_position..chunk.first_position + chunk.num_tokens;
        let scored = positions.filter(|&position| chunk.score && (position as usize) < num_to_score);
        scored.count() + usize::from(chunk.sample) + (chunk.num_rows() - chunk.num_tokens) as usize
    }

    fn store(&mut self, chunk: &Chunk, is_good: bool) {
        let block_size = self.limits.block_size as usize;
        let sequence = &self.sequences[&chunk.sequence_id];
        for store in &chunk.stores {
            let index = store.block_index as usize;
            let end = (chunk.first_position + chunk.num_tokens) as usize;
            assert!((index + 1) * block_size <= end, "a block is full when it is stored");
            let root = sequence.root_key[..].try_into().expect("a sequence that is stored has a root");
            let mut key = BlockKey::from_bytes(root);
            let mut parent = None;
            // A failed chunk may have run past the known tokens.
            if is_good {
                for block in 0..=index {
                    parent = (block > 0).then_some(key);
                    key = key.extend(&sequence.tokens[block * block_size..(block + 1) * block_size]);
                }
            }
            let hashes = self.slots[sequence.table[index] as usize].clone();
            if self.limits.windows.is_some() {
                let part = self.window_slots[sequence.table[index] as usize].as_ref();
                assert_eq!(part.expect("a block is stored with its window part"), &hashes, "block {index}");
            }
            let record = Record { key, parent, depth: store.block_index, hashes };
            self.writes.push(Write { slot: store.slot, record, is_good });
        }
    }

    fn check_budget(&self, plan: &StepPlan) {
        let num_positions: u32 = plan.chunks.iter().map(Chunk::num_rows).sum();
        assert!(num_positions <= self.limits.max_step_tokens, "the token budget holds");
        let most_drafts = self.limits.max_draft_tokens as usize;
        assert!(plan.chunks.iter().all(|chunk| chunk.draft_token_ids.len() <= most_drafts));
        let num_chunks = plan.chunks.len();
        assert!(num_chunks <= self.limits.max_step_sequences as usize, "the budget of chunks holds");
        let num_rows: usize = plan.chunks.iter().map(|chunk| self.num_rows(chunk)).sum();
        assert!(num_rows <= self.limits.max_step_sequences as usize, "the budget of logits holds");
        let is_vector = |chunk: &&Chunk| chunk.sample && self.sequences[&chunk.sequence_id].pooling.is_some();
        let num_vectors = plan.chunks.iter().filter(is_vector).count();
        let vector_bytes = num_vectors * self.limits.vector_size as usize * 4;
        assert!(vector_bytes <= MAX_RESULT_MESSAGE_BYTES, "a message has room for {num_vectors} vectors");
        // A decode is the newest token of a sequence that computed the one before in an earlier step.
        let is_decode = |chunk: &Chunk| {
            chunk.num_tokens == 1
                && chunk.sample
                && self.sequences[&chunk.sequence_id].next_position.is_some()
        };
        if plan.chunks.iter().any(is_decode) {
            // A prompt that cannot be cut may exceed the bound. Real encoders have no decodes beside them.
            let is_whole = |chunk: &Chunk| self.sequences[&chunk.sequence_id].pooling == Some(Pooling::Whole);
            let prefill = plan.chunks.iter().filter(|chunk| chunk.num_tokens > 1 && !is_whole(chunk));
            let num_tokens: u32 = prefill.map(|chunk| chunk.num_tokens).sum();
            assert!(num_tokens <= self.max_prefill_beside_decodes, "prefill beside decodes is bounded");
        }
        let mut wire_ids: Vec<u64> = plan.chunks.iter().map(|chunk| chunk.sequence_id).collect();
        wire_ids.sort_unstable();
        wire_ids.dedup();
        assert_eq!(wire_ids.len(), plan.chunks.len(), "one chunk per sequence");
    }

    fn compute(&mut self, chunk: &Chunk, rng: &mut Rng) -> Option<SequenceResult> {
        let block_size = self.limits.block_size as usize;
        let sequence = self.sequences.get_mut(&chunk.sequence_id).expect("only started sequences compute");
        if let Some((slot, hash)) = &sequence.adapter {
            let expected = AdapterSlot::Loaded(hash.clone());
            assert_eq!(self.adapters[*slot as usize - 1], expected, "the adapter stays while it is used");
        }
        for &block_id in &chunk.new_block_ids {
            assert!(block_id < self.limits.num_blocks, "a block of the pool");
            assert!(!sequence.table.contains(&block_id), "a block stands once in a table");
        }
        for &token in &chunk.appended_token_ids {
            sequence.hashes.push(Model::extend(sequence.hashes[sequence.hashes.len() - 1], token));
            sequence.tokens.push(token);
        }
        sequence.table.extend_from_slice(&chunk.new_block_ids);
        let (first, end) =
            (chunk.first_position as usize, (chunk.first_position + chunk.num_tokens) as usize);
        assert!(first < end, "a chunk has tokens");
        check_pooled(sequence, chunk);
        if let Some(next) = sequence.next_position {
            assert_eq!(chunk.first_position, next, "chunks follow each other");
        }
        sequence.next_position = Some(end as u32);
        if sequence.has_failed || rng.once_in(self.faults.sequence_error) {
            sequence.has_failed = true;
            for position in first..end {
                self.slots[sequence.table[position / block_size] as usize][position % block_size] = POISON;
            }
            self.compute_windows(chunk.sequence_id, first, end, false);
            let message = "made to fail".to_owned();
            note_late_mask(&mut self.sequences, chunk, AwaitedMask::Failed);
            let code = proto::SequenceErrorCode::NotFinite.into();
            let outcome = Some(Outcome::Error(proto::SequenceError { code, message }));
            return Some(SequenceResult {
                sequence_id: chunk.sequence_id,
                outcome,
                ..SequenceResult::default()
            });
        }
        assert!(end <= sequence.tokens.len(), "only known tokens are computed");
        let is_scored_alone = sequence.is_scored && end < sequence.num_prompt_tokens;
        if is_scored_alone {
            assert!(!chunk.sample, "a token is sampled after the last known one");
        } else if sequence.is_constrained {
            assert!(
                !chunk.sample || end == sequence.tokens.len(),
                "a token is sampled after the last known one"
            );
            let has_mask = !chunk.allowed_tokens.is_empty();
            assert!(!(has_mask && chunk.awaits_mask), "a mask comes once");
            assert_eq!(chunk.sample, has_mask || chunk.awaits_mask, "every sample has a mask");
        } else {
            assert_eq!(
                chunk.sample,
                end == sequence.tokens.len(),
                "a token is sampled after the last known one"
            );
            assert!(
                chunk.allowed_tokens.is_empty() && chunk.appended_token_ids.is_empty() && !chunk.awaits_mask,
                "none is constrained"
            );
        }
        for position in 0..end {
            let slot = &mut self.slots[sequence.table[position / block_size] as usize][position % block_size];
            let hash = sequence.hashes[position + 1];
            if position < first {
                assert_eq!(*slot, hash, "position {position} holds the K and V of this very prefix");
            } else {
                *slot = hash;
            }
        }
        self.compute_windows(chunk.sequence_id, first, end, true);
        let sequence = self.sequences.get_mut(&chunk.sequence_id).expect("only started sequences compute");
        if chunk.awaits_mask {
            sequence.awaited_mask = Some(AwaitedMask::Waits);
        }
        if !chunk.sample || chunk.awaits_mask {
            return None;
        }
        if sequence.pooling.is_some() {
            let vector = Model::vector(sequence.hashes[end]);
            return Some(SequenceResult {
                sequence_id: chunk.sequence_id,
                vector,
                ..SequenceResult::default()
            });
        }
        self.sample(chunk.sequence_id, &chunk.allowed_tokens, rng)
    }

    /// Returns the drafts of the shard's draft model, which is wrong at times and may find fewer than it is asked for.
    fn own_drafts(&self, chunk: &Chunk) -> Vec<u32> {
        let sequence = &self.sequences[&chunk.sequence_id];
        assert!(chunk.sample && !sequence.is_constrained && chunk.draft_token_ids.is_empty());
        assert!(chunk.num_own_drafts <= self.limits.max_own_drafts);
        let end = (chunk.first_position + chunk.num_tokens) as usize;
        let mut prefix = sequence.hashes[end.min(sequence.hashes.len() - 1)];
        let num_drafts = chunk.num_own_drafts - u32::from(prefix.is_multiple_of(5));
        let mut draft = || {
            let is_wrong = mix(prefix ^ 77).is_multiple_of(4);
            let token_id = self.model.sample(prefix, sequence.seed) + u32::from(is_wrong);
            prefix = Model::extend(prefix, token_id % self.model.vocab_size);
            token_id % self.model.vocab_size
        };
        (0..num_drafts).map(|_| draft()).collect()
    }

    /// Computes the drafts of a chunk as if they had been sampled, and samples after each, up to the first one that is
    /// wrong.
    fn sample_more(
        &mut self,
        chunk: &Chunk,
        own_drafts: &[u32],
        first: Option<&SequenceResult>,
    ) -> Vec<SampledToken> {
        let block_size = self.limits.block_size as usize;
        let sequence = &self.sequences[&chunk.sequence_id];
        let drafts = [&chunk.draft_token_ids[..], own_drafts].concat();
        let has_drafts = !drafts.is_empty();
        let num_masks = if sequence.is_constrained { chunk.draft_token_ids.len() } else { 0 };
        assert_eq!(chunk.draft_masks.len(), num_masks, "under a grammar each draft has a mask");
        assert!(!has_drafts || chunk.sample && !chunk.awaits_mask, "drafts are sampled");
        let end = (chunk.first_position + chunk.num_tokens) as usize;
        if !has_drafts {
            return Vec::new();
        }
        let first = first.and_then(|first| first.outcome.as_ref());
        let is_good = matches!(first, Some(Outcome::Token(_)));
        let mut hash = sequence.hashes[end.min(sequence.hashes.len() - 1)];
        let table = sequence.table.clone();
        for (position, &draft) in (end..).zip(&drafts) {
            hash = Model::extend(hash, draft);
            let block_id = table[position / block_size] as usize;
            let value = if is_good { hash } else { POISON };
            self.slots[block_id][position % block_size] = value;
            if self.limits.windows.is_some() {
                self.take_part(block_id as u32);
                let part = self.window_slots[block_id].as_mut().expect("just taken");
                part[position % block_size] = value;
            }
        }
        let mut more = Vec::new();
        let mut token_id = match first {
            Some(Outcome::Token(token)) => token.token_id,
            _ => return more,
        };
        for (index, &draft) in drafts.iter().enumerate() {
            if draft != token_id {
                break;
            }
            let sequence =
                self.sequences.get_mut(&chunk.sequence_id).expect("only started sequences compute");
            let prefix = *sequence.hashes.last().expect("a sequence has a start");
            token_id = match chunk.draft_masks.get(index) {
                Some(mask) => self.model.sample_allowed(prefix, sequence.seed, mask),
                None => self.model.sample(prefix, sequence.seed),
            };
            sequence.tokens.push(token_id);
            sequence.hashes.push(Model::extend(prefix, token_id));
            more.push(SampledToken { token_id, ..SampledToken::default() });
        }
        let sequence = self.sequences.get_mut(&chunk.sequence_id).expect("only started sequences compute");
        sequence.next_position = Some((end + more.len()) as u32);
        more
    }

    /// The number of chunks that await a mask.
    pub fn num_awaiting(&self) -> usize {
        self.sequences.values().filter(|sequence| sequence.awaited_mask == Some(AwaitedMask::Waits)).count()
    }

    /// Gives a chunk its mask, and returns its result if it has one.
    pub fn take_late_mask(&mut self, late: &LateMask, rng: &mut Rng) -> Option<SequenceResult> {
        let sequence = self.sequences.get_mut(&late.sequence_id).expect("a started sequence");
        let was = sequence.awaited_mask.take().expect("each chunk that waits is told once");
        let is_sampled = was == AwaitedMask::Waits && !late.allowed_tokens.is_empty();
        if is_sampled { self.sample(late.sequence_id, &late.allowed_tokens, rng) } else { None }
    }

    fn sample(&mut self, sequence_id: u64, mask: &[u8], rng: &mut Rng) -> Option<SequenceResult> {
        let sequence = self.sequences.get_mut(&sequence_id).expect("only started sequences compute");
        let end = sequence.tokens.len();
        let token_id = match mask {
            [] => self.model.sample(sequence.hashes[end], sequence.seed),
            mask => self.model.sample_allowed(sequence.hashes[end], sequence.seed, mask),
        };
        sequence.tokens.push(token_id);
        sequence.hashes.push(Model::extend(sequence.hashes[end], token_id));
        if rng.once_in(self.faults.missing_token) {
            return None;
        }
        let is_foreign = rng.once_in(self.faults.foreign_token);
        let token_id = if is_foreign { self.limits.vocab_size } else { token_id };
        let outcome = Some(Outcome::Token(SampledToken { token_id, ..SampledToken::default() }));
        Some(SequenceResult { sequence_id, outcome, ..SequenceResult::default() })
    }
}

/// Returns the sampling seed of a start, which tells its request.
pub fn seed_of(start: &SequenceStart) -> u64 {
    start.sampling.as_ref().expect("a start has its parameters").seed
}

/// Notes that a chunk's late mask will have no effect.
fn note_late_mask(sequences: &mut BTreeMap<u64, ShardSequence>, chunk: &Chunk, awaited: AwaitedMask) {
    if chunk.awaits_mask {
        sequences.get_mut(&chunk.sequence_id).expect("only started sequences compute").awaited_mask =
            Some(awaited);
    }
}
