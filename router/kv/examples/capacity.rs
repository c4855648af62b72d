//! Measures how large the KV index can grow: the memory of a block, and the time to look up a prompt of 100,000 tokens.
//!
//! `cargo run --release -p trunkline-kv --example capacity [-- BLOCKS [BLOCK_SIZE]]`, by default with ten million
//! blocks of 16 tokens. Conversations of random length share one of a few system prompts. Every answer is checked.
#![allow(clippy::print_stdout, clippy::disallowed_methods, clippy::disallowed_types)]

use std::time::Instant;

use trunkline_kv::{KvCache, Salt, StoreIndex};

const PROMPT_TOKENS: usize = 100_000;
const SYSTEM_TOKENS: usize = 2_048;
const NUM_SYSTEMS: u64 = 16;
const NUM_LOOKUPS: u64 = 400;

/// Makes the tokens of a conversation from its number, with SplitMix64.
fn token(conversation: u64, position: usize) -> u32 {
    let seed = if position < SYSTEM_TOKENS { conversation % NUM_SYSTEMS } else { conversation << 8 };
    let value = seed.wrapping_add((position as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    ((value ^ (value >> 27)) >> 20) as u32 % 128_000
}

fn tokens(conversation: u64, count: usize) -> Vec<u32> {
    (0..count).map(|position| token(conversation, position)).collect()
}

fn resident_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/statm").ok()?;
    text.split_whitespace().nth(1)?.parse::<u64>().ok().map(|pages| pages * 4096)
}

/// Computes a conversation and ends it.
fn enter(kv: &mut KvCache, tokens: &[u32]) {
    let salt = Salt::default();
    let hit = kv.lookup(&salt, tokens).without_partial();
    let mut table = kv.open(&salt, &hit);
    let known = hit.num_block_tokens();
    let missing = (tokens.len() as u32).div_ceil(kv.device().block_size()) - hit.num_blocks() as u32;
    assert!(kv.device_mut().grow(&mut table, missing), "the pool has room");
    kv.device_mut().begin_fill(&table, known, tokens.len() as u32 - known);
    kv.close(table, tokens);
}

fn percentile(sorted: &[f64], part: f64) -> f64 {
    sorted[((sorted.len() - 1) as f64 * part) as usize]
}

fn measure(name: &str, kv: &KvCache, prompts: impl Iterator<Item = (Vec<u32>, usize)>) {
    let mut times: Vec<f64> = prompts
        .map(|(prompt, expected_blocks)| {
            let begin = Instant::now();
            let hit = kv.lookup(&Salt::default(), &prompt);
            let time = begin.elapsed().as_secs_f64() * 1e6;
            assert_eq!(hit.num_blocks(), expected_blocks, "{name}");
            time
        })
        .collect();
    times.sort_by(f64::total_cmp);
    println!(
        "lookup of {PROMPT_TOKENS} tokens, {name}: p50 {:.1} µs, p99 {:.1} µs",
        percentile(&times, 0.5),
        percentile(&times, 0.99)
    );
}

fn main() {
    let mut args = std::env::args().skip(1).map(|arg| arg.parse::<u32>().expect("a number"));
    let num_blocks = args.next().unwrap_or(10_000_000);
    let block_size = args.next().unwrap_or(16);
    let per_prompt = PROMPT_TOKENS / block_size as usize;
    let before = resident_bytes();
    let mut kv = KvCache::new(block_size, num_blocks + per_prompt as u32 + 1);
    let begin = Instant::now();
    let mut conversation = 0;
    while kv.device().counts().cached + (per_prompt as u32) < num_blocks {
        enter(&mut kv, &tokens(conversation, PROMPT_TOKENS));
        conversation += 1;
    }
    let cached = kv.device().counts().cached;
    println!(
        "{cached} blocks of {block_size} tokens in {conversation} conversations, entered in {:.1} s",
        begin.elapsed().as_secs_f64()
    );
    if let (Some(before), Some(after)) = (before, resident_bytes()) {
        let per_block = (after - before) as f64 / f64::from(cached);
        println!("index: {per_block:.0} bytes a block, {} of them tokens", 4 * block_size);
    }
    println!("store: about {} bytes a slot in use", StoreIndex::bytes_per_slot());
    let pick = |number: u64| number.wrapping_mul(0x9e37_79b9) % conversation;
    let whole = (PROMPT_TOKENS - 1) / block_size as usize;
    measure("known", &kv, (0..NUM_LOOKUPS).map(|number| (tokens(pick(number), PROMPT_TOKENS), whole)));
    let fork = PROMPT_TOKENS / 2;
    measure(
        "known to the middle",
        &kv,
        (0..NUM_LOOKUPS).map(|number| {
            let mut prompt = tokens(pick(number), PROMPT_TOKENS);
            prompt[fork..].iter_mut().for_each(|token| *token += 1);
            (prompt, fork / block_size as usize)
        }),
    );
    let system = SYSTEM_TOKENS / block_size as usize;
    measure(
        "known system prompt",
        &kv,
        (0..NUM_LOOKUPS).map(|number| (tokens(conversation + 1 + number, PROMPT_TOKENS), system)),
    );
}
