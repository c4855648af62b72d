//! Runs steps: holds weights, KV pool, sequences and threads.

mod attention_plan;
mod block_transfers;
mod build;
mod calibrate;
mod constrain;
mod failure;
mod profile;
mod run;
mod score;
mod sequence;
mod shares;
#[cfg(test)]
mod tests;
mod window_parts;

use std::sync::atomic::{AtomicUsize, Ordering};

use memmap2::{MmapMut, MmapOptions};

pub use failure::{ExecutorError, SequenceFailure};
pub use profile::InstructionTime;
pub use score::ChunkScores;
pub use sequence::Chunk;

use crate::isa::Isa;
use crate::kv_pool::{KeyScaling, KvDtype, KvPool};
use crate::ops::attention::{Scratch, Window};
use crate::program::{Program, ProgramError};
use crate::sampling::{NotFinite, SampledToken, Sampler, SamplingParams, TokenScore};
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
    /// Logits are computed of `num_scored` of its positions, the i-th of all rows and those behind it, and then of the
    /// one that samples.
    Runs {
        first_row: usize,
        num_scored: usize,
    },
}

/// What the logits of a position are for.
#[derive(Clone, Copy, Debug)]
struct LogitsRow {
    /// The sequence's slot.
    slot: usize,
    /// The token that follows, which is scored; none: one is sampled.
    known: Option<u32>,
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
    /// Positions whose logits this step computes.
    logits_rows: Vec<LogitsRow>,
    fates: Vec<Fate>,
    outcomes: Vec<Outcome>,
    scores: Vec<ChunkScores>,
    /// Lists of likeliest tokens from results that the caller gave back.
    spare_lists: Vec<Vec<(u32, f32)>>,
}

/// What one of the step's rows of logits led to.
#[derive(Debug, Default)]
struct Outcome {
    token: Option<Result<SampledToken, NotFinite>>,
    score: Option<Result<TokenScore, NotFinite>>,
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
            logits_rows: Vec::with_capacity(config.max_step_sequences),
            fates: Vec::with_capacity(config.max_step_sequences),
            outcomes: Vec::with_capacity(config.max_step_sequences),
            scores: Vec::new(),
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

    /// One forward pass over `chunks`: one result for each that samples, and one for each that failed, in order; what
    /// those with `score` report is in [`Executor::scores`] until the next step.
    ///
    /// A sampled token is appended to its sequence. A chunk that cannot be fails alone; the others are not touched.
    /// `results` is overwritten and its memory used again: with the same `results` from step to step, steps that fail
    /// and score nowhere allocate nothing.
    pub fn step_into(&mut self, chunks: &[Chunk], results: &mut Vec<SequenceResult>) {
        for result in results.drain(..) {
            if let Ok(SampledToken { top_logprobs, .. }) = result.outcome
                && self.spare_lists.len() < self.spare_lists.capacity()
            {
                self.spare_lists.push(top_logprobs);
            }
        }
        self.rows.clear();
        self.logits_rows.clear();
        self.fates.clear();
        self.scores.clear();
        self.num_steps += 1;
        for chunk in chunks {
            let fate = match self.admit(chunk) {
                Err(message) => Fate::Failed(SequenceFailure::InvalidPlan(message)),
                Ok(slot) => {
                    let first_row = self.logits_rows.len();
                    Fate::Runs { first_row, num_scored: self.push_logits_rows(slot, chunk) }
                }
            };
            self.fates.push(fate);
        }
        self.forward(None);
        let mut fates = std::mem::take(&mut self.fates);
        for (chunk, fate) in chunks.iter().zip(fates.drain(..)) {
            let sequence_id = chunk.sequence_id;
            let outcome = match fate {
                Fate::Failed(failure) => Err(failure),
                Fate::Runs { first_row, num_scored } => {
                    let scored = if chunk.score {
                        self.finish_scores(sequence_id, first_row, num_scored)
                    } else {
                        Ok(())
                    };
                    match scored {
                        Err(failure) => Err(failure),
                        Ok(()) if chunk.sample => self.finish_sample(first_row + num_scored),
                        Ok(()) => continue,
                    }
                }
            };
            results.push(SequenceResult { sequence_id, outcome });
        }
        self.fates = fates;
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
        self.check_logits_rows(self.sequences.at(slot), chunk)?;
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

    /// Runs the step's rows; then chooses or scores a token for each row of logits.
    fn forward(&mut self, probe: Option<&Probe<'_>>) {
        if self.rows.token_ids.is_empty() {
            return;
        }
        self.plans.rebuild(&self.rows, &self.limits);
        self.cursors.reset();
        self.counters.iter().for_each(|counter| counter.store(0, Ordering::Relaxed));
        let logits_rows = &self.logits_rows[..];
        if self.outcomes.len() < logits_rows.len() {
            self.outcomes.resize_with(logits_rows.len(), Outcome::default);
        }
        for outcome in &mut self.outcomes[..logits_rows.len()] {
            outcome.token = None;
            outcome.score = None;
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
            if logits_rows.is_empty() {
                return;
            }
            barrier.wait();
            loop {
                let index = next_sample.fetch_add(1, Ordering::Relaxed);
                let Some(row) = logits_rows.get(index) else { return };
                // SAFETY: the counter gives each index to one thread.
                let (logits, outcome) =
                    unsafe { (step.logits_row(index), &mut outcomes.slice_mut(index..index + 1)[0]) };
                let sequence = step.sequences.at(row.slot);
                let params = &sequence.sampling;
                if let Some(token_id) = row.known {
                    let num_top = params.num_top_prompt_logprobs as usize;
                    let score = scratch.sampler.score(step.isa, logits, token_id, num_top, Vec::new());
                    outcome.score = Some(score);
                    continue;
                }
                let num_output = sequence.token_ids.len() - sequence.num_prompt_tokens;
                let sampled = scratch.sampler.sample(
                    step.isa,
                    logits,
                    params,
                    &sequence.counts,
                    num_output,
                    sequence.masks(),
                    sequence.token_ids.len() as u32,
                    &mut outcome.list,
                );
                outcome.token = Some(sampled);
            }
        });
    }

    /// Appends the token that was chosen for the `index`-th row of logits to its sequence.
    fn finish_sample(&mut self, index: usize) -> Result<SampledToken, SequenceFailure> {
        let sequence = self.sequences.at_mut(self.logits_rows[index].slot);
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
