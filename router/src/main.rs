//! `trunkline-router`: the router without what only some users need; see `trunkline-router-full`.

use std::process::ExitCode;

use trunkline_router::process::{self, Extensions};

fn main() -> ExitCode {
    process::main(Extensions::default())
}
