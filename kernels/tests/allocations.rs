//! Checks that steps do not allocate once they are warmed up, with a counting allocator for the whole process.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use trunkline_kernels::executor::{Chunk, Executor, SequenceResult};
use trunkline_kernels::kv_pool::{KvDtype, KvGeometry};
use trunkline_kernels::pack::Format;
use trunkline_kernels::program::{ProgramBuilder, ProgramConfig, ValueId, WeightId};
use trunkline_kernels::sampling::{SamplingParams, Watermark};
use trunkline_kernels::threads::Pinning;

struct Counting;

static IS_COUNTING: AtomicBool = AtomicBool::new(false);
static NUM_ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

fn count() {
    if IS_COUNTING.load(Ordering::Relaxed) {
        NUM_ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
    }
}

// SAFETY: all calls are passed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the conditions are the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the conditions are the same.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        count();
        // SAFETY: the conditions are the same.
        unsafe { System.realloc(pointer, layout, new_size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Returns the number of allocations of the whole process while `work` runs.
fn allocations(work: impl FnOnce()) -> usize {
    NUM_ALLOCATIONS.store(0, Ordering::SeqCst);
    IS_COUNTING.store(true, Ordering::SeqCst);
    work();
    IS_COUNTING.store(false, Ordering::SeqCst);
    NUM_ALLOCATIONS.load(Ordering::SeqCst)
}

const VOCAB: usize = 3000;
const HIDDEN: usize = 64;
const HEAD_SIZE: usize = 16;
const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const FFN: usize = 128;
const BLOCK_SIZE: usize = 16;
const NUM_BLOCKS: usize = 256;
const NUM_SEQUENCES: usize = 4;
const BLOCKS_PER_SEQUENCE: usize = NUM_BLOCKS / NUM_SEQUENCES;
const MAX_STEP_TOKENS: usize = 128;

struct Model {
    builder: ProgramBuilder,
    state: u64,
}

impl Model {
    fn byte(&mut self) -> u8 {
        // Xorshift64 (Marsaglia 2003).
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        (self.state >> 24) as u8
    }

    fn matrix(&mut self, format: Format, shape: [usize; 2]) -> WeightId {
        let num_bytes = shape[0] * format.row_bytes(shape[1]).unwrap();
        let mut bytes: Vec<u8> = (0..num_bytes).map(|_| self.byte()).collect();
        for block in bytes.chunks_exact_mut(format.block_bytes()) {
            block[..2].copy_from_slice(&half::f16::from_f32(0.01).to_le_bytes());
            if format == Format::Q4_1 {
                block[2..4].copy_from_slice(&half::f16::from_f32(-0.075).to_le_bytes());
            }
        }
        self.builder.weight(format, bytes, &shape).unwrap()
    }

    fn norm(&mut self, x: ValueId) -> ValueId {
        let ones = (0..HIDDEN).flat_map(|_| 1f32.to_le_bytes()).collect();
        let weight = self.builder.weight(Format::F32, ones, &[HIDDEN]).unwrap();
        self.builder.rms_norm(x, weight, 1e-5).unwrap()
    }

    fn linear(&mut self, x: ValueId, out_features: usize, in_features: usize) -> ValueId {
        let weight = self.matrix(Format::Q4_1, [out_features, in_features]);
        self.builder.linear(x, weight, None).unwrap()
    }
}

fn build(threads: usize) -> Executor {
    let geometry = KvGeometry {
        num_layers: 2,
        num_kv_heads: KV_HEADS,
        head_size: HEAD_SIZE,
        block_size: BLOCK_SIZE,
        dtype: KvDtype::Int8,
    };
    let config = ProgramConfig {
        max_step_tokens: MAX_STEP_TOKENS,
        max_step_sequences: NUM_SEQUENCES,
        num_blocks: NUM_BLOCKS,
        geometry,
    };
    let mut model = Model { builder: ProgramBuilder::new(config).unwrap(), state: 88172645463325252 };
    let inv_freq: Vec<f64> = (0..HEAD_SIZE / 2).map(|i| 1000f64.powf(-(i as f64) / 8.0)).collect();
    let embedding = model.matrix(Format::Q8_0, [VOCAB, HIDDEN]);
    let mut x = model.builder.embedding(embedding).unwrap();
    for layer in 0..2 {
        let h = model.norm(x);
        let q = model.linear(h, HEADS * HEAD_SIZE, HIDDEN);
        let k = model.linear(h, KV_HEADS * HEAD_SIZE, HIDDEN);
        let v = model.linear(h, KV_HEADS * HEAD_SIZE, HIDDEN);
        let q = model.builder.rope(q, &inv_freq, 1.0, HEAD_SIZE).unwrap();
        let k = model.builder.rope(k, &inv_freq, 1.0, HEAD_SIZE).unwrap();
        model.builder.write_kv(layer, k, v).unwrap();
        // Windowed layers have separate plans.
        let window = [None, Some(300)][layer % 2];
        let a = model.builder.paged_attention(layer, q, 0.25, window, Some(50.0)).unwrap();
        let a = model.linear(a, HIDDEN, HEADS * HEAD_SIZE);
        x = model.builder.add(x, a).unwrap();
        let h = model.norm(x);
        let (gate, up) = (model.linear(h, FFN, HIDDEN), model.linear(h, FFN, HIDDEN));
        let h = model.builder.silu_mul(gate, up).unwrap();
        let h = model.linear(h, HIDDEN, FFN);
        x = model.builder.add(x, h).unwrap();
    }
    let x = model.norm(x);
    model.builder.logits(x, embedding, None).unwrap();
    model.builder.build(threads, Pinning::Off).unwrap()
}

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
            allowed_token_ids: (0..VOCAB as u32 / 2).collect(),
            ..plain
        },
        2 => SamplingParams { temperature: 100.0, top_p: 0.9, min_p: 0.01, ..plain },
        3 => {
            let watermark = Some(Watermark { gamma: 0.5, delta: 2.0, key: 15_485_863 });
            SamplingParams { temperature: 100.0, typical_p: 0.9, watermark, ..plain }
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
        self.executor.step_into(chunks, &mut self.results);
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
        };
        let share = MAX_STEP_TOKENS / NUM_SEQUENCES;
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
        let mut run = Run { executor: build(threads), results: Vec::new() };
        let warm_up = run.count(40, 4);
        assert!(warm_up.0 > 0, "the counter counts");
        // Longer than the warm-up, because sequences, plans and scratch reserve their memory at the start.
        assert_eq!(run.count(700, 200), (0, 0), "{threads} threads");
    }
}
