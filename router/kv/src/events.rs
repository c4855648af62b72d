//! What enters and leaves the KV index, told to those who keep track of it elsewhere.
//!
//! The index appends to a bounded log, its owner takes what is there after every call that may change something.
//! While nobody listens a change costs one look at a flag. Whole blocks only: a partly filled one is nobody's prefix
//! by name.

use trunkline_contract::BlockKey;

use crate::cache::KvCache;
use crate::radix::NodeId;
use crate::salt::Salt;
use crate::store::StoreIndex;

/// Most events between two calls of [`KvCache::take_events`]; more are lost, which is said.
pub const MAX_LOGGED_EVENTS: usize = 1 << 16;

/// Where a block is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tier {
    /// The pool that is computed on.
    Device,
    /// The store in this machine's memory, of a device that has its own.
    Host,
    /// The store on this machine's disk.
    Disk,
    /// A store that several machines share.
    Object,
}

impl Tier {
    /// What people and programs call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Device => "device",
            Self::Host => "host",
            Self::Disk => "disk",
            Self::Object => "object",
        }
    }
}

/// Whose a block is, as far as its tier knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Owner {
    /// Of this namespace.
    Salt(Salt),
    /// Of some namespace of this tenant.
    Tenant(Box<str>),
    /// Of nobody's tenant, or of one that has not asked for it since the start.
    Unknown,
}

impl Owner {
    /// The tenant, if it has one that is known.
    pub fn tenant(&self) -> Option<&str> {
        match self {
            Self::Salt(salt) => salt.tenant(),
            Self::Tenant(tenant) => Some(tenant),
            Self::Unknown => None,
        }
    }

    /// The key before the namespace's first block, if the namespace is known.
    pub fn root_key(&self) -> Option<BlockKey> {
        match self {
            Self::Salt(salt) => Some(salt.root_key()),
            Self::Tenant(_) | Self::Unknown => None,
        }
    }
}

/// A block can be found from now on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredEvent {
    /// Its name.
    pub key: BlockKey,
    /// The block before it; none if it is the first.
    pub parent: Option<BlockKey>,
    /// Blocks before it, where the tier knows: the device.
    pub depth: Option<u32>,
    /// Its tokens, where the tier knows them: the device. Elsewhere none; the key is the same.
    pub token_ids: Box<[u32]>,
    /// Whose it is.
    pub owner: Owner,
    /// Where.
    pub tier: Tier,
}

/// Something changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KvEvent {
    /// A block can be found.
    BlockStored(StoredEvent),
    /// A block can be found no more in this tier.
    BlockRemoved {
        /// Its name.
        key: BlockKey,
        /// Where it was.
        tier: Tier,
        /// Whose it was.
        owner: Owner,
    },
    /// What was said before holds no more, in any tier: the shard is another, or events were lost, or nobody listened.
    /// What is there can be listed anew.
    AllBlocksCleared,
}

/// Events that wait for their owner.
#[derive(Debug, Default)]
pub struct EventLog {
    is_on: bool,
    has_lost: bool,
    events: Vec<KvEvent>,
}

impl EventLog {
    pub(crate) fn is_on(&self) -> bool {
        self.is_on
    }

    /// Begins with an empty log, or drops it.
    pub fn set_on(&mut self, is_on: bool) {
        if self.is_on != is_on {
            *self = Self { is_on, ..Self::default() };
        }
    }

    /// Notes an event, which is made only if somebody listens.
    pub fn note(&mut self, event: impl FnOnce() -> KvEvent) {
        if !self.is_on || self.has_lost {
            return;
        }
        if self.events.len() == MAX_LOGGED_EVENTS {
            self.events = Vec::new();
            self.has_lost = true;
            return;
        }
        self.events.push(event());
    }

    /// The events since the last call, and whether some were lost.
    pub fn take(&mut self) -> (Vec<KvEvent>, bool) {
        (std::mem::take(&mut self.events), std::mem::take(&mut self.has_lost))
    }
}

impl KvCache {
    /// Whether events are logged: what begins is announced as [`KvEvent::AllBlocksCleared`], as nothing is known of
    /// what was before.
    pub fn record_events(&mut self, is_on: bool) {
        if self.events.is_on() == is_on {
            return;
        }
        self.events.set_on(is_on);
        self.events.note(|| KvEvent::AllBlocksCleared);
        if let Some(store) = &mut self.store {
            store.record_events(is_on);
        }
    }

    /// What happened since the last call: on the device in order, then in the store in order. If more happened than
    /// the log holds, only that everything is to be listed anew.
    pub fn take_events(&mut self) -> Vec<KvEvent> {
        let (mut events, mut has_lost) = self.events.take();
        if let Some(store) = &mut self.store {
            let (of_store, store_lost) = store.events.take();
            events.extend(of_store);
            has_lost |= store_lost;
        }
        if has_lost { vec![KvEvent::AllBlocksCleared] } else { events }
    }

    /// The store that machines share has a block, or has it no more, as far as this machine saw. `salt`: that of who
    /// asked for it, if anybody did; else its owner is whom the store on this machine knows.
    pub fn note_object(
        &mut self,
        (key, parent): (BlockKey, Option<BlockKey>),
        salt: Option<&Salt>,
        is_there: bool,
    ) {
        let Self { events, store, .. } = self;
        events.note(|| {
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

    /// A whole block of the device entered the index after the one with the key `before`.
    pub(crate) fn note_stored(
        &mut self,
        salt: &Salt,
        before: BlockKey,
        (block_idx, key): (usize, BlockKey),
        tokens: &[u32],
    ) {
        self.events.note(|| {
            KvEvent::BlockStored(StoredEvent {
                key,
                parent: (block_idx > 0).then_some(before),
                depth: Some(block_idx as u32),
                token_ids: tokens.into(),
                owner: Owner::Salt(salt.clone()),
                tier: Tier::Device,
            })
        });
    }

    /// The last block of a leaf is about to leave the index.
    pub(crate) fn note_removal(&mut self, leaf: NodeId) {
        let Self { events, tree, block_size, .. } = self;
        let is_tail = !tree.node(leaf).tokens.len().is_multiple_of(*block_size as usize);
        if !events.is_on() || is_tail {
            return;
        }
        let owner = tree.salt_of(leaf).map_or(Owner::Unknown, |salt| Owner::Salt(salt.clone()));
        let key = tree.last_key(leaf);
        events.note(|| KvEvent::BlockRemoved { key, tier: Tier::Device, owner });
    }
}

impl StoreIndex {
    pub(crate) fn record_events(&mut self, is_on: bool) {
        self.events.set_on(is_on);
    }
}
