//! The router without cloud stores and ZeroMQ, which only `trunkline-router-full` includes.

use std::process::ExitCode;

use trunkline_router::process::{self, Extensions};

fn main() -> ExitCode {
    process::main(Extensions::default())
}
