//! All tests of the crate, in one binary: each binary is linked by itself, and the library is compiled once.

// The whole crate is tests; clippy's own exception covers only what stands inside a test function.
#![allow(clippy::unwrap_used)]

mod bytes;
mod chat_template;
mod detokenize;
#[path = "../../../kv/tests/kv/draw.rs"]
mod draw;
mod gguf;
mod message;
mod model_files;
mod prompt;
mod stop;
mod support;
mod time;
mod tokenizer;
