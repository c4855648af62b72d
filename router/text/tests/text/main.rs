//! All tests of the crate, in one binary, so that only one is linked.

// Clippy's exception for tests covers only code inside test functions.
#![allow(clippy::unwrap_used)]

mod bytes;
mod chat_template;
mod detokenize;
#[path = "../../../kv/tests/kv/draw.rs"]
mod draw;
mod framing;
mod gguf;
mod infill;
mod message;
mod model_files;
mod prompt;
mod question;
mod stop;
mod support;
mod time;
mod tokenizer;
mod vocabulary_files;
