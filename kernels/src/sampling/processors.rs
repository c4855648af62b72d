//! What sampling parameters do to logits before a token is chosen, in the order of application.

use super::scan::keep;
use super::watermark::Watermark;
use crate::isa::Isa;

/// Least part of the vocabulary that a watermark makes green, and that it does not.
const MIN_GAMMA: f32 = 1.0 / 256.0;

/// As `SamplingParams` in shard.proto, field by field.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
    /// 0 is greedy; else logits are divided by it.
    pub temperature: f32,
    /// Keep the smallest set of tokens whose probability reaches it; 1 keeps all.
    pub top_p: f32,
    /// Keep the k likeliest; 0 keeps all.
    pub top_k: u32,
    /// Drop tokens whose probability is below min_p times the likeliest one's.
    pub min_p: f32,
    /// Key of the generator.
    pub seed: u64,
    /// Which of a request's choices: second part of the key.
    pub choice: u32,
    /// Subtracted from the logit of every token that the output holds.
    pub presence_penalty: f32,
    /// Subtracted once per occurrence in the output.
    pub frequency_penalty: f32,
    /// Divides positive and multiplies negative logits of tokens that prompt or output hold.
    pub repetition_penalty: f32,
    /// While the output is shorter, `end_token_ids` are not sampled.
    pub min_tokens: u32,
    /// Tokens that end a sequence.
    pub end_token_ids: Vec<u32>,
    /// How many of the likeliest tokens to report.
    pub num_top_logprobs: u32,
    /// Report the logprob of the sampled token.
    pub logprobs: bool,
    /// Added to the logits of these tokens, before the penalties.
    pub logit_bias: Vec<(u32, f32)>,
    /// If not empty: the only tokens that are sampled.
    pub allowed_token_ids: Vec<u32>,
    /// Keep the tokens whose information is nearest to the entropy, up to this probability; 1 keeps all.
    pub typical_p: f32,
    /// How many of the likeliest tokens to report with each token of the prompt.
    pub num_top_prompt_logprobs: u32,
    /// If any: lifts tokens, before all else is done to the logits.
    pub watermark: Option<Watermark>,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            seed: 0,
            choice: 0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            repetition_penalty: 1.0,
            min_tokens: 0,
            end_token_ids: Vec::new(),
            num_top_logprobs: 0,
            logprobs: false,
            logit_bias: Vec::new(),
            allowed_token_ids: Vec::new(),
            typical_p: 1.0,
            num_top_prompt_logprobs: 0,
            watermark: None,
        }
    }
}

impl SamplingParams {
    /// Names the first parameter outside of the range that shard.proto gives it.
    pub fn check(&self) -> Result<(), String> {
        let in_range = |name: &str, value: f32, low: f32, high: f32| {
            if (low..=high).contains(&value) {
                Ok(())
            } else {
                Err(format!("`{name}` is {value}, expected {low} to {high}"))
            }
        };
        in_range("temperature", self.temperature, 0.0, 100.0)?;
        in_range("top_p", self.top_p, f32::MIN_POSITIVE, 1.0)?;
        in_range("min_p", self.min_p, 0.0, 1.0)?;
        in_range("presence_penalty", self.presence_penalty, -2.0, 2.0)?;
        in_range("frequency_penalty", self.frequency_penalty, -2.0, 2.0)?;
        in_range("repetition_penalty", self.repetition_penalty, f32::MIN_POSITIVE, f32::MAX)?;
        in_range("typical_p", self.typical_p, f32::MIN_POSITIVE, 1.0)?;
        for (_, bias) in &self.logit_bias {
            in_range("logit_bias", *bias, -100.0, 100.0)?;
        }
        if let Some(watermark) = &self.watermark {
            in_range("watermark.gamma", watermark.gamma, MIN_GAMMA, 1.0 - MIN_GAMMA)?;
            in_range("watermark.delta", watermark.delta, f32::from_bits(1), 100.0)?;
        }
        let counts = [
            ("num_top_logprobs", self.num_top_logprobs),
            ("num_top_prompt_logprobs", self.num_top_prompt_logprobs),
        ];
        match counts.iter().find(|(_, count)| *count > 20) {
            Some((name, count)) => Err(format!("`{name}` is {count}, expected 0 to 20")),
            None => Ok(()),
        }
    }

    /// `allowed_token_ids` as a mask of so many tokens: bit `i % 8` of byte `i / 8` is token `i`; none: any token.
    /// Tokens beyond the vocabulary are passed over.
    pub fn allowed_mask(&self, vocab_size: usize) -> Option<Vec<u8>> {
        if self.allowed_token_ids.is_empty() {
            return None;
        }
        let mut mask = vec![0; vocab_size.div_ceil(8)];
        for token_id in &self.allowed_token_ids {
            if let Some(byte) = mask.get_mut(*token_id as usize / 8) {
                *byte |= 1 << (token_id % 8);
            }
        }
        Some(mask)
    }

    fn needs_counts(&self) -> bool {
        self.repetition_penalty != 1.0 || self.presence_penalty != 0.0 || self.frequency_penalty != 0.0
    }
}

/// Which tokens a sequence holds and how often its output holds them; empty where no penalty asks for it.
#[derive(Clone, Debug, Default)]
pub struct TokenCounts {
    /// By token id: 0 if the sequence does not hold it, else 1 more than its occurrences in the output.
    marks: Vec<u32>,
    /// Tokens that it holds, each once, in order of their first occurrence.
    held: Vec<u32>,
}

impl TokenCounts {
    /// Counts `token_ids`, of which the first `num_prompt_tokens` are the prompt; those beyond the vocabulary are
    /// passed over. Cost O(V) if a penalty is set; pushes allocate nothing.
    pub fn new(
        params: &SamplingParams,
        token_ids: &[u32],
        num_prompt_tokens: usize,
        vocab_size: usize,
    ) -> Self {
        let mut counts = Self::default();
        if params.needs_counts() {
            counts.marks.resize(vocab_size, 0);
            counts.held.reserve_exact(vocab_size);
            let (prompt, output) = token_ids.split_at(num_prompt_tokens);
            prompt.iter().for_each(|token_id| counts.push(*token_id, 0));
            output.iter().for_each(|token_id| counts.push_output(*token_id));
        }
        counts
    }

    /// Counts one more token of the output.
    pub fn push_output(&mut self, token_id: u32) {
        self.push(token_id, 1);
    }

    fn push(&mut self, token_id: u32, num_outputs: u32) {
        let Some(mark) = self.marks.get_mut(token_id as usize) else { return };
        if *mark == 0 {
            *mark = 1;
            self.held.push(token_id);
        }
        *mark += num_outputs;
    }
}

/// Adds the bias, applies penalties, then the mask of `min_tokens` and those of tokens allowed, in place; returns
/// whether anything may have changed.
///
/// Tokens beyond the vocabulary are passed over.
pub fn process(
    isa: Isa,
    logits: &mut [f32],
    params: &SamplingParams,
    counts: &TokenCounts,
    num_output: usize,
    masks: [Option<&[u8]>; 2],
) -> bool {
    for (token_id, bias) in &params.logit_bias {
        if let Some(logit) = logits.get_mut(*token_id as usize) {
            *logit += bias;
        }
    }
    for token_id in &counts.held {
        let Some(logit) = logits.get_mut(*token_id as usize) else { continue };
        if params.repetition_penalty != 1.0 {
            *logit = if *logit > 0.0 {
                *logit / params.repetition_penalty
            } else {
                *logit * params.repetition_penalty
            };
        }
        let num_in_output = counts.marks[*token_id as usize] - 1;
        if num_in_output > 0 {
            *logit -= num_in_output as f32 * params.frequency_penalty + params.presence_penalty;
        }
    }
    let is_masked = num_output < params.min_tokens as usize && !params.end_token_ids.is_empty();
    if is_masked {
        for token_id in &params.end_token_ids {
            if let Some(logit) = logits.get_mut(*token_id as usize) {
                *logit = f32::NEG_INFINITY;
            }
        }
    }
    for mask in masks.into_iter().flatten() {
        keep(isa, logits, mask);
    }
    is_masked || masks.iter().any(Option::is_some) || !counts.held.is_empty() || !params.logit_bias.is_empty()
}
