//! All tests of the crate, in one binary: each binary is linked by itself.

// The whole crate is tests; clippy's own exception covers only what stands inside a test function.
#![allow(clippy::unwrap_used)]

mod remote;
mod support;
