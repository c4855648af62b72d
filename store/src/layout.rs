//! The layout of the two files. All numbers are little-endian.
//!
//! ```text
//! records    header                                   4096 bytes
//!              magic                                  8
//!              format version, block size, slots, 0   4 each
//!              block bytes                            8
//!              fingerprint's bytes, fingerprint       4, 64
//!              checksum of all this (XXH3-64)         8
//!            one record a slot                        a multiple of 512 bytes; zeros: the slot is empty
//!              magic                                  8
//!              slot, depth, number of tokens, 0       4 each
//!              time written (Unix seconds), sequence  8 each
//!              key, parent's key, root key            16 each
//!              checksum of the block (XXH3-128)       16
//!              token ids                              4 each, as many as a block has positions
//!              checksum of all this (XXH3-64)         8
//! blocks     one block a slot                         block bytes, rounded up to 4096
//! ```
//!
//! The checksums detect accidental damage. They do not protect against an attacker who can write to the folder.

use std::fmt;

use trunkline_contract::{BlockKey, KEY_BYTES};
use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

use crate::error::OpenError;

/// The version of this layout. It is increased when the meaning of any byte changes.
pub const FORMAT_VERSION: u32 = 1;
pub const HEADER_BYTES: usize = 4096;
pub const MAX_FINGERPRINT_BYTES: usize = 64;
pub const MAX_BLOCK_SIZE: u32 = 4096;
/// The largest block in bytes.
pub const MAX_BLOCK_BYTES: u64 = 1 << 34;
/// The upper bound of the number of slots, because all records are read at once.
pub const MAX_SLOTS: u32 = 1 << 26;

const HEADER_MAGIC: &[u8; 8] = b"TRNKKVS\n";
const RECORD_MAGIC: &[u8; 8] = b"TRNKBLK\n";
const CHECKSUM_BYTES: usize = 8;
const HEADER_USED: usize = 8 + 4 * 4 + 8 + 4 + MAX_FINGERPRINT_BYTES;
/// The sector size of old disks. A record within sectors of its own is torn only by a power loss.
const RECORD_MULTIPLE: usize = 512;
const RECORD_FIXED: usize = 8 + 4 * 4 + 8 * 2 + KEY_BYTES * 3 + 16;
/// The page size, so that blocks can be read with direct I/O.
const BLOCK_MULTIPLE: u64 = 4096;

/// The sizes of a store and the fingerprint of its blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// A digest of everything that the bits of a block depend on; at most [`MAX_FINGERPRINT_BYTES`].
    pub fingerprint: String,
    pub block_bytes: u64,
    pub block_size: u32,
    /// The number of slots, which are numbered from 0.
    pub num_slots: u32,
}

impl fmt::Display for Geometry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { fingerprint, block_bytes, block_size, num_slots } = self;
        write!(f, "{num_slots} blocks of {block_size} tokens and {block_bytes} bytes made by {fingerprint}")
    }
}

impl Geometry {
    pub fn check(&self) -> Result<(), OpenError> {
        let limits = [
            ("fingerprint's length", self.fingerprint.len() as u64, MAX_FINGERPRINT_BYTES as u64),
            ("block_bytes", self.block_bytes, MAX_BLOCK_BYTES),
            ("block_size", self.block_size.into(), MAX_BLOCK_SIZE.into()),
            ("num_slots", self.num_slots.into(), MAX_SLOTS.into()),
        ];
        match limits.into_iter().find(|(_, value, most)| !(1..=*most).contains(value)) {
            None => Ok(()),
            Some((field, value, most)) => {
                Err(OpenError::Geometry { field, value, expected: format!("1 to {most}") })
            }
        }
    }

    /// Returns true if `other` differs at most in the number of slots, so that its blocks fit into this store.
    pub fn holds_blocks_of(&self, other: &Self) -> bool {
        *self == Self { num_slots: self.num_slots, ..other.clone() }
    }

    pub fn record_bytes(&self) -> usize {
        (RECORD_FIXED + 4 * self.block_size as usize + CHECKSUM_BYTES).next_multiple_of(RECORD_MULTIPLE)
    }

    /// Returns the distance from one block to the next in bytes.
    pub fn slot_bytes(&self) -> u64 {
        self.block_bytes.next_multiple_of(BLOCK_MULTIPLE)
    }

    pub fn record_offset(&self, slot: u32) -> u64 {
        HEADER_BYTES as u64 + u64::from(slot) * self.record_bytes() as u64
    }

    pub fn block_offset(&self, slot: u32) -> u64 {
        u64::from(slot) * self.slot_bytes()
    }

    /// Encodes the geometry as the bytes of a header.
    pub fn header(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER_BYTES);
        bytes.extend(HEADER_MAGIC);
        for number in [FORMAT_VERSION, self.block_size, self.num_slots, 0] {
            bytes.extend(number.to_le_bytes());
        }
        bytes.extend(self.block_bytes.to_le_bytes());
        bytes.extend((self.fingerprint.len() as u32).to_le_bytes());
        bytes.extend(self.fingerprint.as_bytes());
        bytes.resize(HEADER_USED, 0);
        bytes.extend(xxh3_64(&bytes).to_le_bytes());
        bytes.resize(HEADER_BYTES, 0);
        bytes
    }

    /// Decodes a header. The error is the predicate of a sentence whose subject is the file.
    pub fn from_header(bytes: &[u8]) -> Result<Self, String> {
        if bytes.is_empty() {
            return Err("is empty".to_owned());
        }
        if bytes.len() < HEADER_BYTES || bytes[..8] != *HEADER_MAGIC {
            return Err("is no file of records of a store".to_owned());
        }
        let (used, checksum) = bytes[..HEADER_USED + CHECKSUM_BYTES].split_at(HEADER_USED);
        let mut fields = Fields { bytes: &used[8..] };
        // Before the checksum: another version may have it elsewhere.
        let version = fields.u32();
        if version != FORMAT_VERSION {
            return Err(format!("has format version {version}, expected {FORMAT_VERSION}"));
        }
        if xxh3_64(used).to_le_bytes() != checksum {
            return Err("has a damaged header".to_owned());
        }
        let (block_size, num_slots, _zero) = (fields.u32(), fields.u32(), fields.u32());
        let block_bytes = fields.u64();
        let len = fields.u32() as usize;
        let fingerprint = fields.bytes.get(..len).and_then(|bytes| std::str::from_utf8(bytes).ok());
        let fingerprint = fingerprint.ok_or("has a damaged header")?.to_owned();
        let geometry = Self { fingerprint, block_bytes, block_size, num_slots };
        geometry.check().map_err(|error| format!("has a header that cannot be: {error}"))?;
        Ok(geometry)
    }
}

/// The metadata of a stored block, without its tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredBlock {
    pub slot: u32,
    pub key: BlockKey,
    /// The key of the previous block of the path, or the root key.
    pub parent: BlockKey,
    /// The key that stands before the first block of the path; it is derived from the salt.
    pub root: BlockKey,
    /// The index of the block in its path, from 0.
    pub depth: u32,
    pub num_tokens: u32,
    /// The time of writing in Unix seconds, by this machine's clock.
    pub written_at: u64,
    /// Greater than the sequence number of every block that the store accepted before, across restarts.
    pub sequence: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) block: StoredBlock,
    /// [`block_checksum`] of the block.
    pub(crate) checksum: u128,
    pub(crate) token_ids: Vec<u32>,
}

/// The decoded record of a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Slot {
    Empty,
    /// The record's checksum or content is wrong.
    Damaged,
    Holds(Record),
}

pub(crate) fn block_checksum(bytes: &[u8]) -> u128 {
    xxh3_128(bytes)
}

impl Record {
    /// Encodes the record into `bytes`, which then holds [`Geometry::record_bytes`] bytes.
    pub(crate) fn encode(&self, geometry: &Geometry, bytes: &mut Vec<u8>) {
        let block = &self.block;
        debug_assert_eq!(self.token_ids.len(), block.num_tokens as usize);
        bytes.clear();
        bytes.extend(RECORD_MAGIC);
        for number in [block.slot, block.depth, block.num_tokens, 0] {
            bytes.extend(number.to_le_bytes());
        }
        bytes.extend(block.written_at.to_le_bytes());
        bytes.extend(block.sequence.to_le_bytes());
        [block.key, block.parent, block.root].iter().for_each(|key| bytes.extend(key.as_bytes()));
        bytes.extend(self.checksum.to_le_bytes());
        self.token_ids.iter().for_each(|id| bytes.extend(id.to_le_bytes()));
        bytes.resize(RECORD_FIXED + 4 * geometry.block_size as usize, 0);
        bytes.extend(xxh3_64(bytes).to_le_bytes());
        bytes.resize(geometry.record_bytes(), 0);
    }
}

impl Slot {
    /// Decodes the record of `slot` from its [`Geometry::record_bytes`] bytes.
    pub(crate) fn decode(geometry: &Geometry, slot: u32, bytes: &[u8]) -> Self {
        debug_assert_eq!(bytes.len(), geometry.record_bytes());
        if bytes.iter().all(|byte| *byte == 0) {
            return Self::Empty;
        }
        let used = RECORD_FIXED + 4 * geometry.block_size as usize;
        if bytes[..8] != *RECORD_MAGIC || xxh3_64(&bytes[..used]).to_le_bytes() != bytes[used..][..8] {
            return Self::Damaged;
        }
        let mut fields = Fields { bytes: &bytes[8..used] };
        let (found, depth, num_tokens, _zero) = (fields.u32(), fields.u32(), fields.u32(), fields.u32());
        if found != slot || !(1..=geometry.block_size).contains(&num_tokens) {
            return Self::Damaged;
        }
        let (written_at, sequence) = (fields.u64(), fields.u64());
        let [key, parent, root] = [(); 3].map(|()| BlockKey::from_bytes(fields.take()));
        let checksum = u128::from_le_bytes(fields.take());
        let token_ids = (0..num_tokens).map(|_| fields.u32()).collect();
        let block = StoredBlock { slot, key, parent, root, depth, num_tokens, written_at, sequence };
        Self::Holds(Record { block, checksum, token_ids })
    }
}

/// Returns true if the bytes begin like a header, of whatever version.
pub(crate) fn is_header(bytes: &[u8]) -> bool {
    bytes.starts_with(HEADER_MAGIC)
}

/// Reads fixed-size fields one after the other from bytes that are known to suffice.
struct Fields<'a> {
    bytes: &'a [u8],
}

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let (field, rest) = self.bytes.split_first_chunk().expect("the format has room for its fields");
        self.bytes = rest;
        *field
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn geometry() -> Geometry {
        Geometry { fingerprint: "ab12".to_owned(), block_bytes: 5000, block_size: 16, num_slots: 9 }
    }

    fn record() -> Record {
        let token_ids: Vec<u32> = (7..23).collect();
        let root = BlockKey::root(["tenant"].into_iter());
        let (key, written_at) = (root.extend(&token_ids), 1_800_000_000);
        let block = StoredBlock {
            slot: 3,
            key,
            parent: root,
            root,
            depth: 0,
            num_tokens: 16,
            written_at,
            sequence: 41,
        };
        Record { block, checksum: 1 << 100, token_ids }
    }

    #[test]
    fn headers_and_records_come_back() {
        let geometry = geometry();
        assert_eq!(Geometry::from_header(&geometry.header()).unwrap(), geometry);
        let mut bytes = Vec::new();
        record().encode(&geometry, &mut bytes);
        assert_eq!(bytes.len(), 512);
        assert_eq!(Slot::decode(&geometry, 3, &bytes), Slot::Holds(record()));
        assert_eq!(Slot::decode(&geometry, 4, &bytes), Slot::Damaged, "a record that lies elsewhere");
        assert_eq!(Slot::decode(&geometry, 3, &[0; 512]), Slot::Empty);
        assert_eq!(geometry.slot_bytes(), 8192);
        assert_eq!((geometry.record_offset(2), geometry.block_offset(2)), (4096 + 1024, 16384));
    }

    #[test]
    fn every_flipped_bit_is_found() {
        let geometry = geometry();
        let mut bytes = Vec::new();
        record().encode(&geometry, &mut bytes);
        for bit in 0..8 * (RECORD_FIXED + 16 * 4 + CHECKSUM_BYTES) {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Slot::decode(&geometry, 3, &bytes), Slot::Damaged, "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        let mut header = geometry.header();
        for bit in 0..8 * (HEADER_USED + CHECKSUM_BYTES) {
            header[bit / 8] ^= 1 << (bit % 8);
            assert!(Geometry::from_header(&header).is_err(), "bit {bit}");
            header[bit / 8] ^= 1 << (bit % 8);
        }
        for cut in [0, 1, 8, 100, HEADER_BYTES - 1] {
            assert!(Geometry::from_header(&header[..cut]).is_err());
        }
    }

    #[test]
    fn sizes_that_cannot_be_are_refused() {
        let most = MAX_FINGERPRINT_BYTES;
        assert!(Geometry { fingerprint: "a".repeat(most), ..geometry() }.check().is_ok());
        for bad in [
            Geometry { fingerprint: "a".repeat(most + 1), ..geometry() },
            Geometry { block_bytes: 0, ..geometry() },
            Geometry { block_bytes: MAX_BLOCK_BYTES + 1, ..geometry() },
            Geometry { block_size: MAX_BLOCK_SIZE + 1, ..geometry() },
            Geometry { num_slots: MAX_SLOTS + 1, ..geometry() },
        ] {
            assert!(bad.check().is_err(), "{bad:?}");
        }
        let error = Geometry { num_slots: 0, ..geometry() }.check().unwrap_err().to_string();
        assert_eq!(error, "`num_slots` of the store is 0, expected 1 to 67108864");
    }
}
