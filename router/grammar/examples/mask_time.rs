//! Measures the time of a mask by kind of grammar.
//!
//! Run `cargo run --release -p trunkline-grammar --example mask_time MODEL`, where MODEL is a `.gguf` file or a folder.
//! Tokens are drawn evenly from each mask, so the outputs take more different paths than those of a model. Times are
//! microseconds of one thread. With `cold` after MODEL, all processor caches are overwritten before each token of all
//! sequences, as a step of a model does.

#![allow(clippy::print_stdout, missing_docs)]

use std::time::Instant;

use serde_json::{Value, json};
use trunkline_grammar::{Forcing, Grammar, GrammarCompiler, GrammarLimits, Next};
use trunkline_reply::ReasoningMarks;
use trunkline_text::ModelText;

const NUM_SEQUENCES: u64 = 8;
const NUM_TOKENS: usize = 200;

fn grammars() -> Vec<(&'static str, Grammar)> {
    let schema = |schema: Value| Grammar::JsonSchema(schema.into());
    vec![
        ("any object", Grammar::JsonObject),
        ("counted", Grammar::Regex("[a-zA-Z ,.]{2000,4000}".into())),
        ("words", Grammar::Regex("([A-Za-z]+[ ,])*[0-9]{400}".into())),
        (
            "objects",
            schema(json!({"type": "array", "minItems": 200, "items": {
                "type": "object",
                "properties": {"name": {"type": "string", "minLength": 30}, "count": {"type": "integer"}},
                "required": ["name", "count"], "additionalProperties": false}})),
        ),
        ("strings", schema(json!({"type": "array", "minItems": 50, "items": {"type": "string"}}))),
        (
            "numbers",
            schema(
                json!({"type": "array", "minItems": 300, "items": {"type": "number", "minimum": 0.5, "maximum": 12.25}}),
            ),
        ),
        (
            "dates",
            schema(
                json!({"type": "array", "minItems": 99, "items": {"type": "string", "format": "date-time"}}),
            ),
        ),
    ]
}

/// Returns the next number of SplitMix64.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let z = (*state ^ (*state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Evicts the processor's caches.
fn flush(other: &mut [u8]) {
    other.iter_mut().step_by(64).for_each(|byte| *byte = byte.wrapping_add(1));
}

fn main() {
    let path = std::env::args().nth(1).expect("usage: mask_time MODEL");
    let text = ModelText::load(std::path::Path::new(&path)).expect("the model's tokenizer is read");
    let is_cold = std::env::args().nth(2).is_some_and(|word| word == "cold");
    let mut other = vec![0u8; if is_cold { 64 << 20 } else { 0 }];
    let begin = Instant::now();
    let compiler = GrammarCompiler::new(
        &text.tokenizer,
        &text.end_token_ids,
        ReasoningMarks::Think,
        GrammarLimits::default(),
    );
    let compiler = compiler.expect("the vocabulary can be walked");
    println!("vocabulary {:.1} ms", begin.elapsed().as_secs_f64() * 1e3);
    for (name, grammar) in grammars() {
        let begin = Instant::now();
        let compiled = compiler.compile(&grammar).expect("the grammar is right");
        let compile_ms = begin.elapsed().as_secs_f64() * 1e3;
        let begin = Instant::now();
        drop(compiled.fork());
        let fork_us = begin.elapsed().as_secs_f64() * 1e6;
        let mut times = Vec::new();
        let mut sequences: Vec<_> =
            (0..NUM_SEQUENCES).map(|seed| (compiled.fork(), seed, None::<u32>)).collect();
        for index in 0..NUM_TOKENS {
            flush(&mut other);
            sequences.retain_mut(|(constraint, state, token_id)| {
                let begin = Instant::now();
                if let Some(token_id) = *token_id {
                    constraint.accept(token_id).expect("the mask has it");
                }
                let allowed = constraint.allowed(Forcing::Never).expect("a mask");
                if index > 0 {
                    times.push(begin.elapsed().as_secs_f64() * 1e6);
                }
                let Next::Mask(mask) = allowed.next else { return false };
                let ids: Vec<u32> = mask.iter().collect();
                *token_id = Some(ids[next(state) as usize % ids.len()]);
                true
            });
        }
        times.sort_by(f64::total_cmp);
        let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
        let mean = times.iter().sum::<f64>() / times.len() as f64;
        println!(
            "{name:12} compile {compile_ms:6.1} ms, fork {fork_us:6.0}, mask mean {mean:6.1}, p50 {:6.1}, p90 {:6.1}, p99 {:7.1}, max {:7.1}; {} masks",
            at(0.5),
            at(0.9),
            at(0.99),
            at(1.0),
            times.len()
        );
    }
}
