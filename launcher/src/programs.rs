//! Finds the other programs and builds the command lines that start them (docs/parts/launcher.md).

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use trunkline_settings::{KEY_VARIABLE, WATERMARK_KEY_VARIABLE};

use crate::args;
use crate::args::resolved::ModelRef;
use crate::error::LauncherError;
use crate::start_trace::TRACEPARENT;

const SERVER_MODULE: &str = "trunkline_server";
/// Prevents `python -m` from importing modules from the working folder.
const SAFE_PATH: (&str, &str) = ("PYTHONSAFEPATH", "1");

/// Variables with secrets that only the router needs: its keys, and the credentials of clouds for `--kv-object-store`.
/// A star stands for the rest of a name.
const ROUTERS_SECRETS: [&str; 5] = [KEY_VARIABLE, WATERMARK_KEY_VARIABLE, "AWS_*", "AZURE_*", "GOOGLE_*"];
/// Variables with secrets that only router and shards need: those of the collector of `--otlp-endpoint`.
const COLLECTORS_SECRETS: [&str; 1] = ["OTEL_EXPORTER_OTLP_*"];
/// Variables with secrets that only the commands on models need: the tokens of the Hub.
const HUB_SECRETS: [&str; 2] = ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"];

/// A program that is installed beside the launcher.
struct Program {
    names: &'static [&'static str],
    variable: &'static str,
}

const ROUTER: Program = Program { names: &["trunkline-router"], variable: "TRUNKLINE_ROUTER" };
const PYTHON: Program = Program { names: &["python", "python3"], variable: "TRUNKLINE_PYTHON" };

/// Returns the interpreter with the server package: `TRUNKLINE_PYTHON`, or `python` beside the launcher.
pub(crate) fn python() -> Result<PathBuf, LauncherError> {
    PYTHON.find()
}

/// Returns the router binary: `TRUNKLINE_ROUTER`, or `trunkline-router` beside the launcher.
pub(crate) fn router() -> Result<PathBuf, LauncherError> {
    ROUTER.find()
}

impl Program {
    fn find(&self) -> Result<PathBuf, LauncherError> {
        if let Some(path) = env::var_os(self.variable).filter(|path| !path.is_empty()) {
            return Ok(path.into());
        }
        let own = env::current_exe()
            .map_err(|source| LauncherError::System { what: "find its own executable", source })?;
        let folder = own.parent().unwrap_or(Path::new("/"));
        self.names
            .iter()
            .map(|name| folder.join(name))
            .find(|path| fs::metadata(path).is_ok_and(|metadata| metadata.is_file()))
            .ok_or(LauncherError::ProgramMissing {
                name: self.names[0],
                beside: own,
                variable: self.variable,
            })
    }
}

/// Returns `python -m trunkline_server resolve MODEL... [--revision R] --estimate JSON...`, which also estimates the
/// memory of the models with these settings. All have the same revision. An empty name is the embedded model.
pub(crate) fn estimator_command(python: &Path, models: &[(&ModelRef, String)]) -> Command {
    let mut command = server_command(python, "resolve");
    command.args(models.iter().map(|(model, _)| model.name.as_deref().unwrap_or_default()));
    if let Some(revision) = models.first().and_then(|(model, _)| model.revision.as_ref()) {
        command.args(["--revision", revision]);
    }
    for (_, settings) in models {
        command.args(["--estimate", settings]);
    }
    command
}

/// Returns `python -m trunkline_server resolve [MODEL] [--revision R]`.
pub(crate) fn resolver_command(python: &Path, model: &ModelRef) -> Command {
    let mut command = server_command(python, "resolve");
    command.args(&model.name);
    if let Some(revision) = &model.revision {
        command.args(["--revision", revision]);
    }
    command
}

/// Returns `python -m trunkline_server`, with a command on the models of this machine.
pub(crate) fn library_command(python: &Path, arguments: &[String]) -> Command {
    let mut command = server_command(python, &arguments[0]);
    command.args(&arguments[1..]);
    command
}

/// Returns `python -m trunkline_server serve`, with the arguments of a shard.
pub(crate) fn shard_command(python: &Path, arguments: &[OsString]) -> Command {
    let mut command = server_command(python, "serve");
    forget(&mut command, &HUB_SECRETS);
    command.args(arguments);
    command
}

/// Returns `--settings PATH --socket PATH --lane N --lifeline`.
pub(crate) fn shard_arguments(settings: &Path, socket: &Path, lane: u32) -> Vec<OsString> {
    let lane = lane.to_string();
    let words: [&OsStr; 7] = [
        "--settings".as_ref(),
        settings.as_ref(),
        "--socket".as_ref(),
        socket.as_ref(),
        "--lane".as_ref(),
        lane.as_ref(),
        "--lifeline".as_ref(),
    ];
    words.map(OsStr::to_owned).to_vec()
}

/// Returns `python -m trunkline_server spare`, which becomes a shard when it gets its arguments.
pub(crate) fn spare_command(python: &Path) -> Command {
    let mut command = server_command(python, "spare");
    forget(&mut command, &HUB_SECRETS);
    command
}

/// Returns `trunkline-router --settings PATH... --lifeline`.
pub(crate) fn router_command(router: &Path, settings: impl Iterator<Item = PathBuf>) -> Command {
    let mut command = Command::new(router);
    forget_own_variables(&mut command);
    forget(&mut command, &HUB_SECRETS);
    for file in settings {
        command.arg("--settings").arg(file);
    }
    command.arg("--lifeline");
    command
}

fn server_command(python: &Path, subcommand: &str) -> Command {
    let mut command = Command::new(python);
    forget_own_variables(&mut command);
    forget(&mut command, &ROUTERS_SECRETS);
    if !matches!(subcommand, "serve" | "spare") {
        forget(&mut command, &COLLECTORS_SECRETS);
    }
    command.env(SAFE_PATH.0, SAFE_PATH.1).args(["-m", SERVER_MODULE, subcommand]);
    command
}

/// Removes the variables with these names from a child's environment.
fn forget(command: &mut Command, names: &[&str]) {
    let is_one = |variable: &str| {
        names.iter().any(|name| match name.strip_suffix('*') {
            Some(beginning) => variable.starts_with(beginning),
            None => variable == *name,
        })
    };
    for (variable, _) in env::vars_os() {
        if variable.to_str().is_some_and(is_one) {
            command.env_remove(variable);
        }
    }
}

/// Removes the launcher's own variables from a child's environment; their checked values reach the child as settings,
/// and children that a start waits for get a trace of their own.
fn forget_own_variables(command: &mut Command) {
    for name in args::serve_variables() {
        command.env_remove(name);
    }
    command.env_remove(TRACEPARENT);
}
