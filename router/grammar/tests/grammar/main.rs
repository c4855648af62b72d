//! All tests of the crate, in one binary.
//!
//! They check that every output sampled under the masks parses and validates, and that costly grammars are refused.

// Clippy's exception for tests covers only code inside test functions.
#![allow(clippy::unwrap_used)]

mod bombs;
mod budget;
mod calls;
#[path = "../../../kv/tests/kv/draw.rs"]
mod draw;
mod expressions;
mod formats;
mod harmony;
mod keywords;
mod kinds;
mod numbers;
mod real_schemas;
mod reasoning;
mod refusals;
mod support;
mod tags;
mod validator;
