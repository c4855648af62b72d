//! Every limit that a request meets, in one place, each with its flag or constant, and the watermark that it may have.

use std::time::Duration;

use trunkline_contract::range;
use trunkline_grammar::GrammarLimits;
use trunkline_scheduler::{PolicyKind, Watermark};

use crate::error::ApiError;
use crate::watermark::DEFAULT_WATERMARK;

/// The most alternatives reported for each token (`top_logprobs`, `logprobs`, `top_n_tokens`).
pub const MAX_TOP_LOGPROBS: u64 = range::MAX_TOP_LOGPROBS as u64;
/// Most logprobs of a prompt in one answer: its tokens, each with the likeliest in its place.
pub const MAX_PROMPT_LOGPROBS: usize = 262_144;
/// Most tokens that `logit_bias` names.
pub const MAX_LOGIT_BIAS: usize = 1024;
/// Most ids of `stop_token_ids`.
pub const MAX_STOP_TOKEN_IDS: usize = 128;
/// Longest stop string in bytes.
pub const MAX_STOP_BYTES: usize = 1024;
/// Most messages in one chat, whatever `--max-messages` says.
pub const MAX_MESSAGES: usize = 65_536;
/// Most parts, or blocks, of one message, whatever `--max-message-parts` says.
pub const MAX_PARTS: usize = 65_536;
/// Most decoded tokens waiting for one client; more, and the request is aborted.
pub const MAX_WAITING_TOKENS: usize = 1024;
/// Bodies that are being received hold together as much as so many of the largest ones,
pub const MAX_READING_BODIES: usize = 32;
/// and at least so many bytes.
pub const MIN_READING_BYTES: usize = 256 << 20;
/// Longest wait for the body of a request.
pub const BODY_TIMEOUT: Duration = Duration::from_secs(30);
/// Longest wait for the header of a request on an open connection.
pub const HEADER_TIMEOUT: Duration = Duration::from_secs(30);
/// Longest TLS handshake.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// A header that is larger than its limit by at most so much is refused by the name of the flag; a larger one gets a
/// bare 431. The sum is also the most that is buffered of a connection's answers.
pub const REFUSED_HEADER_BYTES: usize = 64 << 10;
/// Most fields of a header.
pub const MAX_HEADER_FIELDS: usize = 100;
/// A header with more than this many gets a bare 431, others beyond `MAX_HEADER_FIELDS` an error that names the limit.
pub const REFUSED_HEADER_FIELDS: usize = 512;
/// Bytes of answers that the kernel keeps for one connection (it doubles the number for its own needs).
pub const SEND_BUFFER_BYTES: usize = 128 << 10;
/// Most bytes of a body that is too large that are read away, so that its client sees the answer.
pub const MAX_DISCARDED_BYTES: usize = 128 << 20;
/// Pause between comments on a stream that has nothing to say, so that proxies keep it open.
pub const KEEP_ALIVE: Duration = Duration::from_secs(10);
/// Events of one stream that are ready together leave in writes of about so many bytes.
pub const MAX_WRITE_BYTES: usize = 16 << 10;
/// Time between two questions to the shard about its health.
pub const HEALTH_INTERVAL: Duration = Duration::from_secs(1);
/// Longest wait for a health answer.
pub const HEALTH_TIMEOUT: Duration = Duration::from_secs(2);
/// Pause before connecting to the shard again: first, and most (it doubles). The most is what a start may wait for
/// nothing once the shard listens; an attempt on a socket that is not there costs some microseconds.
pub const RECONNECT_PAUSE: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(25));
/// Longest wait for connecting and `Describe`.
pub const DESCRIBE_TIMEOUT: Duration = Duration::from_secs(5);
/// Most connections beyond the open requests (idle keep-alive ones, probes).
pub const SPARE_CONNECTIONS: usize = 1024;
/// Texts longer than this are tokenized on the blocking pool rather than in the handler, in bytes.
pub const INLINE_TOKENIZE_BYTES: usize = 4096;
/// Most grammars compiled at once, those included that were given up and still take their time; more wait for their
/// turn.
pub const MAX_COMPILING_GRAMMARS: usize = 4;
/// Of them of one tenant, where there are keys: nobody waits for what another one's grammars take.
pub const MAX_COMPILING_OF_TENANT: usize = 2;
/// Longest wait for that turn.
pub const GRAMMAR_TIMEOUT: Duration = Duration::from_secs(5);
/// Most compiled grammars kept for requests that ask for them again.
pub const MAX_CACHED_GRAMMARS: usize = 64;
/// Most bytes of text that they were compiled from; compiled they take some ten times as much, and each up to 1 MiB for
/// the table of an expression and as much for its masks.
pub const MAX_CACHED_GRAMMAR_BYTES: usize = 1 << 20;

/// Limits that flags set.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Most requests open at once (`--max-concurrent-requests`).
    pub max_concurrent_requests: usize,
    /// Most sequences waiting for their first step (`--max-queued-requests`).
    pub max_queued_requests: usize,
    /// Most tokens of a prompt (`--max-input-tokens`); the context minus one if absent.
    pub max_input_tokens: Option<u32>,
    /// Most tokens of prompt and output (`--max-total-tokens`); the model's context if absent.
    pub max_total_tokens: Option<u32>,
    /// Most tokens one step computes (`--max-batch-prefill-tokens`); the shard's own limit if absent.
    pub max_step_tokens: Option<u32>,
    /// Most outputs computed for one prompt (`--max-best-of`).
    pub max_best_of: u32,
    /// Most messages of a chat (`--max-messages`).
    pub max_messages: usize,
    /// Most parts, or blocks, of a message (`--max-message-parts`).
    pub max_message_parts: usize,
    /// Most tools of a request (`--max-tools`).
    pub max_tools: usize,
    /// Most bytes of answers kept for requests that go on from them (`--max-response-store-bytes`).
    pub max_response_store_bytes: usize,
    /// Most stop strings of a request (`--max-stop-sequences`).
    pub max_stop_sequences: usize,
    /// Of structured output (`--max-schema-bytes`, `--max-schema-depth`, `--max-schema-properties`).
    pub grammar: GrammarLimits,
    /// Most bytes of a body (`--max-body-bytes`).
    pub max_body_bytes: usize,
    /// Most bytes of a header (`--max-header-bytes`).
    pub max_header_bytes: usize,
    /// Longest time for which a client may take nothing of its answer (`--client-stall-timeout`).
    pub client_stall_timeout: Duration,
    /// What goes when the prefix cache is full (`--eviction-policy`).
    pub eviction_policy: PolicyKind,
    /// Most of the pool that may be pinned, in percent (`--max-pinned-share`).
    pub max_pinned_percent: u32,
    /// Longest life of a request, queue included (`--request-timeout`).
    pub request_timeout: Option<Duration>,
    /// A step running longer than this makes the server not ready (`--stuck-step-timeout`).
    pub stuck_step_timeout: Duration,
    /// How long a drain waits for open requests (`--graceful-termination-timeout`).
    pub graceful_termination_timeout: Duration,
    /// How long the server waits for clients, and they for it; no flag sets it.
    pub timeouts: Timeouts,
    /// Most connections beyond the open requests; no flag sets it.
    pub spare_connections: usize,
    /// What requests get that ask for a watermark (`--watermark-gamma`, `--watermark-delta`, `--watermark-key-file`).
    pub watermark: Watermark,
}

impl Limits {
    /// Checks a chat's messages, which have so many parts each. `list`: what the client calls them.
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

    /// What bodies that are being received may hold together, in KiB.
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

/// Time limits of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    /// See [`BODY_TIMEOUT`].
    pub body: Duration,
    /// See [`HEADER_TIMEOUT`].
    pub header: Duration,
    /// See [`HANDSHAKE_TIMEOUT`].
    pub handshake: Duration,
    /// See [`KEEP_ALIVE`].
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
