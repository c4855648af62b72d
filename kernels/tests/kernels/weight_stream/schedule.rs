//! Properties of schedules, by a simulated pass.

use std::collections::HashSet;
use std::ops::Range;

use trunkline_kernels::weight_stream::schedule::{MIN_PIECE_BYTES, Schedule, WeightUse};

use crate::random::Random;

const SEEDS: u64 = 300;

/// Returns random instructions whose weights lie one behind the other. Now and then one reads an earlier weight again,
/// or by row.
fn uses(random: &mut Random) -> (Vec<WeightUse>, usize) {
    let (mut uses, mut end): (Vec<WeightUse>, _) = (Vec::new(), 0);
    for index in 0..20 + random.below(200) {
        let len = 1 + random.below(3 * MIN_PIECE_BYTES) / (1 + random.below(8));
        let mut bytes = end..end + len;
        if index > 0 && random.below(40) == 0 {
            bytes = uses[random.below(uses.len())].bytes.clone();
        } else {
            end += len;
        }
        uses.push(WeightUse { instruction: 2 * index, bytes, is_by_row: random.below(60) == 0 });
    }
    (uses, end)
}

fn pieces(schedule: &Schedule, bytes: &Range<usize>) -> Range<usize> {
    bytes.start / schedule.piece_bytes..bytes.end.div_ceil(schedule.piece_bytes)
}

/// Runs three passes, reading as far ahead as there is room, and checks what each instruction finds.
fn simulate(schedule: &Schedule, uses: &[WeightUse], seed: u64) {
    let resident: HashSet<usize> = schedule.resident.iter().copied().collect();
    let len = schedule.order.len();
    let (mut free, mut next) = (0, 0);
    for pass in 0..3 {
        for each in uses {
            let need = schedule.needs[each.instruction];
            if let Some(need) = need {
                free = free.max(pass * len + need.first);
                assert!(
                    pass * len + need.end <= free + schedule.num_places,
                    "seed {seed}: no room for a need"
                );
            }
            next = free + schedule.num_places;
            let end = need.map_or(0, |need| pass * len + need.end).min(next);
            let there: HashSet<usize> = (free..end).map(|at| schedule.order[at % len]).collect();
            for piece in pieces(schedule, &each.bytes) {
                let is_there = resident.contains(&piece) || there.contains(&piece);
                assert!(is_there, "seed {seed}: instruction {} lacks piece {piece}", each.instruction);
            }
            if each.is_by_row {
                assert!(pieces(schedule, &each.bytes).all(|piece| resident.contains(&piece)), "seed {seed}");
            }
        }
        free = (pass + 1) * len;
    }
    assert!(next >= 3 * len - schedule.num_places);
}

#[test]
fn every_instruction_finds_its_pieces_and_memory_is_never_exceeded() {
    let mut num_streamed = 0;
    for seed in 0..SEEDS {
        let mut random = Random::new(seed);
        let (uses, image_bytes) = uses(&mut random);
        let memory = random.below(image_bytes + MIN_PIECE_BYTES);
        let num_layers = 1 + random.below(40);
        let schedule = match Schedule::new(image_bytes, &uses, &[], memory, num_layers) {
            Ok(Some(schedule)) => schedule,
            Ok(None) => {
                assert!(memory >= image_bytes, "seed {seed}");
                continue;
            }
            Err(error) => {
                // The memory that the error asks for is enough, and no less is there.
                assert!(error.needed_bytes > memory, "seed {seed}");
                let retry = Schedule::new(image_bytes, &uses, &[], error.needed_bytes, num_layers);
                assert!(retry.is_ok(), "seed {seed}");
                continue;
            }
        };
        num_streamed += 1;
        let in_memory = (schedule.resident.len() + schedule.num_places) * schedule.piece_bytes;
        assert!(in_memory <= memory, "seed {seed}: {in_memory} of {memory}");
        let all: HashSet<usize> = schedule.resident.iter().chain(&schedule.order).copied().collect();
        assert_eq!(all.len(), schedule.resident.len() + schedule.order.len(), "seed {seed}: a piece twice");
        assert!(schedule.order.len() > schedule.num_places, "seed {seed}");
        simulate(&schedule, &uses, seed);
    }
    assert!(num_streamed > SEEDS / 3, "{num_streamed}");
}

#[test]
fn most_of_the_memory_holds_pieces_that_stay_evenly_spread() {
    let piece = MIN_PIECE_BYTES;
    let uses: Vec<WeightUse> = (0..400)
        .map(|index| WeightUse {
            instruction: index,
            bytes: index * piece..(index + 1) * piece,
            is_by_row: false,
        })
        .collect();
    let schedule = Schedule::new(400 * piece, &uses, &[], 100 * piece, 100).unwrap().unwrap();
    assert_eq!(schedule.resident.len() + schedule.num_places, 100);
    assert!(schedule.num_places <= 10, "{}", schedule.num_places);
    let gaps: Vec<usize> = schedule.resident.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(gaps.iter().all(|gap| (3..=6).contains(gap)), "{gaps:?}");
}
