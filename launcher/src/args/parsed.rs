//! The command line as parsed by clap. The flags of `serve` are made from the tables of `trunkline-settings`; their
//! values are still texts, which [`super::resolved`] turns into a configuration.

use std::path::PathBuf;

use clap::builder::{
    BoolishValueParser, NonEmptyStringValueParser, PossibleValue, PossibleValuesParser, StringValueParser,
    TypedValueParser,
};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches, Parser, Subcommand, value_parser};
use clap_complete::Shell;
use trunkline_bench::BenchArgs;
use trunkline_settings::{Form, Group, Named, Setting};

use super::fit::ParsedFit;
use super::talk::{ChatArgs, RunArgs, TopArgs};
use crate::cache::{CacheCommand, ServerArgs};
use crate::error::LauncherError;

/// Name of the flag for the configuration file, the only flag of `serve` that is no setting, and of the command that
/// looks into it.
pub(crate) const CONFIG: &str = "config";
pub(crate) const CHECK: &str = "check";
/// The argument of `config check` that names the configuration file.
pub(crate) const CONFIG_FILE: &str = "file";
/// Environment variable of the configuration file.
pub(crate) const CONFIG_VARIABLE: &str = "TRUNKLINE_CONFIG";

/// Shells whose completion is tested.
const SHELLS: [&str; 3] = ["bash", "zsh", "fish"];

/// An inference server for large language models.
///
/// Every flag of `serve` can also be set by an environment variable or by a key in the file given with `--config`. A
/// flag takes precedence over its variable, the variable over the file, and the file over the default. A SIZE is in
/// bytes or has a unit, such as 10GiB or 10GB; a DURATION is in seconds (milliseconds for flags that end in `-ms`) or
/// has a unit, such as 90s, 5m or 45ms.
#[derive(Debug, Parser)]
#[command(name = "trunkline", version, max_term_width = 100)]
pub struct ParsedArgs {
    /// The command to run.
    #[command(subcommand)]
    pub(crate) command: ParsedCommand,
}

/// The subcommands of `trunkline`, with their arguments.
#[derive(Debug, Subcommand)]
pub(crate) enum ParsedCommand {
    /// Serve a model over HTTP until SIGINT or SIGTERM
    ///
    /// The first of these signals drains the server: it refuses new requests, finishes open ones and exits with code 0.
    /// A second signal stops it immediately. Exit codes: 0 after a requested stop, 3 if it cut requests that
    /// `--graceful-termination-timeout` was too short for, 2 for a mistake in the flags or the model, 1 for any other
    /// failure.
    Serve(Box<ParsedServe>),
    /// Chat with a model in the terminal
    ///
    /// Talks to the server at an address. For a model, or without one, it uses a server of this user on this machine
    /// that serves it, or else starts one, which ends with the chat. If the input or the output is no terminal, the
    /// input is one question, and only the answer is printed: `echo "Why is the sky blue?" | trunkline chat`.
    Chat(Box<ChatArgs>),
    /// Answer one question and end
    ///
    /// The server is found or started as for `chat`. Only the answer goes to the standard output. Text on the standard
    /// input follows the question: `trunkline run org/name "Summarise this:" < notes.txt`.
    Run(Box<RunArgs>),
    /// Show what a server is doing: requests, speed, delays, cache, models, lanes and tenants
    ///
    /// Renews the view each second until `q` is pressed. Percentiles are those of the last 30 s. With `--once`, rates
    /// are those of a second, and percentiles those since the start. With API keys, the server shows its numbers only
    /// to a key, and a tenant's key sees only this tenant.
    Top(Box<TopArgs>),
    /// Download a model from the Hub so that `serve` finds it, and print its path
    Download(ParsedDownload),
    /// List the models that were downloaded from the Hub
    List,
    /// Describe a model on this machine: architecture, parameters, weights, context and the memory that it needs
    Show(ParsedShow),
    /// Say whether a model fits into the memory of this machine, with which flags, and which file to take
    ///
    /// Prints the memory that the model needs on the cpu backend for streams of a context, and the command line that
    /// serves it so. Of a repository on the Hub only the headers of the files are read. If it has several GGUF models,
    /// all are compared, and the one with the most bits a weight that fits is recommended, up to 9. Exit codes: 0 if a
    /// model fits, 1 if none does, 2 for a mistake in the arguments or the model.
    Fit(ParsedFit),
    /// Delete a model that was downloaded from the Hub, with all its revisions
    Rm {
        /// Hub id: `org/name`
        model: String,
    },
    /// Write an unquantised model as a GGUF file with quantised weights
    ///
    /// Each 32 weights of a row share a scale: `int8` is Q8_0, 8.5 bits a weight, and `int4` is Q4_1, 5 bits, with
    /// embedding and head in Q8_0. These are the weights of `serve --quantize`. From safetensors, models without
    /// latents or recurrent layers whose tokenizer is byte-level BPE can be written; from GGUF, any.
    Quantize(ParsedQuantize),
    /// Check the configuration of `serve`
    Config {
        /// The command to run on the configuration.
        #[command(subcommand)]
        command: ConfigCommand,
    },
    /// Inspect, verify, repair, pin, remove, export or import cached prefixes
    Cache {
        /// The command to run on the cache.
        #[command(subcommand)]
        command: CacheCommand,
    },
    /// Let a running server read its settings again, without failing a request
    ///
    /// The server reads the configuration file again, resolves the model, and starts a new router and shard beside the
    /// old ones. When they are ready, they take over the port, and the old ones finish their open connections. The
    /// machine needs memory for both shards; with several replicas, new shards take the places of old ones, one after
    /// the other. The host name and the port cannot change. Exit codes: 0 once the new settings are in use, 1 if the
    /// server goes on with the old ones, for the reason that is printed.
    Reload {
        /// Process id of the `trunkline serve` to reload, if this user runs several
        #[arg(value_parser = value_parser!(i32).range(1..))]
        pid: Option<i32>,
    },
    /// List the replicas of a running server, stop one of them, or start it again
    ///
    /// Each replica of the model is a lane of the server, with a number from 0. The list has the process id of its
    /// shard, its state, and the number of sequences that run on it; `-` stands for what is unknown. The list of a
    /// server of several models names the model of each lane. Exit codes: 0 once it is done, 1 if not, for the reason
    /// that is printed.
    Lanes {
        /// The command to run.
        #[command(subcommand)]
        command: Option<LanesCommand>,
        /// Process id of the `trunkline serve`, if this user runs several
        #[arg(long, global = true, value_parser = value_parser!(i32).range(1..))]
        pid: Option<i32>,
    },
    /// List the models of a running server, load, unload or pin one of them
    ///
    /// The list has the name of each model, its state, and the memory that it needs. A model with `pinned` stays in
    /// memory. Only the server of several models, or one with `--idle-unload`, loads and unloads them. With API keys,
    /// a tenant with `admin = true` may. Exit codes: 0 once it is done, 1 if not, for the reason that is printed.
    Models {
        /// The command to run.
        #[command(subcommand)]
        command: Option<ModelsCommand>,
        /// Process id of the `trunkline serve`, if this user runs several
        #[arg(long, global = true, value_parser = value_parser!(i32).range(1..))]
        pid: Option<i32>,
        /// The server elsewhere, if any.
        #[command(flatten)]
        server: ServerArgs,
    },
    /// List the adapters of a running server
    ///
    /// The list has the name of each adapter, its rank and its size on the device once it is open, and its state:
    /// `unopened` until a request names it, `opening`, `open`, or why it cannot be used. A server with API keys lists
    /// those that the key may use.
    Adapters {
        /// Process id of the `trunkline serve`, if this user runs several
        #[arg(long, value_parser = value_parser!(i32).range(1..))]
        pid: Option<i32>,
        /// The server elsewhere, if any.
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Show the servers that run on this machine
    ///
    /// Lists the servers of this user with the process id of `trunkline serve`, the model, the address, how many of its
    /// shards run, the numbers of running and queued sequences, the time since the start, and whether it is ready or
    /// why not. `-` stands for what is unknown: a server with API keys shows its numbers only to a key. Exit codes: 0
    /// if every server in the list is ready, 1 if not, or if there is none.
    #[command(visible_alias = "ps")]
    Status {
        /// The server elsewhere, if any.
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Measure any server of the OpenAI API under load: latency, throughput and failures
    ///
    /// Sends requests to /v1/completions or /v1/chat/completions, prints a table, and writes a file (`--json`) or a
    /// page with plots (`--html`). `trunkline bench compare` shows two results side by side. The figures are defined as
    /// those of `vllm bench serve`. Ctrl-C ends the measurement and shows what was measured until then. A DURATION is
    /// in seconds or has a unit, such as 90s or 5m. Exit codes: 0 if a request was answered, 1 if none was, 2 for a
    /// mistake in the arguments, 130 if the measurement was interrupted.
    Bench(Box<BenchArgs>),
    /// Print a script that completes commands and flags in a shell
    ///
    /// For bash: `source <(trunkline completions bash)` in ~/.bashrc. For zsh: write the output to a file `_trunkline`
    /// in a folder of `fpath`. For fish: write it to ~/.config/fish/completions/trunkline.fish.
    Completions {
        /// The shell
        #[arg(value_parser = PossibleValuesParser::new(SHELLS).try_map(|name| name.parse::<Shell>()))]
        shell: Shell,
    },
    /// Write a manual page of each command into a folder
    ///
    /// `trunkline man ~/.local/share/man/man1` lets `man trunkline-serve` find them.
    Man {
        /// The folder, which must exist
        folder: PathBuf,
    },
    /// Print the versions, hardware and paths that a bug report needs
    Env,
}

/// The commands of `trunkline lanes`.
#[derive(Debug, Clone, Subcommand)]
pub enum LanesCommand {
    /// List the lanes, as without a command
    List,
    /// Stop the shard of a lane once it is empty, without failing a request
    ///
    /// The lane gets no new requests. Those that run on it have 10 s to finish; then they go on with another lane. A
    /// shard that others have started is not stopped; its lane is left empty.
    Drain(PlaceArgs),
    /// Start the shard of a lane again that was drained or given up, and wait until it serves
    Add(PlaceArgs),
}

/// The lane that a command is about.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct PlaceArgs {
    /// Number of the lane
    pub lane: u32,
    /// Name of the lane's model; by default, the first one of the server
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
    pub model: Option<String>,
}

/// The commands of `trunkline models`.
#[derive(Debug, Clone, PartialEq, Eq, Subcommand)]
pub enum ModelsCommand {
    /// List the models, as without a command
    List,
    /// Load a model, and wait until it is in memory
    Load {
        /// Name of the model
        model: String,
    },
    /// Unload a model once its open requests have ended
    Unload {
        /// Name of the model
        model: String,
    },
    /// Load a model and keep it in memory
    Pin {
        /// Name of the model
        model: String,
    },
    /// Let a pinned model leave when others need its memory
    Unpin {
        /// Name of the model
        model: String,
    },
}

/// The commands of `trunkline config`.
#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Print each setting that `serve` would use, and where it comes from
    ///
    /// Takes the flags and variables of `serve`. Keys are not shown. Exit codes: 0 if `serve` would accept the
    /// settings, 2 if not, for the reason that is printed. Models, certificates and files of keys are not read.
    Check(Box<ParsedCheck>),
}

/// Arguments of `trunkline config check`.
#[derive(Debug, Args)]
pub(crate) struct ParsedCheck {
    /// The configuration file, the same as `--config FILE`
    #[arg(id = CONFIG_FILE, value_name = "FILE")]
    file: Option<PathBuf>,
    /// The flags of `serve`.
    #[command(flatten)]
    pub(crate) settings: ParsedSettings,
}

/// Arguments of `trunkline download`.
#[derive(Debug, Args)]
pub(crate) struct ParsedDownload {
    /// Hub id: `org/name`, or `org/name:file.gguf` for a single file
    pub model: String,
    /// Branch, tag or commit on the Hub
    #[arg(long, env = "TRUNKLINE_REVISION", hide_env_values = true)]
    pub revision: Option<String>,
}

/// Arguments of `trunkline show`.
#[derive(Debug, Args)]
pub(crate) struct ParsedShow {
    /// Hub id (`org/name` or `org/name:file.gguf`), folder or `.gguf` file [default: the embedded
    /// SmolLM2-135M-Instruct]
    pub model: Option<String>,
    /// Branch, tag or commit on the Hub
    #[arg(long, env = "TRUNKLINE_REVISION", hide_env_values = true)]
    pub revision: Option<String>,
}

/// Arguments of `trunkline quantize`.
#[derive(Debug, Args)]
pub(crate) struct ParsedQuantize {
    /// Hub id (`org/name` or `org/name:file.gguf`), folder or `.gguf` file
    pub model: String,
    /// The file to write, which must not exist
    #[arg(value_name = "OUT.gguf")]
    pub out: String,
    /// Format of the matrices
    #[arg(long = "type", value_name = "TYPE", value_parser = ["int8", "int4"], default_value = "int8")]
    pub format: String,
    /// Branch, tag or commit on the Hub
    #[arg(long, env = "TRUNKLINE_REVISION", hide_env_values = true)]
    pub revision: Option<String>,
}

/// Arguments of `trunkline serve`.
#[derive(Debug, Args)]
pub(crate) struct ParsedServe {
    /// Hub id (`org/name` or `org/name:file.gguf`), folder or `.gguf` file [default: the embedded
    /// SmolLM2-135M-Instruct]
    ///
    /// With several, requests choose one by its name. It is loaded when it is first asked for, and others leave the
    /// memory if they have to (`--models-memory`). Requests that name none get the first one, which is loaded at the
    /// start.
    #[arg(value_name = "MODEL")]
    pub(crate) models: Vec<String>,
    /// Stop when the standard input ends
    #[arg(long, hide = true)]
    pub(crate) lifeline: bool,
    /// The flags of `serve`.
    #[command(flatten)]
    pub(crate) settings: ParsedSettings,
}

/// The flags of `trunkline serve`.
#[derive(Debug)]
pub(crate) struct ParsedSettings {
    matches: ArgMatches,
}

/// The place that sets a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Given {
    Flag,
    Variable,
    /// The configuration file, or the default.
    Otherwise,
}

impl ParsedSettings {
    /// Parses and checks the settings of one group.
    pub(crate) fn group<G: Group>(&self) -> Result<G, LauncherError> {
        G::read(|setting| self.text(setting)).map_err(|error| LauncherError::usage(error.to_string()))
    }

    /// Returns where the value of the setting with this name comes from.
    pub(crate) fn given(&self, name: &str) -> Given {
        match self.matches.value_source(name) {
            Some(ValueSource::CommandLine) => Given::Flag,
            Some(ValueSource::EnvVariable) => Given::Variable,
            _ => Given::Otherwise,
        }
    }

    fn text(&self, setting: &Setting) -> Option<String> {
        match setting.form {
            Form::Switch => Some(self.matches.get_flag(setting.name).to_string()),
            _ => {
                let values = self.matches.get_many::<String>(setting.name)?;
                Some(values.map(String::as_str).collect::<Vec<_>>().join(","))
            }
        }
    }
}

impl Args for ParsedSettings {
    fn augment_args(command: Command) -> Command {
        let config = Arg::new(CONFIG)
            .long(CONFIG)
            .value_name("FILE")
            .env(CONFIG_VARIABLE)
            .hide_env_values(true)
            .value_parser(value_parser!(PathBuf))
            .help("TOML file with flags as keys, such as `port = 8080`");
        command.arg(config).args(trunkline_settings::all().into_iter().map(flag))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for ParsedSettings {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        Ok(Self { matches: matches.clone() })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.matches = matches.clone();
        Ok(())
    }
}

/// Makes the flag of a setting with the given default.
fn flag((setting, default): (&'static Setting, Option<String>)) -> Arg {
    let arg = Arg::new(setting.name)
        .long(setting.key())
        .help_heading(setting.heading)
        .help(setting.help_text())
        .env(setting.variable())
        .hide_env_values(true);
    let arg = match setting.form {
        Form::Switch => {
            return arg.action(ArgAction::SetTrue).value_parser(BoolishValueParser::new());
        }
        Form::Choice { named, .. } => arg.value_parser(Listed(named)),
        Form::Names | Form::Origins | Form::Sockets { .. } | Form::Adapters { .. } => {
            arg.action(ArgAction::Append)
        }
        _ => arg,
    };
    let arg = match setting.name {
        "port" => arg.short('p'),
        // vLLM's name.
        "lora" => arg.visible_alias("lora-modules"),
        _ => arg,
    };
    arg.value_name(setting.form.value_name()).default_values(default)
}

/// Lists names in the help text and accepts any text: settings are checked in one place, whichever way they are given.
#[derive(Debug, Clone)]
struct Listed(&'static [Named]);

impl TypedValueParser for Listed {
    type Value = String;

    fn parse_ref(
        &self,
        command: &Command,
        arg: Option<&Arg>,
        value: &std::ffi::OsStr,
    ) -> Result<String, clap::Error> {
        StringValueParser::new().parse_ref(command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        let values = self.0.iter().map(|named| PossibleValue::new(named.name).help(named.help_text()));
        Some(Box::new(values))
    }
}
