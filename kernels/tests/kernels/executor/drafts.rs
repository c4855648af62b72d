//! Drafts change how many tokens a step samples, and never which ones.

use trunkline_contract::TokenMask;

use super::*;

const NUM_OUTPUT: usize = 40;

/// Parameters under which a sample depends on everything that a sequence knows.
fn all_parameters() -> SamplingParams {
    SamplingParams {
        temperature: 1.2,
        top_p: 0.95,
        seed: 7,
        presence_penalty: 0.4,
        frequency_penalty: 0.3,
        repetition_penalty: 1.3,
        min_tokens: 13,
        end_token_ids: vec![3, 5],
        ..observant()
    }
}

/// The tokens that the sample at a position may choose, if the sequence is masked.
fn mask_at(position: usize) -> Vec<u8> {
    let allowed = (0..VOCAB as u32).filter(|token| (*token as usize * 7 + position * 3) % 5 < 2);
    TokenMask::of(allowed, VOCAB as u32).0.to_vec()
}

/// Decodes with the drafts that `draft` returns for the tokens so far and for the number of tokens that it may draft.
/// Returns the sampled tokens and the number of steps. Another sequence decodes beside it.
fn decode(
    executor: &mut Executor,
    tokens: &[u32],
    (sampling, is_masked): (&SamplingParams, bool),
    mut draft: impl FnMut(&[u32], usize) -> Vec<u32>,
) -> (Vec<SampledToken>, usize) {
    let (mut blocks, mut others) =
        (Blocks { ids: ascending(9), next: 0 }, Blocks { ids: ascending(0), next: 0 });
    let other = prompt(77, 3);
    executor.start(1, tokens.to_vec(), tokens.len(), sampling.clone()).unwrap();
    executor.start(2, other.clone(), other.len(), observant()).unwrap();
    let (mut known, mut sampled, mut num_steps) = (tokens.to_vec(), Vec::new(), 0);
    let mut first = 0;
    while sampled.len() < NUM_OUTPUT {
        let drafts = draft(&known, NUM_OUTPUT - sampled.len() - 1);
        let new_blocks = blocks.take_for(known.len() + drafts.len());
        let mut mine =
            Chunk { draft_token_ids: drafts.clone(), ..chunk(1, first, known.len(), &new_blocks, true) };
        if is_masked {
            executor.allow(1, mask_at(known.len())).unwrap();
            mine.draft_masks = (1..=drafts.len()).map(|index| mask_at(known.len() + index)).collect();
        }
        let end = other.len() + num_steps;
        let beside = chunk(2, if num_steps == 0 { 0 } else { end - 1 }, end, &others.take_for(end), true);
        let results = executor.step(&[mine, beside]);
        let (results, beside): (Vec<_>, Vec<_>) = results.into_iter().partition(|r| r.sequence_id == 1);
        assert!(beside.len() == 1 && beside[0].outcome.is_ok());
        let tokens = results.into_iter().map(|result| result.outcome.unwrap());
        let new: Vec<SampledToken> = tokens.collect();
        let num_accepted = new.len() - 1;
        assert!(new.iter().zip(&drafts).take(num_accepted).all(|(token, draft)| token.token_id == *draft));
        assert!(drafts.get(num_accepted).is_none_or(|draft| *draft != new[num_accepted].token_id));
        first = known.len() + num_accepted;
        known.extend(new.iter().map(|token| token.token_id));
        sampled.extend(new);
        num_steps += 1;
    }
    executor.end(1).unwrap();
    executor.end(2).unwrap();
    (sampled, num_steps)
}

#[test]
fn drafts_never_change_tokens_or_logprobs() {
    for recipe in ALL {
        let mut executor = build(recipe, 2, best());
        let tokens = prompt(51, 2 * BLOCK_SIZE - 3);
        for sampling in [(&observant(), false), (&all_parameters(), false), (&all_parameters(), true)] {
            let (expected, num_steps) = decode(&mut executor, &tokens, sampling, |_, _| Vec::new());
            assert_eq!(num_steps, NUM_OUTPUT);
            let output: Vec<u32> = expected.iter().map(|token| token.token_id).collect();
            let rest = |known: &[u32]| output[known.len() - tokens.len()..].to_vec();
            // The pool holds NaN where drafts write.
            executor.kv_pool_mut().fill(half::f16::NAN.to_bits());
            let right = |known: &[u32], most: usize| rest(known)[..most.min(9)].to_vec();
            let (sampled, num_steps) = decode(&mut executor, &tokens, sampling, right);
            assert_eq!(sampled, expected, "right drafts");
            assert_eq!(num_steps, NUM_OUTPUT / 10);
            let wrong = |known: &[u32], most: usize| {
                rest(known)[..most.min(5)].iter().map(|token| (token + 1) % VOCAB as u32).collect()
            };
            let (sampled, num_steps) = decode(&mut executor, &tokens, sampling, wrong);
            assert_eq!((sampled, num_steps), (expected.clone(), NUM_OUTPUT), "wrong drafts");
            let mut random = Random::new(52);
            let mixed = |known: &[u32], most: usize| {
                let drafts = rest(known)[..most.min(random.below(9))].to_vec();
                let right = random.below(10);
                drafts.iter().enumerate().map(|(i, token)| if i < right { *token } else { 1 }).collect()
            };
            let (sampled, _) = decode(&mut executor, &tokens, sampling, mixed);
            assert_eq!(sampled, expected, "drafts that are partly right");
        }
    }
}

#[test]
fn drafts_that_make_no_sense_fail_their_sequence_only() {
    let mut executor = build(PLAIN, 2, best());
    let tokens = prompt(53, BLOCK_SIZE - 3);
    executor.start(1, tokens.clone(), tokens.len(), observant()).unwrap();
    let mut fails = |drafts: Vec<u32>, sample, num_blocks: u32, problem: &str| {
        let blocks: Vec<u32> = (0..num_blocks).collect();
        let chunk = Chunk { draft_token_ids: drafts, ..chunk(1, 0, tokens.len(), &blocks, sample) };
        let results = executor.step(&[chunk]);
        let Err(SequenceFailure::InvalidPlan(message)) = &results[0].outcome else { panic!("{results:?}") };
        assert!(message.contains(problem), "{message}");
    };
    fails(vec![1], false, 1, "without `sample`");
    fails(vec![1, VOCAB as u32], true, 1, "is not below");
    fails(vec![1; 4], true, 1, "do not hold");
    fails(vec![1; 12], true, 2, "logits of more than 12");
    executor.allow(1, mask_at(0)).unwrap();
    let chunk_of = |draft_masks| Chunk {
        draft_token_ids: vec![1],
        draft_masks,
        ..chunk(1, 0, tokens.len(), &[0, 1], true)
    };
    for masks in [vec![], vec![vec![0]], vec![mask_at(0), mask_at(1)]] {
        let results = executor.step(&[chunk_of(masks)]);
        let Err(SequenceFailure::InvalidPlan(message)) = &results[0].outcome else { panic!("{results:?}") };
        assert!(message.contains("`draft_masks`"), "{message}");
    }
    let results = executor.step(&[chunk(1, 0, tokens.len(), &[0], true)]);
    assert!(results[0].outcome.is_ok(), "the sequence is as before");
}

#[test]
fn a_sequence_that_was_set_back_goes_on_as_before() {
    let mut executor = build(PLAIN, 2, best());
    let tokens = prompt(54, BLOCK_SIZE - 2);
    executor.start(1, tokens.clone(), tokens.len(), all_parameters()).unwrap();
    let mut blocks = Blocks { ids: ascending(0), next: 0 };
    let mut decode = |executor: &mut Executor, first: usize, end: usize| {
        let results = executor.step(&[chunk(1, first, end, &blocks.take_for(end), true)]);
        results[0].outcome.clone().unwrap()
    };
    let end = tokens.len();
    decode(&mut executor, 0, end);
    let expected = [1, 2, 3].map(|place| decode(&mut executor, end + place - 1, end + place));
    for place in [1, 2] {
        executor.rewind(1, end + place).unwrap();
        executor.append(1, &[expected[place - 1].token_id]).unwrap();
        assert_eq!(decode(&mut executor, end + place, end + place + 1), expected[place]);
    }
    assert!(executor.rewind(1, end - 1).is_err(), "the prompt stays");
    assert!(executor.rewind(1, end + 9).is_err() && executor.rewind(2, end).is_err());
}
