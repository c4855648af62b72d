//! Helpers that the tests share.
#![allow(dead_code, reason = "each test uses some of it")]

pub mod disk;

use std::path::Path;

use trunkline_contract::BlockKey;
use trunkline_store::{Found, Geometry, NewBlock, ReadError, Store, WriteError};

use crate::draw::Random;

/// Bytes and positions of a block, number of slots.
pub const GEOMETRY: (u64, u32, u32) = (5000, 16, 8);

pub fn geometry() -> Geometry {
    let (block_bytes, block_size, num_slots) = GEOMETRY;
    Geometry { fingerprint: "0123456789abcdef".to_owned(), block_bytes, block_size, num_slots }
}

/// A path of blocks: `keys[0]` is the root, `keys[i + 1]` the block `i`.
pub struct Chain {
    pub keys: Vec<BlockKey>,
    pub token_ids: Vec<Vec<u32>>,
}

impl Chain {
    pub fn new(salt: &str, num_blocks: u32) -> Self {
        let size = GEOMETRY.1;
        let token_ids: Vec<Vec<u32>> =
            (0..num_blocks).map(|i| (i * size..(i + 1) * size).collect()).collect();
        let mut keys = vec![BlockKey::root([salt].into_iter())];
        for tokens in &token_ids {
            keys.push(keys[keys.len() - 1].extend(tokens));
        }
        Self { keys, token_ids }
    }

    pub fn block(&self, depth: usize) -> NewBlock<'_> {
        NewBlock {
            key: self.keys[depth + 1],
            parent: self.keys[depth],
            root: self.keys[0],
            depth: depth as u32,
            token_ids: &self.token_ids[depth],
        }
    }
}

/// Returns the content of the block with this key.
pub fn block_bytes(key: BlockKey) -> Vec<u8> {
    let mut random = Random(u64::from_le_bytes(key.as_bytes()[..8].try_into().expect("8 bytes")));
    (0..GEOMETRY.0).map(|_| random.next() as u8).collect()
}

pub fn open(folder: &Path) -> (Store, Found) {
    Store::open(folder, geometry()).expect("the store opens")
}

pub fn write(store: &Store, slot: u32, chain: &Chain, depth: usize) -> Result<(), WriteError> {
    store.write(slot, &chain.block(depth), &block_bytes(chain.keys[depth + 1]))
}

pub fn read(store: &Store, slot: u32, key: BlockKey) -> Result<Vec<u8>, ReadError> {
    let mut bytes = vec![0xa5; GEOMETRY.0 as usize];
    store.read(slot, key, &mut bytes).map(|_| bytes)
}
