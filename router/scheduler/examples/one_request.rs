//! Schedules one request: `cargo run --release -p trunkline-scheduler --example one_request`.

use trunkline_scheduler::*;

pub fn main() {
    let mut scheduler = Scheduler::new(SchedulerConfig::default());
    let mut updates = Vec::new();
    let limits = ShardLimits {
        block_size: 16,
        num_blocks: 8,
        max_step_tokens: 64,
        max_step_sequences: 4,
        vocab_size: 100,
        vector_size: 0,
        windows: None,
        numerics: 0,
        max_draft_tokens: 0,
        max_own_drafts: 0,
        num_adapter_slots: 0,
        adapter_bytes: 0,
    };
    scheduler.handle(Millis(0), Event::ShardReady(LaneId::FIRST, limits), &mut updates);
    let request = SequenceRequest {
        id: SequenceId(7),
        token_ids: vec![1, 2, 3],
        max_new_tokens: 1,
        ..SequenceRequest::default()
    };
    scheduler.handle(Millis(1), Event::Submit(Box::new(request)), &mut updates);

    let plan = scheduler.plan(LaneId::FIRST, Millis(1), &mut updates).expect("there is a prompt to compute");
    assert_eq!((plan.chunks[0].num_tokens, plan.chunks[0].sample), (3, true));
    let token = SampledToken { token_id: 4, ..Default::default() };
    let sequence = SequenceResult {
        sequence_id: plan.chunks[0].sequence_id,
        outcome: Some(Outcome::Token(token.clone())),
        ..SequenceResult::default()
    };
    let result = StepResult {
        step_id: plan.step_id,
        sequences: vec![sequence],
        device_time_us: 900,
        draft_time_us: 0,
    };
    scheduler.handle(Millis(2), Event::StepResult(LaneId::FIRST, result), &mut updates);

    assert!(matches!(updates[0], Update::Started { id: SequenceId(7), cached_tokens: 0, .. }));
    assert_eq!(updates[1], Update::Token { id: SequenceId(7), token });
    assert!(matches!(updates[2], Update::Ended { reason: EndReason::Length, .. }));
}
