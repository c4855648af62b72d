//! Events of the KV index when shards connect and are lost.

use trunkline_scheduler::{Event, KvEvent, Millis, Scheduler, SchedulerConfig, ShardLimits};

#[test]
fn a_shard_that_comes_or_goes_takes_all_blocks_with_it() {
    let mut scheduler = Scheduler::new(SchedulerConfig::default());
    let limits = ShardLimits {
        block_size: 4,
        num_blocks: 8,
        max_step_tokens: 8,
        max_step_sequences: 8,
        vocab_size: 8,
        vector_size: 0,
        windows: None,
        numerics: 0,
        max_draft_tokens: 0,
        max_own_drafts: 0,
    };
    let lane = scheduler.only_lane();
    let mut happen = |event, is_on| {
        scheduler.record_kv_events(is_on);
        scheduler.handle(Millis(0), event, &mut Vec::new());
        scheduler.take_kv_events()
    };
    assert_eq!(happen(Event::ShardReady(lane, limits), false), []);
    assert_eq!(happen(Event::ShardLost { lane, may_return: true }, true), [KvEvent::AllBlocksCleared]);
    assert_eq!(happen(Event::ShardReady(lane, limits), true), [KvEvent::AllBlocksCleared]);
    assert_eq!(happen(Event::ShardLost { lane, may_return: true }, false), []);
}
