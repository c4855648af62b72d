//! Runs the command that the command line names.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use crate::args::parsed::LanesCommand;
use crate::args::resolved::{ModelRef, Request, ServeConfig, ServerConfig};
use crate::args::{self, ParseError};
use crate::error::LauncherError;
use crate::listen::Listener;
use crate::log::Field;
use crate::model::ResolvedModel;
use crate::pace::Pace;
use crate::plan::{Base, Plan};
use crate::process::{Event, MAX_PENDING_EVENTS};
use crate::runtime_dir::{self, RuntimeDir};
use crate::supervise::Supervisor;
use crate::{adapters, control, models, programs, report, resolve, signals, status};

/// The part of the available memory that models get unless `--models-memory` says otherwise.
const MEMORY_PERCENT: u64 = 90;

/// Runs `request` to its end and returns the exit code.
pub fn run(request: Request) -> Result<i32, LauncherError> {
    let (sender, events) = sync_channel(MAX_PENDING_EVENTS);
    match request {
        Request::Env => print(&report::render()),
        Request::CheckConfig(settings) => print(&settings),
        Request::Cache(command) => {
            let mut out = String::new();
            let result = command.run(&mut out);
            let code = print(&out)?;
            result.map(|()| code).map_err(LauncherError::from)
        }
        Request::Library(arguments) => {
            let error = programs::library_command(&programs::python()?, &arguments).exec();
            Err(LauncherError::System { what: "run the server package", source: error })
        }
        Request::Download(model) => {
            signals::forward_to(sender.clone())?;
            download(&model, &events, &sender)
        }
        Request::Reload(pid) => {
            control::reload(pid)?;
            print("reloaded\n")
        }
        Request::Lanes(pid, LanesCommand::List) => print(&status::lanes(&control::status_of(pid, "lanes")?)),
        Request::Lanes(pid, LanesCommand::Drain { lane }) => {
            control::drain_lane(pid, lane)?;
            print(&format!("lane {lane} is drained\n"))
        }
        Request::Lanes(pid, LanesCommand::Add { lane }) => {
            control::add_lane(pid, lane)?;
            print(&format!("lane {lane} serves\n"))
        }
        Request::Models(pid, command, server) => print(&models::run(pid, &command, &server)?),
        Request::Adapters(pid, server) => print(&adapters::run(pid, &server)?),
        Request::Bench(args) => {
            let command: Vec<String> =
                std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect();
            Ok(trunkline_bench::run(&args, &command, &mut io::stdout())?)
        }
        Request::Completions(script) => print(&String::from_utf8_lossy(&script)),
        Request::Status(server) => {
            let (table, code) = status::run(&server)?;
            print(&table)?;
            Ok(code)
        }
        Request::Serve(config) => {
            signals::forward_to(sender.clone())?;
            serve(config, &events, sender)
        }
    }
}

fn serve(
    config: Box<ServerConfig>,
    events: &Receiver<Event>,
    sender: SyncSender<Event>,
) -> Result<i32, LauncherError> {
    let (python, router) = (programs::python()?, programs::router()?);
    let server = &config.first.server;
    let listener = Listener::open(&server.hostname, server.port)?;
    let metrics_listener = Listener::open_for_metrics(server)?;
    let mut config = config;
    let mut models = if config.is_on_demand() {
        let asked: Vec<_> = config.models().map(|config| (&config.model, config.pool_tokens())).collect();
        resolve::run_all(&python, &asked, events, &sender)?
    } else {
        vec![resolve::run(&python, &config.first.model, events, &sender)?]
    };
    check_names(&config, &models)?;
    for model in &models {
        if let Some(problem) = &model.problem {
            let fields: &[Field<'_>] = &[("model", &model.model_id), ("problem", problem)];
            config.first.log().warn("a model can probably not be loaded", fields);
        }
    }
    config.choose_first(&mut models);
    let available_bytes = models[0].available_bytes;
    if available_bytes > 0 {
        config.first.residency.models_memory.get_or_insert(available_bytes / 100 * MEMORY_PERCENT);
    }
    check_memory(&config)?;
    let runtime_dir = RuntimeDir::create(&runtime_dir::bases(), &config.first.log())?;
    let base = Arc::new(Base { listener, metrics_listener, runtime_dir, pace: Pace::default() });
    let plan = Plan::new(*config, models, (python, router), 0, base);
    Supervisor::start(plan, Box::new(reread), events, sender)?.run(write_to_stdout)
}

/// Refuses a model that may take more than all models together, and pinned ones that do so together.
fn check_memory(config: &ServerConfig) -> Result<(), LauncherError> {
    let Some(limit) = config.first.residency.models_memory else { return Ok(()) };
    let own = |config: &ServeConfig| config.step_limits.model_memory.unwrap_or(0);
    let largest = config.models().map(own).max().unwrap_or(0);
    let pinned = config.models().filter(|config| config.residency.pin).map(own).fold(0, u64::saturating_add);
    for (what, bytes) in [("of a model", largest), ("of all pinned models together", pinned)] {
        if bytes > limit {
            return Err(LauncherError::usage(format!(
                "`--model-memory` {what} is {bytes} bytes, but `--models-memory` is {limit}; hint: lower the former, or raise \
                 the latter"
            )));
        }
    }
    Ok(())
}

/// Refuses two models with one name, since requests choose by it.
fn check_names(config: &ServerConfig, models: &[ResolvedModel]) -> Result<(), LauncherError> {
    let mut seen = BTreeSet::new();
    for (config, model) in config.models().zip(models) {
        let name = config.served_model_name.as_ref().unwrap_or(&model.model_id);
        for name in [name].into_iter().chain(&config.residency.model_alias) {
            if !seen.insert(name) {
                return Err(LauncherError::usage(format!(
                    "two models are called `{name}`; hint: give one of them another `served-model-name` or \
                     `model-alias` in a `[[model]]` table of `--config`"
                )));
            }
        }
    }
    Ok(())
}

/// Parses the arguments of this process again, with the configuration file as it is now.
fn reread() -> Result<Box<ServerConfig>, LauncherError> {
    let argv: Vec<OsString> = std::env::args_os().collect();
    match args::parse(&argv) {
        Ok(Request::Serve(config)) => Ok(config),
        Ok(_) => Err(LauncherError::usage("the arguments no longer ask to serve")),
        Err(ParseError::Launcher(error)) => Err(error),
        Err(ParseError::Clap(error)) => Err(LauncherError::usage(error.to_string())),
    }
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
