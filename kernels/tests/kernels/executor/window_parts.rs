//! Compares a model whose window parts are dropped after use with the same model with whole blocks.

use super::model::{GEMMA_F16, GEMMA_INT4};
use super::*;

/// A model in which both layers have windows.
const MISTRAL: Recipe = Recipe { windows: [Some(37), Some(60)], ..GEMMA };
const LARGEST_WINDOW: usize = 60;
/// The most blocks that the largest window and a chunk of one block span.
const NUM_PARTS: usize = 6;

fn parted(recipe: Recipe) -> Recipe {
    Recipe { num_window_parts: Some(NUM_PARTS), ..recipe }
}

/// Like [`alone`], with chunks of up to one block. Drops the parts that are not visible any more before each chunk.
fn alone_with_parts(
    executor: &mut Executor,
    tokens: &[u32],
    window: usize,
    num_decodes: usize,
) -> Vec<SampledToken> {
    let num_blocks = (tokens.len() + num_decodes).div_ceil(BLOCK_SIZE);
    executor.start(1, tokens.to_vec(), tokens.len(), observant()).unwrap();
    let mut blocks = Blocks { ids: (0..num_blocks as u32).collect(), next: 0 };
    let (mut first, mut num_dropped, mut sampled) = (0, 0, vec![]);
    while sampled.len() < num_decodes {
        let end = (first + BLOCK_SIZE).min(tokens.len() + sampled.len());
        while (num_dropped + 1) * BLOCK_SIZE <= (first + 1).saturating_sub(window) {
            executor.drop_window_parts(&[num_dropped as u32]).unwrap();
            num_dropped += 1;
        }
        let chunk = chunk(1, first, end, &blocks.take_for(end), end >= tokens.len());
        sampled.extend(executor.step(&[chunk]).into_iter().map(|result| result.outcome.unwrap()));
        first = end;
    }
    executor.end(1).unwrap();
    sampled
}

#[test]
fn twenty_thousand_tokens_need_only_the_parts_of_one_window() {
    const NUM_DECODES: usize = 20_000;
    let num_blocks = (NUM_DECODES + 300).div_ceil(BLOCK_SIZE);
    let recipe = Recipe { num_blocks, ..MISTRAL };
    let tokens = prompt(21, 250);
    let blocks: Vec<u32> = (0..num_blocks as u32).collect();
    let expected = alone(&mut build(recipe, 1, best()), &tokens, &[100], NUM_DECODES, &blocks);
    let mut executor = build(parted(recipe), 1, best());
    executor.kv_pool_mut().fill(half::f16::NAN.to_bits());
    // Without other layers a block consists only of its window part.
    assert_eq!(executor.bytes_per_block(), 0);
    assert_eq!(executor.bytes_per_window_part(), executor.kv_pool_mut().geometry().bytes_per_block());
    assert_eq!(executor.num_free_window_parts(), NUM_PARTS);
    let got = alone_with_parts(&mut executor, &tokens, LARGEST_WINDOW, NUM_DECODES);
    assert!(got == expected, "first difference at {:?}", got.iter().zip(&expected).position(|(a, b)| a != b));
}

#[test]
fn dropping_window_parts_does_not_change_results_in_any_dtype() {
    for recipe in [GEMMA, GEMMA_F16, GEMMA_INT4] {
        let tokens = prompt(22, 150);
        let expected = alone(&mut build(recipe, 2, best()), &tokens, &[70], 30, &ascending(0));
        let mut executor = build(parted(recipe), 2, best());
        executor.kv_pool_mut().fill(half::f16::NAN.to_bits());
        let whole = executor.kv_pool_mut().geometry().bytes_per_block();
        assert_eq!(executor.bytes_per_block() + executor.bytes_per_window_part(), whole);
        assert_eq!(alone_with_parts(&mut executor, &tokens, 21, 30), expected);
        assert_eq!(executor.score(&tokens).unwrap(), build(recipe, 1, best()).score(&tokens).unwrap());
    }
}

#[test]
fn a_prefix_hit_needs_only_the_window_before_it_in_windowed_layers() {
    let tokens = prompt(23, 100);
    let expected = alone(&mut build(GEMMA, 1, best()), &tokens, &[], 2, &ascending(0));
    let mut executor = build(parted(GEMMA), 1, best());
    // Keep only the window parts of the last blocks, which a window at position 100 spans.
    alone_with_parts(&mut executor, &tokens, 21, 2);
    assert!(!executor.kv_pool_mut().has_window_part(4) && executor.kv_pool_mut().has_window_part(5));
    let hit = |executor: &mut Executor, first: usize, table: &[u32]| {
        executor.start(2, tokens.clone(), tokens.len(), observant()).unwrap();
        let outcome = executor.step(&[chunk(2, first, tokens.len(), table, true)]).remove(0).outcome;
        executor.end(2).unwrap();
        outcome
    };
    // The query at 98 sees positions from 78 on, which is in block 4.
    executor.copy_block(6, 40, 2).unwrap();
    let refused = hit(&mut executor, 98, &[0, 1, 2, 3, 4, 5, 40]).unwrap_err();
    assert_eq!(refused.message(), "block 4 has no window part, but position 98 needs it");
    let mut executor = build(parted(GEMMA), 1, best());
    alone_with_parts(&mut executor, &tokens, 40, 1);
    executor.copy_block(6, 40, 2).unwrap();
    assert_eq!(hit(&mut executor, 98, &[0, 1, 2, 3, 4, 5, 40]).unwrap(), expected[0]);
}

#[test]
fn a_chunk_without_free_window_parts_fails_without_affecting_others() {
    let mut executor = build(parted(GEMMA), 1, best());
    for id in [1, 2] {
        executor.start(id, prompt(id, 90), 90, observant()).unwrap();
    }
    assert!(executor.step(&[chunk(1, 0, 80, &[0, 1, 2, 3, 4], false)]).is_empty());
    let failed = executor.step(&[chunk(1, 80, 90, &[5], false), chunk(2, 0, 20, &[6, 7], false)]);
    assert_eq!(failed.len(), 1);
    assert_eq!(failed[0].sequence_id, 2);
    let message = failed[0].outcome.as_ref().unwrap_err().message().to_owned();
    assert_eq!(message, "block 6 needs a window part, but all 6 are in use");
    executor.drop_window_parts(&[0, 1, 2, 3]).unwrap();
    assert_eq!(executor.num_free_window_parts(), 4);
    assert!(executor.drop_window_parts(&[NUM_BLOCKS as u32]).is_err());
}
