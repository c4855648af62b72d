//! A statistical watermark in the choice of tokens.
//!
//! Implements the soft watermark with one token of context of Kirchenbauer, Geiping, Wen, Katz, Miers, Goldstein, "A
//! Watermark for Large Language Models", ICML 2023, arXiv:2301.10226. Philox determines which tokens are green after
//! another one. Each of its four output words decides one token, which makes a row four times as fast.

use trunkline_contract::Watermark;

use super::philox::philox_4x32_10_wide;
use trunkline_kernels_core::vector::{Lanes, simd_entry};

/// The third word of the counter. It is 0 when tokens are drawn, so the random numbers differ even if the watermark's
/// key equals the seed of a request.
const DOMAIN: u32 = 1;
/// Number of tokens that one counter decides.
const TOKENS_PER_COUNTER: usize = 4;
/// Number of counters computed at once.
const WIDTH: usize = 16;
const BLOCK: usize = WIDTH * TOKENS_PER_COUNTER;

fn key_words(watermark: &Watermark) -> [u32; 2] {
    [watermark.key as u32, (watermark.key >> 32) as u32]
}

/// The generator's words below this limit belong to green tokens. The limit is exact, because all bits of an f32 from
/// 2^-8 on are multiples of 2^-32.
fn green_limit(watermark: &Watermark) -> u32 {
    (f64::from(watermark.gamma) * (1u64 << 32) as f64) as u32
}

/// Adds `delta` to the logits of the green tokens in a block. The first token id of the block, `first`, is a multiple
/// of four.
#[inline(always)]
fn lift(logits: &mut [f32; BLOCK], first: usize, previous: u32, watermark: &Watermark) {
    let counters = std::array::from_fn(|i| (first / TOKENS_PER_COUNTER + i) as u64);
    let counter = [[u64::from(previous); WIDTH], counters, [u64::from(DOMAIN); WIDTH], [0; WIDTH]];
    let words = philox_4x32_10_wide(counter, key_words(watermark));
    let mut in_order = [0u32; BLOCK];
    for i in 0..WIDTH {
        for (word, words) in words.iter().enumerate() {
            in_order[TOKENS_PER_COUNTER * i + word] = words[i] as u32;
        }
    }
    let below = green_limit(watermark);
    for (logit, word) in logits.iter_mut().zip(in_order) {
        *logit = if word < below { *logit + watermark.delta } else { *logit };
    }
}

#[inline(always)]
#[allow(clippy::extra_unused_type_parameters, reason = "`simd_entry!` compiles it for each instruction set")]
unsafe fn add_watermark_generic<L: Lanes>(logits: &mut [f32], previous: u32, watermark: &Watermark) {
    let (blocks, rest) = logits.as_chunks_mut::<BLOCK>();
    let num_whole = blocks.len() * BLOCK;
    for (i, block) in blocks.iter_mut().enumerate() {
        lift(block, i * BLOCK, previous, watermark);
    }
    let mut last = [0.0; BLOCK];
    last[..rest.len()].copy_from_slice(rest);
    lift(&mut last, num_whole, previous, watermark);
    rest.copy_from_slice(&last[..rest.len()]);
}

simd_entry! {
    /// Adds `delta` to the logit of every token that is green after `previous`. Costs O(V) and does not allocate.
    pub fn add_watermark = add_watermark_generic(logits: &mut [f32], previous: u32, watermark: &Watermark) -> ();
}
