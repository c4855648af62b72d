//! The command line of `trunkline bench`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

use crate::compose::Endpoint;

const LOAD: &str = "Load";
const WORKLOAD: &str = "Workload";
const LENGTH: &str = "Length of a run";
const SERVER: &str = "Server";
const OUTPUT: &str = "Output";

/// Arguments of `trunkline bench`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct BenchArgs {
    #[command(subcommand)]
    pub command: Option<BenchCommand>,
    /// Address of the server, such as http://localhost:3000
    #[arg(required = true)]
    pub url: Option<String>,
    #[command(flatten)]
    pub run: RunArgs,
}

#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// Show two saved results side by side, or measure two servers by turns
    Compare {
        /// A file that `--json` has written, or the address of a server
        first: String,
        /// Another address or file, to compare the first one with
        second: String,
        #[command(flatten)]
        run: Box<RunArgs>,
    },
}

/// What is measured, and how.
#[derive(Clone, Debug, Args)]
pub struct RunArgs {
    /// Clients that each wait for their answer before they send the next request; several numbers are measured in turn
    /// [default: 8]
    #[arg(long, value_name = "N,...", value_delimiter = ',', help_heading = LOAD, conflicts_with_all = ["rate", "sweep"])]
    pub concurrency: Vec<usize>,
    /// Requests a second, sent whether earlier ones are answered or not; several rates are measured in turn
    #[arg(long, value_name = "R,...", value_delimiter = ',', help_heading = LOAD, conflicts_with = "sweep")]
    pub rate: Vec<f64>,
    /// Shape of the pauses between requests of `--rate`: 1 is a Poisson process, less has bursts, `inf` is a fixed rate
    /// [default: 1, and `inf` for `--sweep`]
    #[arg(long, value_name = "SHAPE", help_heading = LOAD)]
    pub burstiness: Option<f64>,
    /// Measure one client, then as many as `--max-concurrency`, then rates between what these two get; N loads in all
    #[arg(long, value_name = "N", num_args = 0..=1, default_missing_value = "10", help_heading = LOAD)]
    pub sweep: Option<usize>,
    /// Clients of the second load of `--sweep`
    #[arg(long, value_name = "N", default_value_t = 512, help_heading = LOAD)]
    pub max_concurrency: usize,

    /// Tokens of a prompt, beside a shared prefix
    #[arg(long, value_name = "N", default_value_t = 512, help_heading = WORKLOAD)]
    pub input_tokens: u32,
    /// Tokens of an output
    #[arg(long, value_name = "N", default_value_t = 128, help_heading = WORKLOAD)]
    pub output_tokens: u32,
    /// Vary both lengths uniformly by this part, up and down: 0.5 is half to one and a half times as long
    #[arg(long, value_name = "PART", default_value_t = 0.0, help_heading = WORKLOAD)]
    pub spread: f64,
    /// Draw lengths like those of a data set of chats instead
    #[arg(long, value_name = "NAME", value_parser = ["sharegpt"], help_heading = WORKLOAD)]
    pub lengths: Option<String>,
    /// Begin each prompt with a prefix of so many tokens that others share
    #[arg(long, value_name = "N", default_value_t = 0, help_heading = WORKLOAD)]
    pub prefix_tokens: u32,
    /// Number of different prefixes
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = WORKLOAD)]
    pub prefixes: u64,
    /// Requests of a conversation, each of which repeats those before with their answers, as agents do
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = WORKLOAD)]
    pub turns: u32,
    /// Mean pause before each further turn, such as the time of a tool
    #[arg(long, value_name = "DURATION", default_value = "0", value_parser = duration, help_heading = WORKLOAD)]
    pub pause: Duration,
    /// Trace of arrivals in the Mooncake format (`-`: standard input), sent at its own times unless a load is given
    #[arg(long, value_name = "FILE", help_heading = WORKLOAD, conflicts_with_all = ["sharegpt", "prompts"])]
    pub trace: Option<String>,
    /// Tokens for which an id of the trace stands
    #[arg(long, value_name = "N", default_value_t = 512, help_heading = WORKLOAD)]
    pub trace_block_tokens: u32,
    /// Send the requests of the trace so many times as fast
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0, help_heading = WORKLOAD)]
    pub trace_speed: f64,
    /// Divide all lengths of the trace by this number
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = WORKLOAD)]
    pub trace_shrink: u32,
    /// Cut the prompts of the trace to so many tokens
    #[arg(long, value_name = "N", help_heading = WORKLOAD)]
    pub max_input_tokens: Option<u32>,
    /// The ShareGPT data set (JSON): its first messages are the prompts
    #[arg(long, value_name = "FILE", help_heading = WORKLOAD, conflicts_with = "prompts")]
    pub sharegpt: Option<String>,
    /// Prompts (`-`: standard input), a line of JSON each: {"prompt": "..."} or {"messages": [...]}, with
    /// "output_tokens", "pause_s" and "extra_body" if you like
    #[arg(long, value_name = "FILE", help_heading = WORKLOAD)]
    pub prompts: Option<String>,
    /// Seed of prompts, lengths and arrivals: the same seed gives the same requests
    #[arg(long, value_name = "N", default_value_t = 0, help_heading = WORKLOAD)]
    pub seed: u64,
    /// Let outputs end before they have their length; without this, requests have the field `ignore_eos`
    #[arg(long, help_heading = WORKLOAD)]
    pub stop_early: bool,

    /// Requests of each load
    #[arg(long, value_name = "N", help_heading = LENGTH, conflicts_with = "duration")]
    pub requests: Option<u64>,
    /// Time during which each load sends requests; those that are open then are finished [default: 30s, or the whole
    /// trace]
    #[arg(long, value_name = "DURATION", value_parser = duration, help_heading = LENGTH)]
    pub duration: Option<Duration>,
    /// Requests before the first load that are not counted
    #[arg(long, value_name = "N", default_value_t = 0, help_heading = LENGTH)]
    pub warmup: u64,

    /// Route to measure [default: completions, or chat for prompts with messages]
    #[arg(long, value_name = "ROUTE", help_heading = SERVER)]
    pub endpoint: Option<Endpoint>,
    /// Name of the model [default: the first one of /v1/models]
    #[arg(long, value_name = "NAME", help_heading = SERVER)]
    pub model: Option<String>,
    /// JSON object with fields for each request, such as '{"temperature": 0.7}'
    #[arg(long, value_name = "JSON", help_heading = SERVER)]
    pub extra_body: Option<String>,
    /// Time in which a request must be answered completely
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = duration, help_heading = SERVER)]
    pub timeout: Duration,
    /// Environment variable that contains the API key [default: TRUNKLINE_API_KEY or OPENAI_API_KEY, if set]
    #[arg(long, value_name = "VAR", help_heading = SERVER)]
    pub api_key_env: Option<String>,
    /// PEM file with the authority of the server's certificate, or with that certificate if it is self-signed
    #[arg(long, value_name = "FILE", help_heading = SERVER, conflicts_with = "insecure")]
    pub cacert: Option<PathBuf>,
    /// Accept every certificate; another server could then receive the API key
    #[arg(long, help_heading = SERVER)]
    pub insecure: bool,

    /// Count the requests that keep these bounds in milliseconds: `ttft:200 tpot:50 e2el:5000`
    #[arg(long, value_name = "NAME:MS", num_args = 1.., help_heading = OUTPUT)]
    pub goodput: Vec<String>,
    /// Write the result to a file
    #[arg(long, value_name = "FILE", help_heading = OUTPUT)]
    pub json: Option<String>,
    /// Add the text of each answer and the times of its events to the file of `--json`
    #[arg(long, help_heading = OUTPUT, requires = "json")]
    pub detailed: bool,
    /// Write a report with plots to a file
    #[arg(long, value_name = "FILE", help_heading = OUTPUT)]
    pub html: Option<String>,
}

/// Parses seconds, or a number with a unit.
fn duration(text: &str) -> Result<Duration, String> {
    let parsed = match text.parse() {
        Ok(seconds) => Duration::try_from_secs_f64(seconds).ok(),
        Err(_) => humantime::parse_duration(text).ok(),
    };
    parsed.ok_or_else(|| "expected seconds, or a number with a unit, such as 90s or 5m".to_owned())
}
