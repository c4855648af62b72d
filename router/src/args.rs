//! The command line: the file with the settings, and what the launcher says about this start.

use std::ffi::OsString;
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow, bail};
use trunkline_reply::ToolFormat;
use trunkline_settings::{ReasoningParser, ServeSettings, ToolCallParser};

use trunkline_generation::model::Choice;

const HELP: &str = "\
The HTTP front of Trunkline, started by `trunkline serve`

Usage: trunkline-router --settings <FILE>... [--listener <FD>] [--metrics-listener <FD>] [--on-demand]
                        [--load <NUMBER>]... [--accept-when-ready] [--lifeline]

Options:
      --settings <FILE>        JSON file with the settings of a model, written by the launcher. The first file's are
                               also those of the server; further ones are read when their model is asked for
      --listener <FD>          Accept connections from this inherited socket instead of opening one
      --metrics-listener <FD>  The same for the connections of `--metrics-port`
      --on-demand              Ask the launcher to load a model when it is asked for, and to unload others for it
      --load <NUMBER>          Load the model with this number, counted from 0, at the start
      --accept-when-ready      Accept connections only once the shard is ready
      --lifeline               Take orders from standard input, exit at once when it ends, and ignore SIGINT
      --version                Print the version
      --help                   Print this help
";
const HINT: &str = "hint: start the router with `trunkline serve`";

#[derive(Debug)]
pub enum Command {
    Serve(Start),
    /// Print this text and exit.
    Print(String),
}

/// The launcher's flags for this start, as opposed to the server's settings.
#[derive(Debug, Default)]
pub struct Start {
    /// The file with the settings of the server and its first model.
    pub settings: PathBuf,
    /// The files of further models.
    pub others: Vec<PathBuf>,
    /// The socket that the launcher listens on, which this process inherits.
    pub listener: Option<RawFd>,
    /// The same for the metrics' own port.
    pub metrics_listener: Option<RawFd>,
    /// True if models are loaded when they are asked for.
    pub on_demand: bool,
    /// The numbers of the models that are loaded from the start.
    pub loads: Vec<u32>,
    /// True if another router serves until this one can.
    pub accepts_when_ready: bool,
    /// True if the end of standard input ends the process.
    pub lifeline: bool,
}

/// Parses the arguments after the program's name.
pub fn parse(arguments: impl IntoIterator<Item = OsString>) -> anyhow::Result<Command> {
    let mut arguments = arguments.into_iter();
    let (mut settings, mut start) = (Vec::new(), Start::default());
    while let Some(argument) = arguments.next() {
        match argument.to_str() {
            Some("--settings") => {
                let path = arguments.next().with_context(|| format!("`--settings` needs a file; {HINT}"))?;
                settings.push(PathBuf::from(path));
            }
            Some(flag @ ("--listener" | "--metrics-listener")) => {
                let number = arguments.next().and_then(|text| text.to_str()?.parse().ok());
                // 0 to 2 are the standard streams.
                let number = number.filter(|number: &RawFd| *number > 2);
                let number = number.with_context(|| format!("`{flag}` needs a file descriptor; {HINT}"))?;
                let is_metrics = flag == "--metrics-listener";
                let socket = if is_metrics { &mut start.metrics_listener } else { &mut start.listener };
                *socket = Some(number);
            }
            Some("--load") => {
                let number = arguments.next().and_then(|text| text.to_str()?.parse().ok());
                start.loads.push(number.with_context(|| format!("`--load` needs a number; {HINT}"))?);
            }
            Some("--on-demand") => start.on_demand = true,
            Some("--accept-when-ready") => start.accepts_when_ready = true,
            Some("--lifeline") => start.lifeline = true,
            Some("--version") => {
                return Ok(Command::Print(format!("trunkline-router {}\n", env!("CARGO_PKG_VERSION"))));
            }
            Some("--help") => return Ok(Command::Print(HELP.to_owned())),
            _ => bail!("unknown argument `{}`; {HINT}", argument.display()),
        }
    }
    anyhow::ensure!(!settings.is_empty(), "`--settings` is missing; {HINT}");
    anyhow::ensure!(
        settings.len() == 1 || start.on_demand,
        "several `--settings` need `--on-demand`; {HINT}"
    );
    start.settings = settings.remove(0);
    start.others = settings;
    Ok(Command::Serve(start))
}

/// Reads and checks the settings in the file at `path`.
pub fn read_settings(path: &Path) -> anyhow::Result<ServeSettings> {
    let fail = |problem: &dyn std::fmt::Display, hint: &str| {
        anyhow!("cannot read the settings `{}`: {problem}{hint}", path.display())
    };
    let text = std::fs::read_to_string(path).map_err(|error| fail(&error, ""))?;
    let settings: ServeSettings = serde_json::from_str(&text)
        .map_err(|error| fail(&error, "; hint: check that launcher and router have the same version"))?;
    settings.check()?;
    Ok(settings)
}

pub fn tool_format(parser: ToolCallParser) -> Choice<ToolFormat> {
    match (ToolFormat::of(parser), parser) {
        (Some(format), _) => Choice::Is(format),
        (None, ToolCallParser::Off) => Choice::Off,
        (None, _) => Choice::Auto,
    }
}

pub fn reasoning_format(parser: ReasoningParser) -> Choice<()> {
    match parser {
        ReasoningParser::Auto => Choice::Auto,
        ReasoningParser::Think => Choice::Is(()),
        ReasoningParser::Off => Choice::Off,
    }
}
