use std::collections::BTreeMap;

use trunkline_contract::BlockKey;

/// The blocks that one pin keeps.
pub(crate) trait Pin {
    type Id: Copy + Ord;

    fn ids(&self) -> impl Iterator<Item = Self::Id>;
}

/// Pins by the prefix that they keep, which the key of its last block names, and by the time when they end.
#[derive(Debug)]
pub(crate) struct PinTable<P: Pin> {
    by_end: BTreeMap<(u64, BlockKey), P>,
    ends: BTreeMap<BlockKey, u64>,
    /// The number of pins of each pinned block.
    num_pins: BTreeMap<P::Id, u32>,
}

impl<P: Pin> Default for PinTable<P> {
    fn default() -> Self {
        Self { by_end: BTreeMap::new(), ends: BTreeMap::new(), num_pins: BTreeMap::new() }
    }
}

impl<P: Pin> PinTable<P> {
    pub(crate) fn is_pinned(&self, id: P::Id) -> bool {
        self.num_pins.contains_key(&id)
    }

    /// Returns the pinned blocks, each once.
    pub(crate) fn ids(&self) -> impl Iterator<Item = P::Id> {
        self.num_pins.keys().copied()
    }

    /// Returns the number of pinned blocks, each counted once.
    pub(crate) fn num_blocks(&self) -> u32 {
        self.num_pins.len() as u32
    }

    /// Returns the time when the pin of the prefix that ends with this block ends.
    pub(crate) fn end_of(&self, last: BlockKey) -> Option<u64> {
        self.ends.get(&last).copied()
    }

    /// Returns the prefix whose pin ends first, and when.
    pub(crate) fn first(&self) -> Option<(u64, BlockKey)> {
        self.by_end.first_key_value().map(|(&entry, _)| entry)
    }

    /// Adds a pin of a prefix that has none. Returns how many of its blocks are in no other pin.
    pub(crate) fn insert(&mut self, end: u64, last: BlockKey, pin: P) -> u32 {
        let mut num_new = 0;
        for id in pin.ids() {
            let count = self.num_pins.entry(id).or_default();
            num_new += u32::from(*count == 0);
            *count += 1;
        }
        self.by_end.insert((end, last), pin);
        self.ends.insert(last, end);
        num_new
    }

    /// Moves the end of a pin to `end`, if that is later. Returns false if there is no such pin.
    pub(crate) fn renew(&mut self, last: BlockKey, end: u64) -> bool {
        let Some(known) = self.ends.get_mut(&last) else { return false };
        if *known < end {
            let before = std::mem::replace(known, end);
            let pin = self.by_end.remove(&(before, last)).expect("an end has a pin");
            self.by_end.insert((end, last), pin);
        }
        true
    }

    /// Removes a pin. Returns it with those of its blocks that are in no other pin.
    pub(crate) fn remove(&mut self, last: BlockKey) -> Option<(P, Vec<P::Id>)> {
        let end = self.ends.remove(&last)?;
        let pin = self.by_end.remove(&(end, last)).expect("an end has a pin");
        let mut unpinned = Vec::new();
        for id in pin.ids() {
            let count = self.num_pins.get_mut(&id).expect("a pinned block is counted");
            *count -= 1;
            if *count == 0 {
                self.num_pins.remove(&id);
                unpinned.push(id);
            }
        }
        Some((pin, unpinned))
    }
}
