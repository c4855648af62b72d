//! The layout of an object. All numbers are little-endian.
//!
//! ```text
//! magic                                               8
//! format version, block size, depth, number of tokens 4 each
//! block bytes                                         8
//! fingerprint's bytes, fingerprint                    4, 64
//! key, parent's key, root key                         16 each
//! checksum of the block (XXH3-128)                    16
//! token ids                                           4 each, as many as a block has positions
//! checksum of all this (XXH3-64)                      8
//! the block                                           block bytes
//! ```
//!
//! The checksums detect accidental damage. They do not protect against an attacker who can write to the store.

use bytes::{Bytes, BytesMut};
use trunkline_contract::{BlockKey, KEY_BYTES};
use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

/// The version of this layout. It is increased when the meaning of any byte changes.
pub const FORMAT_VERSION: u32 = 1;
/// The longest fingerprint that fits into the header.
pub const MAX_FINGERPRINT_BYTES: usize = 64;

const MAGIC: &[u8; 8] = b"TRNKOBJ\n";
const CHECKSUM_BYTES: usize = 8;
const FIXED_BYTES: usize = 8 + 4 * 4 + 8 + 4 + MAX_FINGERPRINT_BYTES + 3 * KEY_BYTES + 16;

/// The properties that all blocks of a server share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockShape {
    /// A digest of everything that the bits of a block depend on; 1 to [`MAX_FINGERPRINT_BYTES`] bytes.
    pub fingerprint: String,
    pub block_size: u32,
    pub block_bytes: u64,
}

/// A block with the metadata that its object stores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    pub key: BlockKey,
    pub parent: BlockKey,
    pub root: BlockKey,
    pub depth: u32,
    /// The block's tokens, one for each position.
    pub token_ids: Vec<u32>,
    /// The block's keys and values as the shard stores them.
    pub bytes: Bytes,
}

/// Describes why an object is not the expected block. The text never contains any of the object's content.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FormatError {
    /// The object is shorter or longer than an object of this shape.
    #[error("the object has {found} bytes, expected {expected}")]
    Size { found: u64, expected: u64 },
    /// The magic bytes or the format version differ.
    #[error("the object is not a block of format version {FORMAT_VERSION}")]
    Foreign,
    /// The object holds another block, or one that other weights, dtypes or kernels computed.
    #[error("the object's `{field}` is not the one asked for")]
    Other { field: &'static str },
    /// A checksum does not match.
    #[error("the object's {what} do not match their checksum")]
    Damaged { what: &'static str },
}

impl BlockShape {
    pub fn header_bytes(&self) -> usize {
        FIXED_BYTES + 4 * self.block_size as usize + CHECKSUM_BYTES
    }

    pub fn object_bytes(&self) -> u64 {
        self.header_bytes() as u64 + self.block_bytes
    }

    /// Returns the header of the object that holds `block`. The block's bytes follow it.
    ///
    /// Panics if the block does not have this shape.
    pub fn header(&self, block: &Block) -> Bytes {
        assert_eq!(block.token_ids.len(), self.block_size as usize, "tokens of a block");
        assert_eq!(block.bytes.len() as u64, self.block_bytes, "bytes of a block");
        assert!(self.fingerprint.len() <= MAX_FINGERPRINT_BYTES, "fingerprint `{}`", self.fingerprint);
        let mut bytes = BytesMut::with_capacity(self.header_bytes());
        bytes.extend_from_slice(MAGIC);
        for number in [FORMAT_VERSION, self.block_size, block.depth, self.block_size] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        bytes.extend_from_slice(&self.block_bytes.to_le_bytes());
        bytes.extend_from_slice(&self.padded_fingerprint());
        for key in [block.key, block.parent, block.root] {
            bytes.extend_from_slice(key.as_bytes());
        }
        bytes.extend_from_slice(&xxh3_128(&block.bytes).to_le_bytes());
        for id in &block.token_ids {
            bytes.extend_from_slice(&id.to_le_bytes());
        }
        let checksum = xxh3_64(&bytes);
        bytes.extend_from_slice(&checksum.to_le_bytes());
        bytes.freeze()
    }

    /// Verifies that `object` holds the block `key` of the path that begins at `root`, and returns it without a copy.
    pub fn read(&self, object: &Bytes, key: BlockKey, root: BlockKey) -> Result<Block, FormatError> {
        let (found, expected) = (object.len() as u64, self.object_bytes());
        if found != expected {
            return Err(FormatError::Size { found, expected });
        }
        let header = &object[..self.header_bytes()];
        // Before the checksum: another version may have it elsewhere.
        if header[..8] != *MAGIC || header[8..12] != FORMAT_VERSION.to_le_bytes() {
            return Err(FormatError::Foreign);
        }
        let (used, checksum) = header.split_at(header.len() - CHECKSUM_BYTES);
        if xxh3_64(used).to_le_bytes() != checksum {
            return Err(FormatError::Damaged { what: "key and tokens" });
        }
        let mut fields = Fields { bytes: &used[12..] };
        let [block_size, depth, num_tokens] = [(); 3].map(|()| u32::from_le_bytes(fields.take()));
        let block_bytes = u64::from_le_bytes(fields.take());
        let fingerprint: [u8; 4 + MAX_FINGERPRINT_BYTES] = fields.take();
        let [found_key, parent, found_root] = [(); 3].map(|()| BlockKey::from_bytes(fields.take()));
        let block_checksum = u128::from_le_bytes(fields.take());
        let token_ids: Vec<u32> = (0..self.block_size).map(|_| u32::from_le_bytes(fields.take())).collect();
        let is_as_asked = [
            ("fingerprint", fingerprint == self.padded_fingerprint()),
            ("block_size", block_size == self.block_size && num_tokens == self.block_size),
            ("block_bytes", block_bytes == self.block_bytes),
            ("key", found_key == key && parent.extend(&token_ids) == key),
            ("root", found_root == root),
        ];
        if let Some((field, _)) = is_as_asked.into_iter().find(|(_, is_right)| !is_right) {
            return Err(FormatError::Other { field });
        }
        let bytes = object.slice(self.header_bytes()..);
        if xxh3_128(&bytes) != block_checksum {
            return Err(FormatError::Damaged { what: "bytes" });
        }
        Ok(Block { key, parent, root, depth, token_ids, bytes })
    }

    /// Returns the fingerprint's length and the fingerprint, padded with zeros.
    fn padded_fingerprint(&self) -> [u8; 4 + MAX_FINGERPRINT_BYTES] {
        let mut padded = [0; 4 + MAX_FINGERPRINT_BYTES];
        padded[..4].copy_from_slice(&(self.fingerprint.len() as u32).to_le_bytes());
        padded[4..][..self.fingerprint.len()].copy_from_slice(self.fingerprint.as_bytes());
        padded
    }
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
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape() -> BlockShape {
        BlockShape { fingerprint: "ab12".to_owned(), block_size: 4, block_bytes: 100 }
    }

    fn block() -> Block {
        let root = BlockKey::root(["tenant"].into_iter());
        let parent = root.extend(&[9, 9, 9, 9]);
        let token_ids = vec![1, 2, 3, 70_000];
        let key = parent.extend(&token_ids);
        Block { key, parent, root, depth: 1, token_ids, bytes: (0..100).collect::<Vec<u8>>().into() }
    }

    fn object() -> Vec<u8> {
        [shape().header(&block()), block().bytes].concat()
    }

    fn read(object: Vec<u8>) -> Result<Block, FormatError> {
        shape().read(&object.into(), block().key, block().root)
    }

    #[test]
    fn a_block_comes_back() {
        assert_eq!(read(object()).unwrap(), block());
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_found() {
        for bit in 0..object().len() * 8 {
            let mut flipped = object();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(read(flipped).is_err(), "bit {bit}");
        }
        for len in 0..object().len() {
            let error = read(object()[..len].to_vec()).unwrap_err();
            assert!(matches!(error, FormatError::Size { .. }), "{len}: {error}");
        }
        let longer = [object(), vec![0]].concat();
        assert_eq!(read(longer).unwrap_err(), FormatError::Size { found: 289, expected: 288 });
    }

    #[test]
    fn what_others_made_is_another_block() {
        let other = BlockShape { fingerprint: "ab13".to_owned(), ..shape() };
        let foreign = [other.header(&block()), block().bytes].concat();
        assert_eq!(read(foreign).unwrap_err(), FormatError::Other { field: "fingerprint" });
        let (key, root) = (block().key, block().root);
        let whole: Bytes = object().into();
        let error = shape().read(&whole, key.extend(&[1]), root).unwrap_err();
        assert_eq!(error, FormatError::Other { field: "key" });
        let error = shape().read(&whole, key, key).unwrap_err();
        assert_eq!(error, FormatError::Other { field: "root" });
        // A header that is whole, over tokens that have another key.
        let lying = Block { token_ids: vec![5; 4], ..block() };
        let lying = [shape().header(&lying), block().bytes].concat();
        assert_eq!(read(lying).unwrap_err(), FormatError::Other { field: "key" });
    }
}
