//! The pool of KV blocks, which hold the keys and values of all layers.
//!
//! A block is contiguous, so it can be copied to another tier in one piece:
//!
//! ```text
//! block:  layer 0 | layer 1 | ...
//! layer:  head 0  | head 1  | ... (G of them)
//! head:   K | V | scales of K | scales of V
//! ```
//!
//! In a pool made by [`KvPool::by_layer`], parts of which may be on disk, each layer has its blocks next to each other
//! instead.
//!
//! The layout of a head depends on the dtype. With f16 and bf16 there are no scales:
//!
//! ```text
//! K [D][B]            positions contiguous: a vector of scores is 16 adjacent positions
//! V [B][D padded]     elements contiguous, padded to 16: a vector of the result is 16 adjacent elements
//! ```
//!
//! With latent attention a key's last elements are its value, and there is only
//!
//! ```text
//! K [B][D padded]     elements contiguous, padded to 16
//! ```
//!
//! With int8 each token's head is transformed ([`crate::ops::hadamard`]), rounded to bytes with one scale
//! ([`crate::ops::quantize_head`]) and laid out so that 64 adjacent bytes are 16 lanes of an integer dot product:
//!
//! ```text
//! K [B / 16][D / 4][16][4]   16 positions, 4 elements of each, unsigned: 128 is zero
//! V [B / 64][16][D padded][4]   16 elements, 4 positions of each, signed: quad i of 64 positions is i, i + 16, ...
//! scales [B] bf16            NaN in both if a key or value was not finite
//! ```
//!
//! With int4 the transformed head is rounded to 16 levels ([`crate::ops::quantize_nibbles`]). A byte holds two elements
//! of one position, so 64 bytes unpack to two such vectors of int8. If the number of vectors is odd, the upper nibbles
//! of the last one are unused:
//!
//! ```text
//! K [B / 16][D / 8][16][4]   the lower nibbles of quads 0, 2, ..., the upper ones of quads 1, 3, ...
//! V [B / 64][16][D / 32][16][4]   the lower nibbles of elements 0..16, 32..48, ..., the upper ones of 16..32, ...
//! scales [B] f16             as in int8
//! first key [D]              the key of position 0 of the block as bytes, as in int8; its nibbles are not read
//! ```
//!
//! Many heads attend mostly to the first token of a sequence, whose key is unlike all others: rounding it to four bits
//! would cost as much accuracy as rounding all others. A block does not know whether it is a sequence's first, so every
//! block stores its first key as bytes.

mod copy;
mod geometry;
mod key_scaling;
mod key_turns;
mod whole;
mod window_parts;
mod write;

use std::ptr::NonNull;

use memmap2::{MmapMut, MmapOptions};

pub use geometry::{KvDtype, KvGeometry};
pub use geometry::{MAX_BLOCK_SIZE, MAX_HEAD_SIZE, NIBBLES, QUAD, VALUE_GROUP};
pub use key_scaling::{HeadScaling, KeyScaling, KeySums};
pub use key_turns::{KeyMean, KeyTurns};
pub use window_parts::WindowLimits;

use crate::isa::Isa;
use window_parts::WindowParts;
use write::{Slot, prefetch_slot, write_latent_slot, write_slot};

#[derive(Debug, thiserror::Error)]
pub enum KvPoolError {
    #[error("`{field}` is {value}, expected {expected}")]
    Geometry { field: &'static str, value: usize, expected: &'static str },
    #[error("keys with a latent are stored as f16 or bf16, but the KV dtype is {dtype}")]
    LatentDtype { dtype: KvDtype },
    #[error("KV dtype is {name:?}; hint: use `int8`, `int4`, `f16` or `bf16`")]
    UnknownDtype { name: String },
    /// The pool exceeds the address space or the overcommit limit.
    #[error(
        "cannot map {bytes} bytes for {num_blocks} KV blocks: {source}; hint: lower the number of blocks"
    )]
    Map { bytes: u128, num_blocks: usize, source: std::io::Error },
    #[error("block {block_id} does not exist, the pool has {num_blocks} blocks")]
    UnknownBlock { block_id: u32, num_blocks: usize },
    #[error("block {block_id} needs a window part, but all {num_parts} are in use")]
    NoWindowPart { block_id: u32, num_parts: usize },
    /// The whole block is needed, but its window part was dropped.
    #[error("block {block_id} has no window part")]
    WindowPartGone { block_id: u32 },
    /// The copy is empty, longer than a block, or from a block to itself.
    #[error(
        "cannot copy {num_tokens} tokens of block {source_id} to {destination_id} (block size {block_size})"
    )]
    BadCopy { source_id: u32, destination_id: u32, num_tokens: usize, block_size: usize },
}

/// The memory of all blocks. It is mapped without reservation and becomes resident when a block is first written.
#[derive(Debug)]
pub struct KvPool {
    map: MmapMut,
    geometry: KvGeometry,
    num_blocks: usize,
    strides: Strides,
    /// The window parts, if windowed layers are stored separately.
    windows: Option<WindowParts>,
    /// Only used with int4.
    key_scaling: KeyScaling,
    key_turns: KeyTurns,
}

/// The distances between the layers of a block, and between blocks, in bytes. Not used with window parts.
#[derive(Clone, Copy, Debug)]
struct Strides {
    block: usize,
    layer: usize,
}

impl Strides {
    #[inline]
    fn offset(self, layer: usize, block_id: u32) -> usize {
        block_id as usize * self.block + layer * self.layer
    }
}

/// Maps zeroed memory for `count` blocks or parts. It becomes resident when it is first touched.
fn map_bytes(bytes_each: usize, count: usize) -> Result<MmapMut, KvPoolError> {
    let map = map_small_pages(bytes_each, count)?;
    // Blocks are far apart: with 4 KiB pages, reading a block needs page table walks that miss all caches (Zen 4: 12
    // instead of 17 GB/s). A system without huge pages refuses the advice, which is harmless.
    #[cfg(target_os = "linux")]
    let _refused = map.advise(memmap2::Advice::HugePage).is_err();
    Ok(map)
}

fn map_small_pages(bytes_each: usize, count: usize) -> Result<MmapMut, KvPoolError> {
    let bytes = bytes_each as u128 * count as u128;
    let fail = |source| KvPoolError::Map { bytes, num_blocks: count, source };
    let len = usize::try_from(bytes).map_err(|_| fail(std::io::ErrorKind::OutOfMemory.into()))?;
    // If all layers of a model have windows, blocks without their window parts are empty.
    MmapOptions::new().len(len.max(1)).no_reserve_swap().map_anon().map_err(fail)
}

impl KvPool {
    /// Creates a pool of `num_blocks` zeroed blocks.
    pub fn new(geometry: KvGeometry, num_blocks: usize) -> Result<Self, KvPoolError> {
        Self::with_windows(geometry, num_blocks, None)
    }

    /// Creates a pool that stores windowed layers in window parts; with `None`, all layers are stored together.
    pub fn with_windows(
        geometry: KvGeometry,
        num_blocks: usize,
        windows: Option<&WindowLimits>,
    ) -> Result<Self, KvPoolError> {
        check_size(&geometry, num_blocks)?;
        let windows = windows.map(|limits| WindowParts::new(&geometry, num_blocks, limits)).transpose()?;
        let block_bytes = windows.as_ref().map_or(geometry.bytes_per_block(), |parts| parts.base_bytes);
        let map = map_bytes(block_bytes, num_blocks)?;
        let strides = Strides { block: geometry.bytes_per_block(), layer: geometry.layer_bytes() };
        Ok(Self::of(map, geometry, num_blocks, strides, windows))
    }

    /// Creates a pool in which each layer has its blocks next to each other. `layer_stride` is the distance between
    /// layers, in bytes. The memory has small pages, so that parts of it can be given back.
    ///
    /// Panics if the blocks of a layer take more than `layer_stride`.
    pub fn by_layer(
        geometry: KvGeometry,
        num_blocks: usize,
        layer_stride: usize,
    ) -> Result<Self, KvPoolError> {
        check_size(&geometry, num_blocks)?;
        let block = geometry.layer_bytes();
        assert!(num_blocks * block <= layer_stride, "room for all blocks of a layer");
        let map = map_small_pages(layer_stride, geometry.num_layers)?;
        #[cfg(target_os = "linux")]
        let _refused = map.advise(memmap2::Advice::NoHugePage).is_err();
        Ok(Self::of(map, geometry, num_blocks, Strides { block, layer: layer_stride }, None))
    }

    fn of(
        map: MmapMut,
        geometry: KvGeometry,
        num_blocks: usize,
        strides: Strides,
        windows: Option<WindowParts>,
    ) -> Self {
        Self {
            map,
            geometry,
            num_blocks,
            strides,
            windows,
            key_scaling: KeyScaling::none(&geometry),
            key_turns: KeyTurns::fixed(geometry.num_layers),
        }
    }

    /// The memory of all blocks.
    pub fn memory(&mut self) -> NonNull<[u8]> {
        NonNull::from(&mut self.map[..])
    }

    /// Bytes of one block without its window part.
    pub fn bytes_per_block(&self) -> usize {
        self.windows.as_ref().map_or(self.geometry.bytes_per_block(), |parts| parts.base_bytes)
    }

    pub fn bytes_per_window_part(&self) -> usize {
        self.windows.as_ref().map_or(0, |parts| parts.part_bytes)
    }

    pub fn num_free_window_parts(&self) -> usize {
        self.windows.as_ref().map_or(0, WindowParts::num_free)
    }

    /// Returns true if the block has its window part, or if blocks have none. Panics if there is no such block.
    pub fn has_window_part(&self, block_id: u32) -> bool {
        self.windows.as_ref().is_none_or(|parts| parts.part(block_id).is_some())
    }

    /// Allocates a window part with arbitrary contents for a block that has none. Fails if all parts are in use.
    pub fn take_window_part(&mut self, block_id: u32) -> Result<(), KvPoolError> {
        self.check_block(block_id)?;
        match &mut self.windows {
            Some(parts) => parts.take(block_id).map(drop),
            None => Ok(()),
        }
    }

    pub fn drop_window_part(&mut self, block_id: u32) -> Result<(), KvPoolError> {
        self.check_block(block_id)?;
        if let Some(parts) = &mut self.windows {
            parts.drop_part(block_id);
        }
        Ok(())
    }

    /// Sets the scaling of keys, which changes the meaning of the blocks' contents. Only int4 uses it. `key_turns` must
    /// have a row for each block of the longest sequence.
    ///
    /// Panics if `key_scaling` is for another geometry.
    pub fn set_key_scaling(&mut self, key_scaling: KeyScaling, key_turns: KeyTurns) {
        assert_eq!(key_scaling.values().len(), self.key_scaling.values().len(), "another geometry");
        self.key_scaling = key_scaling;
        self.key_turns = key_turns;
    }

    /// The scaling of keys; the default changes nothing.
    pub fn key_scaling(&self) -> &KeyScaling {
        &self.key_scaling
    }

    pub fn geometry(&self) -> &KvGeometry {
        &self.geometry
    }

    /// Number of blocks. Block ids are smaller.
    pub fn num_blocks(&self) -> usize {
        self.num_blocks
    }

    pub fn check_block(&self, block_id: u32) -> Result<(), KvPoolError> {
        if (block_id as usize) < self.num_blocks {
            Ok(())
        } else {
            Err(KvPoolError::UnknownBlock { block_id, num_blocks: self.num_blocks })
        }
    }

    /// Borrows the pool for the threads of one step.
    pub fn view(&mut self) -> KvView<'_> {
        let bytes = self.map.as_mut_ptr();
        let window_bytes = self.windows.as_mut().map_or(bytes, |parts| parts.map.as_mut_ptr());
        let geometry = self.geometry;
        KvView {
            bytes,
            window_bytes,
            geometry,
            strides: self.strides,
            layer_bytes: geometry.layer_bytes(),
            head_bytes: geometry.head_bytes(),
            pool: self,
        }
    }

    /// Overwrites all memory with the pattern `bits`. Results do not depend on it: steps read only what they wrote.
    pub fn fill(&mut self, bits: u16) {
        let maps = std::iter::once(&mut self.map).chain(self.windows.as_mut().map(|parts| &mut parts.map));
        for map in maps {
            map.chunks_exact_mut(2).for_each(|pair| pair.copy_from_slice(&bits.to_ne_bytes()));
        }
    }
}

fn check_size(geometry: &KvGeometry, num_blocks: usize) -> Result<(), KvPoolError> {
    geometry.check()?;
    if num_blocks == 0 || num_blocks > u32::MAX as usize {
        let expected = "1 to 2^32 - 1";
        return Err(KvPoolError::Geometry { field: "num_blocks", value: num_blocks, expected });
    }
    Ok(())
}

/// Shared access to a pool within a step. Different threads write the slots of different tokens and read them after a
/// barrier.
#[derive(Clone, Copy)]
pub struct KvView<'a> {
    bytes: *mut u8,
    /// Pointer to the window parts, if windowed layers are stored separately.
    window_bytes: *mut u8,
    // The sizes are kept here because pointers are computed for every block that attention reads.
    geometry: KvGeometry,
    strides: Strides,
    layer_bytes: usize,
    head_bytes: usize,
    /// The pool, which is borrowed exclusively for 'a. Its memory is accessed only by the pointers.
    pool: &'a KvPool,
}

// SAFETY: the pool is borrowed exclusively for 'a, and callers of the unsafe methods rule out data races.
unsafe impl Send for KvView<'_> {}
// SAFETY: as above.
unsafe impl Sync for KvView<'_> {}

impl KvView<'_> {
    #[inline]
    pub fn geometry(&self) -> &KvGeometry {
        &self.geometry
    }

    #[inline]
    fn head(&self, layer: usize, block_id: u32, head: usize) -> *mut u8 {
        let g = self.geometry();
        assert!((block_id as usize) < self.pool.num_blocks && layer < g.num_layers && head < g.num_kv_heads);
        let (base, offset) = match &self.pool.windows {
            None => (self.bytes, self.strides.offset(layer, block_id)),
            Some(windows) => match windows.offset(layer, block_id, self.layer_bytes) {
                (true, offset) => (self.window_bytes, offset),
                (false, offset) => (self.bytes, offset),
            },
        };
        // SAFETY: the assertion and the window parts ensure that the offset is inside the mapping.
        unsafe { base.add(offset + head * self.head_bytes) }
    }

    /// Returns a pointer to K of one block and head. Panics if there is no such layer, block or head.
    #[inline]
    pub fn keys(&self, layer: usize, block_id: u32, head: usize) -> *const u8 {
        self.head(layer, block_id, head)
    }

    /// Returns a pointer to V of one block and head. Panics like [`KvView::keys`].
    #[inline]
    pub fn values(&self, layer: usize, block_id: u32, head: usize) -> *const u8 {
        // SAFETY: V follows K of the same head, or is a part of it.
        unsafe { self.head(layer, block_id, head).add(self.geometry().values_offset()) }
    }

    /// Returns pointers to the scales of K and of V of one block and head, `[B]` each: bf16 for int8, f16 for int4.
    /// Other dtypes have no scales. Panics like [`KvView::keys`].
    #[inline]
    pub fn scales(&self, layer: usize, block_id: u32, head: usize) -> [*const u8; 2] {
        let g = self.geometry();
        // SAFETY: the scales follow V of the same head.
        unsafe {
            let scales = self.head(layer, block_id, head).add(g.key_bytes() + g.value_bytes());
            [scales, scales.add(g.scale_bytes())]
        }
    }

    /// Returns a pointer to the bytes of a block's first key, for int4. Panics like [`KvView::keys`].
    #[inline]
    pub fn first_key(&self, layer: usize, block_id: u32, head: usize) -> *const u8 {
        // SAFETY: it follows the scales of the same head.
        unsafe { self.head(layer, block_id, head).add(self.geometry().first_key_offset()) }
    }

    /// The scaling of int4 keys of a layer and KV head. Panics if there is no such head.
    #[inline]
    pub fn head_scaling(&self, layer: usize, kv_head: usize) -> HeadScaling<'_> {
        self.pool.key_scaling.head(layer, kv_head)
    }

    /// The rotation of a layer's key means to block `block` of a sequence, as returned by [`KeyTurns::row`].
    #[inline(always)]
    pub fn key_turn(&self, layer: usize, block: usize) -> &[f32] {
        self.pool.key_turns.row(layer, block)
    }

    /// Prefetches the cache lines that [`KvView::write`] will write in this slot. Panics like [`KvView::keys`].
    pub fn prefetch_slot(&self, layer: usize, block_id: u32, offset: usize) {
        prefetch_slot(self.geometry(), Slot { head: self.head(layer, block_id, 0), offset });
    }

    /// Returns a pointer to the states of recurrent layers that a block has. Panics if it has no part.
    pub fn state(&self, block_id: u32) -> *mut f32 {
        let windows = self.pool.windows.as_ref().expect("a model with states has parts");
        // SAFETY: the offset is inside the mapping.
        unsafe { self.window_bytes.add(windows.state_offset(block_id)).cast() }
    }

    /// Stores the key and value, `[G * D]` each, of the token at `position` of a sequence in its slot of `block_id`.
    ///
    /// # Safety
    /// No other thread may read or write this slot of `layer` during the call.
    pub unsafe fn write(
        &self,
        isa: Isa,
        layer: usize,
        block_id: u32,
        position: usize,
        key: &[f32],
        value: &[f32],
    ) {
        let g = self.geometry();
        assert!(key.len() == g.num_kv_heads * g.head_size && value.len() == key.len());
        assert!(g.latent_size.is_none(), "the value is a part of the key");
        let slot = Slot { head: self.head(layer, block_id, 0), offset: position % g.block_size };
        let turn = self.key_turn(layer, position / g.block_size);
        // SAFETY: the slot lies in the pool, and the caller rules out other accesses.
        unsafe { write_slot(isa, g, (&self.pool.key_scaling, turn), layer, slot, key, value) }
    }

    /// Stores the key `[G * D]` of a token, whose last elements are its value; see [`KvView::write`].
    ///
    /// # Safety
    /// No other thread may read or write this slot of `layer` during the call.
    pub unsafe fn write_latent(&self, isa: Isa, layer: usize, block_id: u32, position: usize, key: &[f32]) {
        let g = self.geometry();
        assert!(key.len() == g.num_kv_heads * g.head_size && g.latent_size.is_some());
        let slot = Slot { head: self.head(layer, block_id, 0), offset: position % g.block_size };
        // SAFETY: the slot lies in the pool, and the caller rules out other accesses.
        unsafe { write_latent_slot(isa, g, slot, key) }
    }
}
