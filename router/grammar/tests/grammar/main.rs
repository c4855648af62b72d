//! All tests of the crate, in one binary. Whatever is sampled under the masks parses and validates; bombs are refused
//! quickly.

// The whole crate is tests; clippy's own exception covers only what stands inside a test function.
#![allow(clippy::unwrap_used)]

mod bombs;
#[path = "../../../kv/tests/kv/draw.rs"]
mod draw;
mod expressions;
mod formats;
mod forms;
mod keywords;
mod kinds;
mod numbers;
mod real_schemas;
mod reasoning;
mod support;
mod validator;
