//! What happens in the KV index, for those who listen.

use trunkline_contract::BlockKey;
use trunkline_kv::{KvEvent, Salt};

use crate::scheduler::Scheduler;

/// Whether anybody listens, and what the index that went with its shard leaves to be said.
#[derive(Debug, Default)]
pub(crate) struct KvEventState {
    pub(crate) is_on: bool,
    /// A shard was lost, and its index with it.
    pub(crate) was_cleared: bool,
}

impl Scheduler {
    /// Whether events are recorded, for [`Scheduler::take_kv_events`]. While they are not, they cost nothing.
    pub fn record_kv_events(&mut self, is_on: bool) {
        self.kv_events = KvEventState { is_on, was_cleared: self.kv_events.was_cleared && is_on };
        if let Some(shard) = &mut self.shard {
            shard.kv.record_events(is_on);
        }
    }

    /// The store that machines share has a block, or has it no more: see [`trunkline_kv::KvCache::note_object`].
    pub fn note_object(&mut self, block: (BlockKey, Option<BlockKey>), salt: Option<&Salt>, is_there: bool) {
        if let Some(shard) = &mut self.shard {
            shard.kv.note_object(block, salt, is_there);
        }
    }

    /// What happened in the KV index since the last call. Call it after every event and plan.
    pub fn take_kv_events(&mut self) -> Vec<KvEvent> {
        let mut events = match std::mem::take(&mut self.kv_events.was_cleared) {
            true => vec![KvEvent::AllBlocksCleared],
            false => Vec::new(),
        };
        if let Some(shard) = &mut self.shard {
            events.append(&mut shard.kv.take_events());
        }
        events
    }
}
