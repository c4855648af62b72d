//! Arguments in two stages: texts from the command line, the environment and the configuration file ([`parsed`],
//! [`file`]), then a checked configuration ([`resolved`]).

pub mod file;
pub mod parsed;
pub mod resolved;

use std::ffi::OsString;

use clap::{Arg, ArgMatches, Command, CommandFactory, FromArgMatches};

use self::parsed::{CONFIG, CONFIG_VARIABLE, ParsedArgs, ParsedCommand};
use self::resolved::{Request, ServeConfig};
use crate::error::LauncherError;

pub const SERVE: &str = "serve";

/// Why there is nothing to run.
#[derive(Debug)]
pub enum ParseError {
    /// `--help`, `--version` or an unknown argument: clap knows what to print where and which exit code follows.
    Clap(clap::Error),
    /// An invalid value or configuration file.
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

/// Parses a command line, whose first item is the program's name, with the environment and the file of `--config`.
pub fn parse(argv: &[OsString]) -> Result<Request, ParseError> {
    let command = ParsedArgs::command().mut_subcommands(|command| command.mut_args(without_empty_variable));
    let mut matches = command.clone().try_get_matches_from(argv)?;
    if let Some(path) = config_path(&matches) {
        let text = std::fs::read_to_string(&path)
            .map_err(|source| LauncherError::ConfigUnreadable { path: path.clone(), source })?;
        matches = with_file(command, &text, &path.display().to_string())?.try_get_matches_from(argv)?;
    }
    Ok(match ParsedArgs::from_arg_matches(&matches)?.command {
        ParsedCommand::Serve(serve) => Request::Serve(Box::new(ServeConfig::new(&serve)?)),
        ParsedCommand::Download(download) => Request::Download(resolved::download(download)?),
        ParsedCommand::Cache { command } => Request::Cache(command),
        ParsedCommand::Reload { pid } => Request::Reload(pid),
        ParsedCommand::Env => Request::Env,
    })
}

/// Returns the environment variables that set flags of `serve`.
pub(crate) fn serve_variables() -> Vec<String> {
    let settings = trunkline_settings::all().into_iter().map(|(setting, _)| setting.variable());
    settings.chain([CONFIG_VARIABLE.to_owned()]).collect()
}

/// Treats an empty variable as unset: Compose files and Helm charts set it so when the user gave no value.
fn without_empty_variable(arg: Arg) -> Arg {
    let is_empty = arg.get_env().and_then(std::env::var_os).is_some_and(|value| value.is_empty());
    if is_empty { arg.env(None::<&str>) } else { arg }
}

fn config_path(matches: &ArgMatches) -> Option<std::path::PathBuf> {
    matches.subcommand_matches(SERVE)?.get_one(CONFIG).cloned()
}

/// Makes the file's values the defaults of `serve`, so that flags and variables take precedence over them.
fn with_file(command: Command, text: &str, name: &str) -> Result<Command, LauncherError> {
    let values = file::read(text, name)?;
    Ok(command.mut_subcommand(SERVE, |serve| {
        values.into_iter().fold(serve, |serve, value| {
            serve.mut_arg(value.setting.name, |arg| arg.default_value(value.text))
        })
    }))
}
