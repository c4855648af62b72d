//! Checks that steps do not allocate once they are warmed up, with a counting allocator for the whole process.
#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "kernels/counting.rs"]
mod counting;
mod linear {
    pub(crate) use super::reference;
}
#[allow(dead_code, reason = "used by the other tests")]
#[path = "kernels/executor/model.rs"]
mod model;
#[allow(dead_code, reason = "used by the other tests")]
#[path = "kernels/random.rs"]
mod random;
#[allow(dead_code, reason = "used by the other tests")]
#[path = "kernels/linear/reference.rs"]
mod reference;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use trunkline_contract::TokenMask;
use trunkline_kernels::executor::{Chunk, Executor, SequenceResult};
use trunkline_kernels::isa::Isa;
use trunkline_kernels::sampling::{SamplingParams, Watermark};

use counting::Counting;
use model::Recipe;

static IS_COUNTING: AtomicBool = AtomicBool::new(false);
static NUM_ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

fn count() {
    if IS_COUNTING.load(Ordering::Relaxed) {
        NUM_ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting(count);

fn allocations(work: impl FnOnce()) -> usize {
    NUM_ALLOCATIONS.store(0, Ordering::SeqCst);
    IS_COUNTING.store(true, Ordering::SeqCst);
    work();
    IS_COUNTING.store(false, Ordering::SeqCst);
    NUM_ALLOCATIONS.load(Ordering::SeqCst)
}

const BLOCK_SIZE: usize = 16;
const NUM_BLOCKS: usize = 256;
const NUM_SEQUENCES: usize = 4;
const BLOCKS_PER_SEQUENCE: usize = NUM_BLOCKS / NUM_SEQUENCES;
const STEP_TOKENS: usize = 128;

/// A model with a vocabulary that is too large to sort, and a windowed layer, which has a plan of its own.
const RECIPE: Recipe =
    Recipe { vocab_size: 3000, windows: [None, Some(300)], num_blocks: NUM_BLOCKS, ..model::PLAIN };
const VOCAB: usize = RECIPE.vocab_size;

/// Returns different ways to sample: greedy with all logprobs, penalties and bias, a flat distribution with filters,
/// typical sampling, and few candidates.
fn sampling(sequence: usize) -> SamplingParams {
    let plain = SamplingParams { seed: sequence as u64, ..Default::default() };
    match sequence {
        0 => SamplingParams { logprobs: true, num_top_logprobs: 20, logit_bias: vec![(3, 5.0)], ..plain },
        1 => SamplingParams {
            temperature: 0.8,
            repetition_penalty: 1.1,
            frequency_penalty: 0.1,
            logit_bias: (0..300).map(|id| (id, 1.5)).collect(),
            allowed_tokens: Some(TokenMask::of(0..VOCAB as u32 / 2, VOCAB as u32)),
            ..plain
        },
        2 => SamplingParams { temperature: 100.0, top_p: 0.9, min_p: 0.01, top_n_sigma: 4.0, ..plain },
        3 => {
            let watermark = Some(Watermark { gamma: 0.5, delta: 2.0, key: 15_485_863 });
            SamplingParams { temperature: 100.0, typical_p: 0.9, xtc_probability: 1.0, watermark, ..plain }
        }
        _ => SamplingParams { temperature: 1.0, top_k: 40, logprobs: true, presence_penalty: 0.5, ..plain },
    }
}

/// Sequences that are prefilled and decoded, whose chunks are built before any counting.
struct Run {
    executor: Executor,
    results: Vec<SequenceResult>,
}

impl Run {
    fn step(&mut self, chunks: &[Chunk]) {
        self.executor.step_into(chunks, &mut self.results).unwrap();
        assert!(self.results.iter().all(|result| result.outcome.is_ok()), "{:?}", self.results);
    }

    /// Starts all sequences, then counts the allocations of prefill and of decode steps.
    fn count(&mut self, num_prompt_tokens: usize, num_decodes: usize) -> (usize, usize) {
        for sequence in 0..NUM_SEQUENCES {
            let prompt = (0..num_prompt_tokens).map(|i| (i * 7 % VOCAB) as u32).collect();
            self.executor.start(sequence as u64, prompt, num_prompt_tokens, sampling(sequence)).unwrap();
        }
        let chunk = |sequence: usize, first: usize, end: usize| Chunk {
            sequence_id: sequence as u64,
            first_position: first as u32,
            num_tokens: (end - first) as u32,
            new_block_ids: (first.div_ceil(BLOCK_SIZE)..end.div_ceil(BLOCK_SIZE))
                .map(|block| (sequence * BLOCKS_PER_SEQUENCE + block) as u32)
                .collect(),
            sample: end >= num_prompt_tokens,
            score: false,
            draft_token_ids: Vec::new(),
            draft_masks: Vec::new(),
        };
        let share = STEP_TOKENS / NUM_SEQUENCES;
        let plan = |first: usize, end: usize| -> Vec<Chunk> {
            (0..NUM_SEQUENCES).map(|sequence| chunk(sequence, first, end)).collect()
        };
        let prefills: Vec<Vec<Chunk>> = (0..num_prompt_tokens)
            .step_by(share)
            .map(|first| plan(first, (first + share).min(num_prompt_tokens)))
            .collect();
        let decodes: Vec<Vec<Chunk>> =
            (num_prompt_tokens..num_prompt_tokens + num_decodes).map(|at| plan(at, at + 1)).collect();
        let in_prefill = allocations(|| prefills.iter().for_each(|plan| self.step(plan)));
        let in_decode = allocations(|| decodes.iter().for_each(|plan| self.step(plan)));
        for sequence in 0..NUM_SEQUENCES {
            self.executor.end(sequence as u64).unwrap();
        }
        (in_prefill, in_decode)
    }
}

/// The test has no harness, because the harness's own thread allocates at times.
fn main() {
    for threads in [1, 2, 3] {
        let executor = model::build(RECIPE, threads, Isa::detect().unwrap());
        let mut run = Run { executor, results: Vec::new() };
        let warm_up = run.count(40, 4);
        assert!(warm_up.0 > 0, "the counter counts");
        // Longer than the warm-up, because sequences, plans and scratch reserve their memory at the start.
        assert_eq!(run.count(700, 200), (0, 0), "{threads} threads");
    }
}
