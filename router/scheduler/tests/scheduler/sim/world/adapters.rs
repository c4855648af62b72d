//! Adapters in a run: the ends of loads, and the checks of what follows from them.

use trunkline_scheduler::{
    AdapterLoad, AdapterOutcome, Event, RejectReason, SequenceId, SequenceRequest, ShardLimits, Transfers,
};

use super::super::scenario::Arrival;
use super::checks::fits;
use super::{ShardName, World};

/// Returns true if a shard could load the adapter of a request, or if the request names none.
pub(super) fn takes_adapter(request: &SequenceRequest, limits: &ShardLimits) -> bool {
    request
        .adapter
        .as_deref()
        .is_none_or(|adapter| limits.num_adapter_slots > 0 && adapter.num_bytes <= limits.adapter_bytes)
}

impl World<'_> {
    /// Ends a load of an adapter.
    pub(super) fn end_load(&mut self, name: ShardName, load: &AdapterLoad) {
        let faults = self.scenario.faults;
        let is_broken = faults.broken_adapter.is_some_and(|broken| load.content_hash[0] == broken);
        let has_failed = is_broken || self.adapter_rng.once_in(faults.load);
        let is_twice = self.adapter_rng.once_in(self.scenario.twice);
        let lane = &mut self.lanes[name.lane.0 as usize];
        let Some(shard) = lane.shard.as_mut().filter(|_| lane.num_shards == name.number) else { return };
        shard.end_load(load.slot, !has_failed);
        let mut problem = String::new();
        if has_failed {
            problem = format!("{} is broken", load.path);
            self.failed_adapters.insert(load.content_hash.clone());
        }
        let outcome = AdapterOutcome { slot: load.slot, problem };
        for _ in 0..=usize::from(is_twice) {
            let transfers = Transfers { adapters: vec![outcome.clone()], ..Transfers::default() };
            self.tell(Event::Transfers(name.lane, transfers));
        }
    }

    /// Checks that a request is refused for its adapter only if no connected shard could ever run it.
    pub(super) fn check_adapter_refusal(&self, id: SequenceId, reason: &RejectReason) {
        let request = &self.arrivals[&id].request;
        let mut shards = self.lanes.iter().filter_map(|lane| lane.shard.as_ref());
        let may_be = match reason {
            RejectReason::NoAdapters => shards.all(|shard| !takes_adapter(request, &shard.limits)),
            RejectReason::Invalid { message } if message.contains("adapter") => {
                shards.all(|shard| !fits(request, &shard.limits))
            }
            _ => true,
        };
        assert!(may_be, "sequence {} has no cause to be refused with {reason:?}", id.0);
    }

    /// Returns true if a load for this request has failed, and with this message.
    pub(super) fn may_fail(&self, arrival: &Arrival, message: &str) -> bool {
        arrival.request.adapter.as_ref().is_some_and(|adapter| {
            message == format!("{} is broken", adapter.path)
                && self.failed_adapters.contains(&adapter.content_hash.0[..])
        })
    }

    pub(super) fn check_slots_are_free(&self) {
        for slot in self.scheduler.adapter_uses().lanes.concat() {
            assert!(slot.num_runs == 0 && !slot.is_loading, "all slots return: {slot:?}");
        }
    }
}
