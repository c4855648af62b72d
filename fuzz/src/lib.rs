//! What must hold for any input: each [`Target`] takes bytes and panics if something does not hold.
//!
//! `cargo test` runs every target over mutants of its seeds, the same ones each time; `make fuzz` hands a target to
//! libFuzzer, which looks for inputs that reach new code.

// A target tells what it found by panicking.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod body;
mod event;
mod files;
mod memory;
#[path = "../../router/tests/mock/mod.rs"]
mod mock;
pub mod mutant;
mod reply;
pub mod seeds;
mod template;

/// A parser, or several of a kind, with what is known to reach into them.
pub struct Target {
    /// For the command line.
    pub name: &'static str,
    /// Takes any bytes; panics if something does not hold.
    pub run: fn(&[u8]),
    /// Inputs to begin with.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// Words worth putting into them.
    pub words: fn() -> Vec<String>,
}

/// All targets.
pub const TARGETS: &[Target] = &[
    Target { name: "body", run: body::run, seeds: body::seeds, words: body::words },
    Target { name: "template", run: template::run, seeds: template::seeds, words: template::words },
    Target { name: "event", run: event::run, seeds: event::seeds, words: event::words },
    Target { name: "reply", run: reply::run, seeds: reply::seeds, words: reply::words },
    Target { name: "gguf", run: files::gguf, seeds: files::gguf_seeds, words: Vec::new },
    Target { name: "keys", run: files::keys, seeds: files::key_seeds, words: files::key_words },
];
