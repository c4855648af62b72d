//! What the user typed: every flag with its variable, help and plain type. What it means is in [`super::high`].

use std::path::PathBuf;

use clap::builder::BoolishValueParser;
use clap::{Args, Parser, Subcommand, ValueEnum};

use super::cache::LowCache;
use super::replies::Replies;
use super::watermark::LowWatermark;
use crate::cache::CacheCommand;
use crate::log::Level;

/// An inference server for large language models.
///
/// Every flag of `serve` is also an environment variable and a key of the file that `--config` names. A flag outranks
/// its variable, the variable outranks the file, the file outranks the default.
#[derive(Debug, Parser)]
#[command(name = "trunkline", version, max_term_width = 100)]
pub struct LowArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: LowCommand,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum LowCommand {
    /// Serve a model over HTTP until SIGINT or SIGTERM
    ///
    /// The first of these signals drains: no new requests, open ones finish, then exit code 0. A second one stops at
    /// once. Exit codes: 0 stopped as asked, 2 a mistake in the flags or the model, 1 any other failure.
    Serve(Box<LowServe>),
    /// Fetch a model from the Hub, so that `serve` finds it; prints its path
    Download(LowDownload),
    /// Look into the KV cache on disk, check it, remove from it, move conversations
    Cache {
        /// What to do with it.
        #[command(subcommand)]
        command: CacheCommand,
    },
    /// Print what a bug report needs: versions, processor, memory, paths
    Env,
}

/// `trunkline download`
#[derive(Debug, Args)]
pub struct LowDownload {
    /// Hub id: `org/name`, or `org/name:file.gguf` for one file
    pub model: String,
    /// Branch, tag or commit on the Hub
    #[arg(long, env = "TRUNKLINE_REVISION", hide_env_values = true)]
    pub revision: Option<String>,
}

/// `trunkline serve`
#[derive(Debug, Args)]
pub struct LowServe {
    /// TOML file with flags as keys, such as `port = 8080`
    #[arg(long, value_name = "FILE", env = "TRUNKLINE_CONFIG", hide_env_values = true)]
    pub config: Option<PathBuf>,
    /// Which model.
    #[command(flatten)]
    pub model: LowModel,
    /// Where to listen.
    #[command(flatten)]
    pub server: LowServer,
    /// What to admit.
    #[command(flatten)]
    pub limits: LowLimits,
    /// How replies are read.
    #[command(flatten)]
    pub replies: Replies,
    /// How replies are marked.
    #[command(flatten)]
    pub watermark: LowWatermark,
    /// How to compute.
    #[command(flatten)]
    pub compute: LowCompute,
    /// How K and V are kept.
    #[command(flatten)]
    pub cache: LowCache,
    /// What to log.
    #[command(flatten)]
    pub logging: LowLogging,
}

/// Which model to serve, and under which name.
#[derive(Debug, Args)]
#[command(next_help_heading = "Model")]
pub struct LowModel {
    /// Hub id (`org/name` or `org/name:file.gguf`), folder or `.gguf` file; the embedded
    /// SmolLM2-135M-Instruct if absent
    pub model: Option<String>,
    /// The same as MODEL
    #[arg(long, env = "TRUNKLINE_MODEL_ID", hide_env_values = true)]
    pub model_id: Option<String>,
    /// Branch, tag or commit on the Hub
    #[arg(long, env = "TRUNKLINE_REVISION", hide_env_values = true)]
    pub revision: Option<String>,
    /// Name of the model in answers [default: its Hub id or file name]
    #[arg(long, value_name = "NAME", env = "TRUNKLINE_SERVED_MODEL_NAME", hide_env_values = true)]
    pub served_model_name: Option<String>,
}

/// Where to listen and how to stop.
#[derive(Debug, Args)]
#[command(next_help_heading = "Server")]
pub struct LowServer {
    /// Address to listen on; 0.0.0.0 opens the server to the network
    #[arg(
        long,
        value_name = "HOST",
        default_value = "127.0.0.1",
        env = "TRUNKLINE_HOSTNAME",
        hide_env_values = true
    )]
    pub hostname: String,
    /// Port to listen on; 0 takes a free one
    #[arg(long, short, default_value = "3000", env = "TRUNKLINE_PORT", hide_env_values = true)]
    pub port: String,
    /// TOML file with the API keys that open the server, by tenant; without it and without
    /// `TRUNKLINE_API_KEY`, which holds one key, everybody may come in
    #[arg(long, value_name = "FILE", env = "TRUNKLINE_API_KEYS", hide_env_values = true)]
    pub api_keys: Option<PathBuf>,
    /// PEM file with the server's certificate: the server then speaks TLS alone. Read again when it
    /// changes; needs `--tls-key`
    #[arg(long, value_name = "FILE", env = "TRUNKLINE_TLS_CERT", hide_env_values = true)]
    pub tls_cert: Option<PathBuf>,
    /// PEM file with the certificate's private key
    #[arg(long, value_name = "FILE", env = "TRUNKLINE_TLS_KEY", hide_env_values = true)]
    pub tls_key: Option<PathBuf>,
    /// Origins whose scripts in browsers may call, such as `https://chat.example.com`, parted by
    /// commas; `*` is every one [default: none]
    #[arg(
        long,
        value_name = "ORIGIN",
        value_delimiter = ',',
        env = "TRUNKLINE_CORS_ALLOW_ORIGIN",
        hide_env_values = true
    )]
    pub cors_allow_origin: Vec<String>,
    /// Seconds that open requests may take to finish after SIGTERM
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 90,
        env = "TRUNKLINE_GRACEFUL_TERMINATION_TIMEOUT",
        hide_env_values = true
    )]
    pub graceful_termination_timeout: u32,
}

/// What to admit and how much of it at once.
#[derive(Debug, Args)]
#[command(next_help_heading = "Limits")]
pub struct LowLimits {
    /// Most requests open at once; more are refused with 429
    #[arg(
        long,
        value_name = "N",
        default_value_t = 128,
        env = "TRUNKLINE_MAX_CONCURRENT_REQUESTS",
        hide_env_values = true
    )]
    pub max_concurrent_requests: u32,
    /// Most sequences waiting for their first step; more are refused with 429 [default: as many as
    /// may be open]
    #[arg(long, value_name = "N", env = "TRUNKLINE_MAX_QUEUED_REQUESTS", hide_env_values = true)]
    pub max_queued_requests: Option<u32>,
    /// Most tokens of a prompt [default: the context minus one]
    #[arg(long, value_name = "TOKENS", env = "TRUNKLINE_MAX_INPUT_TOKENS", hide_env_values = true)]
    pub max_input_tokens: Option<u32>,
    /// Most tokens of prompt and output [default: the model's context]
    #[arg(long, value_name = "TOKENS", env = "TRUNKLINE_MAX_TOTAL_TOKENS", hide_env_values = true)]
    pub max_total_tokens: Option<u32>,
    /// Most tokens that one step computes [default: chosen by the backend]
    #[arg(long, value_name = "TOKENS", env = "TRUNKLINE_MAX_BATCH_PREFILL_TOKENS", hide_env_values = true)]
    pub max_batch_prefill_tokens: Option<u32>,
    /// Tokens that the KV cache holds [default: 131072, or what a quarter of the available memory
    /// holds if that is less]
    #[arg(long, value_name = "TOKENS", env = "TRUNKLINE_MAX_BATCH_TOTAL_TOKENS", hide_env_values = true)]
    pub max_batch_total_tokens: Option<u32>,
    /// Most sequences in one step [default: chosen by the backend]
    #[arg(long, value_name = "N", env = "TRUNKLINE_MAX_STEP_SEQUENCES", hide_env_values = true)]
    pub max_step_sequences: Option<u32>,
    /// Most outputs that one prompt may ask for (`n`, `best_of`)
    #[arg(
        long,
        value_name = "N",
        default_value_t = 128,
        env = "TRUNKLINE_MAX_BEST_OF",
        hide_env_values = true
    )]
    pub max_best_of: u32,
    /// Most messages of a chat
    #[arg(
        long,
        value_name = "N",
        default_value_t = 16_384,
        env = "TRUNKLINE_MAX_MESSAGES",
        hide_env_values = true
    )]
    pub max_messages: u32,
    /// Most parts, or blocks, of a message
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1024,
        env = "TRUNKLINE_MAX_MESSAGE_PARTS",
        hide_env_values = true
    )]
    pub max_message_parts: u32,
    /// Most tools that a request may offer
    #[arg(
        long,
        value_name = "N",
        default_value_t = 128,
        env = "TRUNKLINE_MAX_TOOLS",
        hide_env_values = true
    )]
    pub max_tools: u32,
    /// Most bytes of answers of /v1/responses that are kept for requests that go on from them; 0 keeps none
    #[arg(
        long,
        value_name = "BYTES",
        default_value_t = 64 << 20,
        env = "TRUNKLINE_MAX_RESPONSE_STORE_BYTES",
        hide_env_values = true
    )]
    pub max_response_store_bytes: u64,
    /// Most stop strings of a request
    #[arg(
        long,
        value_name = "N",
        default_value_t = 64,
        env = "TRUNKLINE_MAX_STOP_SEQUENCES",
        hide_env_values = true
    )]
    pub max_stop_sequences: u32,
    /// Most bytes of a JSON schema, a regular expression or a grammar
    #[arg(
        long,
        value_name = "BYTES",
        default_value_t = 131_072,
        env = "TRUNKLINE_MAX_SCHEMA_BYTES",
        hide_env_values = true
    )]
    pub max_schema_bytes: u32,
    /// Most objects and lists inside one another in a JSON schema
    #[arg(
        long,
        value_name = "N",
        default_value_t = 64,
        env = "TRUNKLINE_MAX_SCHEMA_DEPTH",
        hide_env_values = true
    )]
    pub max_schema_depth: u32,
    /// Most properties, alternatives and enumerated values of a JSON schema
    #[arg(
        long,
        value_name = "N",
        default_value_t = 4096,
        env = "TRUNKLINE_MAX_SCHEMA_PROPERTIES",
        hide_env_values = true
    )]
    pub max_schema_properties: u32,
    /// Most bytes of a request's body
    #[arg(
        long,
        value_name = "BYTES",
        default_value_t = 8 << 20,
        env = "TRUNKLINE_MAX_BODY_BYTES",
        hide_env_values = true
    )]
    pub max_body_bytes: u64,
    /// Most bytes of a request's header
    #[arg(
        long,
        value_name = "BYTES",
        default_value_t = 65_536,
        env = "TRUNKLINE_MAX_HEADER_BYTES",
        hide_env_values = true
    )]
    pub max_header_bytes: u32,
    /// A client that takes nothing of its answer for so long loses it
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 30,
        env = "TRUNKLINE_CLIENT_STALL_TIMEOUT",
        hide_env_values = true
    )]
    pub client_stall_timeout: u32,
    /// Longest life of a request, time in the queue included; 0 is for ever
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 0,
        env = "TRUNKLINE_REQUEST_TIMEOUT",
        hide_env_values = true
    )]
    pub request_timeout: u32,
    /// A step that runs longer makes the server not ready
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 60,
        env = "TRUNKLINE_STUCK_STEP_TIMEOUT",
        hide_env_values = true
    )]
    pub stuck_step_timeout: u32,
}

/// What computes.
#[derive(Debug, Args)]
#[command(next_help_heading = "Compute")]
pub struct LowCompute {
    /// What computes; `cuda` needs an NVIDIA GPU, torch and triton, `reference` is slow and needs torch
    #[arg(long, value_enum, default_value_t = Backend::Cpu, env = "TRUNKLINE_BACKEND", hide_env_values = true)]
    pub backend: Backend,
    /// Of the cuda backend: `exact`, a reply's bits depend on nothing else that is computed; `fast`, they may
    #[arg(
        long,
        value_enum,
        default_value_t = Numerics::Exact,
        env = "TRUNKLINE_NUMERICS",
        hide_env_values = true
    )]
    pub numerics: Numerics,
    /// Threads of the CPU backend [default: one per physical core, within the CPU quota, at most 64]
    #[arg(long, value_name = "N", env = "TRUNKLINE_THREADS", hide_env_values = true)]
    pub threads: Option<u32>,
    /// Keep each thread on a core of its own; `auto` does where they take every core
    #[arg(
        long,
        value_enum,
        default_value_t = Pinning::Off,
        env = "TRUNKLINE_PIN_THREADS",
        hide_env_values = true
    )]
    pub pin_threads: Pinning,
    /// Folder in which packed weights are kept for the next start, or `off` [default: trunkline/weights
    /// in the user's folder of caches]
    #[arg(long, value_name = "DIR|off", env = "TRUNKLINE_WEIGHTS_CACHE", hide_env_values = true)]
    pub weights_cache: Option<PathBuf>,
}

/// What to log and how.
#[derive(Debug, Args)]
#[command(next_help_heading = "Logging")]
pub struct LowLogging {
    /// Log one JSON object a line
    #[arg(long, value_parser = BoolishValueParser::new(), env = "TRUNKLINE_JSON_OUTPUT", hide_env_values = true)]
    pub json_output: bool,
    /// How much to log, to stderr
    #[arg(
        long,
        value_enum,
        value_name = "LEVEL",
        default_value_t = Level::Info,
        env = "TRUNKLINE_LOG_LEVEL",
        hide_env_values = true
    )]
    pub log_level: Level,
}

/// An implementation of the model's operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Backend {
    /// Rust kernels.
    Cpu,
    /// Triton kernels on an NVIDIA GPU.
    Cuda,
    /// torch in fp32.
    Reference,
}

/// What a result's bits may depend on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Numerics {
    /// Nothing but the request.
    Exact,
    /// What else is computed at the time: the library's products.
    Fast,
}

/// Whether threads stay on cores of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Pinning {
    /// Where the threads take every core.
    Auto,
    /// Always.
    On,
    /// Never.
    Off,
}
