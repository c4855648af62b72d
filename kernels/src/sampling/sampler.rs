//! The sampler, which chooses one token from a row of logits.

use trunkline_contract::SamplingParams;

use super::buckets::{Buckets, Row};
use super::processors::{SampleContext, TokenCounts, process};
use super::scan::{Distribution, Largest, count, gather, key_token, largest, mass, weigh};
use super::sigma::keep_within_sigmas;
use super::watermark::add_watermark;
use super::xtc::{Draw, excluded_mass};
use crate::isa::Isa;

/// The distances below the largest scaled logit that are tried in turn until there are enough candidates. At a distance
/// of 3 a token has e^-3 = 5 % of the largest weight.
pub const DEPTHS: [f32; 5] = [3.0, 8.0, 16.0, 32.0, f32::INFINITY];
/// If there are more candidates than this, and more than one in [`MIN_ROW_PER_CANDIDATE`] of the vocabulary, they are
/// put into [`Buckets`] instead of being sorted. The result is the same. Buckets pass over the vocabulary several
/// times: for a vocabulary of 49,152 with few candidates, sorting took 101 us and buckets took 255 us (Zen 4).
pub const MAX_SORTED: usize = 1024;
pub const MIN_ROW_PER_CANDIDATE: usize = 4;
/// The upper bound of 1 / temperature. It keeps 0 * (1 / temperature) from being NaN for subnormal temperatures.
pub const MAX_INVERSE_TEMPERATURE: f32 = 1e30;

/// The logits define no distribution: one is NaN or positive infinity, or none is finite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotFinite;

#[derive(Clone, Debug, PartialEq)]
pub struct SampledToken {
    pub token_id: u32,
    /// Natural logarithm of the token's probability in the model's own distribution; 0 if not requested.
    pub logprob: f32,
    /// The most likely tokens of that distribution, ties by lower id.
    pub top_logprobs: Vec<(u32, f32)>,
}

/// A sampler with its working memory, for one thread.
#[derive(Debug, Default)]
pub struct Sampler {
    /// A copy of the model's own logits, if they are overwritten and logprobs are requested.
    raw: Vec<f32>,
    pub(super) keys: Vec<u64>,
    pub(super) weights: Vec<f32>,
    /// The distance of each candidate from the mean information, as bits, and its index.
    pub(super) distances: Vec<(u64, u32)>,
    buckets: Buckets,
}

impl Sampler {
    /// Creates a sampler for rows of `vocab_size` logits. Sampling does not allocate. Untouched room takes no physical
    /// memory.
    pub fn new(vocab_size: usize) -> Self {
        Self {
            raw: Vec::with_capacity(vocab_size),
            keys: Vec::with_capacity(vocab_size),
            weights: Vec::with_capacity(vocab_size),
            distances: Vec::with_capacity(vocab_size),
            buckets: Buckets::default(),
        }
    }

    /// Samples a token. Overwrites `logits` and uses the memory of `list` for the top logprobs of the result.
    ///
    /// The result depends only on the arguments and is the same on every instruction set.
    ///
    /// Costs three passes over the vocabulary, one more for each of `masks` and two more for a watermark, and a sort of
    /// the relevant candidates. If there are many candidates, it costs two more passes and the sort of one or two of
    /// the [`Buckets`] instead. With `typical_p` it sorts all tokens with a positive weight twice.
    #[allow(clippy::too_many_arguments, reason = "a row, a sequence's state and an output")]
    pub fn sample(
        &mut self,
        isa: Isa,
        logits: &mut [f32],
        params: &SamplingParams,
        counts: &TokenCounts,
        context: SampleContext<'_>,
        masks: [Option<&[u8]>; 2],
        list: &mut Vec<(u32, f32)>,
    ) -> Result<SampledToken, NotFinite> {
        let Largest::Finite(mut top) = largest(isa, logits) else { return Err(NotFinite) };
        let wants_logprobs = params.logprobs || params.num_top_logprobs > 0;
        // Penalties overwrite the model's own distribution, so logprobs are computed first.
        let own = Distribution {
            top,
            log_mass: if wants_logprobs { mass(isa, logits, top, 1.0).ln() } else { 0.0 },
        };
        self.top(isa, logits, &own, params.num_top_logprobs as usize, list);
        let is_masked = masks.iter().any(Option::is_some);
        let keeps_raw = wants_logprobs && (is_masked || has_processors(params, context.num_output));
        if keeps_raw {
            self.raw.clear();
            self.raw.extend_from_slice(logits);
        }
        if let Some(watermark) = &params.watermark {
            add_watermark(isa, logits, context.previous, watermark);
        }
        let is_changed = process(isa, logits, params, counts, context, masks);
        if is_changed || params.watermark.is_some() {
            let Largest::Finite(processed) = largest(isa, logits) else { return Err(NotFinite) };
            top = processed;
        }
        let token_id = if params.temperature == 0.0 {
            self.greedy(isa, logits, top)
        } else {
            if params.top_n_sigma > 0.0 {
                keep_within_sigmas(logits, top, params.top_n_sigma);
            }
            self.draw(isa, logits, top, params, Draw::new(params, context.position))
        };
        let raw = if keeps_raw { &self.raw[..] } else { logits };
        let logprob = if wants_logprobs { own.logprob(raw[token_id as usize]) } else { 0.0 };
        Ok(SampledToken { token_id, logprob, top_logprobs: std::mem::take(list) })
    }

    pub(super) fn top(
        &mut self,
        isa: Isa,
        logits: &[f32],
        own: &Distribution,
        count: usize,
        list: &mut Vec<(u32, f32)>,
    ) {
        list.clear();
        if count == 0 {
            return;
        }
        self.gather_at_least(isa, logits, own.top, 1.0, count);
        self.keep_first(count);
        let likeliest = self.keys.iter().map(|key| key_token(*key));
        list.extend(likeliest.map(|id| (id, own.logprob(logits[id as usize]))));
    }

    /// Fills `keys` with at least `count` of the most likely tokens, or with all, unsorted.
    pub(super) fn gather_at_least(
        &mut self,
        isa: Isa,
        logits: &[f32],
        top: f32,
        temperature: f32,
        count: usize,
    ) {
        for depth in DEPTHS {
            self.keys.clear();
            gather(isa, logits, top - depth * temperature, &mut self.keys);
            if self.keys.len() >= count {
                return;
            }
        }
    }

    fn greedy(&mut self, isa: Isa, logits: &[f32], top: f32) -> u32 {
        self.keys.clear();
        gather(isa, logits, top, &mut self.keys);
        self.keys.iter().map(|key| key_token(*key)).min().unwrap_or(0)
    }

    /// Draws the first token, in descending order of weight, at which the cumulative weight exceeds `u` times the kept
    /// mass.
    fn draw(&mut self, isa: Isa, logits: &[f32], top: f32, params: &SamplingParams, draw: Draw) -> u32 {
        let inverse = (1.0 / params.temperature).min(MAX_INVERSE_TEMPERATURE);
        if params.typical_p < 1.0 {
            return self.draw_typical(isa, logits, (top, inverse), params, draw);
        }
        let top_k = params.top_k as usize;
        if top_k > 0 {
            self.gather_at_least(isa, logits, top, params.temperature, top_k);
            self.keep_first(top_k);
            self.weigh(isa, logits, top, inverse);
            let total = self.weights.iter().map(|w| f64::from(*w)).sum();
            return self.decide(params, draw, total, true).unwrap_or(0);
        }
        let total = mass(isa, logits, top, inverse);
        for depth in DEPTHS {
            let lowest = top - depth * params.temperature;
            if count(isa, logits, lowest) > MAX_SORTED.max(logits.len() / MIN_ROW_PER_CANDIDATE) {
                self.weights.clear();
                self.weights.extend_from_slice(logits);
                weigh(isa, &mut self.weights, top, inverse);
                let row = Row { logits, weights: &mut self.weights, top, inverse_temperature: inverse };
                return self.buckets.draw(row, &mut self.keys, params, draw, total);
            }
            self.keys.clear();
            gather(isa, logits, lowest, &mut self.keys);
            self.keys.sort_unstable();
            self.weigh(isa, logits, top, inverse);
            if let Some(token_id) = self.decide(params, draw, total, depth == f32::INFINITY) {
                return token_id;
            }
        }
        unreachable!("the last depth takes all tokens, and a complete list is always decided")
    }

    /// Keeps the `count` smallest keys and sorts them.
    pub(super) fn keep_first(&mut self, count: usize) {
        if self.keys.len() > count {
            self.keys.select_nth_unstable(count - 1);
            self.keys.truncate(count);
        }
        self.keys.sort_unstable();
    }

    /// Computes the weights exp((logit - top) / temperature) of `keys`, in the same order.
    pub(super) fn weigh(&mut self, isa: Isa, logits: &[f32], top: f32, inverse_temperature: f32) {
        self.weights.clear();
        self.weights.extend(self.keys.iter().map(|key| logits[key_token(*key) as usize]));
        weigh(isa, &mut self.weights, top, inverse_temperature);
    }

    /// Applies top_p, min_p and XTC to the sorted candidates and draws. `total` is the weight of all tokens. Returns
    /// `None` if tokens that are not candidates may affect the result, which cannot happen if the list `is_complete`.
    fn decide(&self, params: &SamplingParams, draw: Draw, total: f64, is_complete: bool) -> Option<u32> {
        let (num_kept, kept) = self.keep(params, total, is_complete)?;
        let weights = &self.weights[..num_kept];
        let excluded = match draw.least_excluded(kept) {
            // Tokens that are not candidates may be excluded too.
            Some(least) if !is_complete && weights.last().is_some_and(|last| f64::from(*last) >= least) => {
                return None;
            }
            Some(least) => excluded_mass(weights.iter().copied(), least),
            None => 0.0,
        };
        let target = draw.target(kept, excluded);
        let mut cumulative = 0.0;
        for (key, weight) in self.keys[..num_kept].iter().zip(&self.weights) {
            cumulative += f64::from(*weight);
            if cumulative > target {
                return Some(key_token(*key));
            }
        }
        None
    }

    /// Returns the number of sorted candidates that top_p and min_p keep, and their weight. The arguments and `None`
    /// are those of [`Sampler::decide`].
    pub(super) fn keep(
        &self,
        params: &SamplingParams,
        total: f64,
        is_complete: bool,
    ) -> Option<(usize, f64)> {
        let is_filtered = params.top_p < 1.0 || params.min_p > 0.0;
        let reach = if params.top_p < 1.0 { f64::from(params.top_p) * total } else { f64::INFINITY };
        // Without a filter all tokens are kept, and the list is needed only up to the drawn token.
        let mut kept = total;
        let mut num_kept = self.weights.len();
        if is_filtered {
            let (mut cumulative, mut is_decided) = (0.0, is_complete);
            for (i, weight) in self.weights.iter().enumerate() {
                if i > 0 && (cumulative >= reach || *weight < params.min_p) {
                    (num_kept, is_decided) = (i, true);
                    break;
                }
                cumulative += f64::from(*weight);
            }
            if !is_decided && cumulative < reach {
                return None;
            }
            kept = cumulative;
        }
        Some((num_kept, kept))
    }
}

/// Returns true if the watermark, [`process`] or `top_n_sigma` may change logits, not counting masks.
fn has_processors(params: &SamplingParams, num_output: usize) -> bool {
    params.repetition_penalty != 1.0
        || params.presence_penalty != 0.0
        || params.frequency_penalty != 0.0
        || !params.logit_bias.is_empty()
        || num_output < params.min_tokens as usize
        || params.watermark.is_some()
        || params.top_n_sigma > 0.0
}
