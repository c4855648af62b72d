//! Fuzz targets. Each [`Target`] takes any bytes and panics if an invariant does not hold.
//!
//! `cargo test` runs every target on mutants of its seeds, which are the same every time. `make fuzz` runs a target
//! under libFuzzer, which searches for inputs that reach new code.
//!
//! A file has the targets of one part. It may use any crate, through the surface that the crate documents. Begin with
//! [`TARGETS`].

// Targets report failures by panicking.
#![allow(clippy::unwrap_used, clippy::expect_used)]

pub mod body;
mod event;
mod files;
mod memory;
#[path = "../../router/tests/mock/mod.rs"]
mod mock;
pub mod mutant;
mod reader;
mod reply;
pub mod seeds;
mod template;

/// A parser, or several related ones, with inputs that exercise it.
pub struct Target {
    pub name: &'static str,
    /// Runs an input and panics if an invariant does not hold.
    pub run: fn(&[u8]),
    /// Returns valid inputs, from which others are derived.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// Returns fragments of the format, to be inserted into inputs.
    pub words: fn() -> Vec<String>,
}

pub const TARGETS: &[Target] = &[
    Target { name: "body", run: body::run, seeds: body::seeds, words: body::words },
    Target { name: "template", run: template::run, seeds: template::seeds, words: template::words },
    Target { name: "event", run: event::run, seeds: event::seeds, words: event::words },
    Target { name: "reply", run: reply::run, seeds: reply::seeds, words: reply::words },
    Target { name: "gguf", run: files::gguf, seeds: files::gguf_seeds, words: Vec::new },
    Target { name: "vocabulary", run: files::vocabulary, seeds: files::vocabulary_seeds, words: Vec::new },
    Target { name: "keys", run: files::keys, seeds: files::key_seeds, words: files::key_words },
    Target { name: "reader", run: reader::run, seeds: reader::seeds, words: reader::words },
];
