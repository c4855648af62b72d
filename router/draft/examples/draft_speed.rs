//! Prints the time and memory of a drafter: `cargo run --release -p trunkline-draft --example draft_speed`.
#![allow(clippy::print_stdout)]

use std::time::Instant;

use trunkline_draft::Drafter;

fn main() {
    let mut state = 1_u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u32
    };
    for (name, vocabulary) in [("a few tokens", 50), ("words", 3_000), ("no repetition", 1 << 30)] {
        let prompt: Vec<u32> = (0..100_000).map(|_| next() % vocabulary).collect();
        let output: Vec<u32> = (0..20_000).map(|_| next() % vocabulary).collect();
        let begin = Instant::now();
        let mut drafter = Drafter::new(&prompt, &[]);
        let build_ns = begin.elapsed().as_nanos() / prompt.len() as u128;
        let num_bytes = drafter.num_bytes() / prompt.len();
        let mut drafts = Vec::new();
        let mut num_drafts = 0;
        let begin = Instant::now();
        for token_id in &output {
            drafter.extend(&[*token_id], None);
            drafter.propose(16, None, &mut drafts);
            num_drafts += drafts.len();
        }
        let step_ns = begin.elapsed().as_nanos() / output.len() as u128;
        println!(
            "{name}: {build_ns} ns and {num_bytes} bytes a token of prompt, {step_ns} ns a token of output, {num_drafts} drafts"
        );
    }
}
