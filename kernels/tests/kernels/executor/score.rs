//! Logprobs of the prompt equal those of sampling the same tokens, however the prompt is divided into chunks.

use super::*;

fn scored_chunk(first: usize, end: usize, blocks: &mut Blocks, sample: bool) -> Chunk {
    Chunk { score: true, ..chunk(1, first, end, &blocks.take_for(end), sample) }
}

/// Scores a prompt in chunks that end at `cuts` and at its end. Returns the scores and the next token.
fn scored(executor: &mut Executor, tokens: &[u32], cuts: &[usize]) -> (Vec<TokenScore>, SampledToken) {
    let params = SamplingParams { prompt_logprobs: Some(20), ..observant() };
    executor.start(1, tokens.to_vec(), tokens.len(), params).unwrap();
    let mut blocks = Blocks { ids: ascending(0), next: 0 };
    let (mut first, mut scores, mut sampled) = (0, vec![], vec![]);
    for end in cuts.iter().copied().chain([tokens.len()]) {
        let results = executor.step(&[scored_chunk(first, end, &mut blocks, end == tokens.len())]);
        sampled.extend(results.into_iter().map(|result| result.outcome.unwrap()));
        for chunk in executor.scores() {
            assert_eq!(chunk.sequence_id, 1);
            scores.extend(chunk.tokens.iter().cloned());
        }
        first = end;
    }
    executor.end(1).unwrap();
    (scores, sampled.remove(0))
}

#[test]
fn prompt_logprobs_equal_those_reported_by_sampling() {
    for recipe in ALL {
        let mut executor = build(recipe, 2, best());
        let beginning = prompt(41, 9);
        let sampled = alone(&mut executor, &beginning, &[], 24, &ascending(5));
        let output: Vec<u32> = sampled.iter().map(|token| token.token_id).collect();
        let tokens = [&beginning[..], &output[..23]].concat();
        // Steps of the test model have logits for 12 positions.
        let cuts: [&[usize]; 3] = [&[12, 24], &[1, 9, 16, 26], &[8, 9, 10, 22]];
        for cuts in cuts {
            let (scores, next) = scored(&mut executor, &tokens, cuts);
            assert_eq!(scores.len(), tokens.len() - 1, "all but the first, cut at {cuts:?}");
            for (score, sampled) in scores[8..].iter().zip(&sampled) {
                assert_eq!(score.logprob.to_bits(), sampled.logprob.to_bits(), "cut at {cuts:?}");
                assert_eq!(score.top_logprobs, sampled.top_logprobs, "cut at {cuts:?}");
                assert_eq!(score.rank, 1, "it was greedy");
            }
            assert_eq!(next, sampled[23], "cut at {cuts:?}");
        }
    }
}

#[test]
fn the_number_of_positions_with_logits_is_limited() {
    let mut executor = build(PLAIN, 2, best());
    let most = executor.program().config.max_step_sequences;
    let tokens = prompt(42, most + 3);
    executor.start(1, tokens.clone(), tokens.len(), observant()).unwrap();
    let mut blocks = Blocks { ids: ascending(0), next: 0 };
    let results = executor.step(&[scored_chunk(0, most + 1, &mut blocks, false)]);
    let Err(SequenceFailure::InvalidPlan(problem)) = &results[0].outcome else { panic!("{results:?}") };
    assert!(problem.contains("logits of more than"), "{problem}");
    assert!(executor.scores().is_empty());
    let mut blocks = Blocks { ids: ascending(0), next: 0 };
    assert!(executor.step(&[scored_chunk(0, most, &mut blocks, false)]).is_empty());
    assert_eq!(executor.scores()[0].tokens.len(), most);
    // Two of the last three positions are followed by a token of the prompt.
    assert_eq!(executor.step(&[scored_chunk(most, most + 3, &mut blocks, true)]).len(), 1);
    assert_eq!(executor.scores()[0].tokens.len(), 2);
    assert_eq!(executor.step(&[scored_chunk(most + 3, most + 4, &mut blocks, true)]).len(), 1);
    assert_eq!(executor.scores()[0].tokens.len(), 0, "the output is not scored");
}
