//! The steps of a run: their plans, and what shards and stores make of them.

use trunkline_scheduler::{LaneId, StepPlan};

use super::super::scenario::Poison;
use super::{Happening, ReadFrom, ShardName, World};

impl World<'_> {
    /// Plans as the router does: all lanes, again as long as one had a plan.
    pub(super) fn plan(&mut self) {
        let mut has_planned = true;
        while has_planned {
            has_planned = false;
            for lane in self.scheduler.lane_ids() {
                has_planned |= self.plan_lane(lane);
            }
            has_planned &= self.lanes.len() > 1;
        }
        if let Some(deadline) = self.scheduler.next_wakeup() {
            assert!(deadline > self.now, "expired sequences have ended");
            let mut until = self.happenings.range(..=(deadline, u64::MAX));
            if !until.any(|(_, happening)| matches!(happening, Happening::Wake)) {
                self.at(deadline, Happening::Wake);
            }
        }
    }

    /// Plans until the scheduler has no further plan for a lane. Returns true if it had one.
    fn plan_lane(&mut self, lane: LaneId) -> bool {
        let mut has_planned = false;
        loop {
            let mut updates = Vec::new();
            let plan = self.scheduler.plan(lane, self.now, &mut updates);
            let has_updates = !updates.is_empty();
            if plan.is_some() || has_updates || self.lanes.len() == 1 {
                self.scheduler.check_invariants();
            }
            self.take(updates);
            self.send_late_masks(lane);
            match plan {
                Some(plan) => {
                    has_planned = true;
                    self.execute(lane, &plan);
                }
                None if has_updates => {}
                None => return has_planned,
            }
        }
    }

    fn execute(&mut self, id: LaneId, plan: &StepPlan) {
        self.trace(&(id, plan));
        let lane = &mut self.lanes[id.0 as usize];
        let shard = lane.shard.as_mut().expect("plans are for a shard that is there");
        assert!(lane.blocked.is_none(), "no step is planned behind one that awaits masks");
        let result = shard.execute(plan, &self.known, &mut self.rng);
        let delay_ms = result.device_time_us.div_ceil(1_000) + self.rng.range(0, self.scenario.max_delay_ms);
        let from = lane.free_at.max(self.now);
        lane.free_at = self.scenario.end_of(id, from, from.plus(delay_ms));
        let writes = std::mem::take(&mut shard.writes);
        let name = ShardName { lane: id, number: lane.num_shards };
        let crashes = |poison: Poison| match poison {
            Poison::Position { request, position } => shard.computes(plan, request, position),
            Poison::Pair(one, other) => shard.has(plan, one) && shard.has(plan, other),
        };
        let (crashes, awaits_masks) = (self.scenario.poison.is_some_and(crashes), shard.num_awaiting() > 0);
        lane.free_at = lane.free_at.plus(if crashes { self.scenario.hang_ms } else { 0 });
        let (seeds, free_at) = (shard.seeds(plan), lane.free_at);
        lane.in_flight.push_back(seeds.clone());
        let hangs = self.scenario.hang_ms > 0 && self.scenario.poison.is_some();
        let never_stalls =
            |other: usize| !hangs && self.scenario.stalls.iter().all(|stall| stall.lane.0 as usize != other);
        let others = self
            .lanes
            .iter()
            .enumerate()
            .filter(|(other, _)| *other != id.0 as usize && never_stalls(*other));
        for (other, lane) in others {
            let is_here = |seed: &&u64| lane.in_flight.iter().flatten().any(|known| known == *seed);
            assert_eq!(seeds.iter().find(is_here), None, "computed on lanes {} and {other}", id.0);
        }
        if crashes {
            self.at(free_at, Happening::Crash(name));
        }
        if awaits_masks {
            self.lane(id).blocked = Some(result);
        } else {
            self.at(free_at, Happening::Result(name, result));
        }
        for load in plan.adapter_loads.iter().filter(|load| !load.path.is_empty()) {
            let longest_ms = self.scenario.load_ms.unwrap_or(0);
            let at = self.now.plus(self.adapter_rng.range(0, longest_ms));
            self.at(self.scenario.end_of(id, self.now, at), Happening::Loaded(name, load.clone()));
        }
        let lane = &mut self.lanes[id.0 as usize];
        let Some(store) = &mut lane.store else {
            assert!(
                writes.is_empty() && plan.restores.is_empty() && plan.discards.is_empty(),
                "there is no store"
            );
            return;
        };
        plan.discards.iter().for_each(|&slot| store.discard(slot));
        writes.iter().for_each(|write| store.begin_write(write.slot));
        let times = store.plan;
        let openings = self.note_openings(id);
        for restore in &plan.restores {
            let shard = self.lane(id).shard.as_mut().expect("plans are for a shard that is there");
            restore.blocks.iter().for_each(|block| shard.begin_restore(block));
            let at = self.scenario.end_of(id, self.now, self.now.plus(times.read_ms(&mut self.rng)));
            let lane = restore.store_folder.parse().unwrap_or(id.0 as usize);
            let own = self.lanes[lane].store.as_ref().expect("only stores that are there are read").opening;
            let opening = if lane == id.0 as usize { own } else { openings[lane] };
            self.at(at, Happening::Read(name, restore.clone(), ReadFrom { lane, opening }));
        }
        if !writes.is_empty() {
            let at = free_at.plus(self.rng.range(0, times.max_delay_ms));
            self.at(at, Happening::Written(name, writes));
        }
    }

    /// Sends late masks to the lane's step that awaits them.
    fn send_late_masks(&mut self, id: LaneId) {
        for late in self.scheduler.take_late_masks(id) {
            self.trace(&(id, &late));
            let lane = &mut self.lanes[id.0 as usize];
            let shard = lane.shard.as_mut().expect("masks are for a shard that is there");
            let result = shard.take_late_mask(&late, &mut self.rng);
            let is_last = shard.num_awaiting() == 0;
            if let Some(blocked) = &mut lane.blocked {
                blocked.sequences.extend(result);
            } else {
                assert!(result.is_none(), "a step with a chunk that samples waits for it");
            }
            if is_last && let Some(result) = lane.blocked.take() {
                let name = ShardName { lane: id, number: lane.num_shards };
                let from = lane.free_at.max(self.now);
                lane.free_at = self.scenario.end_of(id, from, from);
                let free_at = lane.free_at;
                self.at(free_at, Happening::Result(name, result));
            }
        }
    }
}
