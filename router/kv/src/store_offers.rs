//! What the store has for the tier below it, and what comes from there.

use trunkline_contract::{BlockKey, SlotId};

use crate::store::{Offer, SlotState, StoreIndex};

impl StoreIndex {
    /// Keeps at most so many stored blocks waiting for [`StoreIndex::take_offer`]; 0: there is no tier below.
    pub fn offer_at_most(&mut self, max_offers: usize) {
        self.max_offers = max_offers;
    }

    /// The next block for the tier below, those of a path in their order. A read of it begins.
    pub fn take_offer(&mut self) -> Option<Offer> {
        while let Some((key, is_new)) = self.offers.pop_front() {
            let Some(&slot) = self.by_key.get(&key) else { continue };
            if matches!(self.slots[slot.index()].state, SlotState::Stored) {
                self.begin_read(slot);
                return Some(Offer { slot, key, is_new });
            }
        }
        None
    }

    /// The tier below did not take a block: it is offered again, after those that wait.
    pub fn refuse_offer(&mut self, key: BlockKey) {
        let Some(&slot) = self.by_key.get(&key) else { return };
        let has_room = self.offers.len() < self.max_offers;
        self.slots[slot.index()].is_offered = has_room;
        if has_room {
            self.offers.push_back((key, false));
        } else {
            self.num_unoffered += 1;
        }
    }

    /// The block that came from the tier below lies in a reserved slot, if it `is_written`. False: it is not kept.
    pub fn adopt(&mut self, id: SlotId, key: BlockKey, parent: Option<BlockKey>, is_written: bool) -> bool {
        if is_written && !self.by_key.contains_key(&key) && self.name(id, key, parent) {
            self.slots[id.index()].is_offered = true;
        } else if matches!(self.slots[id.index()].state, SlotState::Writing { is_named: false }) {
            self.abandon(id);
        }
        assert!(self.written(id, is_written), "slot {} is reserved when it is adopted", id.0);
        is_written && self.by_key.contains_key(&key)
    }

    /// Offers a stored block to the tier below, and first those before it that were not: a block is found there only if
    /// they are too. What does not fit is offered when the path grows again.
    pub(crate) fn offer(&mut self, id: SlotId) {
        if self.max_offers == 0 {
            return;
        }
        let mut path = Vec::new();
        let mut next = Some(id);
        while let Some(id) = next {
            let slot = &self.slots[id.index()];
            if slot.is_offered || !matches!(slot.state, SlotState::Stored) {
                break;
            }
            path.push(id);
            next = slot.parent.and_then(|parent| self.by_key.get(&parent).copied());
        }
        while let Some(id_on_path) = path.pop() {
            if self.offers.len() >= self.max_offers {
                self.num_unoffered += 1;
                return;
            }
            let slot = &mut self.slots[id_on_path.index()];
            slot.is_offered = true;
            self.offers.push_back((slot.key, id_on_path == id));
        }
    }
}
