use std::fmt;
use std::ops::RangeInclusive;

use prost::Message;

use crate::mask::TokenMask;
use crate::proto::{self, Watermark};

/// Passes the table of the sampling parameters that are numbers to a macro, behind other arguments.
///
/// A row has:
/// - the help text, which is the field's documentation in [`SamplingParams`] and in the OpenAPI document
/// - the field's name, in `shard.proto` and in all dialects; its type, the value that changes nothing, and the range
/// - in requests: its type, default and range. Numbers below the parameter's own range mean the smallest one in it.
/// - `model` and a field of a model's `generation_config.json`, if that can set the default
/// - the dialects that have it, each with a sentence that it adds to the help text
#[macro_export]
macro_rules! with_sampling_params {
    ([$($receiver:tt)+] $($args:tt)*) => {
        $($receiver)+! { $($args)*
            /// The sampling temperature. 0 is greedy; the default is the model's own, or 1.
            temperature: f32 = 0.0 in 0.0..=100.0,
                sent as f64 = 1.0 in 0.0..=100.0, model temperature,
                by [openai[] responses[] anthropic[] ollama[]];
            /// Samples from the smallest set of tokens whose total probability reaches this value.
            // OpenAI's range begins with 0, which keeps only the likeliest token, as the smallest number does.
            top_p: f32 = 1.0 in f32::MIN_POSITIVE..=1.0,
                sent as f64 = 1.0 in 0.0..=1.0, model top_p,
                by [openai[] responses[] anthropic[] tgi[] ollama[]];
            /// Samples from the `top_k` likeliest tokens. 0 and -1 mean all tokens.
            top_k: u32 = 0 in 0.0..=f32::MAX,
                sent as i64 = 0 in -1.0..=f32::MAX, model top_k,
                by [openai[] responses[" Not part of OpenAI's API."] anthropic[] tgi[] ollama[]];
            /// Excludes tokens less likely than this fraction of the likeliest token's probability.
            min_p: f32 = 0.0 in 0.0..=1.0,
                sent as f64 = 0.0 in 0.0..=1.0, model min_p,
                by [openai[] responses[" Not part of OpenAI's API."] anthropic[" Not part of Anthropic's API."] tgi[]
                    ollama[]];
            /// Subtracted from the logits of tokens that occur in the output.
            presence_penalty: f32 = 0.0 in -2.0..=2.0,
                sent as f64 = 0.0 in -2.0..=2.0,
                by [openai[] tgi[] ollama[]];
            /// Subtracted from a token's logit once per occurrence in the output.
            frequency_penalty: f32 = 0.0 in -2.0..=2.0,
                sent as f64 = 0.0 in -2.0..=2.0,
                by [openai[] tgi[] ollama[]];
            /// Divides the positive logits, and multiplies the negative logits, of tokens that occur in the prompt or
            /// the output.
            repetition_penalty: f32 = 1.0 in f32::MIN_POSITIVE..=f32::MAX,
                sent as f64 = 1.0 in $crate::range::REQUEST_REPETITION_PENALTY, model repetition_penalty,
                by [openai[] tgi[]];
            /// Samples from the tokens whose information content is nearest to the entropy, up to this total
            /// probability.
            typical_p: f32 = 1.0 in f32::MIN_POSITIVE..=1.0,
                sent as f64 = 1.0 in f32::MIN_POSITIVE..=1.0,
                by [openai[] tgi[] ollama[]];
            /// Keeps the tokens whose logit is at most this many standard deviations below the largest; 0 and -1 keep
            /// all. Part of llama.cpp's API, like the next two fields.
            // llama.cpp's default is -1.
            top_n_sigma: f32 = 0.0 in 0.0..=100.0,
                sent as f64 = 0.0 in -1.0..=100.0,
                by [openai[]];
            /// The probability with which XTC excludes the likeliest tokens at a position; the default is 0.
            xtc_probability: f32 = 0.0 in 0.0..=1.0,
                sent as f64 = 0.0 in 0.0..=1.0,
                by [openai[]];
            /// XTC excludes all tokens with at least this probability, except the least likely of them; the default is
            /// 0.1.
            xtc_threshold: f32 = 0.0 in 0.0..=1.0,
                sent as f64 = 0.1 in 0.0..=1.0,
                by [openai[]];
        }
    };
}

/// Declares the types that have a field for each row, and the ranges.
macro_rules! declare {
    ($($(#[doc = $help:literal])+ $name:ident: $kind:ident = $neutral:literal in $range:expr,
        sent as $sent:ident = $default:literal in $request:expr, $(model $model:ident,)? by $by:tt;)*) => {
        /// The parameters by which the tokens of one sequence are chosen, field by field as in `shard.proto`.
        ///
        /// This is the only declaration of the parameters on the Rust side: the router fills it, the scheduler passes
        /// it on, and the CPU kernels apply it. [`SamplingParams::check`] knows the valid range of each field.
        #[derive(Clone, Debug, PartialEq)]
        pub struct SamplingParams {
            $($(#[doc = $help])+ pub $name: $kind,)*
            /// The key of the counter-based generator.
            pub seed: u64,
            /// The number of this sequence among the request's choices, which is the second part of the generator's
            /// key.
            pub choice: u32,
            /// While the output is shorter than this, the tokens in `end_token_ids` are not sampled.
            pub min_tokens: u32,
            /// Tokens that end a sequence.
            pub end_token_ids: Vec<u32>,
            /// Added to the logits of these tokens, before the penalties.
            pub logit_bias: Vec<(u32, f32)>,
            /// The only tokens that are sampled, as a mask without penalties, which the choices of a request share.
            /// `None` allows all.
            pub allowed_tokens: Option<TokenMask>,
            /// Reports the logprob of each sampled token.
            pub logprobs: bool,
            /// Reports this many of the likeliest tokens with each sampled one.
            pub num_top_logprobs: u32,
            /// Reports the logprob of each prompt token but the first, with this many of the likeliest tokens. Every
            /// position of the prompt is computed then, even if the KV index has it. A constrained sequence cannot
            /// ask for this.
            pub prompt_logprobs: Option<u32>,
            /// The output carries this watermark.
            pub watermark: Option<Watermark>,
        }

        impl Default for SamplingParams {
            /// Greedy, without filters, biases, penalties or logprobs.
            fn default() -> Self {
                Self {
                    $($name: $neutral,)*
                    seed: 0,
                    choice: 0,
                    min_tokens: 0,
                    end_token_ids: Vec::new(),
                    logit_bias: Vec::new(),
                    allowed_tokens: None,
                    logprobs: false,
                    num_top_logprobs: 0,
                    prompt_logprobs: None,
                    watermark: None,
                }
            }
        }

        impl SamplingParams {
            fn check_numbers(&self) -> Result<(), OutOfRange> {
                $(check(stringify!($name), self.$name as f32, $range)?;)*
                Ok(())
            }
        }

        /// The numbers of the table in a request, as the client sent them. `None` means that a field was not sent.
        #[derive(Clone, Copy, Debug, Default)]
        pub struct RequestNumbers {
            $($(#[doc = $help])+ pub $name: Option<$sent>,)*
        }

        impl RequestNumbers {
            /// The name, range and default of each number, and the field of `generation_config.json` that may set
            /// another default, or nothing.
            pub const ROWS: &[(&str, RangeInclusive<f32>, f32, &str)] = &[
                $((stringify!($name), $request, $default as f32, [$(stringify!($model),)? ""][0])),*
            ];
        }

        impl From<SamplingParams> for proto::SamplingParams {
            fn from(params: SamplingParams) -> Self {
                let bias = |(token_id, bias)| proto::TokenBias { token_id, bias };
                Self {
                    $($name: params.$name,)*
                    seed: params.seed,
                    choice: params.choice,
                    min_tokens: params.min_tokens,
                    end_token_ids: params.end_token_ids,
                    num_top_logprobs: params.num_top_logprobs,
                    logprobs: params.logprobs,
                    logit_bias: params.logit_bias.into_iter().map(bias).collect(),
                    allowed_tokens: params.allowed_tokens.map(Into::into).unwrap_or_default(),
                    mask_id: 0,
                    num_top_prompt_logprobs: params.prompt_logprobs.unwrap_or(0),
                    watermark: params.watermark,
                }
            }
        }

        /// Reads parameters as a shard does, with a mask that is not only named. A chunk says whether the prompt is
        /// scored.
        impl From<proto::SamplingParams> for SamplingParams {
            fn from(params: proto::SamplingParams) -> Self {
                Self {
                    $($name: params.$name,)*
                    seed: params.seed,
                    choice: params.choice,
                    min_tokens: params.min_tokens,
                    end_token_ids: params.end_token_ids,
                    num_top_logprobs: params.num_top_logprobs,
                    logprobs: params.logprobs,
                    logit_bias: params.logit_bias.into_iter().map(|bias| (bias.token_id, bias.bias)).collect(),
                    allowed_tokens: TokenMask::from_bytes(&params.allowed_tokens),
                    prompt_logprobs: Some(params.num_top_prompt_logprobs),
                    watermark: params.watermark,
                }
            }
        }
    };
}

with_sampling_params! { [declare] }

/// Ranges beside those of the table.
pub mod range {
    use std::ops::RangeInclusive;

    /// The range of `repetition_penalty` in requests. Below it, divided logits overflow f32; above it, they lose all
    /// meaning.
    pub const REQUEST_REPETITION_PENALTY: RangeInclusive<f32> = 0.01..=100.0;
    pub const LOGIT_BIAS: RangeInclusive<f32> = -100.0..=100.0;
    /// The most likeliest tokens that are reported with one token.
    pub const MAX_TOP_LOGPROBS: u32 = 20;
    /// The range of a watermark's `gamma`. All bits of an f32 from 2^-8 on are multiples of 2^-32, so comparisons with
    /// the generator's words are exact.
    pub const WATERMARK_GAMMA: RangeInclusive<f32> = 1.0 / 256.0..=1.0 - 1.0 / 256.0;
    /// The range of a watermark's `delta`, which must be positive.
    pub const WATERMARK_DELTA: RangeInclusive<f32> = f32::from_bits(1)..=100.0;

    /// Returns true if a range stands for all numbers above 0, because it begins with the smallest one.
    pub fn is_above_zero(range: &RangeInclusive<f32>) -> bool {
        *range.start() > 0.0 && *range.start() <= f32::MIN_POSITIVE
    }
}

impl SamplingParams {
    /// Returns the parameters as the bytes of their message. Equal parameters have equal bytes.
    pub fn into_bytes(self) -> Vec<u8> {
        proto::SamplingParams::from(self).encode_to_vec()
    }

    /// Returns the first parameter that is outside its range, if there is one. NaN is outside every range.
    pub fn check(&self) -> Result<(), OutOfRange> {
        self.check_numbers()?;
        for (_, bias) in &self.logit_bias {
            check("logit_bias", *bias, range::LOGIT_BIAS)?;
        }
        if let Some(watermark) = &self.watermark {
            check("watermark.gamma", watermark.gamma, range::WATERMARK_GAMMA)?;
            check("watermark.delta", watermark.delta, range::WATERMARK_DELTA)?;
        }
        let max_top_logprobs = 0.0..=range::MAX_TOP_LOGPROBS as f32;
        check("num_top_logprobs", self.num_top_logprobs as f32, max_top_logprobs.clone())?;
        let num_top_prompt_logprobs = self.prompt_logprobs.unwrap_or(0);
        check("num_top_prompt_logprobs", num_top_prompt_logprobs as f32, max_top_logprobs)
    }
}

fn check(field: &'static str, value: f32, range: RangeInclusive<f32>) -> Result<(), OutOfRange> {
    if range.contains(&value) { Ok(()) } else { Err(OutOfRange { field, value, range }) }
}

#[derive(Clone, Debug, PartialEq)]
pub struct OutOfRange {
    /// The field's name in `shard.proto`.
    pub field: &'static str,
    pub value: f32,
    pub range: RangeInclusive<f32>,
}

impl fmt::Display for OutOfRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { field, value, range } = self;
        let (start, end) = (range.start(), range.end());
        write!(f, "`{field}` is {value}, expected ")?;
        match (range::is_above_zero(range), *end == f32::MAX) {
            (true, true) => write!(f, "above 0"),
            (true, false) => write!(f, "above 0 and at most {end}"),
            (false, _) => write!(f, "{start} to {end}"),
        }
    }
}

impl std::error::Error for OutOfRange {}
