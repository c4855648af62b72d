//! The `trunkline` command: parses the arguments, runs the command, and maps an error to an exit code.

use std::ffi::OsString;
use std::process::ExitCode;

use trunkline_launcher::args::{self, ParseError};
use trunkline_launcher::commands;
use trunkline_launcher::error::{EXIT_FAILURE, LauncherError};
use trunkline_launcher::log;

fn main() -> ExitCode {
    let argv: Vec<OsString> = std::env::args_os().collect();
    let code = match args::parse(&argv) {
        Ok(request) => commands::run(request).unwrap_or_else(|error| report_error(&error)),
        Err(ParseError::Launcher(error)) => report_error(&error),
        // This prints help and version to stdout and exits with 0; errors go to stderr and exit with 2.
        Err(ParseError::Clap(error)) => error.exit(),
    };
    ExitCode::from(u8::try_from(code).unwrap_or(EXIT_FAILURE as u8))
}

fn report_error(error: &LauncherError) -> i32 {
    if let Some(line) = error.line() {
        log::write_line(&line);
    }
    error.exit_code()
}
