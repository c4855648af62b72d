//! Run-ahead under a grammar: steps begin before their masks are known, and each chunk that awaits a mask gets one
//! message.

use std::sync::Arc;

use trunkline_scheduler::{
    Allowed, Event, LaneId, LateMask, Millis, NextTokens, Scheduler, SchedulerConfig, SequenceId,
    SequenceRequest, ShardLimits, StepPlan, StepResult, TokenMask, Update,
};

use crate::sim::driver::{LIMITS, sampled};
use crate::sim::scenario;

struct World {
    scheduler: Scheduler,
    updates: Vec<Update>,
}

fn request(id: u64, constrained: bool) -> SequenceRequest {
    SequenceRequest { constrained, ..scenario::request(id, vec![1, 2, 3], 20) }
}

fn late(sequence_id: u64, bits: Option<u8>) -> LateMask {
    let allowed_tokens = bits.map(|bits| mask(bits).into()).unwrap_or_default();
    LateMask { sequence_id, allowed_tokens, mask_id: 0 }
}

fn mask(bits: u8) -> TokenMask {
    TokenMask(Arc::from([bits].as_slice()))
}

fn allowed(bits: u8) -> Allowed {
    Allowed { forced: Vec::new(), next: NextTokens::Mask(mask(bits)), is_slow: false, drafts: Vec::new() }
}

impl World {
    /// Creates a world with sequences. Those with even ids are constrained and have their first mask.
    fn new(num_sequences: u64) -> Self {
        let limits = ShardLimits { vocab_size: 8, ..LIMITS };
        let mut world = Self { scheduler: Scheduler::new(SchedulerConfig::default()), updates: Vec::new() };
        world.handle(Event::ShardReady(LaneId::FIRST, limits));
        for id in 0..num_sequences {
            world.handle(Event::Submit(Box::new(request(id, id % 2 == 0))));
            if id % 2 == 0 {
                world.allow(id, allowed(0b11));
            }
        }
        world
    }

    fn handle(&mut self, event: Event) {
        self.scheduler.handle(Millis(0), event, &mut self.updates);
        self.scheduler.check_invariants();
    }

    fn allow(&mut self, id: u64, allowed: Allowed) {
        self.handle(Event::Allow { id: SequenceId(id), allowed });
    }

    fn plan(&mut self) -> Option<StepPlan> {
        let plan = self.scheduler.plan(LaneId::FIRST, Millis(0), &mut self.updates);
        self.scheduler.check_invariants();
        plan
    }

    /// Answers a step in which these sequences, given by wire id, sample token 1.
    fn result(&mut self, step_id: u64, wire_ids: &[u64]) {
        let sequences = wire_ids.iter().map(|&id| sampled(id, 1)).collect();
        self.handle(Event::StepResult(
            LaneId::FIRST,
            StepResult { step_id, sequences, device_time_us: 1, draft_time_us: 0 },
        ));
    }

    fn late(&mut self) -> Vec<LateMask> {
        self.scheduler.take_late_masks(LaneId::FIRST)
    }
}

#[test]
fn a_step_begins_before_its_masks_and_the_next_waits_for_all_of_them() {
    let mut world = World::new(3);
    let first = world.plan().unwrap();
    let wire_ids: Vec<u64> = first.chunks.iter().map(|chunk| chunk.sequence_id).collect();
    assert!(first.chunks.iter().all(|chunk| chunk.sample && !chunk.awaits_mask));
    let second = world.plan().unwrap();
    let awaits: Vec<bool> = second.chunks.iter().map(|chunk| chunk.awaits_mask).collect();
    assert_eq!(awaits, [true, false, true]);
    assert!(second.chunks.iter().all(|chunk| chunk.sample && chunk.allowed_tokens.is_empty()));
    world.result(1, &wire_ids);
    assert!(world.plan().is_none() && world.late().is_empty(), "masks are being worked out");
    world.allow(2, allowed(0b100));
    assert_eq!(world.late(), [late(wire_ids[2], Some(0b100))]);
    assert!(world.plan().is_none(), "one is missing");
    world.allow(0, allowed(0b10));
    let third = world.plan().unwrap();
    assert_eq!(world.late(), [late(wire_ids[0], Some(0b10))]);
    assert_eq!(third.chunks.iter().filter(|chunk| chunk.awaits_mask).count(), 2);
    assert_eq!(third.chunks.len(), 3);
}

#[test]
fn forced_tokens_leave_the_step_in_flight_without_a_sample() {
    let mut world = World::new(1);
    let wire_id = world.plan().unwrap().chunks[0].sequence_id;
    assert!(world.plan().unwrap().chunks[0].awaits_mask);
    world.result(1, &[wire_id]);
    world.allow(0, Allowed { forced: vec![4, 5], ..allowed(0b1000) });
    assert_eq!(world.late(), [late(wire_id, None)]);
    let third = world.plan().unwrap();
    let chunk = &third.chunks[0];
    assert_eq!((chunk.first_position, chunk.num_tokens), (4, 2), "the sampled token is computed already");
    assert_eq!(chunk.appended_token_ids, [4, 5]);
    assert_eq!((&chunk.allowed_tokens[..], chunk.awaits_mask), (&[0b1000][..], false));
    world.result(2, &[]);
    world.result(3, &[wire_id]);
    let tokens: Vec<u32> = world
        .updates
        .iter()
        .filter_map(|update| match update {
            Update::Token { token, .. } => Some(token.token_id),
            _ => None,
        })
        .collect();
    assert_eq!(tokens, [1, 4, 5, 1]);
    assert_eq!(world.scheduler.stats().unexpected_results, 0);
}

#[test]
fn a_sequence_that_ends_does_not_hold_up_its_step() {
    type Ending = fn(&mut World);
    let endings: [Ending; 4] = [
        |world| world.handle(Event::Abort(SequenceId(0))),
        |world| world.handle(Event::Finish(SequenceId(0))),
        |world| world.allow(0, Allowed { next: NextTokens::End, ..allowed(0) }),
        |world| world.allow(0, Allowed { next: NextTokens::Failed("no".into()), ..allowed(0) }),
    ];
    for end in endings {
        let mut world = World::new(1);
        let wire_id = world.plan().unwrap().chunks[0].sequence_id;
        assert!(world.plan().unwrap().chunks[0].awaits_mask);
        world.result(1, &[wire_id]);
        end(&mut world);
        assert_eq!(world.late(), [late(wire_id, None)]);
        assert!(world.updates.iter().any(|update| matches!(update, Update::Ended { .. })));
        world.result(2, &[]);
        assert_eq!(world.scheduler.stats().blocks_held, 0);
        assert_eq!(world.plan().unwrap().ends, [wire_id]);
        assert!(world.late().is_empty(), "it is told once");
    }
}

#[test]
fn no_plan_waits_for_a_slow_mask() {
    let mut world = World::new(2);
    let wire_ids: Vec<u64> = world.plan().unwrap().chunks.iter().map(|chunk| chunk.sequence_id).collect();
    world.plan().unwrap();
    world.result(1, &wire_ids);
    world.allow(0, Allowed { is_slow: true, ..allowed(1) });
    assert_eq!(world.late().len(), 1, "this one was waited for");
    assert_eq!(world.plan().unwrap().chunks.len(), 1, "the free one");
    world.result(2, &wire_ids);
    assert_eq!(world.plan().unwrap().chunks.len(), 1, "and it goes on while the slow mask is worked out");
    world.result(3, &wire_ids[1..]);
    world.allow(0, allowed(1));
    let plan = world.plan().unwrap();
    assert_eq!(plan.chunks.len(), 2);
    assert!(plan.chunks.iter().any(|chunk| !chunk.allowed_tokens.is_empty() && !chunk.awaits_mask));
}

#[test]
fn a_shard_that_chooses_before_it_is_told_fails_the_sequence() {
    let mut world = World::new(1);
    let wire_id = world.plan().unwrap().chunks[0].sequence_id;
    world.plan().unwrap();
    world.result(1, &[wire_id]);
    world.result(2, &[wire_id]);
    let is_failed = |update: &Update| {
        matches!(update, Update::Ended { reason: trunkline_scheduler::EndReason::Failed(_), .. })
    };
    assert!(world.updates.iter().any(is_failed));
    assert_eq!(world.late().len(), 1);
}
