//! The flags of the KV cache, as typed and as meant.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::error::LauncherError;

/// What the store on disk may take if nothing is said.
const DEFAULT_DISK_BYTES: u64 = 10 << 30;
/// Below this it holds hardly a conversation.
const MIN_DISK_BYTES: u64 = 16 << 20;
const MAX_DISK_BYTES: u64 = 1 << 50;
const UNITS: [(&str, u32); 9] =
    [("KiB", 10), ("MiB", 20), ("GiB", 30), ("TiB", 40), ("K", 10), ("M", 20), ("G", 30), ("T", 40), ("", 0)];

/// How K and V are kept.
#[derive(Debug, Args)]
#[command(next_help_heading = "KV cache")]
pub struct LowCache {
    /// How K and V are stored; `auto` is int8 on the CPU
    #[arg(
        long,
        value_enum,
        value_name = "DTYPE",
        default_value_t = KvCacheDtype::Auto,
        env = "TRUNKLINE_KV_CACHE_DTYPE",
        hide_env_values = true
    )]
    pub kv_cache_dtype: KvCacheDtype,
    /// What layers with a sliding window keep of K and V: little more than that where it gains memory, or all
    #[arg(
        long,
        value_enum,
        value_name = "MODE",
        default_value_t = KvWindows::Auto,
        env = "TRUNKLINE_KV_WINDOWS",
        hide_env_values = true
    )]
    pub kv_windows: KvWindows,
    /// What goes when the prefix cache is full: the least recently used, what past reuse says is worth least, or
    /// whichever of the two hits more of late
    #[arg(
        long,
        value_enum,
        value_name = "POLICY",
        default_value_t = EvictionPolicy::Adaptive,
        env = "TRUNKLINE_EVICTION_POLICY",
        hide_env_values = true
    )]
    pub eviction_policy: EvictionPolicy,
    /// Most of the KV cache that requests may pin, in percent
    #[arg(
        long,
        value_name = "PERCENT",
        default_value_t = 25,
        env = "TRUNKLINE_MAX_PINNED_SHARE",
        hide_env_values = true
    )]
    pub max_pinned_share: u32,
    /// Folder in which the KV cache is kept on disk, so that it outlives restarts and crashes; what was said in chats
    /// lies in there [default: it is not kept]
    #[arg(long, value_name = "DIR", env = "TRUNKLINE_KV_DISK_PATH", hide_env_values = true)]
    pub kv_disk_path: Option<PathBuf>,
    /// Most that it takes there, such as 500MiB or 2TiB [default: 10GiB]
    #[arg(long, value_name = "SIZE", env = "TRUNKLINE_KV_DISK_SIZE", hide_env_values = true)]
    pub kv_disk_size: Option<String>,
    /// Pinned memory of the host in which the cuda backend keeps the KV cache below the device, such as 64GiB; with
    /// --kv-disk-path above the disk [default: none; with --kv-disk-path 1GiB]
    #[arg(long, value_name = "SIZE", env = "TRUNKLINE_KV_HOST_SIZE", hide_env_values = true)]
    pub kv_host_size: Option<String>,
    /// Object store in which replicas share the KV cache, below the one on disk: s3://bucket/prefix, gs://bucket,
    /// az://container or file:///folder; credentials come from the environment, never from here [default: none]
    #[arg(long, value_name = "URL", env = "TRUNKLINE_KV_OBJECT_STORE", hide_env_values = true)]
    pub kv_object_store: Option<String>,
    /// Where events of the KV cache are published for cache-aware routers, over ZeroMQ: `tcp://*:5557` listens,
    /// `tcp://HOST:5557` connects; the tokens of all prompts are among them [default: nowhere]
    #[arg(long, value_name = "ENDPOINT", env = "TRUNKLINE_KV_EVENTS_ENDPOINT", hide_env_values = true)]
    pub kv_events_endpoint: Option<String>,
}

/// How K and V are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum KvCacheDtype {
    /// What the backend takes for best.
    Auto,
    /// Floating point in a byte (e4m3), a scale per token and head; of the cuda backend.
    Fp8,
    /// Bytes, a scale per token and head.
    Int8,
    /// Four bits, a scale per token and head.
    Int4,
    /// IEEE half precision.
    F16,
    /// bfloat16.
    Bf16,
}

/// What layers with a window keep.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum KvWindows {
    /// Little more than the window, where that gains memory.
    Auto,
    /// All of every block.
    Off,
}

/// Which cached prefixes go first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum EvictionPolicy {
    /// The least recently used.
    Lru,
    /// What past reuse of its like says is worth least.
    Worth,
    /// By whichever of the two hits more of late.
    Adaptive,
}

/// The KV cache, as asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheConfig {
    /// How K and V are stored.
    pub dtype: KvCacheDtype,
    /// What layers with a window keep.
    pub windows: KvWindows,
    /// Which cached prefixes go first.
    pub eviction: EvictionPolicy,
    /// Most of it that may be pinned, in percent.
    pub max_pinned_percent: u32,
    /// Where it is kept on disk; not at all if absent.
    pub disk: Option<DiskConfig>,
    /// Pinned memory for it, in bytes; as the shard has it if absent.
    pub host_bytes: Option<u64>,
    /// Where its events are published; nowhere if absent.
    pub events_endpoint: Option<String>,
}

/// The store on disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskConfig {
    /// Its folder, absolute.
    pub path: PathBuf,
    /// Most that it takes, in bytes.
    pub num_bytes: u64,
    /// URL of the object store below it, for the router to check.
    pub object_store: Option<String>,
}

impl CacheConfig {
    /// Checks what was typed.
    pub fn new(low: LowCache) -> Result<Self, LauncherError> {
        let num_bytes = low.kv_disk_size.as_deref().map(|text| size("--kv-disk-size", text)).transpose()?;
        if low.kv_object_store.is_some() && low.kv_disk_path.is_none() {
            return Err(LauncherError::usage(
                "`--kv-object-store` needs a store on disk above it; hint: give `--kv-disk-path`",
            ));
        }
        let host_bytes = low.kv_host_size.as_deref().map(|text| size("--kv-host-size", text)).transpose()?;
        let disk = match (low.kv_disk_path, num_bytes) {
            (Some(path), num_bytes) => Some(DiskConfig {
                path: disk_path(&path)?,
                num_bytes: num_bytes.unwrap_or(DEFAULT_DISK_BYTES),
                object_store: low.kv_object_store,
            }),
            (None, Some(_)) => {
                return Err(LauncherError::usage(
                    "`--kv-disk-size` says how much, but nothing says where; hint: give `--kv-disk-path`",
                ));
            }
            (None, None) => None,
        };
        let max_pinned_percent = low.max_pinned_share;
        if max_pinned_percent > 100 {
            return Err(LauncherError::usage(format!(
                "`--max-pinned-share` is {max_pinned_percent}, expected 0 to 100"
            )));
        }
        let events_endpoint = low.kv_events_endpoint.map(events_endpoint).transpose()?;
        let (dtype, windows, eviction) = (low.kv_cache_dtype, low.kv_windows, low.eviction_policy);
        Ok(Self { dtype, windows, eviction, max_pinned_percent, disk, host_bytes, events_endpoint })
    }
}

fn disk_path(path: &std::path::Path) -> Result<PathBuf, LauncherError> {
    std::path::absolute(path).map_err(|error| {
        LauncherError::usage(format!(
            "`--kv-disk-path` is `{}`: {error}; hint: give a folder",
            path.display()
        ))
    })
}

/// The router takes it apart; what is no endpoint at all is known before anything starts.
pub fn events_endpoint(text: String) -> Result<String, LauncherError> {
    let address = text.strip_prefix("tcp://").and_then(|rest| rest.rsplit_once(':'));
    if address.is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok()) {
        return Ok(text);
    }
    Err(LauncherError::usage(format!(
        "`--kv-events-endpoint` is `{text}`, expected `tcp://HOST:PORT`; hint: `tcp://*:5557` listens, \
         `tcp://HOST:5557` connects"
    )))
}

/// Reads a number of bytes with its unit; an error names `flag`.
pub fn size(flag: &str, text: &str) -> Result<u64, LauncherError> {
    let fail = |what: &str| {
        LauncherError::usage(format!(
            "`{flag}` is `{text}`, {what}; hint: a number with KiB, MiB, GiB or TiB, such as 10GiB"
        ))
    };
    let (number, shift) = UNITS
        .iter()
        .find_map(|(unit, shift)| Some((text.strip_suffix(unit)?, *shift)))
        .expect("every text ends with nothing");
    let number: u64 = number.trim_end().parse().map_err(|_| fail("which is no size"))?;
    let num_bytes = number.checked_mul(1 << shift).filter(|bytes| *bytes <= MAX_DISK_BYTES);
    match num_bytes {
        None => Err(fail("which is more than 1024TiB")),
        Some(bytes) if bytes < MIN_DISK_BYTES => Err(fail("which is less than 16MiB")),
        Some(bytes) => Ok(bytes),
    }
}
