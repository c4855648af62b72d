use std::fmt;
use std::ops::RangeInclusive;

use crate::mask::TokenMask;
use crate::proto::{self, Watermark};

/// The parameters by which the tokens of one sequence are chosen, field by field as in `shard.proto`.
///
/// This is the only declaration of the parameters on the Rust side: the router fills it, the scheduler passes it on,
/// and the CPU kernels apply it. [`SamplingParams::check`] knows the valid range of each field, which [`range`]
/// declares.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
    /// Divides the logits; 0 is greedy.
    pub temperature: f32,
    /// Keeps the smallest set of tokens whose probability reaches it; 1 keeps all.
    pub top_p: f32,
    /// Keeps the k likeliest tokens; 0 keeps all.
    pub top_k: u32,
    /// Drops tokens whose probability is below `min_p` times that of the likeliest; 0 drops none.
    pub min_p: f32,
    /// Keeps the tokens whose information is nearest to the entropy, up to this probability; 1 keeps all.
    pub typical_p: f32,
    /// Keeps the tokens whose logit is at most this many standard deviations below the largest; 0 keeps all.
    pub top_n_sigma: f32,
    /// The probability with which XTC excludes the likeliest tokens at a position; 0 never.
    pub xtc_probability: f32,
    /// XTC excludes all tokens with at least this share of the probability that the filters kept, except the least
    /// likely of them.
    pub xtc_threshold: f32,
    /// The key of the counter-based generator.
    pub seed: u64,
    /// The number of this sequence among the request's choices, which is the second part of the generator's key.
    pub choice: u32,
    /// Subtracted from the logit of every token in the output.
    pub presence_penalty: f32,
    /// Subtracted from a token's logit once per occurrence in the output.
    pub frequency_penalty: f32,
    /// Divides positive and multiplies negative logits of tokens in prompt or output; 1 changes nothing.
    pub repetition_penalty: f32,
    /// While the output is shorter than this, the tokens in `end_token_ids` are not sampled.
    pub min_tokens: u32,
    /// Tokens that end a sequence. A request may leave them empty, because the scheduler fills them in when the
    /// sequence starts.
    pub end_token_ids: Vec<u32>,
    /// Added to the logits of these tokens, before the penalties.
    pub logit_bias: Vec<(u32, f32)>,
    /// The only tokens that are sampled, as a mask without penalties, which the choices of a request share. `None`
    /// allows all.
    pub allowed_tokens: Option<TokenMask>,
    /// Reports the logprob of each sampled token.
    pub logprobs: bool,
    /// Reports this many of the likeliest tokens with each sampled one.
    pub num_top_logprobs: u32,
    /// Reports the logprob of each prompt token but the first, with this many of the likeliest tokens. Every position
    /// of the prompt is computed then, even if the KV index has it. A constrained sequence cannot ask for this.
    pub prompt_logprobs: Option<u32>,
    /// The output carries this watermark.
    pub watermark: Option<Watermark>,
}

/// The valid range of each sampling parameter.
pub mod range {
    use std::ops::RangeInclusive;

    pub const TEMPERATURE: RangeInclusive<f32> = 0.0..=100.0;
    /// The range of `top_p`, which must be positive.
    pub const TOP_P: RangeInclusive<f32> = f32::MIN_POSITIVE..=1.0;
    pub const MIN_P: RangeInclusive<f32> = 0.0..=1.0;
    /// The range of `typical_p`, which must be positive.
    pub const TYPICAL_P: RangeInclusive<f32> = f32::MIN_POSITIVE..=1.0;
    pub const TOP_N_SIGMA: RangeInclusive<f32> = 0.0..=100.0;
    /// The range of `top_n_sigma` in requests. llama.cpp's default is -1, which keeps all tokens like 0.
    pub const REQUEST_TOP_N_SIGMA: RangeInclusive<f32> = -1.0..=*TOP_N_SIGMA.end();
    /// The range of `xtc_probability` and `xtc_threshold`.
    pub const XTC: RangeInclusive<f32> = 0.0..=1.0;
    /// The range of `presence_penalty` and `frequency_penalty`.
    pub const PENALTY: RangeInclusive<f32> = -2.0..=2.0;
    /// The range of `repetition_penalty`, which must be positive.
    pub const REPETITION_PENALTY: RangeInclusive<f32> = f32::MIN_POSITIVE..=f32::MAX;
    /// The part of [`REPETITION_PENALTY`] that requests may use. Below it, divided logits overflow f32; above it, they
    /// lose all meaning.
    pub const REQUEST_REPETITION_PENALTY: RangeInclusive<f32> = 0.01..=100.0;
    /// The range of `top_p` in requests. OpenAI's begins with 0, which keeps only the likeliest token.
    pub const REQUEST_TOP_P: RangeInclusive<f32> = 0.0..=*TOP_P.end();
    pub const LOGIT_BIAS: RangeInclusive<f32> = -100.0..=100.0;
    /// The most likeliest tokens that are reported with one token.
    pub const MAX_TOP_LOGPROBS: u32 = 20;
    /// The ranges of the numbers in requests, by the name that all dialects have for the field.
    pub const OF_REQUESTS: [(&str, RangeInclusive<f32>); 10] = [
        ("temperature", TEMPERATURE),
        ("top_p", REQUEST_TOP_P),
        ("min_p", MIN_P),
        ("typical_p", TYPICAL_P),
        ("top_n_sigma", REQUEST_TOP_N_SIGMA),
        ("xtc_probability", XTC),
        ("xtc_threshold", XTC),
        ("presence_penalty", PENALTY),
        ("frequency_penalty", PENALTY),
        ("repetition_penalty", REQUEST_REPETITION_PENALTY),
    ];
    /// The range of a watermark's `gamma`. All bits of an f32 from 2^-8 on are multiples of 2^-32, so comparisons with
    /// the generator's words are exact.
    pub const WATERMARK_GAMMA: RangeInclusive<f32> = 1.0 / 256.0..=1.0 - 1.0 / 256.0;
    /// The range of a watermark's `delta`, which must be positive.
    pub const WATERMARK_DELTA: RangeInclusive<f32> = f32::from_bits(1)..=100.0;

    /// Returns whether a range stands for all numbers above 0, because it begins with the smallest one.
    pub fn is_above_zero(range: &RangeInclusive<f32>) -> bool {
        *range.start() > 0.0 && *range.start() <= f32::MIN_POSITIVE
    }
}

impl Default for SamplingParams {
    /// Greedy, without filters, biases, penalties or logprobs.
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            typical_p: 1.0,
            top_n_sigma: 0.0,
            xtc_probability: 0.0,
            xtc_threshold: 0.0,
            seed: 0,
            choice: 0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            repetition_penalty: 1.0,
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
    /// Returns the first parameter that is outside its [`range`], if there is one. NaN is outside every range.
    pub fn check(&self) -> Result<(), OutOfRange> {
        check("temperature", self.temperature, range::TEMPERATURE)?;
        check("top_p", self.top_p, range::TOP_P)?;
        check("min_p", self.min_p, range::MIN_P)?;
        check("presence_penalty", self.presence_penalty, range::PENALTY)?;
        check("frequency_penalty", self.frequency_penalty, range::PENALTY)?;
        check("repetition_penalty", self.repetition_penalty, range::REPETITION_PENALTY)?;
        check("typical_p", self.typical_p, range::TYPICAL_P)?;
        check("top_n_sigma", self.top_n_sigma, range::TOP_N_SIGMA)?;
        check("xtc_probability", self.xtc_probability, range::XTC)?;
        check("xtc_threshold", self.xtc_threshold, range::XTC)?;
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

impl From<SamplingParams> for proto::SamplingParams {
    fn from(params: SamplingParams) -> Self {
        let bias = |(token_id, bias)| proto::TokenBias { token_id, bias };
        Self {
            temperature: params.temperature,
            top_p: params.top_p,
            top_k: params.top_k,
            min_p: params.min_p,
            seed: params.seed,
            choice: params.choice,
            presence_penalty: params.presence_penalty,
            frequency_penalty: params.frequency_penalty,
            repetition_penalty: params.repetition_penalty,
            min_tokens: params.min_tokens,
            end_token_ids: params.end_token_ids,
            num_top_logprobs: params.num_top_logprobs,
            logprobs: params.logprobs,
            logit_bias: params.logit_bias.into_iter().map(bias).collect(),
            allowed_tokens: params.allowed_tokens.map(Into::into).unwrap_or_default(),
            mask_id: 0,
            typical_p: params.typical_p,
            num_top_prompt_logprobs: params.prompt_logprobs.unwrap_or(0),
            watermark: params.watermark,
            top_n_sigma: params.top_n_sigma,
            xtc_probability: params.xtc_probability,
            xtc_threshold: params.xtc_threshold,
        }
    }
}

/// Reads parameters as a shard does, with a mask that is not only named. A chunk says whether the prompt is scored.
impl From<proto::SamplingParams> for SamplingParams {
    fn from(params: proto::SamplingParams) -> Self {
        Self {
            temperature: params.temperature,
            top_p: params.top_p,
            top_k: params.top_k,
            min_p: params.min_p,
            seed: params.seed,
            choice: params.choice,
            presence_penalty: params.presence_penalty,
            frequency_penalty: params.frequency_penalty,
            repetition_penalty: params.repetition_penalty,
            min_tokens: params.min_tokens,
            end_token_ids: params.end_token_ids,
            num_top_logprobs: params.num_top_logprobs,
            logprobs: params.logprobs,
            logit_bias: params.logit_bias.into_iter().map(|bias| (bias.token_id, bias.bias)).collect(),
            allowed_tokens: TokenMask::from_bytes(&params.allowed_tokens),
            typical_p: params.typical_p,
            prompt_logprobs: Some(params.num_top_prompt_logprobs),
            watermark: params.watermark,
            top_n_sigma: params.top_n_sigma,
            xtc_probability: params.xtc_probability,
            xtc_threshold: params.xtc_threshold,
        }
    }
}
