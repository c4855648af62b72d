//! A listener that follows the events knows the contents of the cache. The test compares both after every request.

use std::collections::BTreeMap;

use proptest::prelude::*;
use trunkline_contract::BlockKey;
use trunkline_kv::{KvCache, KvEvent, MAX_LOGGED_EVENTS, NodeId, Owner, Salt, StoreIndex, Tier};

use crate::model::drawn;

const BLOCK_SIZE: u32 = 4;
const NUM_BLOCKS: u32 = 24;

/// A listener's record of one tier: the parent of each block, and its tokens if the event had them.
type Known = BTreeMap<BlockKey, (Option<BlockKey>, Vec<u32>)>;

#[derive(Default)]
struct Listener {
    device: Known,
    disk: Known,
}

impl Listener {
    fn hear(&mut self, events: Vec<KvEvent>) {
        for event in events {
            match event {
                KvEvent::BlockStored(stored) => {
                    let is_first = stored.depth.map(|depth| depth == 0);
                    assert!(
                        is_first.is_none_or(|is_first| is_first == stored.parent.is_none()),
                        "{stored:?}"
                    );
                    let known = (stored.parent, stored.token_ids.to_vec());
                    let tier = self.tier(stored.tier);
                    assert_eq!(tier.insert(stored.key, known), None, "a block is stored once");
                }
                KvEvent::BlockRemoved { key, tier, .. } => {
                    assert!(self.tier(tier).remove(&key).is_some(), "only what is there is removed");
                }
                KvEvent::AllBlocksCleared => *self = Self::default(),
            }
        }
    }

    fn tier(&mut self, tier: Tier) -> &mut Known {
        match tier {
            Tier::Device => &mut self.device,
            Tier::Disk => &mut self.disk,
            Tier::Host | Tier::Object => panic!("there is only a disk"),
        }
    }
}

/// Returns the whole blocks of the device, found by walking the tree.
fn on_device(kv: &KvCache) -> Known {
    let mut known = Known::new();
    for view in kv.walk(NodeId(0), usize::MAX, |_| true).nodes {
        let tokens = kv.path_tokens(view.id, view.key).expect("the node was just seen");
        let mut parent = None;
        for block in tokens.chunks_exact(BLOCK_SIZE as usize) {
            let key = parent.unwrap_or_else(|| view.salt.root_key()).extend(block);
            known.insert(key, (parent, block.to_vec()));
            parent = Some(key);
        }
    }
    known
}

fn cache(num_slots: u32) -> KvCache {
    let mut kv = KvCache::new(BLOCK_SIZE, NUM_BLOCKS);
    if num_slots > 0 {
        kv.set_store(StoreIndex::new(num_slots, Vec::new()));
    }
    kv
}

/// Computes a prompt. Writes to every fifth slot of the store fail.
fn request(kv: &mut KvCache, salt: &Salt, prompt: &[u32]) {
    let hit = kv.lookup(salt, prompt).without_stored();
    let mut table = kv.open(salt, &hit);
    kv.device_mut().touch(&hit);
    let num_blocks = (prompt.len() as u32).div_ceil(BLOCK_SIZE);
    assert!(kv.device_mut().grow(&mut table, num_blocks - hit.num_blocks() as u32));
    let first = hit.num_block_tokens();
    kv.device_mut().begin_fill(&table, first, prompt.len() as u32 - first);
    let num_full_blocks = prompt.len() / BLOCK_SIZE as usize;
    let mut slots = Vec::new();
    while let Some((_, slot)) = kv.begin_store(&mut table, num_full_blocks) {
        slots.push(slot);
    }
    // Some blocks are written before their keys are known, and some after.
    let (early, late) = slots.split_at(slots.len() / 2);
    for &slot in early {
        assert!(kv.store_mut().is_some_and(|store| store.end_write(slot, slot.0 % 5 != 4)));
    }
    kv.close(table, prompt);
    for &slot in late {
        assert!(kv.store_mut().is_some_and(|store| store.end_write(slot, slot.0 % 5 != 4)));
    }
}

fn salt(number: u8) -> Salt {
    match number {
        0 => Salt::default(),
        1 => Salt::of_tenant("a"),
        _ => Salt::of_tenant("b").with_cache_salt("c"),
    }
}

proptest! {
    #![proptest_config(drawn(64))]

    #[test]
    fn a_listener_knows_what_is_there(
        num_slots in prop_oneof![Just(0_u32), 1..40_u32],
        requests in prop::collection::vec(
            (0..3_u8, prop::collection::vec(0..2_u32, 1..40), prop::bool::weighted(0.1)), 1..60),
    ) {
        let mut kv = cache(num_slots);
        kv.record_events(true);
        let mut listener = Listener::default();
        for (namespace, prompt, remove) in requests {
            request(&mut kv, &salt(namespace), &prompt);
            if remove && let Some(view) = kv.walk(NodeId(0), 1, |_| true).nodes.first().cloned() {
                kv.remove(view.id, view.key);
                if let Some(store) = kv.store_mut() {
                    store.take_discards().into_iter().for_each(|slot| store.end_discard(slot));
                }
            }
            listener.hear(kv.take_events());
            prop_assert_eq!(&listener.device, &on_device(&kv));
            let num_stored = kv.store().map(StoreIndex::counts).map_or(0, |counts| counts.stored);
            prop_assert_eq!(listener.disk.len(), num_stored as usize);
            kv.check_invariants();
        }
    }
}

#[test]
fn a_new_listener_is_told_to_clear_its_record() {
    let mut kv = cache(8);
    let salt = Salt::of_tenant("a");
    request(&mut kv, &salt, &[1; 9]);
    assert_eq!(kv.take_events(), []);
    kv.record_events(true);
    kv.record_events(true);
    request(&mut kv, &salt, &[2; 9]);
    let events = kv.take_events();
    assert_eq!(events[0], KvEvent::AllBlocksCleared);
    let owner_of = |event: &KvEvent| match event {
        KvEvent::BlockStored(stored) => Some((stored.tier, stored.owner.clone())),
        _ => None,
    };
    let device = (Tier::Device, Owner::Salt(salt));
    let disk = (Tier::Disk, Owner::Tenant("a".into()));
    let owners: Vec<_> = events[1..].iter().filter_map(owner_of).collect();
    assert_eq!(owners, [device.clone(), device, disk.clone(), disk]);
    kv.record_events(false);
    request(&mut kv, &Salt::default(), &[3; 9]);
    assert_eq!(kv.take_events(), []);
}

#[test]
fn a_store_in_memory_has_a_name_of_its_own() {
    let mut index = StoreIndex::new(1, Vec::new());
    index.set_in_memory(true);
    let mut kv = KvCache::new(BLOCK_SIZE, NUM_BLOCKS);
    kv.set_store(index);
    kv.record_events(true);
    // The second block takes the slot of the first.
    request(&mut kv, &Salt::default(), &[1; BLOCK_SIZE as usize]);
    request(&mut kv, &Salt::default(), &[2; BLOCK_SIZE as usize]);
    let tier_of = |event: &KvEvent| match event {
        KvEvent::BlockStored(stored) => Some((stored.tier.name(), true)),
        KvEvent::BlockRemoved { tier, .. } => Some((tier.name(), false)),
        _ => None,
    };
    let mut below: Vec<_> = kv.take_events().iter().filter_map(tier_of).collect();
    below.retain(|(tier, _)| *tier != "device");
    assert_eq!(below, [("host", true), ("host", false), ("host", true)]);
}

#[test]
fn a_listener_that_does_not_take_events_is_told_that_they_are_lost() {
    let mut kv = KvCache::new(1, NUM_BLOCKS);
    kv.record_events(true);
    let mut token = 0;
    // Each request indexes a block and, once the cache is full, evicts one.
    for _ in 0..MAX_LOGGED_EVENTS {
        token += 1;
        let hit = kv.lookup(&Salt::default(), &[token]);
        let mut table = kv.open(&Salt::default(), &hit);
        assert!(kv.device_mut().grow(&mut table, 1));
        kv.device_mut().begin_fill(&table, 0, 1);
        kv.close(table, &[token]);
    }
    assert_eq!(kv.take_events(), [KvEvent::AllBlocksCleared]);
    assert_eq!(kv.take_events(), []);
}
