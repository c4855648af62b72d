use trunkline_kernels::isa::Isa;
use trunkline_kernels::sampling::{NotFinite, SampleContext, Sampler, SamplingParams, TokenCounts};

use crate::random::Random;

#[test]
fn a_score_equals_the_logprob_of_sampling() {
    for seed in 0..50 {
        let mut random = Random::new(seed);
        let num_logits = 1 + random.below(5000);
        let logits: Vec<f32> = (0..num_logits).map(|_| (random.normal() * 32.0).round() / 8.0).collect();
        let params = SamplingParams { logprobs: true, num_top_logprobs: 5, ..Default::default() };
        for isa in Isa::available() {
            let mut sampler = Sampler::new(num_logits);
            let mut row = logits.clone();
            let counts = TokenCounts::default();
            let sampled = sampler
                .sample(isa, &mut row, &params, &counts, SampleContext::default(), [None; 2], &mut Vec::new())
                .unwrap();
            let scored = sampler.score(isa, &logits, sampled.token_id, 5).unwrap();
            assert_eq!(scored.logprob.to_bits(), sampled.logprob.to_bits(), "seed {seed}, {isa}");
            assert_eq!(scored.top_logprobs, sampled.top_logprobs, "seed {seed}, {isa}");
            let other = random.below(num_logits) as u32;
            let rank = logits.iter().filter(|logit| **logit >= logits[other as usize]).count();
            let scored = sampler.score(isa, &logits, other, 0).unwrap();
            assert_eq!((scored.rank as usize, scored.top_logprobs), (rank, vec![]), "seed {seed}, {isa}");
        }
    }
}

#[test]
fn rows_without_a_distribution_have_no_score() {
    let mut sampler = Sampler::new(3);
    let isa = Isa::SCALAR;
    assert_eq!(sampler.score(isa, &[0.0, f32::NAN, 1.0], 0, 1), Err(NotFinite));
    assert_eq!(sampler.score(isa, &[f32::NEG_INFINITY; 3], 0, 1), Err(NotFinite));
}
