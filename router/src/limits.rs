//! The server's limits: those that settings set, and constants.

use std::ops::Deref;
use std::time::Duration;

use trunkline_contract::range;
use trunkline_grammar::GrammarLimits;
use trunkline_scheduler::{PolicyKind, Watermark};
use trunkline_settings::{EvictionPolicy, Replies, RouterCache, RouterSettings, Server};
pub use trunkline_settings::{Limits, MAX_MESSAGE_PARTS, MAX_MESSAGES};

use crate::error::ApiError;
use crate::watermark::DEFAULT_KEY;

/// The most alternatives reported for each token (`top_logprobs`, `logprobs`, `top_n_tokens`).
pub const MAX_TOP_LOGPROBS: u64 = range::MAX_TOP_LOGPROBS as u64;
/// Most prompt logprobs in one answer, counting each token and its alternatives.
pub const MAX_PROMPT_LOGPROBS: usize = 262_144;
/// Most tokens in `logit_bias`.
pub const MAX_LOGIT_BIAS: usize = 1024;
/// Most ids in `stop_token_ids`.
pub const MAX_STOP_TOKEN_IDS: usize = 128;
/// Longest stop string in bytes.
pub const MAX_STOP_BYTES: usize = 1024;
/// Most decoded tokens waiting for one client, beyond which the request is aborted.
pub const MAX_WAITING_TOKENS: usize = 1024;
/// Number of bodies of the largest size for which there is memory while they are received.
pub const MAX_READING_BODIES: usize = 32;
/// Least memory for all bodies being received.
pub const MIN_READING_BYTES: usize = 256 << 20;
/// Longest wait for the body of a request.
pub const BODY_TIMEOUT: Duration = Duration::from_secs(30);
/// Longest wait for the header of a request on an open connection.
pub const HEADER_TIMEOUT: Duration = Duration::from_secs(30);
/// Longest duration of a TLS handshake.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes beyond `--max-header-bytes` up to which a header is refused with an error that names the flag; a larger one
/// gets a bare 431. The sum of both also bounds the answers buffered for a connection.
pub const REFUSED_HEADER_BYTES: usize = 64 << 10;
/// Most fields of a header.
pub const MAX_HEADER_FIELDS: usize = 100;
/// Number of header fields up to which the error names the limit; a header with more gets a bare 431.
pub const REFUSED_HEADER_FIELDS: usize = 512;
/// Send buffer of a connection in the kernel, which doubles the number for its own needs.
pub const SEND_BUFFER_BYTES: usize = 128 << 10;
/// Most bytes of a too large body that are read and discarded, so that the client sees the answer.
pub const MAX_DISCARDED_BYTES: usize = 128 << 20;
/// Pause between comments on an idle stream, which keep proxies from closing it.
pub const KEEP_ALIVE: Duration = Duration::from_secs(10);
/// Approximate size of one write that joins the ready events of a stream.
pub const MAX_WRITE_BYTES: usize = 16 << 10;
/// Time between two health checks of the shard.
pub const HEALTH_INTERVAL: Duration = Duration::from_secs(1);
/// Longest wait for the answer to a health check.
pub const HEALTH_TIMEOUT: Duration = Duration::from_secs(2);
/// First and longest pause before the router connects to the shard again; it doubles in between. The longest pause is
/// the most that a start wastes after the shard listens. An attempt without a socket costs a few microseconds.
pub const RECONNECT_PAUSE: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(25));
/// Longest wait for a connection to the shard and its `Describe` answer.
pub const DESCRIBE_TIMEOUT: Duration = Duration::from_secs(5);
/// Most connections beyond the open requests, for idle connections and probes.
pub const SPARE_CONNECTIONS: usize = 1024;
/// Length in bytes above which a text is tokenized on the blocking pool instead of in the handler.
pub const INLINE_TOKENIZE_BYTES: usize = 4096;
/// Most grammars compiled at once, including abandoned ones whose threads still run; further ones wait.
pub const MAX_COMPILING_GRAMMARS: usize = 4;
/// Most grammars of one tenant compiled at once, so that tenants do not wait for each other's grammars.
pub const MAX_COMPILING_OF_TENANT: usize = 2;
/// Longest wait until a grammar may be compiled.
pub const GRAMMAR_TIMEOUT: Duration = Duration::from_secs(5);
/// Most compiled grammars kept for later requests.
pub const MAX_CACHED_GRAMMARS: usize = 64;
/// Most bytes of source text of all kept grammars. A compiled grammar takes about ten times its text, and up to 1 MiB
/// each for an expression's table and its masks.
pub const MAX_CACHED_GRAMMAR_BYTES: usize = 1 << 20;

/// Every limit of a server. Those on requests, which are most of them, are fields of the settings' [`Limits`].
#[derive(Debug, Clone)]
pub struct ServerLimits {
    /// The limits on requests.
    pub requests: Limits,
    /// Longest wait of a drain for open requests (`--graceful-termination-timeout`).
    pub graceful_termination_timeout: Duration,
    /// Order of eviction from the prefix cache (`--eviction-policy`).
    pub eviction_policy: PolicyKind,
    /// Largest share of the KV pool that may be pinned, in percent (`--max-pinned-share`).
    pub max_pinned_percent: u32,
    /// The watermark of requests that ask for one (`--watermark-gamma`, `--watermark-delta`, `--watermark-key-file`).
    pub watermark: Watermark,
    /// Time limits of connections, which no flag sets.
    pub timeouts: Timeouts,
    /// Most connections beyond the open requests, which no flag sets.
    pub spare_connections: usize,
}

impl ServerLimits {
    fn new(requests: Limits, server: &Server, replies: &Replies, cache: &RouterCache) -> Self {
        let (gamma, delta) = (replies.watermark_gamma, replies.watermark_delta);
        Self {
            requests,
            graceful_termination_timeout: server.graceful_termination_timeout,
            eviction_policy: match cache.eviction_policy {
                EvictionPolicy::Lru => PolicyKind::Lru,
                EvictionPolicy::Worth => PolicyKind::Worth,
                EvictionPolicy::Adaptive => PolicyKind::Adaptive,
            },
            max_pinned_percent: cache.max_pinned_share,
            watermark: Watermark { gamma, delta, key: DEFAULT_KEY },
            timeouts: Timeouts::default(),
            spare_connections: SPARE_CONNECTIONS,
        }
    }

    /// Checks the number of a chat's messages, and of the parts of each. `list` is the field's name in the request.
    pub fn check_messages(
        &self,
        list: &str,
        num_parts: impl ExactSizeIterator<Item = usize>,
    ) -> Result<(), ApiError> {
        let (num, limit) = (num_parts.len(), self.max_messages);
        if num > limit {
            let problem = format!("has {num} items, the limit is {limit}; hint: raise `--max-messages`");
            return Err(ApiError::value(list, problem));
        }
        let limit = self.max_message_parts;
        for (idx, num) in num_parts.enumerate() {
            if num > limit {
                let problem =
                    format!("has {num} parts, the limit is {limit}; hint: raise `--max-message-parts`");
                return Err(ApiError::value(format!("{list}[{idx}].content"), problem));
            }
        }
        Ok(())
    }

    /// Returns the number of sequences that may wait for their first step.
    pub fn max_queued(&self) -> usize {
        self.max_queued_requests.unwrap_or(self.max_concurrent_requests)
    }

    /// Returns the longest life of a request, including the queue; `None` is unlimited.
    pub fn request_timeout(&self) -> Option<Duration> {
        Some(self.requests.request_timeout).filter(|timeout| !timeout.is_zero())
    }

    /// Returns the limits on grammars.
    pub fn grammar(&self) -> GrammarLimits {
        GrammarLimits {
            max_bytes: self.max_schema_bytes,
            max_depth: self.max_schema_depth,
            max_properties: self.max_schema_properties,
            ..GrammarLimits::default()
        }
    }

    /// Returns the memory for all bodies being received, in KiB.
    pub fn max_reading_kib(&self) -> usize {
        self.max_body_bytes.saturating_mul(MAX_READING_BODIES).max(MIN_READING_BYTES) / 1024
    }
}

impl Deref for ServerLimits {
    type Target = Limits;

    fn deref(&self) -> &Limits {
        &self.requests
    }
}

impl From<&RouterSettings> for ServerLimits {
    fn from(settings: &RouterSettings) -> Self {
        Self::new(settings.limits.clone(), &settings.server, &settings.replies, &settings.cache)
    }
}

impl From<Limits> for ServerLimits {
    fn from(requests: Limits) -> Self {
        Self::new(requests, &Server::default(), &Replies::default(), &RouterCache::default())
    }
}

impl Default for ServerLimits {
    fn default() -> Self {
        Limits::default().into()
    }
}

/// Time limits of a connection, which no flag sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    /// Longest wait for a body; by default [`BODY_TIMEOUT`].
    pub body: Duration,
    /// Longest wait for a header; by default [`HEADER_TIMEOUT`].
    pub header: Duration,
    /// Longest TLS handshake; by default [`HANDSHAKE_TIMEOUT`].
    pub handshake: Duration,
    /// Pause between comments on an idle stream; by default [`KEEP_ALIVE`].
    pub keep_alive: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            body: BODY_TIMEOUT,
            header: HEADER_TIMEOUT,
            handshake: HANDSHAKE_TIMEOUT,
            keep_alive: KEEP_ALIVE,
        }
    }
}
