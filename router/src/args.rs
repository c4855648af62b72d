//! Command line and environment.

use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;

use crate::http::cors::Origin;
use crate::kv_events::Endpoint;
use crate::limits::{Limits, MAX_MESSAGES, MAX_PARTS, SPARE_CONNECTIONS, Timeouts};
use crate::model::Choice;
use crate::watermark::DEFAULT_WATERMARK;
use trunkline_grammar::GrammarLimits;
use trunkline_reply::ToolFormat;
use trunkline_scheduler::{PolicyKind, Watermark};

/// HTTP front of Trunkline: text to tokens, scheduling, and back. Started by `trunkline serve`.
#[derive(Debug, Clone, Parser)]
#[command(name = "trunkline-router", version)]
pub struct Args {
    /// Unix socket of the shard; connecting is retried until it is there.
    #[arg(long, env = "TRUNKLINE_SHARD_SOCKET")]
    pub shard_socket: PathBuf,
    /// The model's `.gguf` file or folder, for its tokenizer and chat template.
    #[arg(long, env = "TRUNKLINE_MODEL_PATH")]
    pub model_path: PathBuf,
    /// Name under which clients know the model.
    #[arg(long, env = "TRUNKLINE_SERVED_MODEL_NAME")]
    pub served_model_name: String,
    /// Address to listen on.
    #[arg(long, env = "TRUNKLINE_HOSTNAME", default_value = "127.0.0.1")]
    pub hostname: String,
    /// Port to listen on; 0 picks a free one.
    #[arg(long, env = "TRUNKLINE_PORT", default_value_t = 3000)]
    pub port: u16,

    /// TOML file with the API keys, a table `[tenants.NAME]` with `keys` for each tenant; read again at SIGHUP.
    #[arg(long, env = "TRUNKLINE_API_KEYS", help_heading = "Access")]
    pub api_keys: Option<PathBuf>,

    /// PEM file with the server's certificate and those that lead from it to a known authority; read again when it
    /// changes. Needs `--tls-key`.
    #[arg(long, env = "TRUNKLINE_TLS_CERT", help_heading = "Access")]
    pub tls_cert: Option<PathBuf>,
    /// PEM file with the certificate's private key.
    #[arg(long, env = "TRUNKLINE_TLS_KEY", help_heading = "Access")]
    pub tls_key: Option<PathBuf>,
    /// Origins whose scripts in browsers may call, such as `https://chat.example.com`; `*` is every one.
    #[arg(
        long,
        env = "TRUNKLINE_CORS_ALLOW_ORIGIN",
        value_name = "ORIGIN",
        value_delimiter = ',',
        help_heading = "Access"
    )]
    pub cors_allow_origin: Vec<Origin>,

    /// How the model writes tool calls: `auto`, as its chat template shows; `hermes`, `llama3`, `mistral`, `pythonic`,
    /// `json`; or `off`.
    #[arg(long, env = "TRUNKLINE_TOOL_CALL_PARSER", default_value = "auto", help_heading = "Replies",
          value_parser = tool_call_parser)]
    pub tool_call_parser: Choice<ToolFormat>,
    /// Whether the model reasons between `<think>` and `</think>`: `auto`, as its chat template shows; `think`; or
    /// `off`.
    #[arg(long, env = "TRUNKLINE_REASONING_PARSER", default_value = "auto", help_heading = "Replies",
          value_parser = reasoning_parser)]
    pub reasoning_parser: Choice<()>,
    /// Part of the vocabulary that is green in replies with a watermark, from 0.01 to 0.99.
    #[arg(long, env = "TRUNKLINE_WATERMARK_GAMMA", default_value_t = DEFAULT_WATERMARK.gamma, help_heading = "Replies",
          value_parser = watermark_gamma)]
    pub watermark_gamma: f32,
    /// What is added to the logits of green tokens, above 0 and at most 100.
    #[arg(long, env = "TRUNKLINE_WATERMARK_DELTA", default_value_t = DEFAULT_WATERMARK.delta, help_heading = "Replies",
          value_parser = watermark_delta)]
    pub watermark_delta: f32,
    /// File with the key that says which tokens are green, a whole number below 2^64; or `TRUNKLINE_WATERMARK_KEY`
    /// holds it. Without both it is 15485863, as TGI's, which everybody knows.
    #[arg(long, env = "TRUNKLINE_WATERMARK_KEY_FILE", value_name = "FILE", help_heading = "Replies")]
    pub watermark_key_file: Option<PathBuf>,

    /// Most requests open at once; more are answered 429.
    #[arg(long, env = "TRUNKLINE_MAX_CONCURRENT_REQUESTS", default_value_t = 128, help_heading = "Limits",
          value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=65536))]
    pub max_concurrent_requests: usize,
    /// Most requests waiting for their first step; more are answered 429 [default: as many as may be open].
    #[arg(long, env = "TRUNKLINE_MAX_QUEUED_REQUESTS", help_heading = "Limits")]
    pub max_queued_requests: Option<u32>,
    /// Most tokens of a prompt [default: the context minus one].
    #[arg(long, env = "TRUNKLINE_MAX_INPUT_TOKENS", help_heading = "Limits",
          value_parser = clap::value_parser!(u32).range(1..))]
    pub max_input_tokens: Option<u32>,
    /// Most tokens of prompt and output together [default: the model's context].
    #[arg(long, env = "TRUNKLINE_MAX_TOTAL_TOKENS", help_heading = "Limits",
          value_parser = clap::value_parser!(u32).range(2..))]
    pub max_total_tokens: Option<u32>,
    /// Most tokens computed by one step [default: as many as the shard takes].
    #[arg(long, env = "TRUNKLINE_MAX_BATCH_PREFILL_TOKENS", help_heading = "Limits",
          value_parser = clap::value_parser!(u32).range(1..))]
    pub max_batch_prefill_tokens: Option<u32>,
    /// Most outputs that one prompt may ask for (`n`, `best_of`).
    #[arg(long, env = "TRUNKLINE_MAX_BEST_OF", default_value_t = 128, help_heading = "Limits",
          value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub max_best_of: u32,
    /// Most messages of a chat.
    #[arg(long, env = "TRUNKLINE_MAX_MESSAGES", default_value_t = 16_384, help_heading = "Limits",
          value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=MAX_MESSAGES as u64))]
    pub max_messages: usize,
    /// Most parts, or blocks, of a message.
    #[arg(long, env = "TRUNKLINE_MAX_MESSAGE_PARTS", default_value_t = 1024, help_heading = "Limits",
          value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=MAX_PARTS as u64))]
    pub max_message_parts: usize,
    /// Most tools that a request may offer.
    #[arg(long, env = "TRUNKLINE_MAX_TOOLS", default_value_t = 128, help_heading = "Limits",
          value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(0..=4096))]
    pub max_tools: usize,
    /// Most bytes of answers of /v1/responses that are kept for requests that go on from them; 0 keeps none.
    #[arg(long, env = "TRUNKLINE_MAX_RESPONSE_STORE_BYTES", default_value_t = 64 << 20, help_heading = "Limits")]
    pub max_response_store_bytes: usize,
    /// Most stop strings of a request.
    #[arg(long, env = "TRUNKLINE_MAX_STOP_SEQUENCES", default_value_t = 64, help_heading = "Limits",
          value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(0..=256))]
    pub max_stop_sequences: usize,
    /// Most bytes of a JSON schema, a regular expression or a grammar.
    #[arg(long, env = "TRUNKLINE_MAX_SCHEMA_BYTES", default_value_t = 128 << 10, help_heading = "Limits",
          value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=8 << 20))]
    pub max_schema_bytes: usize,
    /// Most objects and lists inside one another in a JSON schema.
    #[arg(long, env = "TRUNKLINE_MAX_SCHEMA_DEPTH", default_value_t = 64, help_heading = "Limits",
          value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=128))]
    pub max_schema_depth: usize,
    /// Most properties, alternatives and enumerated values of a JSON schema.
    #[arg(long, env = "TRUNKLINE_MAX_SCHEMA_PROPERTIES", default_value_t = 4096, help_heading = "Limits",
          value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=65536))]
    pub max_schema_properties: usize,
    /// Most bytes of a request's body; more are answered 413.
    #[arg(long, env = "TRUNKLINE_MAX_BODY_BYTES", default_value_t = 8 << 20, help_heading = "Limits",
          value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=1 << 30))]
    pub max_body_bytes: usize,
    /// Most bytes of a request's header; more are answered 431.
    #[arg(long, env = "TRUNKLINE_MAX_HEADER_BYTES", default_value_t = 64 << 10, help_heading = "Limits",
          value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1024..=1 << 20))]
    pub max_header_bytes: usize,
    /// A client that takes nothing of its answer for so many seconds loses it.
    #[arg(long, env = "TRUNKLINE_CLIENT_STALL_TIMEOUT", default_value_t = 30, help_heading = "Limits",
          value_parser = clap::value_parser!(u64).range(1..))]
    pub client_stall_timeout: u64,
    /// Longest life of a request in seconds, queue included; 0 is for ever.
    #[arg(long, env = "TRUNKLINE_REQUEST_TIMEOUT", default_value_t = 0, help_heading = "Limits")]
    pub request_timeout: u64,
    /// A step that runs longer than so many seconds makes `/readyz` answer 503.
    #[arg(long, env = "TRUNKLINE_STUCK_STEP_TIMEOUT", default_value_t = 60, help_heading = "Limits")]
    pub stuck_step_timeout: u64,
    /// What goes when the prefix cache is full: `lru`, `worth` or `adaptive`.
    #[arg(long, env = "TRUNKLINE_EVICTION_POLICY", default_value = "adaptive", help_heading = "Limits",
          value_parser = eviction_policy)]
    pub eviction_policy: PolicyKind,
    /// Object store of KV blocks that replicas share, such as `s3://bucket/prefix`; credentials come from the
    /// environment.
    #[arg(
        long,
        env = "TRUNKLINE_KV_OBJECT_STORE",
        value_name = "URL",
        help_heading = "Limits",
        hide_env_values = true
    )]
    pub kv_object_store: Option<String>,
    /// Most of the KV pool that requests may pin, in percent.
    #[arg(long, env = "TRUNKLINE_MAX_PINNED_SHARE", default_value_t = 25, help_heading = "Limits",
          value_parser = clap::value_parser!(u32).range(0..=100))]
    pub max_pinned_share: u32,
    /// Where events of the KV cache are published for cache-aware routers, over ZeroMQ: `tcp://*:PORT` listens,
    /// `tcp://HOST:PORT` connects. Whoever reads them reads the tokens of all prompts.
    #[arg(long, env = "TRUNKLINE_KV_EVENTS_ENDPOINT", help_heading = "KV cache")]
    pub kv_events_endpoint: Option<Endpoint>,

    /// Seconds that open requests have to finish after SIGTERM.
    #[arg(
        long,
        env = "TRUNKLINE_GRACEFUL_TERMINATION_TIMEOUT",
        default_value_t = 90,
        help_heading = "Limits"
    )]
    pub graceful_termination_timeout: u64,

    /// Log one JSON object per line.
    #[arg(long, env = "TRUNKLINE_JSON_OUTPUT", help_heading = "Process")]
    pub json_output: bool,
    /// Level or filter of the log: `error`, `warn`, `info`, `debug`, `trace`.
    #[arg(long, env = "TRUNKLINE_LOG_LEVEL", default_value = "info", help_heading = "Process")]
    pub log_level: String,
    /// End at once when standard input ends: the launcher holds the other side.
    #[arg(long, env = "TRUNKLINE_LIFELINE", help_heading = "Process")]
    pub lifeline: bool,
}

fn tool_call_parser(text: &str) -> Result<Choice<ToolFormat>, String> {
    let formats = ToolFormat::ALL.map(|format| (format.name(), Choice::Is(format)));
    choice(text, &formats)
}

fn reasoning_parser(text: &str) -> Result<Choice<()>, String> {
    choice(text, &[("think", Choice::Is(()))])
}

fn watermark_gamma(text: &str) -> Result<f32, String> {
    let gamma = text.parse::<f32>().ok().filter(|gamma| (0.01..=0.99).contains(gamma));
    gamma.ok_or_else(|| "is no number from 0.01 to 0.99".to_owned())
}

fn watermark_delta(text: &str) -> Result<f32, String> {
    let delta = text.parse::<f32>().ok().filter(|delta| *delta > 0.0 && *delta <= 100.0);
    delta.ok_or_else(|| "is no number above 0 and at most 100".to_owned())
}

fn choice<T: Copy>(text: &str, named: &[(&str, Choice<T>)]) -> Result<Choice<T>, String> {
    let known = [("auto", Choice::Auto), ("off", Choice::Off)];
    let found = known.iter().chain(named).find(|(name, _)| *name == text).map(|(_, choice)| *choice);
    let names = || known.iter().chain(named).map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
    found.ok_or_else(|| format!("is none of {}", names()))
}

fn eviction_policy(text: &str) -> Result<PolicyKind, String> {
    let names = PolicyKind::ALL.map(PolicyKind::name);
    let kind = PolicyKind::ALL.into_iter().find(|kind| kind.name() == text);
    kind.ok_or_else(|| format!("is none of {}", names.join(", ")))
}

impl Args {
    /// The limits. The watermark's key is the one that everybody knows.
    pub fn limits(&self) -> Limits {
        Limits {
            max_concurrent_requests: self.max_concurrent_requests,
            max_queued_requests: self
                .max_queued_requests
                .map_or(self.max_concurrent_requests, |max| max as usize),
            max_input_tokens: self.max_input_tokens,
            max_total_tokens: self.max_total_tokens,
            max_step_tokens: self.max_batch_prefill_tokens,
            max_best_of: self.max_best_of,
            max_messages: self.max_messages,
            max_message_parts: self.max_message_parts,
            max_tools: self.max_tools,
            max_response_store_bytes: self.max_response_store_bytes,
            max_stop_sequences: self.max_stop_sequences,
            grammar: GrammarLimits {
                max_bytes: self.max_schema_bytes,
                max_depth: self.max_schema_depth,
                max_properties: self.max_schema_properties,
                ..GrammarLimits::default()
            },
            max_body_bytes: self.max_body_bytes,
            max_header_bytes: self.max_header_bytes,
            client_stall_timeout: Duration::from_secs(self.client_stall_timeout),
            eviction_policy: self.eviction_policy,
            max_pinned_percent: self.max_pinned_share,
            request_timeout: (self.request_timeout > 0).then(|| Duration::from_secs(self.request_timeout)),
            stuck_step_timeout: Duration::from_secs(self.stuck_step_timeout),
            graceful_termination_timeout: Duration::from_secs(self.graceful_termination_timeout),
            timeouts: Timeouts::default(),
            spare_connections: SPARE_CONNECTIONS,
            watermark: Watermark {
                gamma: self.watermark_gamma,
                delta: self.watermark_delta,
                ..DEFAULT_WATERMARK
            },
        }
    }
}
