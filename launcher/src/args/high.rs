//! What the arguments mean: every value within its range and in accord with the others, or one line that says why not.

use std::path::PathBuf;
use std::time::Duration;

use super::cache::CacheConfig;
use super::low::{Backend, LowCompute, LowDownload, LowLimits, LowModel, LowServe, Numerics, Pinning};
use super::replies::Replies;
use super::watermark::WatermarkConfig;
use crate::cache::CacheCommand;
use crate::error::LauncherError;
use crate::log::{Format, Level, Log};

const MAX_TIMEOUT_S: u32 = 24 * 3600;
const MAX_THREADS: u32 = 1024;
/// The router's own limits.
const MAX_OPEN_REQUESTS: u32 = 1 << 16;
const MAX_STOP_SEQUENCES: u32 = 256;
const MAX_BEST_OF: u32 = 1024;
const MAX_MESSAGES: u32 = 1 << 16;
const MAX_MESSAGE_PARTS: u32 = 1 << 16;
const MAX_TOOLS: u32 = 4096;
const MAX_SCHEMA_BYTES: u32 = 8 << 20;
const MAX_SCHEMA_DEPTH: u32 = 128;
const MAX_SCHEMA_PROPERTIES: u32 = 1 << 16;
/// The shard's own limits.
const MAX_STEP_SEQUENCES: u32 = 1 << 12;
const MAX_STEP_TOKENS: u32 = 1 << 16;
const MIN_BODY_BYTES: u64 = 1 << 10;
const MAX_BODY_BYTES: u64 = 1 << 30;
const MIN_HEADER_BYTES: u32 = 1 << 10;
const MAX_HEADER_BYTES: u32 = 1 << 20;
/// More tokens than any model's context or any machine's memory; keeps sums of two limits inside 32 bits.
const MAX_TOKENS: u32 = 1 << 31;
const MAX_NAME_BYTES: usize = 4096;
/// In place of a folder.
const CACHE_OFF: &str = "off";

/// What to do.
#[derive(Debug)]
pub enum Request {
    /// Serve a model.
    Serve(Box<ServeConfig>),
    /// Fetch a model.
    Download(ModelRef),
    /// Do something with the KV cache on disk.
    Cache(CacheCommand),
    /// Print what a bug report needs.
    Env,
}

/// A model as the user names it; it may not exist.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelRef {
    /// Hub id, folder or `.gguf` file; the embedded model if absent.
    pub name: Option<String>,
    /// Branch, tag or commit.
    pub revision: Option<String>,
}

/// Everything `trunkline serve` was asked for.
#[derive(Debug)]
pub struct ServeConfig {
    /// Which model.
    pub model: ModelRef,
    /// Its name in answers, if another than its own.
    pub served_model_name: Option<String>,
    /// Host name or address to listen on.
    pub hostname: String,
    /// Port to listen on; 0 takes a free one.
    pub port: u16,
    /// The file of the API keys, absolute.
    pub api_keys: Option<PathBuf>,
    /// Certificate and key, absolute; in the clear without.
    pub tls: Option<(PathBuf, PathBuf)>,
    /// Origins whose scripts may call; the router checks them.
    pub cors_allow_origin: Vec<String>,
    /// How long open requests may take to finish.
    pub graceful_termination_timeout: Duration,
    /// What to admit.
    pub limits: Limits,
    /// How replies are read.
    pub replies: Replies,
    /// How replies are marked that ask for it.
    pub watermark: WatermarkConfig,
    /// What computes.
    pub backend: Backend,
    /// How K and V are kept.
    pub cache: CacheConfig,
    /// What a result's bits may depend on.
    pub numerics: Numerics,
    /// Threads of the CPU backend; the shard chooses if absent.
    pub threads: Option<u32>,
    /// Whether each of them stays on a core of its own.
    pub pin_threads: Pinning,
    /// Where packed weights are kept, absolute, or `off`; the shard chooses if absent.
    pub weights_cache: Option<PathBuf>,
    /// Text or JSON, for all processes.
    pub log_format: Format,
    /// How much, for all processes.
    pub log_level: Level,
}

/// Checked limits. An absent one is chosen by the process that it concerns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Requests open at once.
    pub max_concurrent_requests: u32,
    /// Sequences waiting for their first step.
    pub max_queued_requests: Option<u32>,
    /// Tokens of a prompt.
    pub max_input_tokens: Option<u32>,
    /// Tokens of prompt and output.
    pub max_total_tokens: Option<u32>,
    /// Tokens computed by one step.
    pub max_step_tokens: Option<u32>,
    /// Tokens that the KV pool holds.
    pub max_batch_total_tokens: Option<u32>,
    /// Sequences in one step.
    pub max_step_sequences: Option<u32>,
    /// Outputs of a prompt.
    pub max_best_of: u32,
    /// Messages of a chat.
    pub max_messages: u32,
    /// Parts of a message.
    pub max_message_parts: u32,
    /// Tools of a request.
    pub max_tools: u32,
    /// Bytes of answers that are kept.
    pub max_response_store_bytes: u64,
    /// Stop strings of a request.
    pub max_stop_sequences: u32,
    /// Bytes of a schema or grammar.
    pub max_schema_bytes: u32,
    /// Objects and lists inside one another in a schema.
    pub max_schema_depth: u32,
    /// Properties, alternatives and enumerated values of a schema.
    pub max_schema_properties: u32,
    /// Bytes of a body.
    pub max_body_bytes: u64,
    /// Bytes of a header.
    pub max_header_bytes: u32,
    /// How long a client may take nothing of its answer, in seconds.
    pub client_stall_timeout_s: u32,
    /// Life of a request, in seconds; 0 is for ever.
    pub request_timeout_s: u32,
    /// A longer step makes the server not ready, in seconds.
    pub stuck_step_timeout_s: u32,
}

impl ServeConfig {
    /// Checks what was typed. `model_id_typed`: `--model-id` stands on the command line itself.
    pub fn new(low: LowServe, model_id_typed: bool) -> Result<Self, LauncherError> {
        let timeout = low.server.graceful_termination_timeout;
        in_range("--graceful-termination-timeout", timeout, 0, MAX_TIMEOUT_S)?;
        if low.server.hostname.trim().is_empty() {
            return Err(LauncherError::usage("`--hostname` is empty; hint: 127.0.0.1 or 0.0.0.0"));
        }
        let served_model_name = low.model.served_model_name.clone();
        check_name("--served-model-name", served_model_name.as_deref())?;
        Ok(Self {
            model: model(low.model, model_id_typed)?,
            served_model_name,
            hostname: low.server.hostname,
            port: port(&low.server.port)?,
            api_keys: low.server.api_keys.map(|path| absolute("--api-keys", &path)).transpose()?,
            tls: tls(low.server.tls_cert, low.server.tls_key)?,
            cors_allow_origin: origins(low.server.cors_allow_origin)?,
            graceful_termination_timeout: Duration::from_secs(timeout.into()),
            limits: Limits::new(&low.limits)?,
            replies: low.replies,
            watermark: WatermarkConfig::new(low.watermark)?,
            backend: low.compute.backend,
            numerics: low.compute.numerics,
            cache: CacheConfig::new(low.cache)?,
            threads: threads(&low.compute)?,
            pin_threads: low.compute.pin_threads,
            weights_cache: low.compute.weights_cache.map(weights_cache).transpose()?,
            log_format: if low.logging.json_output { Format::Json } else { Format::Text },
            log_level: low.logging.log_level,
        })
    }

    /// The launcher's own log, as configured.
    pub fn log(&self) -> Log {
        Log::new(self.log_format, self.log_level)
    }
}

/// Checks `trunkline download`.
pub fn download(low: LowDownload) -> Result<ModelRef, LauncherError> {
    check_name("MODEL", Some(&low.model))?;
    check_name("--revision", low.revision.as_deref())?;
    Ok(ModelRef { name: Some(low.model), revision: low.revision })
}

fn model(low: LowModel, model_id_typed: bool) -> Result<ModelRef, LauncherError> {
    if let (Some(model), Some(model_id)) = (&low.model, &low.model_id)
        && model_id_typed
        && model != model_id
    {
        return Err(LauncherError::usage(format!(
            "MODEL is `{model}`, but `--model-id` is `{model_id}`; hint: give one of them"
        )));
    }
    let name = low.model.or(low.model_id);
    check_name("MODEL", name.as_deref())?;
    check_name("--revision", low.revision.as_deref())?;
    Ok(ModelRef { name, revision: low.revision })
}

/// A name travels on a child's command line, where a leading dash would make it a flag.
fn check_name(flag: &str, name: Option<&str>) -> Result<(), LauncherError> {
    let Some(name) = name else { return Ok(()) };
    let reason = match name {
        "" => "empty".to_owned(),
        _ if name.starts_with('-') => format!("`{name}`, which begins with a dash"),
        _ if name.contains(char::is_control) => "a text with control characters".to_owned(),
        _ if name.len() > MAX_NAME_BYTES => {
            format!("{} bytes long, at most {MAX_NAME_BYTES} are possible", name.len())
        }
        _ => return Ok(()),
    };
    Err(LauncherError::usage(format!("`{flag}` is {reason}")))
}

fn port(text: &str) -> Result<u16, LauncherError> {
    text.parse().map_err(|_| {
        let hint = if text.starts_with("tcp://") {
            "; hint: Kubernetes sets `TRUNKLINE_PORT` for a Service named `trunkline`; set `enableServiceLinks: false`"
        } else {
            ""
        };
        LauncherError::usage(format!("`--port` is `{text}`, expected 0 to 65535{hint}"))
    })
}

fn threads(low: &LowCompute) -> Result<Option<u32>, LauncherError> {
    low.threads.map(|threads| in_range("--threads", threads, 1, MAX_THREADS)).transpose()
}

/// A folder relative to where the launcher was started, or the word that turns the cache off.
fn weights_cache(path: PathBuf) -> Result<PathBuf, LauncherError> {
    if path.as_os_str() == CACHE_OFF {
        return Ok(path);
    }
    std::path::absolute(&path).map_err(|error| {
        LauncherError::usage(format!(
            "`--weights-cache` is `{}`: {error}; hint: give a folder, or `{CACHE_OFF}`",
            path.display()
        ))
    })
}

/// Scheme and host as browsers write them, or every origin. The router is as strict, but its line would not be one.
fn origins(origins: Vec<String>) -> Result<Vec<String>, LauncherError> {
    for origin in &origins {
        let (scheme, host) = origin.split_once("://").unwrap_or_default();
        let is_scheme = scheme.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-'));
        let is_host = host.bytes().all(|byte| byte.is_ascii_graphic() && !b"/?#@*\\,".contains(&byte));
        if origin != "*" && (scheme.is_empty() || host.is_empty() || !is_scheme || !is_host) {
            return Err(LauncherError::usage(format!(
                "`--cors-allow-origin` is `{origin}`, which is no origin; hint: such as `https://chat.example.com`, \
                 without a path, or `*`"
            )));
        }
    }
    Ok(origins)
}

/// Both files or none.
fn tls(cert: Option<PathBuf>, key: Option<PathBuf>) -> Result<Option<(PathBuf, PathBuf)>, LauncherError> {
    match (cert, key) {
        (None, None) => Ok(None),
        (Some(cert), Some(key)) => Ok(Some((absolute("--tls-cert", &cert)?, absolute("--tls-key", &key)?))),
        (Some(_), None) => Err(LauncherError::usage("`--tls-cert` needs `--tls-key`")),
        (None, Some(_)) => Err(LauncherError::usage("`--tls-key` needs `--tls-cert`")),
    }
}

/// A file relative to where the launcher was started.
pub(super) fn absolute(flag: &str, path: &std::path::Path) -> Result<PathBuf, LauncherError> {
    std::path::absolute(path).map_err(|error| {
        LauncherError::usage(format!("`{flag}` is `{}`: {error}; hint: give a file", path.display()))
    })
}

impl Limits {
    fn new(low: &LowLimits) -> Result<Self, LauncherError> {
        let within = |flag: &str, value: Option<u32>, least: u32, most: u32| {
            value.map(|value| in_range(flag, value, least, most)).transpose()
        };
        let tokens = |flag, value, least| within(flag, value, least, MAX_TOKENS);
        let limits = Self {
            max_concurrent_requests: in_range(
                "--max-concurrent-requests",
                low.max_concurrent_requests,
                1,
                MAX_OPEN_REQUESTS,
            )?,
            max_queued_requests: within(
                "--max-queued-requests",
                low.max_queued_requests,
                1,
                MAX_OPEN_REQUESTS,
            )?,
            max_input_tokens: tokens("--max-input-tokens", low.max_input_tokens, 1)?,
            max_total_tokens: tokens("--max-total-tokens", low.max_total_tokens, 2)?,
            max_step_tokens: within(
                "--max-batch-prefill-tokens",
                low.max_batch_prefill_tokens,
                1,
                MAX_STEP_TOKENS,
            )?,
            max_batch_total_tokens: tokens("--max-batch-total-tokens", low.max_batch_total_tokens, 2)?,
            max_step_sequences: within(
                "--max-step-sequences",
                low.max_step_sequences,
                1,
                MAX_STEP_SEQUENCES,
            )?,
            max_best_of: in_range("--max-best-of", low.max_best_of, 1, MAX_BEST_OF)?,
            max_messages: in_range("--max-messages", low.max_messages, 1, MAX_MESSAGES)?,
            max_message_parts: in_range("--max-message-parts", low.max_message_parts, 1, MAX_MESSAGE_PARTS)?,
            max_tools: in_range("--max-tools", low.max_tools, 0, MAX_TOOLS)?,
            max_response_store_bytes: low.max_response_store_bytes,
            max_stop_sequences: in_range(
                "--max-stop-sequences",
                low.max_stop_sequences,
                0,
                MAX_STOP_SEQUENCES,
            )?,
            max_schema_bytes: in_range("--max-schema-bytes", low.max_schema_bytes, 1, MAX_SCHEMA_BYTES)?,
            max_schema_depth: in_range("--max-schema-depth", low.max_schema_depth, 1, MAX_SCHEMA_DEPTH)?,
            max_schema_properties: in_range(
                "--max-schema-properties",
                low.max_schema_properties,
                1,
                MAX_SCHEMA_PROPERTIES,
            )?,
            max_body_bytes: in_range("--max-body-bytes", low.max_body_bytes, MIN_BODY_BYTES, MAX_BODY_BYTES)?,
            max_header_bytes: in_range(
                "--max-header-bytes",
                low.max_header_bytes,
                MIN_HEADER_BYTES,
                MAX_HEADER_BYTES,
            )?,
            client_stall_timeout_s: in_range(
                "--client-stall-timeout",
                low.client_stall_timeout,
                1,
                MAX_TIMEOUT_S,
            )?,
            request_timeout_s: in_range("--request-timeout", low.request_timeout, 0, MAX_TIMEOUT_S)?,
            stuck_step_timeout_s: in_range("--stuck-step-timeout", low.stuck_step_timeout, 1, MAX_TIMEOUT_S)?,
        };
        limits.cross_check()?;
        Ok(limits)
    }

    fn cross_check(&self) -> Result<(), LauncherError> {
        if let (Some(input), Some(total)) = (self.max_input_tokens, self.max_total_tokens)
            && input >= total
        {
            return Err(LauncherError::usage(format!(
                "`--max-input-tokens` is {input}, but must be less than `--max-total-tokens` ({total}), \
                 which has room for the output too"
            )));
        }
        if let (Some(input), Some(pool)) = (self.max_input_tokens, self.max_batch_total_tokens) {
            at_most(
                "--max-input-tokens",
                input,
                "--max-batch-total-tokens",
                pool,
                "no prompt of that length could run",
            )?;
        }
        if let (Some(total), Some(pool)) = (self.max_total_tokens, self.max_batch_total_tokens) {
            at_most(
                "--max-total-tokens",
                total,
                "--max-batch-total-tokens",
                pool,
                "no request of that length could run",
            )?;
        }
        if let (Some(sequences), Some(step)) = (self.max_step_sequences, self.max_step_tokens) {
            let why = "each sequence of a step computes at least one token";
            at_most("--max-step-sequences", sequences, "--max-batch-prefill-tokens", step, why)?;
        }
        Ok(())
    }
}

fn at_most(flag: &str, value: u32, other: &str, limit: u32, why: &str) -> Result<(), LauncherError> {
    if value <= limit {
        return Ok(());
    }
    Err(LauncherError::usage(format!("`{flag}` is {value}, but `{other}` is {limit}: {why}")))
}

fn in_range<T: PartialOrd + std::fmt::Display>(
    flag: &str,
    value: T,
    least: T,
    most: T,
) -> Result<T, LauncherError> {
    if value >= least && value <= most {
        return Ok(value);
    }
    Err(LauncherError::usage(format!("`{flag}` is {value}, expected {least} to {most}")))
}
