//! Encodes events as vLLM's publisher does, for llm-d's routers. The encoding is MessagePack. Every struct is an array
//! of its fields in order, and an event's first element is its name.
//!
//! This is the format of vLLM 0.10.2 to 0.23 (`vllm/distributed/kv_events.py`: msgspec with `array_like` and `tag`).
//! vLLM writes maps from 0.24 on. All versions of llm-d read arrays; llm-d-kv-cache reads maps since 0.9.
//!
//! ```text
//! [timestamp, [event, ...], data_parallel_rank]
//! ["BlockStored", [hash, ...], parent hash or nil, [token id, ...], block_size, lora_id or nil, medium,
//!  lora_name or nil, extra_keys]
//! ["BlockRemoved", [hash, ...], medium]
//! ["AllBlocksCleared"]
//! ```
//!
//! `extra_keys` has an element for each hash: `[cache_salt]` for the first block of a salted prompt, and nil for the
//! others. It is absent if all would be nil. llm-d's routers add a request's `cache_salt` to the first block likewise.

use rmp::encode::{ByteBuf, write_array_len, write_f64, write_nil, write_str, write_uint};
use trunkline_scheduler::{AdapterHash, BlockKey, KvEvent, LaneId, Owner, SaltAdapter, StoredEvent, Tier};

/// Returns llm-d's name of a tier. The device is always `GPU`, also on a CPU, because llm-d takes it for the tier whose
/// hits cost nothing.
fn medium(tier: Tier) -> &'static str {
    match tier {
        Tier::Device => "GPU",
        Tier::Host => "CPU",
        Tier::Disk => "DISK",
        Tier::Object => "OBJECT_STORE",
    }
}

/// Returns a block's 64-bit hash, which is the first 8 bytes of its key.
fn hash(key: &BlockKey) -> u64 {
    let (half, _) = key.as_bytes().split_at(size_of::<u64>());
    half.iter().fold(0, |hash, &byte| hash << 8 | u64::from(byte))
}

/// Returns the salt that the client sent, if the block is the first of its path.
fn first_salt(stored: &StoredEvent) -> Option<&str> {
    match &stored.owner {
        Owner::Salt(salt) if stored.parent.is_none() => salt.cache_salt.as_deref(),
        Owner::Salt(_) | Owner::Tenant(_) | Owner::Unknown => None,
    }
}

/// Returns a number for an adapter: the first 4 bytes of its hash, which are the same on every server. vLLM counts
/// adapters instead.
fn lora_id(SaltAdapter { hash: AdapterHash([a, b, c, d, ..]), .. }: &SaltAdapter) -> u32 {
    u32::from_be_bytes([*a, *b, *c, *d])
}

/// Successive events that are encoded as one. vLLM reports all blocks of a chain together.
enum Group<'a> {
    Stored(Vec<&'a StoredEvent>),
    Removed(Tier, Vec<&'a BlockKey>),
    Cleared,
}

impl<'a> Group<'a> {
    fn of(event: &'a KvEvent) -> Self {
        match event {
            KvEvent::BlockStored(stored) => Self::Stored(vec![stored]),
            KvEvent::BlockRemoved { key, tier, .. } => Self::Removed(*tier, vec![key]),
            KvEvent::AllBlocksCleared => Self::Cleared,
        }
    }

    /// Adds the next event to the group if possible, and returns whether it did.
    fn extend(&mut self, event: &'a KvEvent) -> bool {
        match (self, event) {
            (Self::Stored(chain), KvEvent::BlockStored(stored)) => {
                let follows = chain.last().is_some_and(|last| {
                    stored.parent == Some(last.key)
                        && stored.tier == last.tier
                        && stored.token_ids.len() == last.token_ids.len()
                });
                if follows {
                    chain.push(stored);
                }
                follows
            }
            (Self::Removed(of, keys), KvEvent::BlockRemoved { key, tier, .. }) if of == tier => {
                keys.push(key);
                true
            }
            _ => false,
        }
    }
}

/// Encodes a batch of events of one lane, which is the data-parallel rank.
pub fn encode(unix_seconds: f64, lane: LaneId, events: &[KvEvent]) -> Vec<u8> {
    let mut groups: Vec<Group<'_>> = Vec::new();
    for event in events {
        if !groups.last_mut().is_some_and(|group| group.extend(event)) {
            groups.push(Group::of(event));
        }
    }
    let mut out = Packer(ByteBuf::new());
    out.array(3);
    let Ok(()) = write_f64(&mut out.0, unix_seconds);
    out.array(groups.len());
    for group in &groups {
        match group {
            Group::Stored(chain) => out.stored(chain),
            Group::Removed(tier, keys) => {
                out.array(3);
                out.text("BlockRemoved");
                out.hashes(keys.iter().copied());
                out.text(medium(*tier));
            }
            Group::Cleared => {
                out.array(1);
                out.text("AllBlocksCleared");
            }
        }
    }
    out.number(lane.0.into());
    out.0.into_vec()
}

/// A MessagePack writer to memory, which cannot fail.
struct Packer(ByteBuf);

impl Packer {
    fn stored(&mut self, chain: &[&StoredEvent]) {
        let Some(first) = chain.first() else { return };
        let salt = first_salt(first);
        self.array(if salt.is_some() { 9 } else { 8 });
        self.text("BlockStored");
        self.hashes(chain.iter().map(|stored| &stored.key));
        match &first.parent {
            Some(parent) => self.number(hash(parent)),
            None => self.nil(),
        }
        self.array(chain.iter().map(|stored| stored.token_ids.len()).sum());
        chain.iter().flat_map(|stored| &stored.token_ids).for_each(|&token_id| self.number(token_id.into()));
        self.number(first.token_ids.len() as u64);
        let adapter = first.owner.adapter();
        match adapter {
            Some(adapter) => self.number(lora_id(adapter).into()),
            None => self.nil(),
        }
        self.text(medium(first.tier));
        match adapter {
            Some(adapter) => self.text(&adapter.name),
            None => self.nil(),
        }
        if let Some(salt) = salt {
            self.array(chain.len());
            self.array(1);
            self.text(salt);
            chain.iter().skip(1).for_each(|_| self.nil());
        }
    }

    fn hashes<'a>(&mut self, keys: impl ExactSizeIterator<Item = &'a BlockKey>) {
        self.array(keys.len());
        keys.for_each(|key| self.number(hash(key)));
    }

    fn array(&mut self, length: usize) {
        // Lengths fit, because a batch has the events of one turn and a chain has at most the tokens of a context.
        let Ok(_) = write_array_len(&mut self.0, length as u32);
    }

    fn text(&mut self, text: &str) {
        let Ok(()) = write_str(&mut self.0, text);
    }

    fn number(&mut self, number: u64) {
        let Ok(_) = write_uint(&mut self.0, number);
    }

    fn nil(&mut self) {
        let Ok(()) = write_nil(&mut self.0);
    }
}
