mod inspect;
mod pins;
mod transfers;

use trunkline_contract::BlockKey;

pub use self::inspect::{NodeView, TreePage};
use self::pins::DevicePins;
pub use self::pins::{PinCounts, PinOutcome};
pub use self::transfers::RestoredBlock;
use crate::device::{BlockTable, DeviceTier, PrefixHit};
use crate::events::{KvEvent, Owner, StoredEvent, Tier};
use crate::evict::{CachePriority, EvictionPolicy, LeafLru};
use crate::salt::Salt;
use crate::store::StoreIndex;
use crate::tenants::TenantShare;

/// The KV index: the device's blocks, the store below it, and the pins of both.
///
/// ```
/// use trunkline_kv::{KvCache, Salt};
///
/// let mut kv = KvCache::new(4, 8);
/// let prompt = [1, 2, 3, 4, 5, 6];
/// let mut table = kv.open(&Salt::default(), &kv.lookup(&Salt::default(), &prompt));
/// assert!(kv.device_mut().grow(&mut table, 2));
/// kv.device_mut().begin_fill(&table, 0, 6); // a step computes all six positions ...
/// kv.close(table, &prompt); //                 ... and is acknowledged; the sequence ends
/// let hit = kv.lookup(&Salt::default(), &prompt);
/// assert_eq!((hit.num_blocks(), hit.num_tokens()), (1, 5)); // never the last token
/// ```
#[derive(Debug)]
pub struct KvCache {
    device: DeviceTier,
    store: Option<StoreIndex>,
    pins: DevicePins,
}

impl KvCache {
    /// Makes an empty index over `num_blocks` free blocks of `block_size` tokens, with [`LeafLru`] eviction.
    pub fn new(block_size: u32, num_blocks: u32) -> Self {
        Self::with_policy(block_size, num_blocks, Box::<LeafLru>::default())
    }

    pub fn with_policy(block_size: u32, num_blocks: u32, policy: Box<dyn EvictionPolicy>) -> Self {
        Self {
            device: DeviceTier::new(block_size, num_blocks, policy),
            store: None,
            pins: DevicePins::default(),
        }
    }

    pub fn device(&self) -> &DeviceTier {
        &self.device
    }

    /// Returns the blocks of the device, for operations that do not concern the store.
    pub fn device_mut(&mut self) -> &mut DeviceTier {
        &mut self.device
    }

    pub fn store(&self) -> Option<&StoreIndex> {
        self.store.as_ref()
    }

    /// Returns the index of the store, for operations that do not concern the device.
    pub fn store_mut(&mut self) -> Option<&mut StoreIndex> {
        self.store.as_mut()
    }

    /// Takes the index of the store away. It records no more events.
    pub fn take_store(&mut self) -> Option<StoreIndex> {
        let mut store = self.store.take()?;
        store.record_events(false);
        Some(store)
    }

    pub fn set_store(&mut self, mut store: StoreIndex) {
        store.set_shares(&self.device.shares());
        store.record_events(self.device.are_events_on());
        self.store = Some(store);
    }

    /// Sets the weights of all tenants. A tenant that is not named has none. Without any names, all weigh the same.
    pub fn set_shares(&mut self, shares: &[TenantShare]) {
        self.device.set_shares(shares);
        if let Some(store) = &mut self.store {
            store.set_shares(shares);
        }
    }

    /// Sets the time, in milliseconds since any fixed moment.
    pub fn set_now(&mut self, now_ms: u64) {
        self.device.set_now(now_ms);
    }

    /// Returns the prefix of `tokens` that device and store have, except the last token.
    ///
    /// At least one token must be computed to sample the next one. The lookup changes nothing, not even the order of
    /// eviction. The cost is O(tokens).
    pub fn lookup(&self, salt: &Salt, tokens: &[u32]) -> PrefixHit {
        self.lookup_with(salt, tokens, std::iter::empty::<((), &StoreIndex)>()).0
    }

    /// Does the same with further stores, each with a name. Also returns the name of the store that has the stored
    /// blocks of the hit; none if that is the own one. All of them are in one store, which has the most.
    pub fn lookup_with<'a, N>(
        &self,
        salt: &Salt,
        tokens: &[u32],
        others: impl Iterator<Item = (N, &'a StoreIndex)>,
    ) -> (PrefixHit, Option<N>) {
        let usable = &tokens[..tokens.len().saturating_sub(1)];
        let found = self.device.find(salt, usable);
        let block_size = self.device.block_size() as usize;
        let rest = &usable[found.blocks.len() * block_size..];
        let (mut stored, mut source) = (Vec::new(), None);
        if rest.len() >= block_size {
            let before = self.device.key_before(salt, &found.cursor());
            if let Some(store) = &self.store {
                stored = store.find(before, rest, block_size);
            }
            for (name, store) in others {
                let in_other = store.find(before, rest, block_size);
                if in_other.len() > stored.len() {
                    (stored, source) = (in_other, Some(name));
                }
            }
        }
        (self.device.hit(found, stored, usable), source)
    }

    /// Begins a sequence of normal priority, as [`KvCache::open_with_priority`] does.
    pub fn open(&mut self, salt: &Salt, hit: &PrefixHit) -> BlockTable {
        self.open_with_priority(salt, hit, CachePriority::Normal)
    }

    /// Begins a sequence that holds the blocks of a hit of this salt.
    ///
    /// It holds the partly matching block until [`DeviceTier::release_copy_source`]. Panics if the index has changed
    /// since the lookup.
    pub fn open_with_priority(
        &mut self,
        salt: &Salt,
        hit: &PrefixHit,
        priority: CachePriority,
    ) -> BlockTable {
        let mut table = self.device.open(salt, hit, priority);
        self.find_stored_prefix(&mut table);
        table
    }

    /// Adds the whole blocks of `computed` to the index that the table has not added yet. The cost is O(new tokens).
    ///
    /// `computed` has the sequence's leading tokens whose steps are acknowledged.
    pub fn index(&mut self, table: &mut BlockTable, computed: &[u32]) {
        let Self { device, store, .. } = self;
        device.index(table, computed, |progress, block_idx, key, parent| {
            if let Some(store) = store {
                progress.name_block(store, block_idx, key, parent);
            }
        });
    }

    /// Ends a sequence: indexes all of `computed`, including its partly filled last block, and releases its blocks.
    ///
    /// No step in flight may still write positions of `computed`.
    pub fn close(&mut self, mut table: BlockTable, computed: &[u32]) {
        self.index(&mut table, computed);
        if let Some(store) = &mut self.store {
            table.store.abandon(store);
        }
        self.device.close(table, computed);
    }

    /// Starts or stops logging events. The log starts with [`KvEvent::AllBlocksCleared`].
    pub fn record_events(&mut self, is_on: bool) {
        let events = self.device.events();
        if events.is_on() == is_on {
            return;
        }
        events.set_on(is_on);
        events.note(|| KvEvent::AllBlocksCleared);
        if let Some(store) = &mut self.store {
            store.record_events(is_on);
        }
    }

    /// Returns the events since the last call, first those of the device and then those of the store.
    ///
    /// If the log was too small for them, returns only [`KvEvent::AllBlocksCleared`].
    pub fn take_events(&mut self) -> Vec<KvEvent> {
        let (mut events, mut has_lost) = self.device.events().take();
        if let Some(store) = &mut self.store {
            let (store_events, store_has_lost) = store.take_events();
            events.extend(store_events);
            has_lost |= store_has_lost;
        }
        if has_lost { vec![KvEvent::AllBlocksCleared] } else { events }
    }

    /// Logs that the object tier has a block, or no longer has it, as far as this machine knows.
    ///
    /// `salt` is that of the request that asked for the block. Without one, the owner is the one that the store knows.
    pub fn note_object(
        &mut self,
        (key, parent): (BlockKey, Option<BlockKey>),
        salt: Option<&Salt>,
        is_there: bool,
    ) {
        let Self { device, store, .. } = self;
        device.events().note(|| {
            let of_store = || store.as_ref().map_or(Owner::Unknown, |store| store.owner_of(key));
            let owner = salt.map_or_else(of_store, |salt| Owner::Salt(salt.clone()));
            let tier = Tier::Object;
            if !is_there {
                return KvEvent::BlockRemoved { key, tier, owner };
            }
            let token_ids = Box::default();
            KvEvent::BlockStored(StoredEvent { key, parent, depth: None, token_ids, owner, tier })
        });
    }

    /// Recounts everything in O(pool + tree + slots). Panics if anything is wrong.
    pub fn check_invariants(&self) {
        self.device.check_invariants();
        if let Some(store) = &self.store {
            store.check_invariants();
        }
    }
}
