//! The limits of requests and connections. Settings set those in [`ServerLimits`]; the others are constants.

use std::ops::Deref;
use std::path::Path;
use std::time::Duration;

use trunkline_contract::range;
use trunkline_grammar::GrammarLimits;
use trunkline_scheduler::{PolicyKind, Watermark};
use trunkline_settings::{Adapters, EvictionPolicy, Replies, RouterCache, ServeSettings, Server};
pub use trunkline_settings::{Limits, MAX_MESSAGE_PARTS, MAX_MESSAGES};

use crate::error::ApiError;
use crate::machine::machine_memory;
use crate::watermark::DEFAULT_KEY;

/// The most alternatives reported for each token (`top_logprobs`, `logprobs`, `top_n_tokens`).
pub const MAX_TOP_LOGPROBS: u64 = range::MAX_TOP_LOGPROBS as u64;
/// The most prompt logprobs in one response. Each token counts, and each alternative.
pub const MAX_PROMPT_LOGPROBS: usize = 262_144;
/// The most texts of one request for vectors, as OpenAI has it.
pub const MAX_VECTOR_INPUTS: usize = 2048;
/// The most text, in bytes, of all pairs about which one request asks a language model. A text counts in each pair.
pub const MAX_QUESTION_BYTES: usize = 64 << 20;
pub const MAX_LOGIT_BIAS: usize = 1024;
pub const MAX_STOP_TOKEN_IDS: usize = 128;
pub const MAX_STOP_BYTES: usize = 1024;
/// The most tokens that wait for one client. A request that exceeds it is aborted.
pub const MAX_WAITING_TOKENS: usize = 1024;
/// The bounds of the number of open requests where no flag sets it.
pub const OPEN_REQUESTS: (usize, usize) = (128, 4096);
/// The part of the machine's memory that the first [`UNCOUNTED_REQUEST_BYTES`] of all open requests may take, and again
/// what they hold beyond that.
const PART_OF_MEMORY: usize = 100;
/// The memory for open requests suffices for this many bodies of the largest size.
pub const MAX_READING_BODIES: usize = 32;
/// The least memory for open requests, even if the largest bodies are small.
pub const MIN_REQUESTS_BYTES: usize = 256 << 20;
/// The first part of a request's memory, which does not count. Small requests are therefore served even while large
/// ones use all the memory, and the number of connections bounds what they occupy.
pub const UNCOUNTED_REQUEST_BYTES: usize = 64 << 10;
/// The memory of a list, an object or a member of one, at most, once a body is parsed.
pub const JSON_VALUE_BYTES: usize = 300;
/// The same for another item of a list.
pub const JSON_ITEM_BYTES: usize = 72;
/// The least rate, in bytes a second, at which a body must arrive after [`BODY_GRACE`].
pub const MIN_BODY_RATE: u32 = 4 << 10;
/// The longest time in which a body may arrive more slowly than that, and in which nothing may arrive. TCP sends lost
/// bytes again after about 1, 3 and 7 s.
pub const BODY_GRACE: Duration = Duration::from_secs(10);
/// The most JSON values in a body: members of objects and items of lists, those in lists of token ids excepted. A value
/// takes up to 300 bytes of memory, although its text may have only two.
pub const MAX_JSON_VALUES: usize = 131_072;
/// The memory for whole answers that are collected or wait for their clients, without the first part of each.
pub const MAX_ANSWERS_BYTES: usize = 512 << 20;
/// The first part of a whole answer, which does not count. It suffices for a text of some 16,000 tokens, and it bounds
/// what a connection holds in addition.
pub const UNCOUNTED_ANSWER_BYTES: usize = 256 << 10;
/// Larger answers are written on the blocking pool, where they do not delay other requests.
pub const INLINE_ANSWER_BYTES: usize = 1 << 20;
pub const BODY_TIMEOUT: Duration = Duration::from_secs(30);
/// The longest wait for the header of a request on an open connection.
pub const HEADER_TIMEOUT: Duration = Duration::from_secs(30);
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// A header that exceeds its limit by at most this much gets an error that names the flag; a larger one gets a bare
/// 431. The limit plus this value is also the most that is buffered of a connection's answers.
pub const REFUSED_HEADER_BYTES: usize = 64 << 10;
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
pub const HEALTH_INTERVAL: Duration = Duration::from_secs(1);
pub const HEALTH_TIMEOUT: Duration = Duration::from_secs(2);
/// `/livez` answers 503 when the shard, or the ones started in its place, hung this often in a row.
pub const MAX_HANGS: u32 = 3;
/// The first and the longest pause before connecting to the shard again; the pause doubles. A start waits at most for
/// the longest pause after the shard listens. A failed attempt costs only some microseconds.
pub const RECONNECT_PAUSE: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(25));
/// The longest wait for connecting and `Describe`.
pub const DESCRIBE_TIMEOUT: Duration = Duration::from_secs(5);
/// The longest wait until a shard has opened an adapter, whose files it may have to download.
pub const OPEN_ADAPTER_TIMEOUT: Duration = Duration::from_secs(600);
/// The most adapters that are opened at the same time; more must wait.
pub const MAX_OPENING_ADAPTERS: usize = 2;
/// The most connections beyond the open requests, for idle keep-alive connections and probes.
pub const SPARE_CONNECTIONS: usize = 1024;
/// The most looks at the KV cache and at usage that are answered at the same time; more must wait. The driving task
/// answers one of them between two steps.
pub const MAX_LOOKS: usize = 4;
/// The most of these looks by one tenant or, without keys, by one address, so that others need not wait for them.
pub const MAX_LOOKS_OF_TENANT: usize = 1;
/// The most connections to `--metrics-port`.
pub const MAX_METRICS_CONNECTIONS: usize = 64;
/// Larger bodies are parsed and checked on the blocking pool instead of in the handler.
pub const INLINE_BODY_BYTES: usize = 64 << 10;
/// Longer texts, in bytes, are tokenized on the blocking pool instead of in the handler.
pub const INLINE_TOKENIZE_BYTES: usize = 4096;
/// Longer stored conversations, in bytes of memory, are freed on the blocking pool.
pub const INLINE_FREED_BYTES: usize = 1 << 20;
/// The most grammars that are compiled at the same time, including those whose request has ended; more must wait.
pub const MAX_COMPILING_GRAMMARS: usize = 4;
/// The most grammars of one tenant that are compiled at the same time, so that others need not wait for them.
pub const MAX_COMPILING_OF_TENANT: usize = 2;
/// The longest wait until a grammar can be compiled.
pub const GRAMMAR_TIMEOUT: Duration = Duration::from_secs(5);
pub const MAX_CACHED_GRAMMARS: usize = 64;
/// The most text of all grammars in the cache. Compiled grammars take about ten times as much memory. Each can also
/// have 1 MiB of tables and 1 MiB of masks.
pub const MAX_CACHED_GRAMMAR_BYTES: usize = 1 << 20;

/// Every limit of a server. Those on requests, which are most of them, are fields of the settings' [`Limits`].
#[derive(Debug, Clone)]
pub struct ServerLimits {
    pub requests: Limits,
    pub graceful_termination_timeout: Duration,
    pub eviction_policy: PolicyKind,
    /// The largest share of the KV pool that may be pinned, in percent (`--max-pinned-share`).
    pub max_pinned_percent: u32,
    /// The watermark of requests that ask for one (`--watermark-gamma`, `--watermark-delta`, `--watermark-key-file`).
    pub watermark: Watermark,
    /// The adapters that requests may name from the start (`--lora`, `--lora-folder`).
    pub adapters: Adapters,
    /// The time limits that no flag sets.
    pub timeouts: Timeouts,
    /// The most connections beyond the open requests, which no flag sets.
    pub spare_connections: usize,
    /// The most open requests: what the flag says, or else as many as memory suggests.
    pub max_open: usize,
    /// The memory for whole answers, which no flag sets.
    pub max_answers_bytes: usize,
    /// The least memory for open requests, which no flag sets.
    pub min_requests_bytes: usize,
}

impl ServerLimits {
    fn new(requests: Limits, server: &Server, replies: &Replies, cache: &RouterCache) -> Self {
        let (gamma, delta) = (replies.watermark_gamma, replies.watermark_delta);
        let part_of_memory = machine_memory(Path::new("/")) / PART_OF_MEMORY;
        Self {
            max_open: requests.max_concurrent_requests.unwrap_or_else(|| open_requests(part_of_memory)),
            requests,
            graceful_termination_timeout: server.graceful_termination_timeout,
            eviction_policy: match cache.eviction_policy {
                EvictionPolicy::Lru => PolicyKind::Lru,
                EvictionPolicy::Worth => PolicyKind::Worth,
            },
            max_pinned_percent: cache.max_pinned_share,
            watermark: Watermark { gamma, delta, key: DEFAULT_KEY },
            adapters: Adapters::default(),
            timeouts: Timeouts::default(),
            spare_connections: SPARE_CONNECTIONS,
            max_answers_bytes: MAX_ANSWERS_BYTES,
            min_requests_bytes: MIN_REQUESTS_BYTES.max(part_of_memory),
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

    /// Checks what a request brings into its prompt from stored responses: text of `num_bytes`, and a conversation that
    /// it brings to `num_messages`. It may be as much as if the client had sent it.
    pub fn check_stored(&self, field: &str, num_bytes: usize, num_messages: usize) -> Result<(), ApiError> {
        let (what, num, limit, flag) = if num_bytes > self.max_body_bytes {
            ("bytes of stored responses", num_bytes, self.max_body_bytes, "--max-body-bytes")
        } else if num_messages > self.max_messages {
            ("messages", num_messages, self.max_messages, "--max-messages")
        } else {
            return Ok(());
        };
        let problem = format!(
            "brings the prompt to {num} {what}, the limit is {limit}; hint: continue or refer to less, or raise `{flag}`"
        );
        Err(ApiError::value(field, problem))
    }

    /// Returns the number of sequences that may wait for their first step.
    pub fn max_queued(&self) -> usize {
        self.max_queued_requests.unwrap_or(self.max_open)
    }

    /// Returns the longest life of a request, including the queue; `None` is unlimited.
    pub fn request_timeout(&self) -> Option<Duration> {
        Some(self.requests.request_timeout).filter(|timeout| !timeout.is_zero())
    }

    pub fn grammar(&self) -> GrammarLimits {
        GrammarLimits {
            max_bytes: self.max_schema_bytes,
            max_depth: self.max_schema_depth,
            max_properties: self.max_schema_properties,
            ..GrammarLimits::default()
        }
    }

    /// Returns the memory for the bodies and prompts of all open requests.
    pub fn max_requests_bytes(&self) -> usize {
        self.max_body_bytes.saturating_mul(MAX_READING_BODIES).max(self.min_requests_bytes)
    }
}

/// Returns the number of requests that may be open where no flag sets it, if `num_bytes` of memory are for the first
/// part of each. The context does not matter, because a prompt counts by its own length once it is longer than that.
pub fn open_requests(num_bytes: usize) -> usize {
    (num_bytes / UNCOUNTED_REQUEST_BYTES).clamp(OPEN_REQUESTS.0, OPEN_REQUESTS.1)
}

impl Deref for ServerLimits {
    type Target = Limits;

    fn deref(&self) -> &Limits {
        &self.requests
    }
}

impl From<&ServeSettings> for ServerLimits {
    fn from(settings: &ServeSettings) -> Self {
        let limits = settings.limits.clone();
        Self {
            adapters: settings.adapters.clone(),
            ..Self::new(limits, &settings.server, &settings.replies, &settings.cache)
        }
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

/// Time limits of connections and of the shard's health checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    pub body: Duration,
    /// The time in which a body may arrive slowly; the default is [`BODY_GRACE`].
    pub body_grace: Duration,
    pub header: Duration,
    pub handshake: Duration,
    pub keep_alive: Duration,
    /// The time between two health checks; the default is [`HEALTH_INTERVAL`].
    pub health_interval: Duration,
    /// The longest wait for the answer to a health check; the default is [`HEALTH_TIMEOUT`].
    pub health: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            body: BODY_TIMEOUT,
            body_grace: BODY_GRACE,
            header: HEADER_TIMEOUT,
            handshake: HANDSHAKE_TIMEOUT,
            keep_alive: KEEP_ALIVE,
            health_interval: HEALTH_INTERVAL,
            health: HEALTH_TIMEOUT,
        }
    }
}
