//! Runs the command that the command line names.

use std::ffi::OsString;
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::SystemTime;

use crate::args::parsed::LanesCommand;
use crate::args::resolved::{ModelRef, Request, ServerConfig};
use crate::args::{self, ParseError};
use crate::caller::LaneWord;
use crate::error::LauncherError;
use crate::listen::Listener;
use crate::pace::Pace;
use crate::plan::{Base, Plan};
use crate::process::{Event, MAX_PENDING_EVENTS};
use crate::runtime_dir::{self, RuntimeDir};
use crate::supervise::Supervisor;
use crate::{adapters, control, models, prepare, programs, report, resolve, signals, status, terminal};

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
        Request::Lanes(pid, LanesCommand::Drain(place)) => {
            control::ask_lane(pid, LaneWord::Drain, &place)?;
            print(&format!("lane {} is drained\n", place.lane))
        }
        Request::Lanes(pid, LanesCommand::Add(place)) => {
            control::ask_lane(pid, LaneWord::Add, &place)?;
            print(&format!("lane {} serves\n", place.lane))
        }
        Request::Models(pid, command, server) => print(&models::run(pid, &command, &server)?),
        Request::Adapters(pid, server) => print(&adapters::run(pid, &server)?),
        Request::Chat(args) => terminal::chat(*args).map(|()| 0),
        Request::Run(args) => terminal::run(*args).map(|()| 0),
        Request::Top(args) => match terminal::top(*args)? {
            Some(text) => print(&text),
            None => Ok(0),
        },
        Request::Man(folder) => {
            args::write_manuals(&folder)
                .map_err(|source| LauncherError::System { what: "write the manual pages", source })?;
            Ok(0)
        }
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
            if config.has_lifeline {
                signals::stop_with_stdin(sender.clone());
            }
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
    let began = SystemTime::now();
    let (config, models) = prepare::prepare(config, &python, events, &sender)?;
    let resolved = SystemTime::now();
    let runtime_dir = RuntimeDir::create(&runtime_dir::bases(), &config.first.log())?;
    let base = Arc::new(Base { listener, metrics_listener, runtime_dir, pace: Pace::default() });
    let mut plan = Plan::new(*config, models, (python, router), 0, base);
    plan.resolved = Some((began, resolved));
    Supervisor::start(plan, Box::new(reread), events, sender)?.run(write_to_stdout)
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
