//! Events as vLLM's publisher writes them, which llm-d's routers read: MessagePack, every struct an array of its fields
//! in order, an event's first element its name.
//!
//! This is the form of vLLM 0.10.2 to 0.23 (`vllm/distributed/kv_events.py`: msgspec with `array_like`, `tag`). From
//! 0.24 on vLLM writes the events as maps; llm-d reads arrays in all versions, maps only since llm-d-kv-cache 0.9.
//!
//! ```text
//! [timestamp, [event, ...], data_parallel_rank]
//! ["BlockStored", [hash, ...], parent hash or nil, [token id, ...], block_size, nil, medium, nil]
//! ["BlockRemoved", [hash, ...], medium]
//! ["AllBlocksCleared"]
//! ```

use rmp::encode::{ByteBuf, write_array_len, write_f64, write_nil, write_str, write_uint};
use trunkline_scheduler::{BlockKey, KvEvent, StoredEvent, Tier};

/// One process serves all.
const DATA_PARALLEL_RANK: u64 = 0;

/// What llm-d calls a tier. The device is `GPU` to it whatever computes: where hits cost nothing.
fn medium(tier: Tier) -> &'static str {
    match tier {
        Tier::Device => "GPU",
        Tier::Host => "CPU",
        Tier::Disk => "DISK",
        Tier::Object => "OBJECT_STORE",
    }
}

/// A block's 64-bit name: the first 8 bytes of its key.
fn hash(key: &BlockKey) -> u64 {
    let (half, _) = key.as_bytes().split_at(size_of::<u64>());
    half.iter().fold(0, |hash, &byte| hash << 8 | u64::from(byte))
}

/// Events that become one: vLLM names all blocks of a chain at once.
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

    /// Takes an event that follows in as well, if it can.
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

/// A batch as bytes.
pub(super) fn encode(unix_seconds: f64, events: &[KvEvent]) -> Vec<u8> {
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
    out.number(DATA_PARALLEL_RANK);
    out.0.into_vec()
}

/// Writes to memory, which does not fail.
struct Packer(ByteBuf);

impl Packer {
    fn stored(&mut self, chain: &[&StoredEvent]) {
        let Some(first) = chain.first() else { return };
        self.array(8);
        self.text("BlockStored");
        self.hashes(chain.iter().map(|stored| &stored.key));
        match &first.parent {
            Some(parent) => self.number(hash(parent)),
            None => self.nil(),
        }
        self.array(chain.iter().map(|stored| stored.token_ids.len()).sum());
        chain.iter().flat_map(|stored| &stored.token_ids).for_each(|&token_id| self.number(token_id.into()));
        self.number(first.token_ids.len() as u64);
        self.nil();
        self.text(medium(first.tier));
        self.nil();
    }

    fn hashes<'a>(&mut self, keys: impl ExactSizeIterator<Item = &'a BlockKey>) {
        self.array(keys.len());
        keys.for_each(|key| self.number(hash(key)));
    }

    fn array(&mut self, length: usize) {
        // A batch has at most as many events as the log of a turn, and a chain as many tokens as a context.
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

#[cfg(test)]
mod tests {
    use trunkline_scheduler::{Owner, Salt};

    use super::*;

    fn key(byte: u8) -> BlockKey {
        BlockKey::from_bytes([byte; 16])
    }

    fn stored(byte: u8, parent: Option<u8>, token_ids: &[u32], tier: Tier) -> KvEvent {
        KvEvent::BlockStored(StoredEvent {
            key: key(byte),
            parent: parent.map(key),
            depth: None,
            token_ids: token_ids.into(),
            owner: Owner::Salt(Salt::default()),
            tier,
        })
    }

    fn removed(byte: u8, tier: Tier) -> KvEvent {
        KvEvent::BlockRemoved { key: key(byte), tier, owner: Owner::Unknown }
    }

    fn text(text: &str) -> Vec<u8> {
        [&[0xa0 | text.len() as u8], text.as_bytes()].concat()
    }

    fn number(byte: u8) -> Vec<u8> {
        [&[0xcf], [byte; 8].as_slice()].concat()
    }

    /// `events` as they stand between timestamp and rank.
    fn between(events: &[KvEvent]) -> Vec<u8> {
        let bytes = encode(1.5, events);
        let begin = [&[0x93, 0xcb], 1.5_f64.to_be_bytes().as_slice()].concat();
        assert_eq!(bytes[..begin.len()], begin);
        assert_eq!(bytes.last(), Some(&0));
        bytes[begin.len()..bytes.len() - 1].to_vec()
    }

    #[test]
    fn a_chain_is_one_event() {
        let chain =
            [stored(0x81, None, &[1, 2], Tier::Device), stored(0x82, Some(0x81), &[3, 300], Tier::Device)];
        let expected = [
            vec![0x91, 0x98],
            text("BlockStored"),
            vec![0x92],
            number(0x81),
            number(0x82),
            vec![0xc0, 0x94, 1, 2, 3, 0xcd, 1, 44, 2, 0xc0],
            text("GPU"),
            vec![0xc0],
        ];
        assert_eq!(between(&chain), expected.concat());
    }

    #[test]
    fn what_does_not_belong_together_stays_apart() {
        let events = [
            stored(0x81, Some(0x80), &[1], Tier::Device),
            stored(0x83, Some(0x82), &[1], Tier::Device),
            stored(0x84, Some(0x83), &[], Tier::Disk),
            removed(0x81, Tier::Device),
            removed(0x82, Tier::Device),
            removed(0x83, Tier::Object),
            KvEvent::AllBlocksCleared,
        ];
        let one = |hash, parent, tokens: &[u8], size, medium| {
            [
                vec![0x98],
                text("BlockStored"),
                vec![0x91],
                number(hash),
                number(parent),
                tokens.to_vec(),
                vec![size, 0xc0],
                text(medium),
                vec![0xc0],
            ]
            .concat()
        };
        let expected = [
            vec![0x96],
            one(0x81, 0x80, &[0x91, 1], 1, "GPU"),
            one(0x83, 0x82, &[0x91, 1], 1, "GPU"),
            one(0x84, 0x83, &[0x90], 0, "DISK"),
            [vec![0x93], text("BlockRemoved"), vec![0x92], number(0x81), number(0x82), text("GPU")].concat(),
            [vec![0x93], text("BlockRemoved"), vec![0x91], number(0x83), text("OBJECT_STORE")].concat(),
            [vec![0x91], text("AllBlocksCleared")].concat(),
        ];
        assert_eq!(between(&events), expected.concat());
    }

    #[test]
    fn a_hash_is_the_first_half_of_the_key() {
        let bytes = std::array::from_fn(|index| index as u8 + 1);
        assert_eq!(hash(&BlockKey::from_bytes(bytes)), 0x0102_0304_0506_0708);
    }
}
