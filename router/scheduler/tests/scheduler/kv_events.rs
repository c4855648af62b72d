//! Events of the KV index when shards connect and are lost.

use trunkline_scheduler::{Event, KvEvent, LaneId, Millis, Scheduler, SchedulerConfig, ShardLimits};

use crate::sim::driver::LIMITS;

#[test]
fn a_shard_that_comes_or_goes_takes_all_blocks_with_it() {
    let mut scheduler = Scheduler::new(SchedulerConfig::default());
    let limits = ShardLimits { num_blocks: 8, max_step_tokens: 8, vocab_size: 8, ..LIMITS };
    let lane = LaneId::FIRST;
    let mut happen = |event, is_on| {
        scheduler.record_kv_events(is_on);
        scheduler.handle(Millis(0), event, &mut Vec::new());
        scheduler.take_kv_events(LaneId::FIRST)
    };
    assert_eq!(happen(Event::ShardReady(lane, limits), false), []);
    assert_eq!(happen(Event::ShardLost { lane, may_return: true }, true), [KvEvent::AllBlocksCleared]);
    assert_eq!(happen(Event::ShardReady(lane, limits), true), [KvEvent::AllBlocksCleared]);
    assert_eq!(happen(Event::ShardLost { lane, may_return: true }, false), []);
}
