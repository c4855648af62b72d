//! The limits of requests and connections. Flags set the ones in [`Limits`]; the others are constants.

use std::time::Duration;

use trunkline_contract::range;
use trunkline_grammar::GrammarLimits;
use trunkline_scheduler::{PolicyKind, Watermark};

use crate::error::ApiError;
use crate::watermark::DEFAULT_WATERMARK;

/// The most alternatives reported for each token (`top_logprobs`, `logprobs`, `top_n_tokens`).
pub const MAX_TOP_LOGPROBS: u64 = range::MAX_TOP_LOGPROBS as u64;
/// The most prompt logprobs in one response. Each token counts, and each alternative.
pub const MAX_PROMPT_LOGPROBS: usize = 262_144;
/// The most tokens in `logit_bias`.
pub const MAX_LOGIT_BIAS: usize = 1024;
/// The most ids in `stop_token_ids`.
pub const MAX_STOP_TOKEN_IDS: usize = 128;
/// The longest stop string in bytes.
pub const MAX_STOP_BYTES: usize = 1024;
/// The most messages that are parsed, even if `--max-messages` allows more.
pub const MAX_MESSAGES: usize = 65_536;
/// The most parts, or content blocks, of a message that are parsed, even if `--max-message-parts` allows more.
pub const MAX_PARTS: usize = 65_536;
/// The most tokens that wait for one client. A request that exceeds it is aborted.
pub const MAX_WAITING_TOKENS: usize = 1024;
/// The memory for arriving bodies suffices for this many bodies of the largest size.
pub const MAX_READING_BODIES: usize = 32;
/// The least memory for arriving bodies, even if the largest bodies are small.
pub const MIN_READING_BYTES: usize = 256 << 20;
/// The longest wait for the body of a request.
pub const BODY_TIMEOUT: Duration = Duration::from_secs(30);
/// The longest wait for the header of a request on an open connection.
pub const HEADER_TIMEOUT: Duration = Duration::from_secs(30);
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// A header that exceeds its limit by at most this much gets an error that names the flag; a larger one gets a bare
/// 431. The limit plus this value is also the most that is buffered of a connection's answers.
pub const REFUSED_HEADER_BYTES: usize = 64 << 10;
/// The most fields of a header.
pub const MAX_HEADER_FIELDS: usize = 100;
/// A header with more fields than this gets a bare 431. One with fewer, but more than `MAX_HEADER_FIELDS`, gets an
/// error that names the limit.
pub const REFUSED_HEADER_FIELDS: usize = 512;
/// The size of a connection's send buffer in the kernel, which Linux doubles.
pub const SEND_BUFFER_BYTES: usize = 128 << 10;
/// The most bytes of a body that is too large which are read and discarded, so that its client sees the error.
pub const MAX_DISCARDED_BYTES: usize = 128 << 20;
/// The interval between comments on a stream without events. They prevent proxies from closing it.
pub const KEEP_ALIVE: Duration = Duration::from_secs(10);
/// The approximate size of a write that combines several events of a stream.
pub const MAX_WRITE_BYTES: usize = 16 << 10;
/// The time between two health checks of the shard.
pub const HEALTH_INTERVAL: Duration = Duration::from_secs(1);
/// The longest wait for the answer to a health check.
pub const HEALTH_TIMEOUT: Duration = Duration::from_secs(2);
/// The first and the longest pause before connecting to the shard again; the pause doubles. A start waits at most for
/// the longest pause after the shard listens. A failed attempt costs only some microseconds.
pub const RECONNECT_PAUSE: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(25));
/// The longest wait for connecting and `Describe`.
pub const DESCRIBE_TIMEOUT: Duration = Duration::from_secs(5);
/// The most connections beyond the open requests, for idle keep-alive connections and probes.
pub const SPARE_CONNECTIONS: usize = 1024;
/// Longer texts, in bytes, are tokenized on the blocking pool instead of in the handler.
pub const INLINE_TOKENIZE_BYTES: usize = 4096;
/// The most grammars that are compiled at the same time, including those whose request has ended; more must wait.
pub const MAX_COMPILING_GRAMMARS: usize = 4;
/// The most grammars of one tenant that are compiled at the same time, so that others need not wait for them.
pub const MAX_COMPILING_OF_TENANT: usize = 2;
/// The longest wait until a grammar can be compiled.
pub const GRAMMAR_TIMEOUT: Duration = Duration::from_secs(5);
/// The most compiled grammars in the cache.
pub const MAX_CACHED_GRAMMARS: usize = 64;
/// The most text of all grammars in the cache. Compiled grammars take about ten times as much memory. Each can also
/// have 1 MiB of tables and 1 MiB of masks.
pub const MAX_CACHED_GRAMMAR_BYTES: usize = 1 << 20;

/// The limits that flags set.
#[derive(Debug, Clone)]
pub struct Limits {
    /// The most requests that are open at the same time (`--max-concurrent-requests`).
    pub max_concurrent_requests: usize,
    /// The most sequences that wait for their first step (`--max-queued-requests`).
    pub max_queued_requests: usize,
    /// The most tokens of a prompt (`--max-input-tokens`); the context minus one if absent.
    pub max_input_tokens: Option<u32>,
    /// The most tokens of prompt and output (`--max-total-tokens`); the model's context if absent.
    pub max_total_tokens: Option<u32>,
    /// The most tokens that one step computes (`--max-batch-prefill-tokens`); the shard's own limit if absent.
    pub max_step_tokens: Option<u32>,
    /// The most outputs for one prompt (`--max-best-of`).
    pub max_best_of: u32,
    /// The most messages of a chat (`--max-messages`).
    pub max_messages: usize,
    /// The most parts, or content blocks, of a message (`--max-message-parts`).
    pub max_message_parts: usize,
    /// The most tools of a request (`--max-tools`).
    pub max_tools: usize,
    /// The most bytes of stored responses that requests can continue (`--max-response-store-bytes`).
    pub max_response_store_bytes: usize,
    /// The most stop strings of a request (`--max-stop-sequences`).
    pub max_stop_sequences: usize,
    /// The limits of structured output (`--max-schema-bytes`, `--max-schema-depth`, `--max-schema-properties`).
    pub grammar: GrammarLimits,
    /// The most bytes of a body (`--max-body-bytes`).
    pub max_body_bytes: usize,
    /// The most bytes of a header (`--max-header-bytes`).
    pub max_header_bytes: usize,
    /// The longest time for which a client may read nothing of its answer (`--client-stall-timeout`).
    pub client_stall_timeout: Duration,
    /// The policy by which blocks are evicted from a full prefix cache (`--eviction-policy`).
    pub eviction_policy: PolicyKind,
    /// The greatest part of the block pool that may be pinned, in percent (`--max-pinned-share`).
    pub max_pinned_percent: u32,
    /// The longest time of a request, including the time in the queue (`--request-timeout`).
    pub request_timeout: Option<Duration>,
    /// The server is not ready while a step has been running for longer (`--stuck-step-timeout`).
    pub stuck_step_timeout: Duration,
    /// The longest time that a drain waits for open requests (`--graceful-termination-timeout`).
    pub graceful_termination_timeout: Duration,
    /// The timeouts of connections, which no flag sets.
    pub timeouts: Timeouts,
    /// The most connections beyond the open requests, which no flag sets.
    pub spare_connections: usize,
    /// The watermark for requests that ask for one (`--watermark-gamma`, `--watermark-delta`, `--watermark-key-file`).
    pub watermark: Watermark,
}

impl Limits {
    /// Checks the number of messages of a chat, and the number of parts of each one. `list` is the list's name in
    /// errors.
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

    /// Returns the most memory that all arriving bodies together may occupy, in KiB.
    pub fn max_reading_kib(&self) -> usize {
        self.max_body_bytes.saturating_mul(MAX_READING_BODIES).max(MIN_READING_BYTES) / 1024
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_concurrent_requests: 128,
            max_queued_requests: 128,
            max_input_tokens: None,
            max_total_tokens: None,
            max_step_tokens: None,
            max_best_of: 128,
            max_messages: 16_384,
            max_message_parts: 1024,
            max_tools: 128,
            max_response_store_bytes: 64 << 20,
            max_stop_sequences: 64,
            grammar: GrammarLimits::default(),
            max_body_bytes: 8 << 20,
            max_header_bytes: 64 << 10,
            client_stall_timeout: Duration::from_secs(30),
            eviction_policy: PolicyKind::default(),
            max_pinned_percent: 25,
            request_timeout: None,
            stuck_step_timeout: Duration::from_secs(60),
            graceful_termination_timeout: Duration::from_secs(90),
            timeouts: Timeouts::default(),
            spare_connections: SPARE_CONNECTIONS,
            watermark: DEFAULT_WATERMARK,
        }
    }
}

/// The timeouts of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    /// The longest wait for a body; the default is [`BODY_TIMEOUT`].
    pub body: Duration,
    /// The longest wait for a header; the default is [`HEADER_TIMEOUT`].
    pub header: Duration,
    /// The longest TLS handshake; the default is [`HANDSHAKE_TIMEOUT`].
    pub handshake: Duration,
    /// The interval between comments on a stream; the default is [`KEEP_ALIVE`].
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
