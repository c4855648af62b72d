//! Arguments in two stages: texts from the command line, the environment and the configuration file ([`parsed`],
//! [`file`]), then a checked configuration ([`resolved`]), of which [`check`] makes a table.

mod check;
pub mod file;
mod fit;
pub mod parsed;
pub mod resolved;
pub mod talk;

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command, CommandFactory, FromArgMatches};

use self::file::{File, FileValue};
use self::parsed::{
    CHECK, CONFIG, CONFIG_FILE, CONFIG_VARIABLE, ConfigCommand, Given, LanesCommand, ModelsCommand,
    ParsedArgs, ParsedCommand,
};
use self::resolved::{Request, ServeConfig, ServerConfig};
use crate::error::LauncherError;

const PROGRAM: &str = "trunkline";
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
    let mut matches = command().try_get_matches_from(argv)?;
    let mut file = None;
    if let Some(path) = config_path(&matches)? {
        let text = std::fs::read_to_string(&path)
            .map_err(|source| LauncherError::ConfigUnreadable { path: path.clone(), source })?;
        let read = file::read(&text, &path.display().to_string())?;
        matches = with_values(command(), &read.values).try_get_matches_from(argv)?;
        file = Some(read);
    }
    Ok(match ParsedArgs::from_arg_matches(&matches)?.command {
        ParsedCommand::Serve(serve) => {
            let tables = match &file {
                Some(file) if !file.models.is_empty() => {
                    Some(file.models.iter().map(|model| of_model(file, model, argv)))
                }
                _ => None,
            };
            let mut config = match tables {
                Some(_)
                    if !serve.models.is_empty() || serve.settings.given("model_id") != Given::Otherwise =>
                {
                    return Err(LauncherError::usage(
                        "a model is named, but the file of `--config` has tables `[[model]]`; hint: put `model-id` into one \
                         of them",
                    )
                    .into());
                }
                Some(tables) => {
                    ServerConfig::of_tables(tables.collect::<Result<_, ParseError>>()?, &serve.settings)?
                }
                None => ServerConfig::new(&serve.models, &serve.settings)?,
            };
            config.has_lifeline = serve.lifeline;
            Request::Serve(Box::new(config))
        }
        ParsedCommand::Chat(chat) => Request::Chat(chat),
        ParsedCommand::Run(run) => Request::Run(run),
        ParsedCommand::Top(top) => Request::Top(top),
        ParsedCommand::Download(download) => Request::Download(resolved::download(download)?),
        ParsedCommand::List => Request::Library(vec!["list".to_owned()]),
        ParsedCommand::Show(show) => Request::Library(resolved::show(show)),
        ParsedCommand::Rm { model } => Request::Library(vec!["rm".to_owned(), model]),
        ParsedCommand::Fit(fit) => {
            fit.model.as_deref().map_or(Ok(()), resolved::check_model)?;
            Request::Library(fit::arguments(fit)?)
        }
        ParsedCommand::Quantize(quantize) => Request::Library(resolved::quantize(quantize)),
        ParsedCommand::Cache { command } => Request::Cache(command),
        ParsedCommand::Config { command: ConfigCommand::Check(check) } => {
            let settings = check::render(&check.settings, file.as_ref())?;
            match file.as_ref().map(|file| (file, &file.models)) {
                Some((file, models)) if !models.is_empty() => {
                    let configs = models.iter().map(|model| of_model(file, model, argv));
                    ServerConfig::of_tables(configs.collect::<Result<_, ParseError>>()?, &check.settings)?;
                }
                _ => drop(ServerConfig::new(&[], &check.settings)?),
            }
            Request::CheckConfig(settings)
        }
        ParsedCommand::Reload { pid } => Request::Reload(pid),
        ParsedCommand::Lanes { command, pid } => Request::Lanes(pid, command.unwrap_or(LanesCommand::List)),
        ParsedCommand::Models { command, pid, server } => {
            Request::Models(pid, command.unwrap_or(ModelsCommand::List), server)
        }
        ParsedCommand::Adapters { pid, server } => Request::Adapters(pid, server),
        ParsedCommand::Status { server } => Request::Status(server),
        ParsedCommand::Bench(bench) => Request::Bench(bench),
        ParsedCommand::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut ParsedArgs::command(), PROGRAM, &mut script);
            Request::Completions(script)
        }
        ParsedCommand::Man { folder } => Request::Man(folder),
        ParsedCommand::Env => Request::Env,
    })
}

/// Writes a manual page of each command into a folder.
pub(crate) fn write_manuals(folder: &Path) -> io::Result<()> {
    clap_mangen::generate_to(ParsedArgs::command(), folder)
}

/// Returns the environment variables that set flags of `serve`.
pub(crate) fn serve_variables() -> Vec<String> {
    let settings = trunkline_settings::all().into_iter().map(|(setting, _)| setting.variable());
    settings.chain([CONFIG_VARIABLE.to_owned()]).collect()
}

/// Makes the definition of the command line. It takes a millisecond, so it is made again where a copy is needed.
fn command() -> Command {
    let command = ParsedArgs::command();
    let has_empty = std::env::vars_os().any(|(_, value)| value.is_empty());
    if has_empty { without_empty_variables(command) } else { command }
}

/// Treats empty variables as unset: Compose files and Helm charts set them so when the user gave no value.
fn without_empty_variables(command: Command) -> Command {
    command.mut_args(without_empty_variable).mut_subcommands(without_empty_variables)
}

fn without_empty_variable(arg: Arg) -> Arg {
    let is_empty = arg.get_env().and_then(std::env::var_os).is_some_and(|value| value.is_empty());
    if is_empty { arg.env(None::<&str>) } else { arg }
}

/// Returns the configuration file of `serve`, or of `config check`, where an argument may name it.
fn config_path(matches: &ArgMatches) -> Result<Option<PathBuf>, LauncherError> {
    match matches.subcommand() {
        Some((SERVE, serve)) => Ok(serve.get_one(CONFIG).cloned()),
        Some((CONFIG, config)) => {
            let Some(check) = config.subcommand_matches(CHECK) else { return Ok(None) };
            let (file, flag) = (check.get_one::<PathBuf>(CONFIG_FILE), check.get_one::<PathBuf>(CONFIG));
            let is_flag = check.value_source(CONFIG) == Some(ValueSource::CommandLine);
            match (file, flag) {
                (Some(file), Some(flag)) if is_flag && file != flag => Err(LauncherError::usage(format!(
                    "FILE is `{}`, but `--config` is `{}`; hint: give only one of them",
                    file.display(),
                    flag.display()
                ))),
                _ => Ok(file.or(flag).cloned()),
            }
        }
        _ => Ok(None),
    }
}

/// Parses the command line again for one model of the configuration file.
fn of_model(file: &File, model: &[FileValue], argv: &[OsString]) -> Result<ServeConfig, ParseError> {
    let command = with_values(with_values(command(), &file.values), model);
    match ParsedArgs::from_arg_matches(&command.try_get_matches_from(argv)?)?.command {
        ParsedCommand::Serve(serve) => Ok(ServeConfig::new(None, &serve.settings)?),
        ParsedCommand::Config { command: ConfigCommand::Check(check) } => {
            Ok(ServeConfig::new(None, &check.settings)?)
        }
        _ => Err(LauncherError::usage("the arguments no longer ask to serve").into()),
    }
}

/// Makes the file's values the defaults of the flags, so that flags and variables take precedence over them.
fn with_values(command: Command, values: &[FileValue]) -> Command {
    let add = |command: Command| {
        values.iter().fold(command, |command, value| {
            command.mut_arg(value.setting.name, |arg| arg.default_value(value.text.clone()))
        })
    };
    command.mut_subcommand(SERVE, add).mut_subcommand(CONFIG, |config| config.mut_subcommand(CHECK, add))
}
