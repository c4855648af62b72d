//! Runs steps: holds weights, KV pool, sequences and threads.

mod attention_plan;
mod block_transfers;
mod build;
mod calibrate;
mod constrain;
mod failure;
mod late_masks;
mod profile;
mod run;
mod sequence;
mod shares;
#[cfg(test)]
mod tests;
mod window_parts;

use std::sync::atomic::{AtomicUsize, Ordering};

use memmap2::{MmapMut, MmapOptions};

pub use failure::{ExecutorError, SequenceFailure};
pub use late_masks::LateMasks;
pub use profile::InstructionTime;
pub use sequence::Chunk;

use crate::isa::Isa;
use crate::kv_pool::{KeyScaling, KvDtype, KvPool};
use crate::ops::attention::{Scratch, Window};
use crate::program::{Program, ProgramError};
use crate::sampling::{NotFinite, SampledToken, Sampler, SamplingParams};
use crate::shared_mut::SharedMut;
use crate::threads::ThreadPool;
use attention_plan::{PlanLimits, Plans};
use block_transfers::BlockTransfers;
use calibrate::Probe;
use profile::ThreadProfile;
use run::{AcceptedChunk, Step, StepRows};
use sequence::{Allowed, ChunkLimits, Sequence, SequenceCapacity, SequenceTable};
use shares::Cursors;

/// What one chunk led to.
#[derive(Clone, Debug, PartialEq)]
pub struct SequenceResult {
    /// Which sequence.
    pub sequence_id: u64,
    /// Its token, or why it has none.
    pub outcome: Result<SampledToken, SequenceFailure>,
}

/// What becomes of a chunk while the step runs.
#[derive(Debug)]
enum Fate {
    Failed(SequenceFailure),
    /// It samples, as the i-th of the rows that do.
    Samples(usize),
    Silent,
}

/// One thread's working memory.
struct ThreadScratch {
    attention: Scratch,
    sampler: Sampler,
    profile: Option<ThreadProfile>,
}

/// A built model and everything that its steps need. Memory for steps is allocated once, here.
pub struct Executor {
    program: Program,
    isa: Isa,
    pool: ThreadPool,
    /// Before the pool of blocks: see `BlockTransfers`.
    store: Option<BlockTransfers>,
    kv: KvPool,
    /// The largest window, if layers with a window are kept apart.
    kept_window: Option<Window>,
    /// Activations: `program.num_floats` f32.
    floats: MmapMut,
    /// Quantised activations.
    quantized: MmapMut,
    /// States of split attention pieces, f32.
    states: MmapMut,
    limits: PlanLimits,
    /// Attention of all tokens, and of those that sample alone.
    plans: Plans,
    sequences: SequenceTable,
    rows: StepRows,
    /// Which step wrote each block last, and for which chunk: two chunks of a step may not write one block.
    written: Vec<u64>,
    num_steps: u64,
    counters: Vec<AtomicUsize>,
    cursors: Cursors,
    scratch: Vec<ThreadScratch>,
    /// Slots of the sequences that sample in this step.
    samplers: Vec<usize>,
    fates: Vec<Fate>,
    outcomes: Vec<Outcome>,
    /// Lists of likeliest tokens from results that the caller gave back.
    spare_lists: Vec<Vec<(u32, f32)>>,
}

/// What sampling led to, for one of the step's samplers.
#[derive(Debug, Default)]
struct Outcome {
    token: Option<Result<SampledToken, NotFinite>>,
    /// Taken for the token's list.
    list: Vec<(u32, f32)>,
}

/// Zeroed memory that becomes resident when it is first touched.
fn map(num_elements: usize, element_bytes: usize) -> Result<MmapMut, ProgramError> {
    let bytes = num_elements.saturating_mul(element_bytes).max(element_bytes);
    let map = MmapOptions::new().len(bytes).no_reserve_swap().map_anon();
    map.map_err(|source| ProgramError::Map { bytes, source })
}

fn as_floats(map: &mut MmapMut) -> &mut [f32] {
    let len = map.len() / size_of::<f32>();
    // SAFETY: a mapping is aligned to a page, and every bit pattern is an f32.
    unsafe { std::slice::from_raw_parts_mut(map.as_mut_ptr().cast(), len) }
}

impl Executor {
    fn new(program: Program, pool: ThreadPool, isa: Isa) -> Result<Self, ProgramError> {
        let threads = pool.num_threads();
        let config = program.config;
        let window_limits = program.window_limits();
        let kv = KvPool::with_windows(config.geometry, config.num_blocks, window_limits.as_ref())?;
        let kept_window = window_limits.and(program.largest_window());
        let mut limits = PlanLimits {
            geometry: config.geometry,
            heads_per_kv_head: program.heads_per_kv_head,
            num_threads: threads,
            state_capacity: 0,
        };
        limits.state_capacity = limits.wanted_state_capacity(config.num_blocks);
        let scratch = || ThreadScratch {
            attention: Scratch::new(config.geometry.head_size, program.heads_per_kv_head),
            sampler: Sampler::new(program.vocab_size),
            profile: None,
        };
        Ok(Self {
            floats: map(program.num_floats, size_of::<f32>())?,
            quantized: map(program.num_quantized_bytes, 1)?,
            states: map(limits.state_capacity, size_of::<f32>())?,
            plans: Plans::for_steps(
                &program.windows,
                &limits,
                config.max_step_tokens,
                config.max_step_sequences,
            ),
            sequences: SequenceTable::default(),
            rows: StepRows::for_steps(config.max_step_tokens, config.max_step_sequences),
            written: vec![0; config.num_blocks],
            num_steps: 0,
            cursors: Cursors::new(threads),
            counters: (0..program.num_attentions).map(|_| AtomicUsize::new(0)).collect(),
            scratch: (0..threads).map(|_| scratch()).collect(),
            samplers: Vec::with_capacity(config.max_step_sequences),
            fates: Vec::with_capacity(config.max_step_sequences),
            outcomes: Vec::with_capacity(config.max_step_sequences),
            spare_lists: Vec::with_capacity(config.max_step_sequences),
            program,
            isa,
            pool,
            store: None,
            kv,
            kept_window,
            limits,
        })
    }

    /// [`Executor::new`]; in int4 with `key_scaling`, or what is measured for it now.
    fn with_key_scaling(
        program: Program,
        pool: ThreadPool,
        isa: Isa,
        key_scaling: Option<KeyScaling>,
    ) -> Result<Self, ProgramError> {
        if program.config.geometry.dtype != KvDtype::Int4 {
            return Self::new(program, pool, isa);
        }
        let (key_scaling, program, pool) = match key_scaling {
            Some(key_scaling) => (key_scaling, program, pool),
            None => calibrate::measure(program, pool, isa)?,
        };
        let key_turns = program.key_turns(program.config.num_blocks);
        let mut executor = Self::new(program, pool, isa)?;
        executor.kv.set_key_scaling(key_scaling, key_turns);
        Ok(executor)
    }

    /// How keys are scaled before they are rounded, if the dtype of the pool asks for it: a function of the model.
    pub fn key_scaling(&self) -> Option<&KeyScaling> {
        (self.kv.geometry().dtype == KvDtype::Int4).then(|| self.kv.key_scaling())
    }

    /// Rows of the output head.
    pub fn vocab_size(&self) -> usize {
        self.program.vocab_size
    }

    /// Bytes of one KV block, but for its window part.
    pub fn bytes_per_block(&self) -> usize {
        self.kv.bytes_per_block()
    }

    /// Bytes of weights held in memory.
    pub fn weight_bytes(&self) -> usize {
        self.program.weight_bytes()
    }

    /// For people: `cpu avx512, 2 threads`.
    pub fn device(&self) -> String {
        let threads = self.pool.num_threads();
        format!("cpu {}, {threads} {}", self.isa, if threads == 1 { "thread" } else { "threads" })
    }

    /// The threads that compute.
    pub fn threads(&self) -> &ThreadPool {
        &self.pool
    }

    /// From now on notes where time goes, from zero; costs two looks at the clock per instruction and thread.
    pub fn start_profile(&mut self) {
        let num_instructions = self.program.instructions.len();
        for scratch in &mut self.scratch {
            scratch.profile = Some(ThreadProfile::new(num_instructions));
        }
    }

    /// Time since [`Executor::start_profile`], one for each of the program's instructions, and stops noting it. All
    /// zero if it was not started. What follows the last instruction, sampling, is not in it.
    pub fn end_profile(&mut self) -> Vec<InstructionTime> {
        let num_instructions = self.program.instructions.len();
        let profiles = self.scratch.iter().filter_map(|scratch| scratch.profile.as_ref());
        let times = profile::mean(profiles, num_instructions);
        self.scratch.iter_mut().for_each(|scratch| scratch.profile = None);
        times
    }

    /// The program that it runs.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Begins a sequence whose known tokens are `token_ids`, the first `num_prompt_tokens` of them the prompt.
    pub fn start(
        &mut self,
        sequence_id: u64,
        token_ids: Vec<u32>,
        num_prompt_tokens: usize,
        sampling: SamplingParams,
    ) -> Result<(), ExecutorError> {
        let config = self.program.config;
        let capacity = SequenceCapacity {
            num_tokens: config.num_blocks * config.geometry.block_size,
            num_blocks: config.num_blocks,
            vocab_size: self.program.vocab_size,
        };
        let sequence = Sequence::new(token_ids, num_prompt_tokens, sampling, &capacity)
            .map_err(|what| ExecutorError::BadStart { sequence_id, what })?;
        if self.sequences.insert(sequence_id, sequence) {
            Ok(())
        } else {
            Err(ExecutorError::AlreadyStarted { sequence_id })
        }
    }

    /// Forgets a sequence; its blocks keep what they hold.
    pub fn end(&mut self, sequence_id: u64) -> Result<(), ExecutorError> {
        if self.sequences.remove(sequence_id) {
            Ok(())
        } else {
            Err(ExecutorError::UnknownSequence { sequence_id })
        }
    }

    /// Forgets all sequences, after the transfers that run.
    pub fn reset(&mut self) {
        self.finish_transfers();
        self.sequences.clear();
    }

    /// Copies the first `num_tokens` positions of a block onto another: all layers, K and V.
    pub fn copy_block(
        &mut self,
        source: u32,
        destination: u32,
        num_tokens: usize,
    ) -> Result<(), ExecutorError> {
        Ok(self.kv.copy_block(source, destination, num_tokens)?)
    }

    /// [`Executor::step_into`] new memory.
    pub fn step(&mut self, chunks: &[Chunk]) -> Vec<SequenceResult> {
        let mut results = Vec::new();
        self.step_into(chunks, &mut results);
        results
    }

    /// One forward pass over `chunks`: one result for each that samples, and one for each that failed, in order.
    ///
    /// A sampled token is appended to its sequence. A chunk that cannot be fails alone; the others are not touched.
    /// `results` is overwritten and its memory used again: with the same `results` from step to step, steps that fail
    /// nowhere allocate nothing.
    pub fn step_into(&mut self, chunks: &[Chunk], results: &mut Vec<SequenceResult>) {
        for result in results.drain(..) {
            if let Ok(SampledToken { top_logprobs, .. }) = result.outcome
                && self.spare_lists.len() < self.spare_lists.capacity()
            {
                self.spare_lists.push(top_logprobs);
            }
        }
        self.rows.clear();
        self.samplers.clear();
        self.fates.clear();
        self.num_steps += 1;
        for chunk in chunks {
            let fate = match self.admit(chunk) {
                Err(message) => Fate::Failed(SequenceFailure::InvalidPlan(message)),
                Ok(slot) if chunk.sample => {
                    self.rows.push_sample(self.rows.token_ids.len() - 1);
                    self.samplers.push(slot);
                    Fate::Samples(self.samplers.len() - 1)
                }
                Ok(_) => Fate::Silent,
            };
            self.fates.push(fate);
        }
        self.forward(None);
        let mut fates = std::mem::take(&mut self.fates);
        for (chunk, fate) in chunks.iter().zip(fates.drain(..)) {
            let late = self.settle_late(chunk.sequence_id);
            let outcome = match (late, fate) {
                (_, Fate::Silent) | (Some(Ok(())), Fate::Samples(_)) => continue,
                (_, Fate::Failed(failure)) | (Some(Err(failure)), Fate::Samples(_)) => Err(failure),
                (None, Fate::Samples(index)) => self.finish_sample(self.samplers[index], index),
            };
            results.push(SequenceResult { sequence_id: chunk.sequence_id, outcome });
        }
        self.fates = fates;
    }

    /// Logits [tokens, V] of every position of one text, row after row.
    ///
    /// Uses the pool's first blocks; may only be called while no sequence is started.
    pub fn score(&mut self, token_ids: &[u32]) -> Result<Vec<f32>, ExecutorError> {
        let fail = |what: String| ExecutorError::Score { what };
        if !self.sequences.is_empty() {
            return Err(fail("a sequence is started; hint: end it first".to_owned()));
        }
        let config = self.program.config;
        let most = config.num_blocks * config.geometry.block_size;
        if token_ids.len() > most {
            return Err(fail(format!("{} tokens, but the pool holds {most}", token_ids.len())));
        }
        self.drop_window_parts(&(0..config.num_blocks as u32).collect::<Vec<_>>())?;
        let sequence_id = 0;
        self.start(sequence_id, token_ids.to_vec(), token_ids.len(), SamplingParams::default())?;
        let outcome = self.score_started(sequence_id, token_ids.len());
        self.reset();
        outcome.map_err(fail)
    }

    fn score_started(&mut self, sequence_id: u64, num_tokens: usize) -> Result<Vec<f32>, String> {
        let config = self.program.config;
        let slice = config.max_step_tokens.min(config.max_step_sequences);
        let mut scores = Vec::with_capacity(num_tokens * self.program.vocab_size);
        let num_blocks = num_tokens.div_ceil(config.geometry.block_size) as u32;
        for first in (0..num_tokens).step_by(slice) {
            let count = slice.min(num_tokens - first);
            self.drop_scored(first)?;
            self.rows.clear();
            self.samplers.clear();
            self.num_steps += 1;
            let new_block_ids = if first == 0 { (0..num_blocks).collect() } else { Vec::new() };
            self.admit(&Chunk {
                sequence_id,
                first_position: first as u32,
                num_tokens: count as u32,
                new_block_ids,
                sample: false,
            })?;
            (0..count).for_each(|row| self.rows.push_sample(row));
            self.forward(None);
            let logits = &self.program.buffers[self.program.logits.buffer];
            let start = logits.offset;
            let floats = as_floats(&mut self.floats);
            scores.extend_from_slice(&floats[start..start + count * self.program.vocab_size]);
        }
        Ok(scores)
    }

    /// Takes a chunk into the step's rows if it can be; returns its slot in the sequence table.
    fn admit(&mut self, chunk: &Chunk) -> Result<usize, String> {
        let config = self.program.config;
        let id = chunk.sequence_id;
        let slot = self.sequences.find(id).ok_or_else(|| format!("sequence {id} is not started"))?;
        if self.rows.chunks.iter().any(|accepted| accepted.slot == slot) {
            return Err(format!("sequence {id} has two chunks in one step"));
        }
        if self.rows.chunks.len() == config.max_step_sequences {
            return Err(format!("more than {} chunks in one step", config.max_step_sequences));
        }
        let num_tokens = self.rows.token_ids.len() + chunk.num_tokens as usize;
        if num_tokens > config.max_step_tokens {
            return Err(format!(
                "{num_tokens} tokens in one step, expected up to {}",
                config.max_step_tokens
            ));
        }
        let block_size = config.geometry.block_size;
        let limits = ChunkLimits {
            num_blocks: config.num_blocks,
            block_size,
            num_embeddings: self.program.num_embeddings,
        };
        self.sequences.at_mut(slot).accept(chunk, &limits)?;
        let blocks = self.sequences.at(slot).written_blocks(chunk, block_size);
        let stamp = self.num_steps;
        if let Some(block_id) = blocks.iter().find(|id| self.written[**id as usize] == stamp) {
            return Err(format!("block {block_id} is written by another chunk of the step"));
        }
        blocks.iter().for_each(|id| self.written[*id as usize] = stamp);
        self.admit_window(slot, chunk)?;
        let accepted = AcceptedChunk {
            slot,
            first_position: chunk.first_position as usize,
            num_tokens: chunk.num_tokens as usize,
        };
        self.rows.push(accepted, &self.sequences, block_size);
        Ok(slot)
    }

    /// Runs the step's rows; then chooses a token for each of the samplers.
    fn forward(&mut self, probe: Option<&Probe<'_>>) {
        if self.rows.token_ids.is_empty() {
            return;
        }
        self.plans.rebuild(&self.rows, &self.limits);
        self.cursors.reset();
        self.counters.iter().for_each(|counter| counter.store(0, Ordering::Relaxed));
        let samplers = &self.samplers[..];
        if self.outcomes.len() < samplers.len() {
            self.outcomes.resize_with(samplers.len(), Outcome::default);
        }
        for outcome in &mut self.outcomes[..samplers.len()] {
            outcome.token = None;
            if outcome.list.capacity() == 0 {
                outcome.list = self.spare_lists.pop().unwrap_or_default();
            }
        }
        let step = Step {
            isa: self.isa,
            program: &self.program,
            floats: SharedMut::new(as_floats(&mut self.floats)),
            quantized: SharedMut::new(&mut self.quantized),
            kv: self.kv.view(),
            sequences: &self.sequences,
            rows: &self.rows,
            plans: &self.plans,
            limits: &self.limits,
            states: SharedMut::new(as_floats(&mut self.states)),
            counters: &self.counters,
            cursors: &self.cursors,
            probe,
            num_threads: self.pool.num_threads(),
        };
        let scratch = SharedMut::new(&mut self.scratch);
        let outcomes = SharedMut::new(&mut self.outcomes);
        let next_sample = AtomicUsize::new(0);
        self.pool.run(|thread_idx, barrier| {
            // SAFETY: each thread has its own index.
            let scratch = unsafe { &mut scratch.slice_mut(thread_idx..thread_idx + 1)[0] };
            step.run(thread_idx, barrier, &mut scratch.attention, scratch.profile.as_mut());
            if samplers.is_empty() {
                return;
            }
            barrier.wait();
            loop {
                let index = next_sample.fetch_add(1, Ordering::Relaxed);
                let Some(slot) = samplers.get(index) else { return };
                // SAFETY: the counter gives each index to one thread.
                let (logits, outcome) =
                    unsafe { (step.logits_row(index), &mut outcomes.slice_mut(index..index + 1)[0]) };
                let sequence = step.sequences.at(*slot);
                let num_output = sequence.token_ids.len() - sequence.num_prompt_tokens;
                let sampled = scratch.sampler.sample(
                    step.isa,
                    logits,
                    &sequence.sampling,
                    &sequence.counts,
                    num_output,
                    sequence.mask(),
                    sequence.token_ids.len() as u32,
                    &mut outcome.list,
                );
                outcome.token = Some(sampled);
            }
        });
    }

    /// Appends the token that was chosen as the `index`-th of the step to its sequence.
    fn finish_sample(&mut self, slot: usize, index: usize) -> Result<SampledToken, SequenceFailure> {
        let sequence = self.sequences.at_mut(slot);
        sequence.allowed = Allowed::All;
        match self.outcomes[index].token.take() {
            Some(Ok(token)) => {
                sequence.push_sampled(token.token_id);
                Ok(token)
            }
            _ => {
                let position = sequence.token_ids.len();
                let message =
                    format!("a logit for position {position} is NaN or infinite, or no token is left");
                Err(SequenceFailure::NotFinite(message))
            }
        }
    }
}
