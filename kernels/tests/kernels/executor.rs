//! Runs tiny random models through the executor. Results have the same bits however steps are divided.

mod adapters;
mod attention_plan;
mod block_transfers;
mod constrain;
mod drafts;
mod experts;
pub mod model;
mod score;
mod sequence;
mod shares;
mod window_parts;

use self::model::{ALL, BLOCK_SIZE, EXPERTS, GEMMA, INT4, NUM_BLOCKS, PLAIN, Recipe, VOCAB, build};
use trunkline_kernels::executor::{Chunk, Executor, LateMasks, SequenceFailure, SequenceResult};
use trunkline_kernels::isa::Isa;
use trunkline_kernels::kv_pool::KvDtype;
use trunkline_kernels::sampling::{SampledToken, SamplingParams, TokenScore};

use crate::random::{Random, bits};
use crate::{best, runs_all};

fn prompt(seed: u64, num_tokens: usize) -> Vec<u32> {
    let mut random = Random::new(seed);
    (0..num_tokens).map(|_| random.below(VOCAB) as u32).collect()
}

/// Returns greedy parameters with all logprobs that a result can report.
fn observant() -> SamplingParams {
    SamplingParams { logprobs: true, num_top_logprobs: 20, ..Default::default() }
}

/// Blocks of one sequence, in a given order.
struct Blocks {
    ids: Vec<u32>,
    next: usize,
}

impl Blocks {
    fn take_for(&mut self, num_positions: usize) -> Vec<u32> {
        let end = num_positions.div_ceil(BLOCK_SIZE).max(self.next);
        let taken = self.ids[self.next..end].to_vec();
        self.next = end;
        taken
    }
}

/// Prefills `tokens` in chunks that end at `cuts`, then decodes `num_decodes` tokens, as the only sequence.
fn alone(
    executor: &mut Executor,
    tokens: &[u32],
    cuts: &[usize],
    num_decodes: usize,
    blocks: &[u32],
) -> Vec<SampledToken> {
    executor.start(1, tokens.to_vec(), tokens.len(), observant()).unwrap();
    let mut blocks = Blocks { ids: blocks.to_vec(), next: 0 };
    let mut first = 0;
    let mut sampled = vec![];
    for end in cuts.iter().copied().chain(tokens.len()..tokens.len() + num_decodes) {
        let chunk = chunk(1, first, end, &blocks.take_for(end), end >= tokens.len());
        sampled.extend(executor.step(&[chunk]).into_iter().map(|result| result.outcome.unwrap()));
        first = end;
    }
    executor.end(1).unwrap();
    assert_eq!(sampled.len(), num_decodes);
    sampled
}

/// Returns a chunk of the positions from `first` to `end` that reports no scores.
fn chunk(sequence_id: u64, first: usize, end: usize, new_block_ids: &[u32], sample: bool) -> Chunk {
    Chunk {
        sequence_id,
        first_position: first as u32,
        num_tokens: (end - first) as u32,
        new_block_ids: new_block_ids.to_vec(),
        sample,
        score: false,
        draft_token_ids: Vec::new(),
        draft_masks: Vec::new(),
    }
}

fn ascending(from: u32) -> Vec<u32> {
    (from..NUM_BLOCKS as u32).collect()
}

#[test]
fn scores_have_the_same_bits_on_all_instruction_sets_and_threads() {
    for (recipe, first_threads) in ALL.into_iter().zip([1, 2, 3].into_iter().cycle()) {
        let tokens = prompt(3, 70);
        let expected = build(recipe, 1, best()).score(&tokens).unwrap();
        assert!(expected.iter().all(|x| x.is_finite()));
        let spread = expected.iter().fold(0.0f32, |a, x| a.max(x.abs()));
        assert!(spread > 0.1, "the model says nothing: {spread}");
        for (isa, at) in Isa::available().into_iter().zip(first_threads..) {
            // Without vector instructions, measuring the key scaling of int4 takes half a second.
            if isa == Isa::SCALAR && recipe.dtype == KvDtype::Int4 && recipe.seed != INT4.seed && !runs_all()
            {
                continue;
            }
            // Each recipe and each set runs with a different number of threads, or with all numbers.
            let threads = if runs_all() { vec![1, 2, 3] } else { vec![1 + at % 3] };
            for threads in threads {
                let got = build(recipe, threads, isa).score(&tokens).unwrap();
                assert!(bits(&got) == bits(&expected), "{isa} on {threads} threads");
            }
        }
    }
}

#[test]
fn chunked_prefill_gives_the_same_tokens_and_logprobs_at_every_boundary() {
    let tokens = prompt(5, 37);
    for recipe in ALL {
        let mut executor = build(recipe, 2, best());
        let expected = alone(&mut executor, &tokens, &[], 4, &ascending(0));
        for cut in 1..tokens.len() {
            // The pool holds stale K and V of other runs, and NaN.
            executor.kv_pool_mut().fill(half::f16::NAN.to_bits());
            let got = alone(&mut executor, &tokens, &[cut], 4, &ascending((cut % 7) as u32));
            assert_eq!(got, expected, "cut at {cut}");
        }
        let got = alone(&mut executor, &tokens, &(1..37).collect::<Vec<_>>(), 4, &ascending(3));
        assert_eq!(got, expected, "token by token");
    }
}

#[test]
fn long_sequences_do_not_depend_on_threads_or_block_ids() {
    // More than two segments, so that attention is split between threads. The window spans more than one as well.
    let tokens = prompt(6, 1100);
    for recipe in [PLAIN, Recipe { windows: [Some(37), Some(600)], ..GEMMA }] {
        let mut expected = None;
        for threads in [1, 2, 5] {
            let mut executor = build(recipe, threads, best());
            let mut blocks = ascending(0);
            let mut random = Random::new(threads as u64);
            for i in (1..blocks.len()).rev() {
                blocks.swap(i, random.below(i + 1));
            }
            let got = alone(&mut executor, &tokens, &[250 + 7 * threads, 700], 3, &blocks);
            assert_eq!(&got, expected.get_or_insert(got.clone()), "{threads} threads");
        }
    }
}

#[test]
fn a_sequence_does_not_depend_on_other_sequences_in_the_batch() {
    for recipe in [PLAIN, GEMMA, EXPERTS] {
        check_neighbours(build(recipe, 2, best()));
    }
}

fn check_neighbours(mut executor: Executor) {
    let prompts: Vec<Vec<u32>> = (0..8).map(|i| prompt(100 + i, 5 + 9 * i as usize)).collect();
    let num_output = 6;
    let expected: Vec<Vec<SampledToken>> =
        prompts.iter().map(|tokens| alone(&mut executor, tokens, &[], num_output, &ascending(0))).collect();
    let mut random = Random::new(9);
    let mut blocks: Vec<Blocks> =
        (0..8).map(|i| Blocks { ids: (i * 8..i * 8 + 8).collect(), next: 0 }).collect();
    let mut computed = [0usize; 8];
    let mut sampled: Vec<Vec<SampledToken>> = vec![vec![]; 8];
    for (id, tokens) in prompts.iter().enumerate() {
        executor.start(id as u64, tokens.clone(), tokens.len(), observant()).unwrap();
    }
    while sampled.iter().any(|s| s.len() < num_output) {
        let mut chunks = vec![];
        for id in 0..8 {
            if sampled[id].len() == num_output || random.below(3) == 0 {
                continue;
            }
            let known = prompts[id].len() + sampled[id].len();
            let end = computed[id] + 1 + random.below(known - computed[id]);
            chunks.push(chunk(id as u64, computed[id], end, &blocks[id].take_for(end), end == known));
            computed[id] = end;
        }
        for result in executor.step(&chunks) {
            sampled[result.sequence_id as usize].push(result.outcome.unwrap());
        }
    }
    assert_eq!(sampled, expected);
}

#[test]
fn a_prefix_hit_by_shared_and_copied_blocks_changes_nothing() {
    for recipe in [PLAIN, GEMMA] {
        check_prefix_hits(build(recipe, 2, best()));
    }
}

fn check_prefix_hits(mut executor: Executor) {
    let tokens = prompt(11, 60);
    let expected = alone(&mut executor, &tokens, &[], 3, &ascending(0));
    for num_cached in [1, 15, 16, 17, 40, 59] {
        executor.kv_pool_mut().fill(half::f16::INFINITY.to_bits());
        alone(&mut executor, &tokens, &[], 1, &ascending(0));
        // Whole blocks are shared, and the partly used one is copied.
        let (shared, partial) = (num_cached / BLOCK_SIZE, num_cached % BLOCK_SIZE);
        let mut table: Vec<u32> = (0..shared as u32).collect();
        table.extend(20..40);
        if partial > 0 {
            executor.copy_block(shared as u32, 20, partial).unwrap();
        }
        executor.start(2, tokens.clone(), tokens.len(), observant()).unwrap();
        let mut got = executor.step(&[chunk(2, num_cached, 60, &table, true)]);
        got.extend(executor.step(&[chunk(2, 60, 61, &[], true)]));
        got.extend(executor.step(&[chunk(2, 61, 62, &[], true)]));
        let got: Vec<SampledToken> = got.into_iter().map(|result| result.outcome.unwrap()).collect();
        assert_eq!(got, expected, "{num_cached} tokens cached");
        executor.end(2).unwrap();
    }
}

#[test]
fn windows_soft_caps_and_other_gemma_features_change_results() {
    let tokens = prompt(12, 60);
    let score = |recipe| build(recipe, 1, best()).score(&tokens).unwrap();
    let (wide, narrow) = (Recipe { windows: [Some(60), None], ..GEMMA }, GEMMA);
    let (wide, narrow) = (score(wide), score(narrow));
    // Up to the size of the window nothing is hidden.
    let end = 21 * VOCAB;
    assert_eq!(bits(&wide[..end]), bits(&narrow[..end]));
    assert!(wide[end..].chunks(VOCAB).zip(narrow[end..].chunks(VOCAB)).all(|(a, b)| bits(a) != bits(b)));
    assert!(wide.iter().all(|logit| logit.abs() <= 2.0));
}

#[test]
fn an_invalid_chunk_fails_without_affecting_others() {
    let mut executor = build(PLAIN, 2, best());
    let tokens = prompt(12, 20);
    let expected = alone(&mut executor, &tokens, &[], 1, &ascending(0));
    for id in 1..=5 {
        executor.start(id, tokens.clone(), 20, observant()).unwrap();
    }
    let chunk = |id, num_tokens, new_block_ids: &[u32]| chunk(id, 0, num_tokens, new_block_ids, true);
    let results = executor.step(&[
        chunk(77, 20, &[0, 1]),
        chunk(1, 20, &[0, 1]),
        chunk(2, 20, &[2]),
        chunk(3, 20, &[1, 2]),
        chunk(4, 21, &[3, 4]),
        chunk(5, 20, &[5, 6]),
        chunk(5, 20, &[7, 8]),
    ]);
    let messages: Vec<(u64, &str)> = results
        .iter()
        .filter_map(|result| {
            let failure = result.outcome.as_ref().err()?;
            assert_eq!(failure.code(), "invalid_plan");
            Some((result.sequence_id, failure.message()))
        })
        .collect();
    assert_eq!(
        messages,
        [
            (77, "sequence 77 is not started"),
            (2, "1 blocks of 16 do not hold 20 positions"),
            (3, "block 1 is written by another chunk of the step"),
            (4, "positions 0 to 20 are requested, but only 20 tokens are known"),
            (5, "sequence 5 has two chunks in one step"),
        ]
    );
    for (result, id) in [(&results[1], 1), (&results[5], 5)] {
        assert_eq!(result.sequence_id, id);
        assert_eq!(result.outcome.as_ref().unwrap(), &expected[0]);
    }
}

#[test]
fn step_limits_are_enforced() {
    let mut executor = build(PLAIN, 1, best());
    for id in 0..13 {
        executor.start(id, vec![1; 660], 660, SamplingParams::default()).unwrap();
    }
    let chunk = |id: u64, num_tokens: usize, first_block: u32| {
        let blocks: Vec<u32> = (first_block..).take(num_tokens.div_ceil(BLOCK_SIZE)).collect();
        chunk(id, 0, num_tokens, &blocks, false)
    };
    let results = executor.step(&[chunk(0, 641, 0), chunk(1, 640, 0), chunk(2, 1, 60)]);
    let failed: Vec<u64> = results.iter().map(|result| result.sequence_id).collect();
    assert_eq!(failed, [0, 2]);
    executor.reset();
    for id in 0..13 {
        executor.start(id, vec![1; 660], 660, SamplingParams::default()).unwrap();
    }
    let results = executor.step(&(0..13).map(|id| chunk(id, 1, id as u32)).collect::<Vec<_>>());
    assert_eq!(results.len(), 1);
    assert_eq!(results[0].sequence_id, 12);
}

#[test]
fn nan_fails_its_own_sequence_only() {
    let mut executor = build(PLAIN, 2, best());
    let tokens = prompt(13, 20);
    let expected = alone(&mut executor, &tokens, &[], 1, &ascending(0));
    executor.kv_pool_mut().fill(half::f16::NAN.to_bits());
    for id in [1, 2] {
        executor.start(id, tokens.clone(), 20, observant()).unwrap();
    }
    // Sequence 1 claims a prefix hit in blocks that hold NaN.
    let results = executor.step(&[chunk(1, 5, 20, &[0, 1], true), chunk(2, 0, 20, &[2, 3], true)]);
    assert_eq!(results[0].outcome.as_ref().unwrap_err().code(), "not_finite");
    assert_eq!(results[1].outcome.as_ref().unwrap(), &expected[0]);
    // The router's run-ahead has already planned the next token of the failed sequence.
    let next = chunk(1, 20, 21, &[], true);
    assert_eq!(executor.step(&[next])[0].outcome.as_ref().unwrap_err().code(), "invalid_plan");
}

#[test]
fn sampling_depends_only_on_the_seed_and_not_on_other_sequences() {
    let params = SamplingParams { temperature: 1.0, seed: 7, top_p: 0.9, ..Default::default() };
    let tokens = prompt(14, 20);
    let run = |choices: &[u32]| -> Vec<Vec<u32>> {
        let mut executor = build(PLAIN, 2, best());
        let mut out = vec![vec![]; choices.len()];
        for (id, choice) in choices.iter().enumerate() {
            executor
                .start(id as u64, tokens.clone(), 20, SamplingParams { choice: *choice, ..params.clone() })
                .unwrap();
        }
        for step in 0..8 {
            let first = if step == 0 { 0 } else { 19 + step };
            let blocks = |id: u32| if step == 0 { vec![2 * id, 2 * id + 1] } else { vec![] };
            let chunks: Vec<Chunk> = (0..choices.len() as u32)
                .map(|id| chunk(id.into(), first, 20 + step, &blocks(id), true))
                .collect();
            for result in executor.step(&chunks) {
                out[result.sequence_id as usize].push(result.outcome.unwrap().token_id);
            }
        }
        out
    };
    let together = run(&[0, 1, 2]);
    assert_eq!(together, run(&[0, 1, 2]));
    assert_eq!(together[1..2], run(&[1]));
    assert!(together[0] != together[1] && together[1] != together[2]);
}

#[test]
fn invalid_calls_are_errors_and_change_nothing() {
    let mut executor = build(PLAIN, 1, best());
    executor.start(1, vec![1], 1, SamplingParams::default()).unwrap();
    let again = executor.start(1, vec![1], 1, SamplingParams::default()).unwrap_err();
    assert_eq!(again.to_string(), "sequence 1 is started already");
    assert_eq!(executor.end(2).unwrap_err().to_string(), "sequence 2 is not started");
    assert!(executor.score(&[1]).unwrap_err().to_string().contains("a sequence is started"));
    let bad = SamplingParams { min_p: 2.0, ..Default::default() };
    assert_eq!(
        executor.start(3, vec![1], 1, bad).unwrap_err().to_string(),
        "sequence 3: `min_p` is 2, expected 0 to 1"
    );
    executor.reset();
    assert!(executor.score(&vec![1; NUM_BLOCKS * BLOCK_SIZE + 1]).is_err());
    assert!(executor.score(&[VOCAB as u32]).unwrap_err().to_string().contains("not below 300"));
    assert!(executor.step(&[]).is_empty());
}
