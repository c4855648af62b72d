//! Frames around ids, compared with the way in which each pair was once encoded on its own.

use proptest::prelude::*;
use trunkline_text::{Framing, PairFraming};

use crate::draw;

/// Returns the ids of one or two texts in a frame, and the position of the second text.
fn joined(
    framing: &Framing,
    mut first: Vec<u32>,
    second: Option<Vec<u32>>,
    max_tokens: Option<usize>,
) -> (Vec<u32>, u32) {
    let Some(mut second) = second else {
        if let Some(most) = max_tokens {
            first.truncate(most.saturating_sub(framing.before.len() + framing.after.len()));
        }
        return ([&framing.before[..], &first, &framing.after].concat(), 0);
    };
    let PairFraming { before, between, num_of_first, after } = &framing.pair;
    if let Some(most) = max_tokens {
        let room = most.saturating_sub(before.len() + between.len() + after.len());
        let least = (room / 2).min(second.len());
        first.truncate(room - least);
        second.truncate(room - first.len());
    }
    let second_text = num_of_first.map_or(0, |count| before.len() + first.len() + count);
    ([&before[..], &first, between, &second, after].concat(), second_text as u32)
}

fn ids() -> impl Strategy<Value = Vec<u32>> {
    prop::collection::vec(0u32..9, 0..4)
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: draw::count("TRUNKLINE_CASES", 500, 20_000) as u32,
        rng_seed: proptest::test_runner::RngSeed::Fixed(draw::first_seed()),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn borrowed_ids_have_the_same_frame_as_copied_ones(
        (before, after) in (ids(), ids()),
        pair in (ids(), ids(), prop::option::of(0usize..3), ids()),
        first in prop::collection::vec(10u32..19, 0..8),
        second in prop::option::of(prop::collection::vec(20u32..29, 0..8)),
        max_tokens in prop::option::of(0usize..30),
    ) {
        let (begin, between, num_of_first, end) = pair;
        let pair = PairFraming { before: begin, between, num_of_first, after: end };
        let framing = Framing { before, after, pair };
        let framed = framing.frame(&first, second.as_deref(), max_tokens);
        let (token_ids, second_text) = joined(&framing, first.clone(), second.clone(), max_tokens);
        prop_assert_eq!((framed.num_tokens(), framed.second_text), (token_ids.len(), second_text));
        prop_assert_eq!(framed.token_ids(), token_ids);
    }
}
