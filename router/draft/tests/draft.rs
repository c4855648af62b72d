//! Properties of drafts.

use proptest::prelude::*;
use trunkline_draft::{Draft, Drafter, MAX_RECENT_TOKENS, RecentOutputs};

/// A text over few tokens, which repeats itself often.
fn text(max_len: usize) -> impl Strategy<Value = Vec<u32>> {
    prop_oneof![
        prop::collection::vec(0_u32..3, 0..max_len),
        prop::collection::vec(0_u32..50, 0..max_len),
        (prop::collection::vec(0_u32..9, 1..20), 0..max_len).prop_map(|(period, len)| period
            .into_iter()
            .cycle()
            .take(len)
            .collect()),
    ]
}

fn propose(drafter: &Drafter, max: usize) -> Vec<Draft> {
    let mut drafts = vec![Draft { token_id: 77, probability: 7.0 }];
    drafter.propose(max, None, &mut drafts);
    drafts
}

/// The length of the longest match at the end of `text`, up to 32.
fn longest_match(text: &[u32]) -> usize {
    let len_at = |place: usize| {
        let pairs = text[..place].iter().rev().zip(text.iter().rev());
        pairs.take(32).take_while(|(a, b)| a == b).count()
    };
    (0..text.len()).map(len_at).max().unwrap_or(0)
}

proptest! {
    #[test]
    fn the_cuts_of_the_output_do_not_matter(prompt in text(80), output in text(80), cuts in prop::collection::vec(0_usize..80, 4)) {
        let mut whole = Drafter::new(&prompt, &[]);
        whole.extend(&output, None);
        let mut parts = Drafter::new(&prompt, &[]);
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(output.len())).chain([0, output.len()]).collect();
        cuts.sort_unstable();
        for pair in cuts.windows(2) {
            parts.extend(&output[pair[0]..pair[1]], None);
            propose(&parts, 5);
        }
        prop_assert_eq!(propose(&parts, 9), propose(&whole, 9));
        prop_assert_eq!(parts, whole);
    }

    #[test]
    fn drafts_follow_a_place_that_reads_like_the_end(prompt in text(120), output in text(60), max in 0_usize..20) {
        let mut drafter = Drafter::new(&prompt, &[]);
        drafter.extend(&output, None);
        let drafts = propose(&drafter, max);
        prop_assert!(drafts.len() <= max);
        prop_assert!(drafts.iter().all(|draft| (0.0..=1.0).contains(&draft.probability)));
        prop_assert!(drafts.windows(2).all(|pair| pair[0].probability >= pair[1].probability));
        let all = [&prompt[..], &output].concat();
        let drafted: Vec<u32> = drafts.iter().map(|draft| draft.token_id).collect();
        if drafted.is_empty() {
            return Ok(());
        }
        // Some earlier place has the last two tokens before it and the drafts behind it, which may run into themselves.
        let whole = [&all[..], &drafted].concat();
        let end = [&all[all.len() - 2..], &drafted].concat();
        prop_assert!(whole[..whole.len() - 1].windows(end.len()).any(|place| place == end));
    }

    #[test]
    fn short_texts_are_searched_completely(prompt in text(10), output in text(8)) {
        let mut drafter = Drafter::new(&prompt, &[]);
        drafter.extend(&output, None);
        let all = [&prompt[..], &output].concat();
        let has_match = !output.is_empty() && longest_match(&all) >= 2;
        prop_assert_eq!(!propose(&drafter, 1).is_empty(), has_match, "{:?}", all);
    }

    #[test]
    fn memory_is_bounded(prompt in text(3000), output in text(500)) {
        let mut drafter = Drafter::new(&prompt, &output);
        prop_assert!(drafter.num_bytes() <= Drafter::TOKEN_BYTES * (prompt.len() + output.len()) + 1024);
        drafter.extend(&output, None);
        // Vectors double as they grow.
        prop_assert!(drafter.num_bytes() <= 60 * (prompt.len() + 2 * output.len()) + 4096);
    }
}

/// Decodes `output` with at most `max` drafts a step. Returns the steps, and the expected and the actual number of
/// right drafts.
fn decode(drafter: &mut Drafter, output: &[u32], max: usize) -> (usize, f32, usize) {
    let (mut done, mut num_steps, mut expected, mut num_right) = (0, 0, 0.0, 0);
    while done < output.len() {
        let drafts = propose(drafter, max.min(output.len() - done - 1));
        let right = drafts.iter().zip(&output[done..]).take_while(|(draft, token)| draft.token_id == **token);
        let accepted = right.count();
        expected += drafts.iter().map(|draft| draft.probability).sum::<f32>();
        num_right += accepted;
        drafter.extend(&output[done..=done + accepted], None);
        done += accepted + 1;
        num_steps += 1;
    }
    (num_steps, expected, num_right)
}

/// Numbers without a pattern.
fn random_tokens(seed: u32, count: usize, below: u32) -> Vec<u32> {
    let mut state = seed.wrapping_mul(2_654_435_761) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state % below
    };
    (0..count).map(|_| next()).collect()
}

/// `text` with a token replaced, removed or inserted at every `distance`.
fn edited(text: &[u32], distance: usize) -> Vec<u32> {
    let edit = |(index, &token): (usize, &u32)| match (index % distance, index / distance % 3) {
        (0, 0) => vec![token + 1_000_000],
        (0, 1) => vec![],
        (0, _) => vec![token, token + 2_000_000],
        _ => vec![token],
    };
    text.iter().enumerate().flat_map(edit).collect()
}

#[test]
fn an_edited_copy_takes_few_steps() {
    let file = random_tokens(1, 1200, 5000);
    let output = edited(&file, 40);
    let prompt = [&random_tokens(2, 50, 5000)[..], &file, &random_tokens(3, 20, 5000)].concat();
    let (num_steps, expected, num_right) = decode(&mut Drafter::new(&prompt, &[]), &output, 16);
    assert!(num_steps * 6 < output.len(), "{num_steps} steps for {} tokens", output.len());
    assert!((expected - num_right as f32).abs() < 0.15 * num_right as f32, "{expected} of {num_right}");
    // A prediction does the same, and from the first token on.
    let (with_prediction, ..) = decode(&mut Drafter::new(&prompt[..50], &file), &output, 16);
    assert!(with_prediction <= num_steps, "{with_prediction}, {num_steps}");
}

#[test]
fn a_loop_is_drafted_beyond_its_end() {
    let mut drafter = Drafter::new(&[9, 8, 7], &[]);
    drafter.extend(&[1, 2, 3, 1, 2, 3, 1], None);
    let drafted: Vec<u32> = propose(&drafter, 8).iter().map(|draft| draft.token_id).collect();
    assert_eq!(drafted[..], [2, 3, 1, 2, 3, 1, 2, 3][..drafted.len()]);
    assert!(drafted.len() > 3, "{drafted:?}");
}

#[test]
fn probabilities_are_honest_on_text_that_misleads() {
    // Pairs repeat, and what follows them does not.
    let mut drafter = Drafter::new(&random_tokens(4, 400, 12), &[]);
    let (_, expected, num_right) = decode(&mut drafter, &random_tokens(5, 4000, 12), 16);
    let expected = expected.max(1.0);
    assert!((0.6..1.6).contains(&(num_right as f32 / expected)), "{num_right} of {expected}");
    // There are hardly any drafts that could pay.
    let likely = propose(&drafter, 16).iter().filter(|draft| draft.probability > 0.3).count();
    assert_eq!(likely, 0);
}

#[test]
fn random_tokens_have_no_drafts() {
    let mut drafter = Drafter::new(&random_tokens(6, 2000, 40_000), &[]);
    let output = random_tokens(7, 1000, 40_000);
    let (num_steps, expected, _) = decode(&mut drafter, &output, 16);
    assert_eq!(num_steps, output.len());
    assert!(expected < 3.0, "{expected}");
}

#[test]
fn a_prompt_of_one_token_or_pair_is_not_slow() {
    for period in 1..4 {
        let prompt: Vec<u32> = (0..200_000).map(|index| index % period).collect();
        let mut drafter = Drafter::new(&prompt, &[]);
        // A search that looked at every place would take minutes.
        for index in 0..20_000 {
            drafter.extend(&[index * 7919 % 5], None);
            propose(&drafter, 2);
        }
    }
}

#[test]
fn recent_outputs_are_drafted_where_the_own_text_has_nothing() {
    let answer = random_tokens(8, 300, 5000);
    let mut recent = RecentOutputs::default();
    recent.push(&random_tokens(9, 1000, 5000));
    recent.push(&answer);
    let mut drafter = Drafter::new(&random_tokens(10, 50, 5000), &[]);
    let (mut done, mut num_steps) = (0, 0);
    let mut drafts = Vec::new();
    while done < answer.len() {
        drafter.propose(16.min(answer.len() - done - 1), Some(&recent), &mut drafts);
        let right = drafts.iter().zip(&answer[done..]).take_while(|(draft, token)| draft.token_id == **token);
        let accepted = right.count();
        drafter.extend(&answer[done..=done + accepted], Some(&recent));
        done += accepted + 1;
        num_steps += 1;
    }
    assert!(num_steps * 5 < answer.len(), "{num_steps}");

    // Places in tokens that were dropped are forgotten.
    let mut drafter = Drafter::new(&[1], &[]);
    drafter.extend(&answer[..20], Some(&recent));
    drafter.propose(4, Some(&recent), &mut drafts);
    assert!(!drafts.is_empty());
    recent.push(&random_tokens(11, MAX_RECENT_TOKENS, 5000));
    recent.push(&random_tokens(12, MAX_RECENT_TOKENS, 5000));
    drafter.propose(4, Some(&recent), &mut drafts);
    assert!(drafts.is_empty());
    drafter.extend(&answer[20..30], Some(&recent));
    assert!(recent.num_bytes() < 60 * MAX_RECENT_TOKENS, "the memory is bounded");
}
