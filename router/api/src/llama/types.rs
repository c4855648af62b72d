//! The request and response bodies of `/infill`.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use trunkline_contract::range;
use trunkline_generation::adapters::{LoraScale, Named};
use trunkline_text::StopText;
use utoipa::ToSchema;

use crate::chat::structured::StructuredFields;
use crate::openai::{OneOrMany, Seed, Timings, generation_body};
use trunkline_base::error::ApiError;
use trunkline_generation::request::avoid::AvoidFields;
use trunkline_generation::request::number::bounded;
use trunkline_generation::request::raw::RawParams;
use trunkline_generation::request::retention::{CacheRetention, RawRetention};
use trunkline_generation::request::service_tier::Wanted;
use trunkline_generation::request::tokens::{LogitBias, TokenFields};

generation_body! {
    /// The body of a request to fill in a text.
    #[derive(Debug, Deserialize, ToSchema)]
    #[schema(as = InfillRequest)]
    pub struct Body {
        /// The text before the cursor.
        pub input_prefix: String,
        /// The text after the cursor.
        pub input_suffix: String,
        /// Other files or pieces of them, each with a `text` and a `filename` (`tmp` by default), which come first in
        /// the prompt.
        #[serde(default)]
        pub input_extra: Option<Vec<ExtraFile>>,
        /// The beginning of the text to fill in, such as the current line up to the cursor. The output continues it.
        pub prompt: Option<String>,
        /// If true, the answer's `tokens` has the ids of the generated tokens. Pieces of a stream always have them.
        #[schema(default = false)]
        pub return_tokens: Option<bool>,
        /// If true, each piece has `timings`. The last one always has them.
        #[schema(default = false)]
        pub timings_per_token: Option<bool>,
    }
}

/// A file or a piece of one that is context.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[schema(as = InfillExtra)]
pub struct ExtraFile {
    /// The name of the file; the default is `tmp`.
    pub filename: Option<String>,
    /// The text of the file.
    pub text: String,
}

/// A complete response, or a piece of a streamed response.
#[derive(Debug, Default, Serialize, ToSchema)]
#[schema(as = InfillResponse)]
pub struct Answer<'a> {
    /// The number of the output, always 0.
    pub index: u32,
    /// The text of the output, or its new part in a stream.
    pub content: &'a str,
    /// The ids of the tokens of `content`, if requested or in a stream.
    pub tokens: Vec<u32>,
    /// True in a complete response and in the last piece.
    pub stop: bool,
    /// The number of tokens generated so far.
    pub tokens_predicted: u32,
    /// The number of prompt tokens.
    pub tokens_evaluated: u32,
    /// The name of the served model. Like the next five members, only in the last piece.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<&'a str>,
    /// The number of prompt tokens that were found in the KV cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens_cached: Option<u32>,
    /// Always false: a text that does not fit is refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub truncated: Option<bool>,
    /// True if the output has a line break.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub has_new_line: Option<bool>,
    /// `eos`, `limit` or `word`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop_type: Option<&'static str>,
    /// The stop string that ended the output, or an empty text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stopping_word: Option<&'a str>,
    /// The counts and times so far, in the last piece or if the request has `timings_per_token`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timings: Option<Timings>,
}
