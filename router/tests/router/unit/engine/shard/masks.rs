use bytes::Bytes;
use trunkline_engine::shard::{NamedMasks, proto};

use crate::mock::KnownMasks;

/// The number of mask numbers in the protocol.
const NUM_NAMES: u64 = 64;
/// A number of masks that exceeds the mask numbers.
const NUM_MASKS: u64 = 80;

fn mask(number: u64) -> Bytes {
    Bytes::copy_from_slice(&number.to_le_bytes())
}

/// A request with one late mask.
fn late(sequence_id: u64, allowed_tokens: Bytes, mask_id: u32) -> proto::StepRequest {
    let late = proto::LateMask { sequence_id, allowed_tokens, mask_id };
    proto::StepRequest { plan: None, late_masks: vec![late] }
}

/// Sends a mask, and returns true if its bytes were sent too.
fn say(names: &mut NamedMasks, known: &mut KnownMasks, number: u64) -> bool {
    let mut message = late(number + 1, mask(number), 0);
    names.name_all(&mut message);
    let is_new = !message.late_masks[0].allowed_tokens.is_empty();
    known.resolve(&mut message).unwrap();
    assert_eq!(message.late_masks[0].allowed_tokens, mask(number));
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
    let mut message = late(1, mask(7), 0);
    names.name_all(&mut message);
    assert!(KnownMasks::default().resolve(&mut message).is_err());
    assert!(say(&mut NamedMasks::default(), &mut KnownMasks::default(), 7));
}

#[test]
fn late_masks_may_be_absent_or_unnumbered() {
    let (mut names, mut known) = (NamedMasks::default(), KnownMasks::default());
    let none = late(3, Bytes::new(), 0);
    let mut message = none.clone();
    names.name_all(&mut message);
    assert_eq!(message, none);
    for unnumbered in [none, late(3, Bytes::from_static(&[1, 2]), 0)] {
        let mut message = unnumbered.clone();
        known.resolve(&mut message).unwrap();
        assert_eq!(message, unnumbered);
    }
}

#[test]
fn invalid_mask_numbers_are_refused() {
    for (mask_id, what) in [(5, "has not been sent"), (65, "is not a name"), (u32::MAX, "is not a name")] {
        let mut start = proto::SequenceStart { sequence_id: 9, ..Default::default() };
        start.sampling = Some(proto::SamplingParams { mask_id, ..Default::default() });
        let plan = proto::StepPlan { starts: vec![start], ..Default::default() };
        let mut request = proto::StepRequest { plan: Some(plan), late_masks: Vec::new() };
        let same = KnownMasks::default().resolve(&mut request).unwrap_err();
        let error = KnownMasks::default().resolve(&mut late(9, Bytes::new(), mask_id)).unwrap_err();
        assert_eq!(error, same);
        assert!(error.contains(&format!("sequence 9: mask {mask_id} {what}")), "{error}");
    }
}

#[test]
fn starts_and_late_masks_share_their_numbers() {
    let (mut names, mut known) = (NamedMasks::default(), KnownMasks::default());
    let start = |(mask, sequence_id): (Option<Bytes>, u64)| proto::SequenceStart {
        sequence_id,
        sampling: Some(proto::SamplingParams {
            allowed_tokens: mask.unwrap_or_default(),
            ..Default::default()
        }),
        ..Default::default()
    };
    let masks = [Some(mask(1)), Some(mask(2)), None, Some(mask(1)), Some(mask(7))];
    assert!(say(&mut names, &mut known, 7));
    let starts = masks.iter().cloned().zip(1..).map(start).collect();
    let plan = proto::StepPlan { step_id: 1, starts, ..Default::default() };
    let mut message = proto::StepRequest { plan: Some(plan), late_masks: Vec::new() };
    names.name_all(&mut message);
    let sampling = |message: &proto::StepRequest| -> Vec<proto::SamplingParams> {
        message
            .plan
            .iter()
            .flat_map(|plan| &plan.starts)
            .map(|start| start.sampling.clone().unwrap())
            .collect()
    };
    let sent: Vec<(usize, u32)> =
        sampling(&message).iter().map(|sampling| (sampling.allowed_tokens.len(), sampling.mask_id)).collect();
    assert_eq!(sent, [(8, 2), (8, 3), (0, 0), (0, 2), (0, 1)]);
    known.resolve(&mut message).unwrap();
    let read: Vec<Bytes> = sampling(&message).into_iter().map(|sampling| sampling.allowed_tokens).collect();
    assert_eq!(read, masks.map(Option::unwrap_or_default));
    assert!(!say(&mut names, &mut known, 2), "a late mask that a start has brought");
}
