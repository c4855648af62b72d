//! Tests of masks and of appended tokens.

use std::sync::Arc;

use trunkline_contract::TokenMask;

use super::*;

/// Computes all known tokens of one sequence that are not computed yet, and samples with a mask.
fn step(executor: &mut Executor, first: usize, end: usize, mask: Option<Vec<u8>>) -> Vec<SequenceResult> {
    if let Some(mask) = mask {
        executor.allow(1, mask).unwrap();
    }
    executor.step(&[chunk(1, first, end, if first == 0 { &[0, 1] } else { &[] }, true)])
}

fn mask_of(token_ids: &[u32]) -> Vec<u8> {
    TokenMask::of(token_ids.iter().copied(), VOCAB as u32).0.to_vec()
}

fn token(results: Vec<SequenceResult>) -> SampledToken {
    results.into_iter().next().unwrap().outcome.unwrap()
}

#[test]
fn a_mask_applies_to_one_sample_and_not_to_logprobs() {
    let mut executor = build(PLAIN, 2, best());
    let tokens = prompt(31, 20);
    let free = alone(&mut executor, &tokens, &[], 1, &ascending(0)).remove(0);
    for params in [observant(), SamplingParams { temperature: 1.0, seed: 5, ..observant() }] {
        let others: Vec<u32> = (0..VOCAB as u32).filter(|id| *id != free.token_id).take(3).collect();
        executor.start(1, tokens.clone(), 20, params).unwrap();
        let sampled = token(step(&mut executor, 0, 20, Some(mask_of(&others))));
        assert!(others.contains(&sampled.token_id));
        assert_eq!(sampled.top_logprobs, free.top_logprobs, "they are of the model's own distribution");
        assert!(sampled.logprob < free.logprob);
        // The next sample is unconstrained again.
        assert!(step(&mut executor, 20, 21, None)[0].outcome.is_ok());
        executor.end(1).unwrap();
    }
}

#[test]
fn appended_tokens_equal_sampled_ones() {
    let mut executor = build(PLAIN, 2, best());
    let tokens = prompt(32, 20);
    let sampled = alone(&mut executor, &tokens, &[], 4, &ascending(0));
    executor.start(1, tokens.clone(), 20, observant()).unwrap();
    assert_eq!(token(step(&mut executor, 0, 20, None)), sampled[0]);
    executor.append(1, &[sampled[1].token_id, sampled[2].token_id]).unwrap();
    assert_eq!(token(step(&mut executor, 20, 23, None)), sampled[3]);
}

#[test]
fn a_late_mask_gives_the_same_result_as_an_early_one() {
    let mut executor = build(PLAIN, 2, best());
    let tokens = prompt(35, 20);
    let params = SamplingParams { temperature: 1.0, seed: 9, ..observant() };
    let mask = mask_of(&[3, 4, 5, 70]);
    executor.start(1, tokens.clone(), 20, params.clone()).unwrap();
    let first = token(step(&mut executor, 0, 20, Some(mask.clone())));
    let second = token(step(&mut executor, 20, 21, Some(mask.clone())));
    executor.end(1).unwrap();

    executor.start(1, tokens, 20, params).unwrap();
    let masks = Arc::new(LateMasks::default());
    executor.await_mask(1, masks.clone()).unwrap();
    let late = std::thread::scope(|scope| {
        let running = scope.spawn(|| token(step(&mut executor, 0, 20, None)));
        masks.tell(1, mask.clone());
        running.join().unwrap()
    });
    assert_eq!(late, first);
    // With an empty mask nothing is sampled. The position is computed, and the next step continues after it.
    executor.await_mask(1, masks.clone()).unwrap();
    masks.tell(1, Vec::new());
    assert!(step(&mut executor, 20, 21, None).is_empty());
    executor.append(1, &[second.token_id]).unwrap();
    // A mask of the wrong size, and no mask after `close`.
    executor.await_mask(1, masks.clone()).unwrap();
    masks.tell(1, vec![255]);
    let failed = step(&mut executor, 21, 22, None);
    assert!(matches!(failed[0].outcome, Err(SequenceFailure::InvalidPlan(_))));
    masks.close();
    executor.await_mask(1, masks).unwrap();
    assert!(step(&mut executor, 22, 23, None).len() == 1, "the position is not known: that is its result");
}

#[test]
fn a_bad_mask_fails_its_sequence() {
    let mut executor = build(PLAIN, 2, best());
    for (mask, code) in
        [(vec![], "invalid_plan"), (vec![255; VOCAB], "invalid_plan"), (mask_of(&[]), "not_finite")]
    {
        executor.start(1, prompt(33, 20), 20, observant()).unwrap();
        let results = step(&mut executor, 0, 20, Some(mask));
        assert_eq!(results[0].outcome.as_ref().unwrap_err().code(), code);
        executor.end(1).unwrap();
    }
    assert!(executor.allow(1, vec![]).is_err() && executor.append(1, &[]).is_err(), "it is not started");
}
