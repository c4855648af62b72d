//! Arguments in two stages: what was typed ([`low`]), with a file's values below it ([`file`]), then what it means,
//! checked ([`high`]).

pub mod cache;
pub mod choice;
pub mod file;
pub mod high;
pub mod low;
pub mod replies;
pub mod watermark;

use std::ffi::OsString;

use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command, CommandFactory, FromArgMatches};

use self::high::{Request, ServeConfig};
use self::low::{LowArgs, LowCommand};
use crate::error::LauncherError;

/// The name of the command that serves.
pub const SERVE: &str = "serve";

/// Why there is nothing to run.
#[derive(Debug)]
pub enum ParseError {
    /// `--help`, `--version` or a typing error: clap knows what to print where and which exit code follows.
    Clap(clap::Error),
    /// A file or value that clap cannot judge.
    Launcher(LauncherError),
}

impl From<clap::Error> for ParseError {
    fn from(error: clap::Error) -> Self {
        Self::Clap(error)
    }
}

impl From<LauncherError> for ParseError {
    fn from(error: LauncherError) -> Self {
        Self::Launcher(error)
    }
}

/// Parses a command line (its first item is the program's name), the environment and the file that `--config` names.
pub fn parse(argv: &[OsString]) -> Result<Request, ParseError> {
    let command = LowArgs::command().mut_subcommands(|command| command.mut_args(without_empty_variable));
    let mut matches = command.clone().try_get_matches_from(argv)?;
    if let Some(path) = config_path(&matches) {
        let text = std::fs::read_to_string(&path)
            .map_err(|source| LauncherError::ConfigUnreadable { path: path.clone(), source })?;
        matches = with_file(command, &text, &path.display().to_string())?.try_get_matches_from(argv)?;
    }
    let model_id_typed = matches.subcommand_matches(SERVE).and_then(|serve| serve.value_source("model_id"))
        == Some(ValueSource::CommandLine);
    let low = LowArgs::from_arg_matches(&matches)?;
    Ok(match low.command {
        LowCommand::Serve(serve) => Request::Serve(Box::new(ServeConfig::new(*serve, model_id_typed)?)),
        LowCommand::Download(download) => Request::Download(high::download(download)?),
        LowCommand::Cache { command } => Request::Cache(command),
        LowCommand::Env => Request::Env,
    })
}

/// The environment variables that are flags of `serve`.
pub fn serve_variables() -> Vec<OsString> {
    let command = LowArgs::command();
    let serve = command.find_subcommand(SERVE);
    serve.into_iter().flat_map(Command::get_arguments).filter_map(Arg::get_env).map(OsString::from).collect()
}

/// An empty variable is an unset one: compose files and charts write them so when nobody gave a value.
fn without_empty_variable(arg: Arg) -> Arg {
    let is_empty = arg.get_env().and_then(std::env::var_os).is_some_and(|value| value.is_empty());
    if is_empty { arg.env(None::<&str>) } else { arg }
}

fn config_path(matches: &ArgMatches) -> Option<std::path::PathBuf> {
    matches.subcommand_matches(SERVE)?.get_one("config").cloned()
}

/// The command with the file's values as the defaults of `serve`: so they rank below flags and variables.
fn with_file(command: Command, text: &str, name: &str) -> Result<Command, LauncherError> {
    let serve = command.find_subcommand(SERVE).cloned().unwrap_or_default();
    let values = file::read(&serve, text, name)?;
    Ok(command.mut_subcommand(SERVE, |serve| {
        values
            .into_iter()
            .fold(serve, |serve, value| serve.mut_arg(value.arg_id, |arg| arg.default_value(value.text)))
    }))
}
