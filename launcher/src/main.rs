//! `trunkline`: one command that resolves a model, starts the shard and the router, and keeps them running.
//!
//! ```text
//! args/        what was typed, what a file adds, what it means
//! programs     where the other programs are, and their command lines
//! listen       the port, before anything is loaded
//! resolve      model name -> files
//! runtime_dir  the private folder of the sockets
//! process      one child: group, lifeline, end
//! output       the lines of one child
//! supervise    both children; restart; ready; drain
//! report       `trunkline env`
//! cache/       `trunkline cache`
//! ```

mod args;
mod cache;
mod drain;
mod error;
mod listen;
mod log;
mod output;
mod process;
mod programs;
mod ready;
mod report;
mod resolve;
mod restart;
mod runtime_dir;
mod signals;
mod supervise;
mod tls_probe;

use std::ffi::OsString;
use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use crate::args::ParseError;
use crate::args::high::{ModelRef, Request, ServeConfig};
use crate::error::{EXIT_FAILURE, LauncherError};
use crate::listen::Address;
use crate::process::{Event, MAX_PENDING_EVENTS};
use crate::runtime_dir::RuntimeDir;
use crate::supervise::{Plan, Supervisor};

fn main() -> ExitCode {
    let argv: Vec<OsString> = std::env::args_os().collect();
    let code = match args::parse(&argv) {
        Ok(request) => run(request).unwrap_or_else(|error| report_error(&error)),
        Err(ParseError::Launcher(error)) => report_error(&error),
        // Prints help and version to stdout and ends with 0, the rest to stderr and ends with 2.
        Err(ParseError::Clap(error)) => error.exit(),
    };
    ExitCode::from(u8::try_from(code).unwrap_or(EXIT_FAILURE as u8))
}

fn run(request: Request) -> Result<i32, LauncherError> {
    let (sender, events) = sync_channel(MAX_PENDING_EVENTS);
    match request {
        Request::Env => print(&report::render()),
        Request::Cache(command) => print(&command.run()?),
        Request::Download(model) => {
            signals::forward_to(sender.clone())?;
            download(&model, &events, &sender)
        }
        Request::Serve(config) => {
            signals::forward_to(sender.clone())?;
            serve(&config, &events, sender)
        }
    }
}

fn serve(
    config: &ServeConfig,
    events: &Receiver<Event>,
    sender: SyncSender<Event>,
) -> Result<i32, LauncherError> {
    let (python, router) = (programs::python()?, programs::router()?);
    let address = Address::check(&config.hostname, config.port)?;
    let model = resolve::run(&python, &config.model, events, &sender)?;
    let runtime_dir = RuntimeDir::create(&runtime_dir::bases(), &config.log())?;
    let plan = Plan { config, python, router, model, address, runtime_dir };
    Supervisor::start(&plan, events, sender)?.run()
}

fn download(
    model: &ModelRef,
    events: &Receiver<Event>,
    sender: &SyncSender<Event>,
) -> Result<i32, LauncherError> {
    let model = resolve::run(&programs::python()?, model, events, sender)?;
    print(&format!("{}\n", model.path.display()))
}

fn print(text: &str) -> Result<i32, LauncherError> {
    let mut stdout = io::stdout().lock();
    stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush())
        .map_err(|source| LauncherError::System { what: "write to stdout", source })?;
    Ok(0)
}

fn report_error(error: &LauncherError) -> i32 {
    if let Some(line) = error.line() {
        log::write_line(&line);
    }
    error.exit_code()
}
