//! The adapters of one shard: which slot has which, and who may take one.
//!
//! ```text
//!          begin                  outcome                 last run is released
//! empty ──────────▶ loading ─────────────────▶ loaded, held ──────────▶ loaded, free
//!   ▲                  │ problem                     ▲  hold                 │   │ begin, for another adapter
//!   └──────────────────┘                             └───────────────────────┘   └──▶ loading
//! ```
//!
//! A run holds the slot of its adapter from its admission until it has given up its blocks, so no load goes into a slot
//! that a started sequence names. Its chunks wait until the adapter is loaded; other runs do not. A load that was
//! planned cannot be taken back, so its slot is nobody else's until the outcome has arrived, even if its runs have
//! gone. Among the slots that no run holds, an empty one is taken first, then the least recently used.
//!
//! Adapters have different sizes, and those that are loaded take no more bytes than the shard has for them. So a load
//! may need more than its slot: the least recently used slots that no run holds are emptied until it fits.
//!
//! A sequence that finds no slot or too few bytes is passed over, so those behind it go on. That alone would let it
//! starve: as long as requests arrive for the adapters that are loaded, their slots are always held. So once a sequence
//! has waited for [`SLOT_PATIENCE_MS`], its lane takes no sequence with an adapter from behind it in the queue
//! ([`SlotQueue`]), and sequences without one go on as before. The slots are then held only by runs that have begun,
//! which end, and by sequences that are in front of it anyway. The queue's order brings it to the front, so it gets a
//! slot.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use trunkline_kv::AdapterHash;

use crate::event::{AdapterUse, Millis};
use crate::message_size::MAX_ADAPTER_SLOTS;
use crate::outbox::Outbox;
use crate::plan::AdapterLoad;
use crate::sequence::{Sequence, SequenceKey};

/// The time for which a sequence that lacks a slot is overtaken by others with adapters.
pub const SLOT_PATIENCE_MS: u64 = 2_000;

/// The use of one slot by an adapter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdapterSlot {
    /// The name by which a request last used it.
    pub name: Arc<str>,
    pub content_hash: AdapterHash,
    /// True until the outcome of its load has arrived.
    pub is_loading: bool,
    /// Runs that hold the slot.
    pub num_runs: u32,
}

/// The use of adapters on all lanes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AdapterUses {
    /// The slots of each lane that have an adapter or get one; empty if no lane takes adapters.
    pub lanes: Vec<Vec<AdapterSlot>>,
    /// The names of the adapters of the first waiting sequences, each once.
    pub waiting: Vec<Arc<str>>,
}

/// A slot of the shard.
#[derive(Debug, Default)]
struct Slot {
    name: Option<Arc<str>>,
    content_hash: Option<AdapterHash>,
    /// The bytes of the adapter; 0 while the slot is empty.
    num_bytes: u64,
    is_loading: bool,
    num_runs: u32,
    /// Counts the uses of all slots; 0 while the slot is empty.
    last_used: u64,
    /// The runs that wait for the outcome of the load.
    waiting: Vec<SequenceKey>,
}

/// A slot that a run holds from now on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Held {
    /// The number of the slot, from 1; 0 without an adapter.
    pub(crate) slot: u32,
    /// True if the run has to wait for the outcome of a load.
    pub(crate) is_loading: bool,
}

/// The slots of a shard. Finding an adapter and choosing a slot cost O(log n).
#[derive(Debug, Default)]
pub(crate) struct Adapters {
    /// Slot 1 is the first one.
    slots: Vec<Slot>,
    places: BTreeMap<AdapterHash, u32>,
    /// The slots that a load may go into, in the order in which they are taken.
    free: BTreeSet<(u64, u32)>,
    /// The bytes that the adapters of all slots may take.
    max_bytes: u64,
    /// The bytes that they take, loads in flight included.
    num_bytes: u64,
    /// The part of these that a load may not take.
    num_held_bytes: u64,
    /// Counts uses.
    num_uses: u64,
    num_loaded: u32,
    /// Loads that were begun.
    num_loads: u64,
    /// Loads that failed.
    num_failures: u64,
    /// Adapters that loads of others have replaced.
    num_evictions: u64,
}

impl Adapters {
    pub(crate) fn new(num_slots: u32, max_bytes: u64) -> Self {
        let num_slots = num_slots.min(MAX_ADAPTER_SLOTS);
        Self {
            slots: (0..num_slots).map(|_| Slot::default()).collect(),
            free: (1..=num_slots).map(|slot| (0, slot)).collect(),
            max_bytes,
            ..Self::default()
        }
    }

    /// Returns true if a run could hold a slot for this adapter now.
    fn has_room_for(&self, adapter: &AdapterUse) -> bool {
        let is_room = !self.free.is_empty() && self.num_held_bytes + adapter.num_bytes <= self.max_bytes;
        is_room || self.places.contains_key(&adapter.content_hash)
    }

    /// Returns true if the sequence needs no slot, or could hold one now.
    pub(crate) fn have_room_for(&self, sequence: &Sequence) -> bool {
        sequence.request.adapter.as_ref().is_none_or(|adapter| self.has_room_for(adapter))
    }

    /// Returns true if the sequence needs no load, because its adapter is loaded or will be.
    pub(crate) fn have(&self, sequence: &Sequence) -> bool {
        let adapter = sequence.request.adapter.as_ref();
        adapter.is_none_or(|adapter| self.places.contains_key(&adapter.content_hash))
    }

    /// Lets a run of this sequence hold a slot. Puts the load into the outbox if the adapter is nowhere. There is room
    /// for it.
    pub(crate) fn hold(&mut self, key: SequenceKey, adapter: &AdapterUse, outbox: &mut Outbox) -> Held {
        let known = self.places.get(&adapter.content_hash).copied();
        let number = known.unwrap_or_else(|| self.begin_load(adapter, outbox));
        self.num_uses += 1;
        let slot = &mut self.slots[number as usize - 1];
        if self.free.remove(&(slot.last_used, number)) {
            self.num_held_bytes += slot.num_bytes;
        }
        slot.name = Some(adapter.name.clone());
        slot.num_runs += 1;
        slot.last_used = self.num_uses;
        if slot.is_loading {
            slot.waiting.push(key);
        }
        Held { slot: number, is_loading: slot.is_loading }
    }

    /// Begins a load, for which there is room, and returns its slot, which no load but this one may go into.
    fn begin_load(&mut self, adapter: &AdapterUse, outbox: &mut Outbox) -> u32 {
        let first_loaded = (1, 0);
        while self.num_bytes + adapter.num_bytes > self.max_bytes || self.is_full() {
            let &(_, number) = self.free.range(first_loaded..).next().expect("room was counted");
            self.empty(number);
            self.num_evictions += 1;
            self.num_loaded -= 1;
            outbox.load_adapter(AdapterLoad { slot: number, ..AdapterLoad::default() });
        }
        let (_, number) = self.free.pop_first().expect("a slot is empty");
        self.places.insert(adapter.content_hash, number);
        self.num_loads += 1;
        self.num_bytes += adapter.num_bytes;
        self.num_held_bytes += adapter.num_bytes;
        let slot = &mut self.slots[number as usize - 1];
        (slot.content_hash, slot.num_bytes) = (Some(adapter.content_hash), adapter.num_bytes);
        slot.is_loading = true;
        let (path, content_hash) = (adapter.path.to_string(), adapter.content_hash.0.to_vec());
        outbox.load_adapter(AdapterLoad { slot: number, path, content_hash });
        number
    }

    /// Returns true if no slot is empty that a load may go into.
    fn is_full(&self) -> bool {
        self.free.first().is_none_or(|&(last_used, _)| last_used > 0)
    }

    /// Takes the adapter out of a slot.
    fn empty(&mut self, number: u32) {
        let slot = &mut self.slots[number as usize - 1];
        slot.content_hash.take().and_then(|content_hash| self.places.remove(&content_hash));
        self.num_bytes -= std::mem::take(&mut slot.num_bytes);
        let last_used = std::mem::take(&mut slot.last_used);
        if self.free.remove(&(last_used, number)) {
            self.free.insert((0, number));
        }
    }

    /// Ends the hold of a run, if it has one.
    pub(crate) fn release(&mut self, number: u32, key: SequenceKey) {
        let Some(slot) = number.checked_sub(1).and_then(|index| self.slots.get_mut(index as usize)) else {
            return;
        };
        slot.num_runs -= 1;
        slot.waiting.retain(|&waiting| waiting != key);
        if slot.content_hash.is_some() {
            self.num_uses += 1;
            slot.last_used = self.num_uses;
        }
        self.let_go(number);
    }

    /// Lets loads go into a slot, unless a run holds it or a load is in flight.
    fn let_go(&mut self, number: u32) {
        let slot = &self.slots[number as usize - 1];
        if slot.num_runs == 0 && !slot.is_loading {
            self.free.insert((slot.last_used, number));
            self.num_held_bytes -= slot.num_bytes;
        }
    }

    /// Ends a load. Returns the runs that wait for it; none if no load into this slot is in flight.
    pub(crate) fn end_load(&mut self, number: u32, has_failed: bool) -> Option<Vec<SequenceKey>> {
        let slot = number.checked_sub(1).and_then(|index| self.slots.get_mut(index as usize))?;
        if !std::mem::take(&mut slot.is_loading) {
            return None;
        }
        let waiting = std::mem::take(&mut slot.waiting);
        if has_failed {
            self.num_failures += 1;
            self.num_held_bytes -= slot.num_bytes;
            self.empty(number);
        } else {
            self.num_loaded += 1;
        }
        self.let_go(number);
        Some(waiting)
    }

    /// The sequences that wait for loads.
    pub(crate) fn awaiting(&self) -> impl Iterator<Item = SequenceKey> {
        self.slots.iter().flat_map(|slot| slot.waiting.iter().copied())
    }

    /// The slots that have an adapter or get one.
    pub(crate) fn in_use(&self) -> impl Iterator<Item = AdapterSlot> {
        self.slots.iter().filter_map(|slot| {
            let (name, content_hash) = (slot.name.clone()?, slot.content_hash?);
            Some(AdapterSlot { name, content_hash, is_loading: slot.is_loading, num_runs: slot.num_runs })
        })
    }

    pub(crate) fn num_slots(&self) -> u32 {
        self.slots.len() as u32
    }

    pub(crate) fn num_loaded(&self) -> u32 {
        self.num_loaded
    }

    pub(crate) fn num_loads(&self) -> u64 {
        self.num_loads
    }

    pub(crate) fn num_failures(&self) -> u64 {
        self.num_failures
    }

    pub(crate) fn num_evictions(&self) -> u64 {
        self.num_evictions
    }

    /// Panics unless the slots agree with these runs: their keys, adapters and slots, and whether they wait.
    pub(crate) fn check(&self, runs: &[(SequenceKey, AdapterHash, u32, bool)]) {
        for (number, slot) in (1..).zip(&self.slots) {
            let of_slot = runs.iter().filter(|run| run.2 == number);
            assert_eq!(of_slot.clone().count(), slot.num_runs as usize, "runs that hold slot {number}");
            for &(key, content_hash, _, waits) in of_slot {
                assert_eq!(waits, slot.waiting.contains(&key), "runs that wait for slot {number}");
                assert!(!waits || slot.is_loading, "a run waits for a load");
                let is_own = slot.content_hash.is_none_or(|own| own == content_hash);
                assert!(is_own, "slot {number} has the adapter of its runs");
            }
            assert!(slot.waiting.len() <= slot.num_runs as usize, "only runs wait");
            let is_free = slot.num_runs == 0 && !slot.is_loading;
            assert_eq!(self.free.contains(&(slot.last_used, number)), is_free, "slot {number} is free");
            let place = slot.content_hash.map(|content_hash| self.places.get(&content_hash).copied());
            assert!(place.is_none_or(|place| place == Some(number)), "an adapter is found in slot {number}");
        }
        let num_loaded = self.in_use().filter(|slot| !slot.is_loading).count();
        assert_eq!(num_loaded, self.num_loaded as usize, "loaded adapters");
        assert_eq!(self.in_use().count(), self.places.len(), "an adapter is in one slot");
        assert!(self.free.len() <= self.slots.len());
        let is_held = |(number, slot): &(u32, &Slot)| !self.free.contains(&(slot.last_used, *number));
        let held = (1..).zip(&self.slots).filter(is_held).map(|(_, slot)| slot.num_bytes).sum::<u64>();
        assert_eq!(held, self.num_held_bytes, "bytes that no load may take");
        assert_eq!(self.slots.iter().map(|slot| slot.num_bytes).sum::<u64>(), self.num_bytes, "bytes");
        assert!(self.num_bytes <= self.max_bytes, "adapters take no more bytes than there are");
        let is_used = |slot: &Slot| slot.content_hash.is_some() || slot.num_bytes + slot.last_used == 0;
        assert!(self.slots.iter().all(is_used), "an empty slot has nothing");
    }
}

/// Decides which waiting sequences may take a slot, while the queue is looked through in its order.
#[derive(Debug)]
pub(crate) struct SlotQueue<'a> {
    adapters: &'a Adapters,
    now: Millis,
    /// True behind a sequence whose patience is over.
    is_closed: bool,
    /// The sequences that are passed over for the first time.
    pub(crate) passed: Vec<SequenceKey>,
}

impl<'a> SlotQueue<'a> {
    pub(crate) fn new(adapters: &'a Adapters, now: Millis) -> Self {
        Self { adapters, now, is_closed: false, passed: Vec::new() }
    }

    /// Returns true if the next sequence of the queue needs no slot, or may hold one.
    pub(crate) fn let_take(&mut self, key: SequenceKey, sequence: &Sequence) -> bool {
        let Some(adapter) = &sequence.request.adapter else { return true };
        if self.is_closed || self.adapters.has_room_for(adapter) {
            return !self.is_closed;
        }
        match sequence.wait.slot_since {
            Some(since) => self.is_closed = self.now.since(since) >= SLOT_PATIENCE_MS,
            None => self.passed.push(key),
        }
        false
    }
}
