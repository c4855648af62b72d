//! Events about blocks that enter and leave the index, for programs that keep their own record of it.
//!
//! The index appends to a bounded log, and its owner takes the events after every call that may change something. While
//! nobody listens, a change costs only the test of a flag. Only whole blocks have events, because a partly filled block
//! has no key that others could use.

use trunkline_contract::BlockKey;

use crate::salt::{Salt, SaltAdapter};

/// The most events between two calls of [`crate::KvCache::take_events`]. Beyond it, all of them are lost.
pub const MAX_LOGGED_EVENTS: usize = 1 << 16;

/// The kind of memory that a block is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tier {
    /// The pool that attention reads.
    Device,
    /// The store in this machine's memory, for a device with memory of its own.
    Host,
    /// The store on this machine's disk.
    Disk,
    /// A store that several machines share.
    Object,
}

impl Tier {
    /// Returns the name that the API uses.
    pub fn name(self) -> &'static str {
        match self {
            Self::Device => "device",
            Self::Host => "host",
            Self::Disk => "disk",
            Self::Object => "object",
        }
    }
}

/// The owner of a block, as far as its tier knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Owner {
    /// The namespace is known.
    Salt(Salt),
    /// The tenant is known, but not which of its namespaces.
    Tenant(Box<str>),
    /// The block has no tenant, or its tenant has not asked for it since the start.
    Unknown,
}

impl Owner {
    pub fn tenant(&self) -> Option<&str> {
        match self {
            Self::Salt(salt) => salt.tenant(),
            Self::Tenant(tenant) => Some(tenant),
            Self::Unknown => None,
        }
    }

    /// The adapter of the block, if it is known to have one.
    pub fn adapter(&self) -> Option<&SaltAdapter> {
        match self {
            Self::Salt(salt) => salt.adapter.as_ref(),
            Self::Tenant(_) | Self::Unknown => None,
        }
    }

    pub fn root_key(&self) -> Option<BlockKey> {
        match self {
            Self::Salt(salt) => Some(salt.root_key()),
            Self::Tenant(_) | Self::Unknown => None,
        }
    }
}

/// A block that can be found from now on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredEvent {
    pub key: BlockKey,
    /// The block before it; absent if it is the first of its path.
    pub parent: Option<BlockKey>,
    /// The number of blocks before it. Only the device knows it.
    pub depth: Option<u32>,
    /// The tokens of the block. Only the device knows them, so they are empty for other tiers.
    pub token_ids: Box<[u32]>,
    pub owner: Owner,
    pub tier: Tier,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KvEvent {
    /// A block can be found from now on.
    BlockStored(StoredEvent),
    /// A block can no longer be found in one tier.
    BlockRemoved { key: BlockKey, tier: Tier, owner: Owner },
    /// All earlier events are void, in every tier: the shard was replaced, events were lost, or nobody listened. The
    /// present blocks can be listed anew.
    AllBlocksCleared,
}

/// The events that their owner has not taken yet.
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

    /// Starts with an empty log, or stops and drops the events.
    pub fn set_on(&mut self, is_on: bool) {
        if self.is_on != is_on {
            *self = Self { is_on, ..Self::default() };
        }
    }

    /// Logs an event. `event` is called only if the log is on.
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

    /// Returns the events since the last call, and whether some were lost.
    pub fn take(&mut self) -> (Vec<KvEvent>, bool) {
        (std::mem::take(&mut self.events), std::mem::take(&mut self.has_lost))
    }
}
