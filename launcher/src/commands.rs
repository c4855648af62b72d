//! Runs the command that the command line names.

use std::io::{self, Write};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use crate::args::resolved::{ModelRef, Request, ServeConfig};
use crate::child::ShardId;
use crate::error::LauncherError;
use crate::listen::Address;
use crate::pace::Pace;
use crate::process::{Event, MAX_PENDING_EVENTS};
use crate::runtime_dir::{self, RuntimeDir};
use crate::supervise::{Plan, Supervisor};
use crate::{programs, report, resolve, signals};

/// Runs `request` to its end and returns the exit code.
pub fn run(request: Request) -> Result<i32, LauncherError> {
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
    let address = Address::check(&config.server.hostname, config.server.port)?;
    let model = resolve::run(&python, &config.model, events, &sender)?;
    // One, until a model can have several lanes or ranks.
    let shards = vec![ShardId::default()];
    let runtime_dir = RuntimeDir::create(&runtime_dir::bases(), &shards, &config.log())?;
    let pace = Pace::default();
    let plan = Plan { config, python, router, model, shards, address, runtime_dir, pace };
    Supervisor::start(&plan, events, sender)?.run(write_to_stdout)
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
    write_to_stdout(text).map_err(|source| LauncherError::System { what: "write to stdout", source })?;
    Ok(0)
}

fn write_to_stdout(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    stdout.flush()
}
