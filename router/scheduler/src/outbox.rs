//! Messages to the shard that wait for the next plan, and late masks, which are sent at once.

use crate::plan::{AdapterLoad, LateMask, Restore, StepPlan};

/// Everything that the shard is to be told and that no plan has carried yet.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    /// Wire ids of sequences that the shard may forget.
    ends: Vec<u64>,
    restores: Vec<Restore>,
    /// At most one for each slot.
    adapter_loads: Vec<AdapterLoad>,
    /// Masks for steps in flight. They do not wait for a plan.
    late_masks: Vec<LateMask>,
}

impl Outbox {
    pub(crate) fn end_sequence(&mut self, wire_id: u64) {
        self.ends.push(wire_id);
    }

    pub(crate) fn restore(&mut self, restore: Restore) {
        self.restores.push(restore);
    }

    /// Takes the place of what was to happen to the slot.
    pub(crate) fn load_adapter(&mut self, load: AdapterLoad) {
        self.adapter_loads.retain(|other| other.slot != load.slot);
        self.adapter_loads.push(load);
    }

    pub(crate) fn send_late_mask(&mut self, mask: LateMask) {
        self.late_masks.push(mask);
    }

    pub(crate) fn take_late_masks(&mut self) -> Vec<LateMask> {
        std::mem::take(&mut self.late_masks)
    }

    /// Moves everything but the late masks into a plan.
    pub(crate) fn move_into(&mut self, plan: &mut StepPlan) {
        plan.ends = std::mem::take(&mut self.ends);
        plan.restores = std::mem::take(&mut self.restores);
        plan.adapter_loads = std::mem::take(&mut self.adapter_loads);
    }
}
