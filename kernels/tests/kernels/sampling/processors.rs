use trunkline_kernels::sampling::processors::{check_mask_size, process};
use trunkline_kernels::sampling::{SampleContext, SamplingParams, TokenCounts, Watermark};

use crate::best;

fn context(num_output: usize) -> SampleContext<'static> {
    SampleContext { num_output, ..SampleContext::default() }
}

#[test]
fn drafts_count_like_output() {
    let params = SamplingParams {
        repetition_penalty: 2.0,
        presence_penalty: 0.5,
        frequency_penalty: 0.25,
        ..Default::default()
    };
    let known = [0, 1, 1, 2, 2, 4];
    let drafts = [4, 3, 3, 0];
    let process = |counts: &TokenCounts, drafts: &[u32]| {
        let mut logits = [3.0, -3.0, 5.0, 7.0, -1.0, 0.5];
        let context = SampleContext { drafts, ..context(9) };
        assert!(process(best(), &mut logits, &params, counts, context, [None; 2]));
        logits
    };
    for num_drafts in 0..=drafts.len() {
        let counts = TokenCounts::new(&params, &known, 4, 6);
        let all = [&known, &drafts[..num_drafts]].concat();
        let expected = process(&TokenCounts::new(&params, &all, 4, 6), &[]);
        assert_eq!(process(&counts, &drafts[..num_drafts]), expected, "{num_drafts} drafts");
    }
}

#[test]
fn penalties_apply_to_prompt_or_output_as_each_is_defined() {
    let params = SamplingParams {
        repetition_penalty: 2.0,
        presence_penalty: 0.5,
        frequency_penalty: 0.25,
        ..Default::default()
    };
    let mut counts = TokenCounts::new(&params, &[0, 1, 1, 2], 3, 5);
    counts.push_output(2);
    counts.push_output(4);
    let mut logits = [3.0, -3.0, 5.0, 7.0, -1.0];
    assert!(process(best(), &mut logits, &params, &counts, context(3), [None; 2]));
    assert_eq!(logits, [1.5, -6.0, 2.5 - 1.0, 7.0, -2.0 - 0.75]);
}

#[test]
fn end_tokens_are_masked_only_below_min_tokens_and_unknown_ids_are_ignored() {
    let params = SamplingParams { min_tokens: 2, end_token_ids: vec![1, 99], ..Default::default() };
    let counts = TokenCounts::new(&params, &[0], 1, 2);
    let mut logits = [1.0, 2.0];
    assert!(!process(best(), &mut logits, &params, &counts, context(2), [None; 2]));
    assert_eq!(logits, [1.0, 2.0]);
    assert!(process(best(), &mut logits, &params, &counts, context(1), [None; 2]));
    assert_eq!(logits, [1.0, f32::NEG_INFINITY]);
}

#[test]
fn only_allowed_tokens_are_left() {
    let params = SamplingParams::default();
    let counts = TokenCounts::default();
    let mut logits = [1.0; 19];
    assert!(process(
        best(),
        &mut logits,
        &params,
        &counts,
        context(0),
        [Some(&[0xff, 0b0010_0001, 0b100]), None]
    ));
    let left: Vec<usize> = (0..19).filter(|&token_id| logits[token_id] == 1.0).collect();
    assert_eq!(left, [0, 1, 2, 3, 4, 5, 6, 7, 8, 13, 18]);
    let mut logits = [1.0; 19];
    assert!(process(best(), &mut logits, &params, &counts, context(0), [None, Some(&[1])]));
    assert_eq!(logits[0], 1.0);
    assert!(logits[1..].iter().all(|logit| *logit == f32::NEG_INFINITY));
}

#[test]
fn penalties_of_a_mask_apply_before_those_of_parameters() {
    let params = SamplingParams { repetition_penalty: 2.0, ..Default::default() };
    let counts = TokenCounts::new(&params, &[0, 1], 1, 4);
    let pair = |token_id: u32, addend: f32| [token_id.to_le_bytes(), addend.to_le_bytes()].concat();
    let mask = [vec![0b1011], pair(0, -3.0), pair(3, 0.25), pair(2, 100.0), pair(99, 1.0)].concat();
    let mut logits = [1.0, 4.0, 1.0, 3.0];
    assert!(process(best(), &mut logits, &params, &counts, context(0), [Some(&mask), None]));
    assert_eq!(logits, [-4.0, 2.0, f32::NEG_INFINITY, 3.25]);
    for (num_bytes, is_right) in [(1, true), (9, true), (33, true), (0, false), (2, false), (8, false)] {
        assert_eq!(check_mask_size(num_bytes, 4).is_ok(), is_right, "{num_bytes}");
    }
}

#[test]
fn bias_applies_before_penalties_and_masks_apply_last() {
    let params = SamplingParams {
        logit_bias: vec![(0, 4.0), (1, -100.0), (2, 100.0), (2, -1.0), (99, 1.0)],
        repetition_penalty: 2.0,
        ..Default::default()
    };
    let counts = TokenCounts::new(&params, &[0], 1, 4);
    let mut logits = [-2.0, 0.5, 1.0, 3.0];
    assert!(process(best(), &mut logits, &params, &counts, context(0), [None, None]));
    assert_eq!(logits, [1.0, -99.5, 100.0, 3.0], "-2 + 4 is positive, so it is halved");
    assert!(process(best(), &mut logits, &params, &counts, context(0), [Some(&[0b1110]), Some(&[0b11])]));
    let left: Vec<bool> = logits.iter().map(|logit| logit.is_finite()).collect();
    assert_eq!(left, [false, true, false, false]);
}

#[test]
fn parameters_out_of_range_are_named() {
    let bad = SamplingParams { logit_bias: vec![(1, 100.5)], ..Default::default() };
    assert_eq!(bad.check().unwrap_err().to_string(), "`logit_bias` is 100.5, expected -100 to 100");
    let bad = SamplingParams { prompt_logprobs: Some(21), ..Default::default() };
    assert_eq!(bad.check().unwrap_err().to_string(), "`num_top_prompt_logprobs` is 21, expected 0 to 20");
    let watermark = Some(Watermark { gamma: 1.0, delta: 2.0, key: 1 });
    let bad = SamplingParams { watermark, ..Default::default() };
    assert_eq!(
        bad.check().unwrap_err().to_string(),
        "`watermark.gamma` is 1, expected 0.00390625 to 0.99609375"
    );
    // The smallest positive number, which the router and the shard accept as well.
    let watermark = Some(Watermark { gamma: 0.5, delta: f32::from_bits(1), key: 1 });
    assert_eq!(SamplingParams { watermark, ..Default::default() }.check(), Ok(()));
    let bad = SamplingParams { top_p: 0.0, ..Default::default() };
    assert!(bad.check().unwrap_err().to_string().starts_with("`top_p` is 0"));
    let bad = SamplingParams { temperature: f32::NAN, ..Default::default() };
    assert!(bad.check().unwrap_err().to_string().starts_with("`temperature` is NaN"));
    assert_eq!(SamplingParams::default().check(), Ok(()));
}
