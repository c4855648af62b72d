//! The step executor: owns the weights, the KV pool, the sequences and the threads.

mod adapters;
pub mod attention_plan;
mod block_transfers;
mod build;
mod calibrate;
mod constrain;
mod failure;
mod late_masks;
mod pool;
mod profile;
pub mod routing;
mod rows;
mod run;
mod run_experts;
mod run_heads;
mod run_lora;
mod run_mean;
mod run_recurrent;
mod score;
pub mod sequence;
pub mod shares;
mod state_runs;
mod step;
mod window_parts;

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use memmap2::{MmapMut, MmapOptions};

pub use failure::{ExecutorError, SequenceFailure};
pub use late_masks::LateMasks;
pub use pool::SequenceVector;
pub use profile::InstructionTime;
pub use score::ChunkScores;
pub use sequence::Chunk;

use crate::adapter::Adapter;
use crate::attention::{Scratch, Window};
use crate::isa::Isa;
use crate::kv_pool::{KeyScaling, KvDtype, KvPool};
use crate::kv_spill::{KvSpill, SpillError, SpillSizes};
use crate::program::{Program, ProgramError, StreamSizes, WeightGate};
use crate::sampling::{NotFinite, SampledToken, Sampler, SamplingParams, TokenScore};
use crate::threads::ThreadPool;
use attention_plan::{PlanLimits, Plans};
use block_transfers::BlockTransfers;
use profile::ThreadProfile;
use routing::Routing;
use rows::StepRows;
use sequence::{Sequence, SequenceCapacity, SequenceTable};
use shares::Cursors;
use step::{Fate, SamplingTime};

#[derive(Clone, Debug, PartialEq)]
pub struct SequenceResult {
    pub sequence_id: u64,
    /// The sampled token, or why the chunk failed.
    pub outcome: Result<SampledToken, SequenceFailure>,
}

/// A position whose logits the step computes.
#[derive(Clone, Copy, Debug)]
struct LogitsRow {
    slot: usize,
    purpose: RowPurpose,
}

#[derive(Clone, Copy, Debug)]
enum RowPurpose {
    /// The logprob of the token that follows in the prompt.
    Score { token_id: u32 },
    /// A sample after this many drafts.
    Sample { num_drafts: usize },
    /// The output of a pooled sequence, which needs no logits.
    Pool,
}

struct ThreadScratch {
    attention: Scratch,
    routing: Routing,
    sampler: Sampler,
    /// The sampling times of the last step with rows of logits.
    sampling: SamplingTime,
    profile: Option<ThreadProfile>,
}

/// A built model and all memory that its steps need.
///
/// The memory is allocated once, when the executor is built; a step allocates only for scores.
pub struct Executor {
    program: Program,
    isa: Isa,
    pool: ThreadPool,
    /// Declared before `kv` so that it is dropped first: a transfer may still be using the pool's memory.
    store: Option<BlockTransfers>,
    /// The file of the pool, which is dropped before it, too.
    spill: Option<KvSpill>,
    kv: KvPool,
    /// The largest window of the model, if windowed layers are stored in window parts; two positions if parts are
    /// states.
    kept_window: Option<Window>,
    /// Activations: `program.num_floats` f32 elements.
    floats: MmapMut,
    quantized: MmapMut,
    /// Partial attention states of split items, as f32.
    states: MmapMut,
    limits: PlanLimits,
    /// Attention plans for all tokens and for the sampled rows.
    plans: Plans,
    sequences: SequenceTable,
    /// The adapter in each slot; empty if the shard takes none.
    adapters: Vec<Option<Arc<Adapter>>>,
    rows: StepRows,
    /// The number of the last step that wrote each block. Two chunks of one step may not write the same block.
    written: Vec<u64>,
    num_steps: u64,
    counters: Vec<AtomicUsize>,
    cursors: Cursors,
    scratch: Vec<ThreadScratch>,
    /// Positions whose logits the current step computes, in the order of the logits buffer.
    logits_rows: Vec<LogitsRow>,
    fates: Vec<Fate>,
    outcomes: Vec<Outcome>,
    scores: Vec<ChunkScores>,
    vectors: Vec<SequenceVector>,
    /// Top-logprob lists of earlier results, reused to avoid allocation.
    spare_lists: Vec<Vec<(u32, f32)>>,
    /// The time by which late masks delayed the last step.
    waited: Duration,
}

#[derive(Debug, Default)]
struct Outcome {
    token: Option<Result<SampledToken, NotFinite>>,
    score: Option<Result<TokenScore, NotFinite>>,
    /// Spare capacity for the token's top logprobs.
    list: Vec<(u32, f32)>,
}

/// Maps zeroed memory that becomes resident when it is first touched.
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
        let (kv, spill) = match &program.spill {
            Some(_) if window_limits.is_some() => return Err(SpillError::WindowParts.into()),
            Some(options) => {
                let program = (&program.instructions[..], program.windows.len());
                let (kv, spill) = KvSpill::new(config.geometry, config.num_blocks, options, program)?;
                (kv, Some(spill))
            }
            None => (KvPool::with_windows(config.geometry, config.num_blocks, window_limits.as_ref())?, None),
        };
        // A position needs the state behind the one before it, as if it were a window of two positions.
        let last_two = Window::new(2).filter(|_| program.state_size > 0);
        let kept_window = window_limits.and(program.largest_window().or(last_two));
        let mut limits = PlanLimits {
            geometry: config.geometry,
            heads_per_kv_head: program.heads_per_kv_head,
            num_threads: threads,
            state_capacity: 0,
        };
        limits.state_capacity = limits.wanted_state_capacity(config.num_blocks);
        let (max_routes, max_experts) = program.max_routes();
        let scratch = || ThreadScratch {
            attention: Scratch::new(&config.geometry, program.heads_per_kv_head),
            routing: Routing::for_steps(max_routes, max_experts),
            sampler: Sampler::new(program.vocab_size),
            sampling: SamplingTime::default(),
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
            adapters: Vec::new(),
            rows: StepRows::for_steps(config.max_step_tokens, config.max_step_sequences),
            written: vec![0; config.num_blocks],
            num_steps: 0,
            cursors: Cursors::new(threads),
            counters: (0..program.num_counters).map(|_| AtomicUsize::new(0)).collect(),
            scratch: (0..threads).map(|_| scratch()).collect(),
            logits_rows: Vec::with_capacity(config.max_step_sequences),
            fates: Vec::with_capacity(config.max_step_sequences),
            outcomes: Vec::with_capacity(config.max_step_sequences),
            scores: Vec::new(),
            vectors: Vec::new(),
            spare_lists: Vec::with_capacity(config.max_step_sequences),
            waited: Duration::ZERO,
            program,
            isa,
            pool,
            store: None,
            spill,
            kv,
            kept_window,
            limits,
        })
    }

    /// Like [`Executor::new`]. With an int4 pool it sets `key_scaling`, which is measured now if it is `None`.
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

    /// Returns the KV pool, to be read or overwritten between steps.
    pub fn kv_pool_mut(&mut self) -> &mut KvPool {
        &mut self.kv
    }

    /// The scaling of keys before they are rounded, or `None` unless the pool's dtype is int4. It depends only on the
    /// model.
    pub fn key_scaling(&self) -> Option<&KeyScaling> {
        (self.kv.geometry().dtype == KvDtype::Int4).then(|| self.kv.key_scaling())
    }

    pub fn vocab_size(&self) -> usize {
        self.program.vocab_size
    }

    /// Bytes of one KV block without its window part.
    pub fn bytes_per_block(&self) -> usize {
        self.kv.bytes_per_block()
    }

    /// Bytes of weights in memory.
    pub fn weight_bytes(&self) -> usize {
        self.stream_sizes()
            .map_or(self.program.weight_bytes(), |sizes| sizes.resident_bytes + sizes.ahead_bytes)
    }

    /// Returns the sizes of the streamed weights, or `None` if all weights are in memory.
    pub fn stream_sizes(&self) -> Option<StreamSizes> {
        self.program.image.gate.as_deref().map(WeightGate::sizes)
    }

    /// Returns the sizes of the KV pool's memory and file, or `None` if all of it is in memory.
    pub fn spill_sizes(&self) -> Option<SpillSizes> {
        self.spill.as_ref().map(KvSpill::sizes)
    }

    /// Returns a description for logs, such as `cpu avx512, 2 threads`.
    pub fn device(&self) -> String {
        let threads = self.pool.num_threads();
        format!("cpu {}, {threads} {}", self.isa, if threads == 1 { "thread" } else { "threads" })
    }

    pub fn threads(&self) -> &ThreadPool {
        &self.pool
    }

    /// Returns the time by which late masks delayed the last step.
    pub fn waited(&self) -> Duration {
        self.waited
    }

    /// Starts measuring the time of each instruction, from zero. Costs two clock reads per instruction and thread.
    pub fn start_profile(&mut self) {
        let num_instructions = self.program.instructions.len();
        for scratch in &mut self.scratch {
            scratch.profile = Some(ThreadProfile::new(num_instructions));
        }
    }

    /// Stops measuring and returns the time since [`Executor::start_profile`], one entry per instruction of the
    /// program.
    ///
    /// All entries are zero if profiling was not started. Sampling, which follows the last instruction, is not
    /// included.
    pub fn end_profile(&mut self) -> Vec<InstructionTime> {
        let num_instructions = self.program.instructions.len();
        let profiles = self.scratch.iter().filter_map(|scratch| scratch.profile.as_ref());
        let times = profile::mean(profiles, num_instructions);
        self.scratch.iter_mut().for_each(|scratch| scratch.profile = None);
        times
    }

    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Starts a sequence whose known tokens are `token_ids`, the first `num_prompt_tokens` of which are the prompt.
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

    /// Forgets a sequence. The contents of its blocks do not change.
    pub fn end(&mut self, sequence_id: u64) -> Result<(), ExecutorError> {
        if self.sequences.remove(sequence_id) {
            Ok(())
        } else {
            Err(ExecutorError::UnknownSequence { sequence_id })
        }
    }

    /// Sets a sequence back to its first `num_tokens` tokens. Later positions are computed again.
    pub fn rewind(&mut self, sequence_id: u64, num_tokens: usize) -> Result<(), ExecutorError> {
        let vocab_size = self.program.vocab_size;
        let sequence = self.sequence_mut(sequence_id)?;
        sequence.rewind(num_tokens, vocab_size).map_err(|what| ExecutorError::BadStart { sequence_id, what })
    }

    fn sequence_mut(&mut self, sequence_id: u64) -> Result<&mut Sequence, ExecutorError> {
        let slot = self.sequences.find(sequence_id).ok_or(ExecutorError::UnknownSequence { sequence_id })?;
        Ok(self.sequences.at_mut(slot))
    }

    /// Waits for running transfers, then forgets all sequences.
    pub fn reset(&mut self) {
        self.finish_transfers();
        self.sequences.clear();
    }

    /// Copies K and V of the first `num_tokens` positions of a block to another block, in all layers.
    pub fn copy_block(
        &mut self,
        source: u32,
        destination: u32,
        num_tokens: usize,
    ) -> Result<(), ExecutorError> {
        let Some(spill) = &self.spill else {
            return Ok(self.kv.copy_block(source, destination, num_tokens)?);
        };
        let copied = spill.copy_block(&mut self.kv, (source, destination), num_tokens)?;
        copied.map_err(|what| ExecutorError::LostKv { what })
    }
}
