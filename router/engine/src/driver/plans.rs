//! Asks the scheduler for plans and sends them to the shards.

use tokio::sync::mpsc::error::TrySendError;
use tokio::time::Instant;
use trunkline_scheduler::{LaneId, StepWork};

use super::Driver;
use crate::shard::proto::StepRequest;

impl Driver {
    /// Plans until the scheduler has no further plan for any lane. What one lane admits may move a waiting sequence to
    /// another, so the lanes are asked again.
    pub(super) fn send_plans(&mut self) {
        self.turn = Instant::now();
        let mut has_planned = true;
        while has_planned {
            has_planned = false;
            for lane in self.scheduler.lane_ids() {
                has_planned |= self.send_plans_of(lane);
            }
            has_planned &= self.plans.len() > 1;
        }
    }

    /// Plans until the scheduler has no further plan for a lane. Returns true if it had one. Without a shard it still
    /// ends sequences whose deadline has passed.
    fn send_plans_of(&mut self, lane: LaneId) -> bool {
        let mut has_planned = false;
        loop {
            let plan = self.scheduler.plan(lane, self.now(), &mut self.updates);
            self.route();
            let late_masks = self.scheduler.take_late_masks(lane);
            let is_last = plan.is_none();
            if is_last && late_masks.is_empty() {
                return has_planned;
            }
            has_planned |= !is_last;
            if let Some(plan) = &plan {
                let work = StepWork::of_plan(plan);
                self.metrics.step_tokens.observe(plan.num_tokens() as f64);
                tracing::trace!(
                    lane = lane.0,
                    step_id = plan.step_id,
                    chunks = plan.chunks.len(),
                    rows = plan.num_tokens(),
                    context = work.context,
                    decode_context = work.decode_context,
                    stores = plan.chunks.iter().map(|chunk| chunk.stores.len()).sum::<usize>(),
                    restores = plan.restores.len(),
                    awaited_masks = plan.chunks.iter().filter(|chunk| chunk.awaits_mask).count(),
                    at_us = self.elapsed_us(),
                    "step planned"
                );
            }
            let Some(plans) = &self.plans[lane.0 as usize] else {
                let step_id = plan.map(|plan| plan.step_id);
                tracing::error!(lane = lane.0, step_id, "the scheduler planned a step without a shard");
                return false;
            };
            if let Err(error) = plans.try_send(StepRequest { plan, late_masks }) {
                if matches!(error, TrySendError::Full(_)) {
                    tracing::error!("the scheduler planned further ahead than the link has room for");
                }
                // Closing the channel ends the Step stream; the link then reports the shard as lost.
                self.plans[lane.0 as usize] = None;
                return false;
            }
            if is_last {
                return has_planned;
            }
        }
    }
}
