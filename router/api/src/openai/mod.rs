//! OpenAI's Chat Completions, Completions and Models APIs: <https://platform.openai.com/docs/api-reference>.

mod body;
pub mod chat;
mod chat_stream;
pub mod chat_types;
mod completion_stream;
mod completion_types;
pub mod completions;
mod error;
mod fields;
pub(crate) mod foreign;
mod logprobs;
mod messages;
mod prediction;
mod prompt_logprobs;
mod prompts;
mod reasoning;
pub mod render;
mod timings;
mod tools;

use serde::Serialize;
use utoipa::ToSchema;

pub(crate) use body::generation_body;
pub(crate) use chat_stream::chat_logprobs;
pub use chat_types::{Body as ChatBody, Chunk};
pub use error::ErrorResponse;
pub use fields::{OneOrMany, Seed, StreamOptions, StreamUsage};
pub use logprobs::{ChatLogprobs, ChatTokenLogprob, CompletionLogprobs};
pub use messages::CallField;
pub use prediction::CompletionTokensDetails;
pub use prompts::{Prompt, Prompts};
pub use timings::Timings;
pub use tools::{ToolField, tools};

use trunkline_engine::shard::ShardInfo;
use trunkline_generation::generate::{self, FinishReason, RestoredTokens};

/// The token counts of a request.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = Usage)]
pub struct Usage {
    /// The number of prompt tokens.
    pub prompt_tokens: u32,
    /// The number of generated tokens.
    pub completion_tokens: u32,
    /// The sum of prompt and generated tokens.
    pub total_tokens: u32,
    /// A breakdown of the prompt tokens.
    pub prompt_tokens_details: PromptTokensDetails,
    /// A breakdown of the generated tokens, if the request had a `prediction`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completion_tokens_details: Option<CompletionTokensDetails>,
}

/// A breakdown of the prompt tokens.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct PromptTokensDetails {
    /// The number of prompt tokens that were found in the KV cache.
    pub cached_tokens: u32,
    /// The tiers in which the cached tokens were found. The member is absent if all of them were in device memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cached_tokens_details: Option<CachedTokensDetails>,
    /// The number of leading tokens that are pinned in device memory; 0 if there was no room. Absent if the request
    /// asked for no pin.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pinned_tokens: Option<u32>,
    /// The number of leading tokens that are pinned on disk. Absent without a disk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_pinned_tokens: Option<u32>,
}

/// The cached tokens by the tier that they were read from.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct CachedTokensDetails {
    /// The number of tokens that were in device memory.
    pub device: u32,
    /// The number that the store in the host's memory had.
    pub host: u32,
    /// The number that a store on disk had, of this replica or of another one.
    pub disk: u32,
    /// The number that were downloaded from the object store for this request.
    pub object: u32,
}

impl CachedTokensDetails {
    fn new(usage: &generate::Usage) -> Option<Self> {
        let RestoredTokens { host, disk, object } = usage.restored;
        let total = usage.restored.total();
        (total > 0).then(|| Self { device: usage.cached_tokens - total, host, disk, object })
    }
}

impl From<generate::Usage> for Usage {
    fn from(usage: generate::Usage) -> Self {
        Self {
            prompt_tokens: usage.prompt_tokens,
            completion_tokens: usage.output_tokens,
            total_tokens: usage.prompt_tokens + usage.output_tokens,
            prompt_tokens_details: PromptTokensDetails {
                cached_tokens: usage.cached_tokens,
                cached_tokens_details: CachedTokensDetails::new(&usage),
                pinned_tokens: usage.pinned.map(|pinned| pinned.num_tokens),
                disk_pinned_tokens: usage.pinned.and_then(|pinned| pinned.num_stored_tokens),
            },
            completion_tokens_details: None,
        }
    }
}

fn finish_reason(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::EndToken | FinishReason::StopToken { .. } | FinishReason::StopString { .. } => "stop",
        FinishReason::Length => "length",
    }
}

/// The stop string or stop token that ended an output. Part of vLLM's API, not of OpenAI's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[serde(untagged)]
pub enum StopReason {
    /// The stop string that was found.
    Text(String),
    /// The token id from `stop_token_ids`.
    TokenId(u32),
}

impl StopReason {
    /// Returns `None` if the output ended for another reason: the model's end token, the token limit or a grammar.
    fn new(reason: FinishReason, stops: &[String]) -> Option<Self> {
        match reason {
            FinishReason::StopString { index } => stops.get(index).cloned().map(Self::Text),
            FinishReason::StopToken { token_id } => Some(Self::TokenId(token_id)),
            FinishReason::EndToken | FinishReason::Length => None,
        }
    }
}

/// Returns a fingerprint of everything that influences outputs. Servers with the same fingerprint give bit-identical
/// results for identical requests.
fn system_fingerprint(shard: &ShardInfo) -> String {
    let numeric: String = shard.numeric_fingerprint.chars().take(12).collect();
    format!("trunkline-{}-{numeric}", env!("CARGO_PKG_VERSION"))
}
