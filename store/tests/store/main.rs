//! All tests of the crate, in one binary: each binary is linked by itself.

mod archive;
#[path = "../../../router/kv/tests/kv/draw.rs"]
mod draw;
mod faults;
mod files;
mod golden;
mod kills;
mod neighbours;
mod support;
mod transfers;
