//! All tests of the crate, in one binary.

mod examples;
mod model;
