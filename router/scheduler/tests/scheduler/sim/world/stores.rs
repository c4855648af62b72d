//! The stores of a run: their openings, the writes into them, and the blocks that the tier below brings.

use trunkline_scheduler::{BlockKey, Event, LaneId, SlotId, StoreOutcome};

use super::super::model::Model;
use super::super::store::{FakeStore, Record, Write};
use super::{Happening, ShardName, World};

impl World<'_> {
    /// Notes the openings of all stores for a lane, and returns those that were noted before.
    pub(super) fn note_openings(&mut self, lane: LaneId) -> Vec<u64> {
        let openings = self.lanes.iter().map(|lane| lane.store.as_ref().map_or(0, |store| store.opening));
        let openings = openings.collect();
        std::mem::replace(&mut self.lane(lane).openings, openings)
    }

    /// Begins to write the blocks that a prompt lacks to the store, as if the tier below had them.
    pub(super) fn fetch(&mut self) {
        let last = self.scenario.arrivals.len() as u64 - 1;
        let arrival = &self.scenario.arrivals[self.rng.range(0, last) as usize];
        let (salt, tokens) = (&arrival.request.salt, &arrival.request.token_ids);
        let lane = self.any_lane();
        let of_lane = &mut self.lanes[lane.0 as usize];
        let (Some(store), Some(shard)) = (&mut of_lane.store, &of_lane.shard) else { return };
        let block_size = shard.limits.block_size as usize;
        let (mut key, mut prefix, mut records) = (salt.root_key(), Model::start(arrival.salt), Vec::new());
        for (depth, block) in tokens.chunks_exact(block_size).enumerate() {
            let parent = (depth > 0).then_some(key);
            key = key.extend(block);
            let hashes = block.iter().map(|&token| {
                prefix = Model::extend(prefix, token);
                prefix
            });
            records.push(Record { key, parent, depth: depth as u32, hashes: hashes.collect() });
        }
        let keys: Vec<BlockKey> = records.iter().map(|record| record.key).collect();
        let mut tier = self.scheduler.lower_tier(lane);
        let Some(coverage) = tier.coverage(salt, tokens, &keys).filter(|coverage| coverage.is_extensible)
        else {
            return;
        };
        records.drain(..coverage.num_blocks.min(keys.len()));
        let Some(first) = records.first() else { return };
        let slots = tier.reserve_adopted(salt, first.parent, records.len());
        let writes = slots.into_iter().zip(records).map(|(slot, record)| {
            store.begin_write(slot.0);
            Write { slot: slot.0, record, is_good: true }
        });
        let writes: Vec<Write> = writes.collect();
        let at = self.now.plus(self.rng.range(0, store.plan.max_delay_ms));
        self.trace(&writes);
        self.scheduler.check_invariants();
        self.at(at, Happening::Fetched(lane, writes));
    }

    pub(super) fn end_fetch(&mut self, lane: LaneId, writes: Vec<Write>) {
        let Some(store) = &mut self.lanes[lane.0 as usize].store else { return };
        let mut is_written = true;
        for write in writes {
            let (slot, key, parent) = (write.slot, write.record.key, write.record.parent);
            // The router stops at the first block that cannot be written.
            let write = Write { is_good: is_written, ..write };
            is_written = store.end_write(write, self.now, &mut self.rng);
            self.scheduler.lower_tier(lane).adopt(SlotId(slot), key, parent, is_written);
        }
        self.scheduler.check_invariants();
    }

    pub(super) fn end_fetches(&mut self, lane: LaneId) {
        let is_fetch = |happening: &Happening| matches!(happening, Happening::Fetched(of, _) if *of == lane);
        let pending = self.happenings.iter().filter(|(_, happening)| is_fetch(happening)).map(|(&at, _)| at);
        for at in pending.collect::<Vec<_>>() {
            if let Some(Happening::Fetched(_, writes)) = self.happenings.remove(&at) {
                self.end_fetch(lane, writes);
            }
        }
    }

    pub(super) fn open_store(&mut self, lane: LaneId, block_size: u32) {
        let Some(plan) = self.scenario.store.filter(|plan| !plan.is_lost(self.now)) else { return };
        let store = &mut self.lane(lane).store;
        if store.as_ref().is_none_or(|store| store.block_size != block_size) {
            let mut new = FakeStore::new(plan, block_size);
            new.opening = store.as_ref().map_or(0, |replaced| replaced.opening);
            *store = Some(new);
        }
        let contents = store.as_mut().expect("just opened").contents(lane);
        self.tell(Event::StoreReady(lane, contents));
    }

    pub(super) fn end_write(&mut self, lane: LaneId, write: Write) -> StoreOutcome {
        let slot = write.slot;
        let store = self.lanes[lane.0 as usize].store.as_mut().expect("a write has a store");
        StoreOutcome { slot, is_stored: store.end_write(write, self.now, &mut self.rng) }
    }

    /// Ends the writes of a lane's killed shard, each of which has happened or not.
    pub(super) fn kill_transfers(&mut self, lane: LaneId) {
        let killed = ShardName { lane, number: self.lane(lane).num_shards };
        let lost: Vec<Happening> = self.happenings.values().cloned().collect();
        for happening in lost {
            if let Happening::Written(name, writes) = happening
                && name == killed
            {
                for write in writes {
                    if self.rng.once_in(2) {
                        self.end_write(lane, write);
                    }
                }
            }
        }
    }
}
