use std::collections::HashMap;

use trunkline_kernels::attention::{Window, num_segments, state_size};
use trunkline_kernels::executor::attention_plan::{AttentionPlan, PlanChunk, PlanItem, PlanLimits};
use trunkline_kernels::kv_pool::{KvDtype, KvGeometry};

use crate::GEOMETRY;
use crate::random::Random;

/// A whole chunk: (index, first position, number of tokens).
fn piece(&(chunk, first_position, num_rows): &(usize, usize, usize)) -> PlanChunk {
    PlanChunk { chunk, first_position, num_rows, last_position: first_position + num_rows - 1 }
}

fn num_segments_of(item: &PlanItem) -> usize {
    item.end_segment - item.first_segment
}

#[test]
fn every_row_head_and_segment_is_computed_once_and_states_do_not_overlap() {
    for seed in 0..200 {
        let mut random = Random::new(seed);
        let geometry = KvGeometry {
            num_kv_heads: 1 + random.below(4),
            block_size: [16, 32, 128][random.below(3)],
            dtype: KvDtype::Int8,
            ..GEOMETRY
        };
        let limits = PlanLimits {
            geometry,
            heads_per_kv_head: 1 + random.below(5),
            num_threads: 1 + random.below(8),
            state_capacity: random.below(100_000),
        };
        let chunks: Vec<(usize, usize, usize)> =
            (0..random.below(4)).map(|i| (i, random.below(3000), 1 + random.below(100))).collect();
        let window = Window::new(1 + random.below(2000)).filter(|_| seed % 2 == 0).unwrap_or(Window::NONE);
        let window = if seed % 3 == 0 { window.symmetric() } else { window };
        let mut plan = AttentionPlan::for_steps(window, &limits, 400, 4);
        let capacity = plan.items.capacity();
        plan.rebuild(chunks.iter().map(piece), &limits);
        assert_eq!(plan.items.capacity(), capacity, "seed {seed}: the plan was made for such steps");
        let mut seen = HashMap::new();
        for item in &plan.items {
            assert!(item.num_rows <= window.rows_together(item.first_position, geometry.block_size));
            for row in item.first_row..item.first_row + item.num_rows {
                for segment in item.first_segment..item.end_segment {
                    *seen.entry((row, item.kv_head, segment)).or_insert(0) += 1;
                }
            }
        }
        let mut row = 0;
        for (_, first, count) in chunks {
            for position in first..first + count {
                for kv_head in 0..geometry.num_kv_heads {
                    let last_segment = num_segments(window.last_visible(position, first + count - 1));
                    for segment in window.first_segment(position)..last_segment {
                        assert_eq!(seen.remove(&(row, kv_head, segment)), Some(1), "seed {seed}");
                    }
                }
                row += 1;
            }
        }
        assert!(seen.is_empty(), "seed {seed}");
        let mut end = 0;
        for (index, split) in plan.splits.iter().enumerate() {
            assert_eq!(split.first_state, end, "seed {seed}");
            let rows = split.item.num_rows * limits.heads_per_kv_head;
            end += rows * num_segments_of(&split.item) * state_size(32);
            let num_parts = plan.items.iter().filter(|item| item.split == Some(index)).count();
            for part in 0..num_parts {
                assert_eq!(split.finish_part(), part + 1 == num_parts);
            }
        }
        assert!(end <= limits.state_capacity, "seed {seed}");
    }
}

#[test]
fn a_short_context_of_latents_is_divided_by_heads_and_a_long_one_by_segments() {
    let geometry = KvGeometry { head_size: 48, block_size: 32, latent_size: Some(32), ..GEOMETRY };
    let mut limits = PlanLimits { geometry, heads_per_kv_head: 16, num_threads: 3, state_capacity: 0 };
    limits.state_capacity = limits.wanted_state_capacity(1000);
    let mut plan = AttentionPlan::for_steps(Window::NONE, &limits, 8, 8);
    let capacity = plan.items.capacity();
    let mut heads_of = |chunks: &[(usize, usize, usize)], num_threads: usize| {
        plan.rebuild(chunks.iter().map(piece), &PlanLimits { num_threads, ..limits });
        assert!(num_threads > 3 || plan.items.capacity() == capacity);
        let mut parts: Vec<(usize, usize)> =
            plan.items.iter().map(|item| (item.kv_head, item.num_heads)).collect();
        parts.sort_unstable();
        parts.dedup();
        assert_eq!(parts.iter().map(|(_, heads)| heads).sum::<usize>(), 16);
        parts.len()
    };
    assert_eq!(heads_of(&[(0, 300, 1)], 1), 1);
    assert_eq!(heads_of(&[(0, 300, 1)], 3), 4);
    assert_eq!(heads_of(&[(0, 300, 1)], 64), 4, "parts have at least four heads");
    assert_eq!(heads_of(&[(0, 300, 1), (1, 90, 1)], 3), 2);
    assert_eq!(heads_of(&[(0, 2000, 1)], 3), 1);
    assert_eq!(heads_of(&[(0, 300, 1), (1, 90, 1), (2, 7, 1)], 3), 1);
}

#[test]
fn one_long_sequence_is_split_among_all_threads() {
    let geometry = KvGeometry { head_size: 64, block_size: 32, dtype: KvDtype::Int8, ..GEOMETRY };
    let mut limits = PlanLimits { geometry, heads_per_kv_head: 4, num_threads: 4, state_capacity: 0 };
    limits.state_capacity = limits.wanted_state_capacity(1000);
    let mut plan = AttentionPlan::for_steps(Window::NONE, &limits, 1, 1);
    plan.rebuild([(0, 31_000, 1)].iter().map(piece), &limits);
    assert_eq!(plan.items.len(), 12);
    let sizes: Vec<usize> = plan.items.iter().map(num_segments_of).collect();
    assert!(sizes.iter().max().unwrap() - sizes.iter().min().unwrap() <= 1, "{sizes:?}");
}
