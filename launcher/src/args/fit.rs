//! The arguments of `trunkline fit`.

use clap::{Args, value_parser};
use trunkline_settings::{Compute, Form, Group, SettingError, ShardCache};

use crate::error::LauncherError;

const SIZE: Form = Form::bytes(1 << 20, 1 << 50);

/// Arguments of `trunkline fit`.
#[derive(Debug, Args)]
pub(crate) struct ParsedFit {
    /// Hub id (`org/name` or `org/name:file.gguf`), folder or `.gguf` file [default: the embedded
    /// SmolLM2-135M-Instruct]
    pub(super) model: Option<String>,
    /// Branch, tag or commit on the Hub
    #[arg(long, env = "TRUNKLINE_REVISION", hide_env_values = true)]
    revision: Option<String>,
    /// Longest prompt and reply together [default: 8192, or the model's context if that is shorter]
    #[arg(long, value_name = "TOKENS", value_parser = value_parser!(u32).range(2..))]
    context: Option<u32>,
    /// Replies that are written at the same time, each with a context of its own
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = value_parser!(u32).range(1..=4096))]
    streams: u32,
    /// Format of the weights, as for `serve` [default: none, or else one that makes the model fit]
    #[arg(long, value_name = "TYPE")]
    quantize: Option<String>,
    /// Format of the KV cache, as for `serve` [default: auto, or else int4 if nothing else makes the model fit]
    #[arg(long, value_name = "DTYPE")]
    kv_cache_dtype: Option<String>,
    /// Memory to plan for, such as that of another machine [default: the memory that is available now]
    #[arg(long, value_name = "SIZE")]
    available: Option<String>,
    /// Print one line of JSON
    #[arg(long)]
    json: bool,
}

/// Returns the arguments of the server package's `fit`. The model is checked already.
pub(super) fn arguments(parsed: ParsedFit) -> Result<Vec<String>, LauncherError> {
    let usage = |error: SettingError| LauncherError::usage(error.to_string());
    let value =
        |name: &'static str, given: &Option<String>, asked: &str| given.clone().filter(|_| asked == name);
    Compute::read(|setting| value("quantize", &parsed.quantize, setting.name)).map_err(usage)?;
    ShardCache::read(|setting| value("kv_cache_dtype", &parsed.kv_cache_dtype, setting.name))
        .map_err(usage)?;
    let available = match &parsed.available {
        Some(text) => Some(SIZE.plain(text).filter(|_| SIZE.accepts(text)).ok_or_else(|| {
            LauncherError::usage(format!("`--available` is `{text}`; expected {}", SIZE.expected()))
        })?),
        None => None,
    };
    let flags = [
        ("revision", parsed.revision.filter(|_| parsed.model.is_some())),
        ("context", parsed.context.map(|tokens| tokens.to_string())),
        ("streams", Some(parsed.streams.to_string())),
        ("quantize", parsed.quantize),
        ("kv-cache-dtype", parsed.kv_cache_dtype),
        ("available", available),
    ];
    let given = flags.into_iter().filter_map(|(name, value)| Some(format!("--{name}={}", value?)));
    let json = parsed.json.then(|| "--json".to_owned());
    Ok(["fit".to_owned()].into_iter().chain(given).chain(json).chain(parsed.model).collect())
}
