use trunkline_router::engine::shard::{KnownMasks, NamedMasks, plan_from_proto, plan_to_proto, proto};
use trunkline_scheduler::{LateMask, SamplingParams, SequenceStart, StepPlan, TokenMask};

/// The number of mask numbers in the protocol.
const NUM_NAMES: u64 = 64;
/// A number of masks that exceeds the mask numbers.
const NUM_MASKS: u64 = 80;

fn mask(number: u64) -> TokenMask {
    TokenMask(number.to_le_bytes().as_slice().into())
}

/// Sends a mask, and returns true if its bytes were sent too.
fn say(names: &mut NamedMasks, known: &mut KnownMasks, number: u64) -> bool {
    let late = LateMask { sequence_id: number + 1, allowed_tokens: Some(mask(number)) };
    let message = names.write_late(late.clone());
    let is_new = !message.allowed_tokens.is_empty();
    assert_eq!(known.read_late(message).unwrap(), late);
    is_new
}

#[test]
fn the_shards_table_follows_the_routers_in_any_order() {
    for seed in 0..20u64 {
        let (mut names, mut known) = (NamedMasks::default(), KnownMasks::default());
        let mut state = seed;
        let mut num_new = 0;
        for _ in 0..2000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            num_new += usize::from(say(&mut names, &mut known, (state >> 33) % NUM_MASKS));
        }
        // 64 of 80 equally likely masks have numbers.
        assert!((80..1000).contains(&num_new), "seed {seed}: {num_new} of 2000 went with their bytes");
    }
}

#[test]
fn the_least_recently_used_mask_is_replaced() {
    let (mut names, mut known) = (NamedMasks::default(), KnownMasks::default());
    let count = NUM_NAMES;
    assert!((0..count).all(|number| say(&mut names, &mut known, number)));
    assert!(!(0..count).any(|number| say(&mut names, &mut known, number)), "each has a name");
    assert!(!say(&mut names, &mut known, 0));
    assert!(say(&mut names, &mut known, count), "one more, in place of the second");
    assert!(!say(&mut names, &mut known, 0) && !say(&mut names, &mut known, 2));
    assert!(say(&mut names, &mut known, 1));
}

#[test]
fn a_new_stream_starts_without_masks() {
    let (mut names, mut known) = (NamedMasks::default(), KnownMasks::default());
    assert!(say(&mut names, &mut known, 7));
    let late = LateMask { sequence_id: 1, allowed_tokens: Some(mask(7)) };
    assert!(KnownMasks::default().read_late(names.write_late(late)).is_err());
    assert!(say(&mut NamedMasks::default(), &mut KnownMasks::default(), 7));
}

#[test]
fn late_masks_may_be_absent_or_unnumbered() {
    let (mut names, mut known) = (NamedMasks::default(), KnownMasks::default());
    let late = LateMask { sequence_id: 3, allowed_tokens: None };
    let message = names.write_late(late.clone());
    assert_eq!(message, proto::LateMask { sequence_id: 3, ..Default::default() });
    assert_eq!(known.read_late(message).unwrap(), late);
    let plain = proto::LateMask { sequence_id: 3, allowed_tokens: vec![1, 2], mask_id: 0 };
    assert_eq!(known.read_late(plain).unwrap().allowed_tokens, Some(TokenMask([1, 2].as_slice().into())));
}

#[test]
fn invalid_mask_numbers_are_refused() {
    for (mask_id, what) in [(5, "has not been sent"), (65, "is not a name"), (u32::MAX, "is not a name")] {
        let late = proto::LateMask { sequence_id: 9, mask_id, ..Default::default() };
        let mut start = proto::SequenceStart { sequence_id: 9, ..Default::default() };
        start.sampling = Some(proto::SamplingParams { mask_id, ..Default::default() });
        let mut plan = proto::StepPlan { starts: vec![start], ..Default::default() };
        let same = KnownMasks::default().resolve(&mut plan).unwrap_err().to_string();
        let error = KnownMasks::default().read_late(late).unwrap_err().to_string();
        assert_eq!(error, same);
        assert!(error.contains(&format!("sequence 9: mask {mask_id} {what}")), "{error}");
    }
}

#[test]
fn starts_and_late_masks_share_their_numbers() {
    let (mut names, mut known) = (NamedMasks::default(), KnownMasks::default());
    let start = |sequence_id, mask: Option<TokenMask>| SequenceStart {
        sequence_id,
        token_ids: vec![1],
        num_prompt_tokens: 1,
        sampling: SamplingParams { allowed_tokens: mask, ..SamplingParams::default() },
        root_key: None,
        pooled: None,
    };
    let masks = [Some(mask(1)), Some(mask(2)), None, Some(mask(1)), Some(mask(7))];
    assert!(say(&mut names, &mut known, 7));
    let starts = masks.into_iter().zip(1..).map(|(mask, id)| start(id, mask)).collect();
    let plan = StepPlan { step_id: 1, starts, ..StepPlan::default() };
    let mut message = plan_to_proto(plan.clone(), &mut names);
    let sent: Vec<(usize, u32)> = message
        .starts
        .iter()
        .map(|start| start.sampling.as_ref().unwrap())
        .map(|sampling| (sampling.allowed_tokens.len(), sampling.mask_id))
        .collect();
    assert_eq!(sent, [(8, 2), (8, 3), (0, 0), (0, 2), (0, 1)]);
    known.resolve(&mut message).unwrap();
    assert_eq!(plan_from_proto(message).unwrap(), plan);
    assert!(!say(&mut names, &mut known, 2), "a late mask that a start has brought");
}
