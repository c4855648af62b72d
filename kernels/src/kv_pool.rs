//! The pool of KV blocks: keys and values of all layers as IEEE half floats.
//!
//! One block is contiguous, so that a copy to another tier is one read:
//!
//! ```text
//! block:  layer 0 | layer 1 | ...
//! layer:  head 0  | head 1  | ... (G of them)
//! head:   K [D][B] positions contiguous: a vector of scores is 16 neighbouring positions
//!         V [B][D padded to 16] elements contiguous: a vector of the result is 16 neighbouring elements
//! ```

use memmap2::{MmapMut, MmapOptions};

use crate::isa::Isa;
use crate::ops::vector::{LANES, Lanes, simd_entry};

/// Block sizes are multiples of this ...
pub const MIN_BLOCK_SIZE: usize = 16;
/// ... up to this, and divide [`crate::ops::attention::SEGMENT_SIZE`].
pub const MAX_BLOCK_SIZE: usize = 128;
/// Largest head that the kernels' stack buffers are made for.
pub const MAX_HEAD_SIZE: usize = 512;

/// Why a pool cannot be made or used so.
#[derive(Debug, thiserror::Error)]
pub enum KvPoolError {
    /// The geometry is outside of what the kernels are made for.
    #[error("`{field}` is {value}, expected {expected}")]
    Geometry {
        /// Name of the parameter.
        field: &'static str,
        /// Value received.
        value: usize,
        /// What is allowed.
        expected: &'static str,
    },
    /// The address space or the overcommit limit does not hold the pool.
    #[error(
        "cannot map {bytes} bytes for {num_blocks} KV blocks: {source}; hint: lower the number of blocks"
    )]
    Map {
        /// Bytes asked for.
        bytes: u128,
        /// Blocks asked for.
        num_blocks: usize,
        /// The system's answer.
        source: std::io::Error,
    },
    /// A block id that the pool does not have.
    #[error("block {block_id} does not exist, the pool has {num_blocks} blocks")]
    UnknownBlock {
        /// Block named.
        block_id: u32,
        /// Blocks there.
        num_blocks: usize,
    },
    /// A copy of nothing, of more than a block, or onto itself.
    #[error(
        "cannot copy {num_tokens} tokens of block {source_id} to {destination_id} (block size {block_size})"
    )]
    BadCopy {
        /// Source block.
        source_id: u32,
        /// Destination block.
        destination_id: u32,
        /// Positions to copy.
        num_tokens: usize,
        /// Positions in a block.
        block_size: usize,
    },
}

/// Sizes of a pool, in the letters of [`crate::ops`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvGeometry {
    /// Layers of the model.
    pub num_layers: usize,
    /// Key/value heads of a layer, G.
    pub num_kv_heads: usize,
    /// Elements of a head, D.
    pub head_size: usize,
    /// Positions in a block, B.
    pub block_size: usize,
}

impl KvGeometry {
    /// Checks every size against what the kernels are made for.
    pub fn check(&self) -> Result<(), KvPoolError> {
        let bad = |field, value, expected| Err(KvPoolError::Geometry { field, value, expected });
        let block_size = self.block_size;
        if !(1..=4096).contains(&self.num_layers) {
            return bad("num_layers", self.num_layers, "1 to 4096");
        }
        if !(1..=1024).contains(&self.num_kv_heads) {
            return bad("num_kv_heads", self.num_kv_heads, "1 to 1024");
        }
        if self.head_size == 0 || self.head_size > MAX_HEAD_SIZE {
            return bad("head_size", self.head_size, "1 to 512");
        }
        if !(MIN_BLOCK_SIZE..=MAX_BLOCK_SIZE).contains(&block_size) || !block_size.is_power_of_two() {
            return bad("block_size", block_size, "16, 32, 64 or 128");
        }
        Ok(())
    }

    /// Head size rounded up to whole vectors: the stride of V's rows.
    pub fn padded_head_size(&self) -> usize {
        self.head_size.next_multiple_of(LANES)
    }

    fn key_elements(&self) -> usize {
        self.head_size * self.block_size
    }

    fn head_elements(&self) -> usize {
        self.key_elements() + self.padded_head_size() * self.block_size
    }

    fn layer_elements(&self) -> usize {
        self.head_elements() * self.num_kv_heads
    }

    fn block_elements(&self) -> usize {
        self.layer_elements() * self.num_layers
    }

    /// Bytes of one block: K and V of all layers.
    pub fn bytes_per_block(&self) -> usize {
        self.block_elements() * size_of::<u16>()
    }
}

/// Owns the blocks. Memory is mapped without reservation and becomes resident when a block is first written.
#[derive(Debug)]
pub struct KvPool {
    map: MmapMut,
    geometry: KvGeometry,
    num_blocks: usize,
}

impl KvPool {
    /// A pool of `num_blocks` blocks of zeros.
    pub fn new(geometry: KvGeometry, num_blocks: usize) -> Result<Self, KvPoolError> {
        geometry.check()?;
        if num_blocks == 0 || num_blocks > u32::MAX as usize {
            let expected = "1 to 2^32 - 1";
            return Err(KvPoolError::Geometry { field: "num_blocks", value: num_blocks, expected });
        }
        let bytes = geometry.bytes_per_block() as u128 * num_blocks as u128;
        let fail = |source| KvPoolError::Map { bytes, num_blocks, source };
        let len = usize::try_from(bytes).map_err(|_| fail(std::io::ErrorKind::OutOfMemory.into()))?;
        let map = MmapOptions::new().len(len).no_reserve_swap().map_anon().map_err(fail)?;
        Ok(Self { map, geometry, num_blocks })
    }

    /// Sizes of the pool.
    pub fn geometry(&self) -> &KvGeometry {
        &self.geometry
    }

    /// Number of blocks; ids are below it.
    pub fn num_blocks(&self) -> usize {
        self.num_blocks
    }

    /// Fails if the pool has no block `block_id`.
    pub fn check_block(&self, block_id: u32) -> Result<(), KvPoolError> {
        if (block_id as usize) < self.num_blocks {
            Ok(())
        } else {
            Err(KvPoolError::UnknownBlock { block_id, num_blocks: self.num_blocks })
        }
    }

    /// Copies the first `num_tokens` positions of `source` onto `destination`: all layers, K and V.
    pub fn copy_block(
        &mut self,
        source: u32,
        destination: u32,
        num_tokens: usize,
    ) -> Result<(), KvPoolError> {
        self.check_block(source)?;
        self.check_block(destination)?;
        let g = self.geometry;
        if source == destination || num_tokens == 0 || num_tokens > g.block_size {
            return Err(KvPoolError::BadCopy {
                source_id: source,
                destination_id: destination,
                num_tokens,
                block_size: g.block_size,
            });
        }
        let from = source as usize * g.block_elements();
        let to = destination as usize * g.block_elements();
        let elements = self.elements_mut();
        if num_tokens == g.block_size {
            elements.copy_within(from..from + g.block_elements(), to);
            return Ok(());
        }
        for head in 0..g.num_layers * g.num_kv_heads {
            let head = head * g.head_elements();
            for d in 0..g.head_size {
                let key = head + d * g.block_size;
                elements.copy_within(from + key..from + key + num_tokens, to + key);
            }
            let value = head + g.key_elements();
            elements.copy_within(from + value..from + value + num_tokens * g.padded_head_size(), to + value);
        }
        Ok(())
    }

    fn elements_mut(&mut self) -> &mut [u16] {
        let len = self.map.len() / size_of::<u16>();
        // SAFETY: a mapping is aligned to a page, and every bit pattern is a u16.
        unsafe { std::slice::from_raw_parts_mut(self.map.as_mut_ptr().cast(), len) }
    }

    /// The pool for the threads of one step.
    pub fn view(&mut self) -> KvView<'_> {
        KvView {
            elements: self.map.as_mut_ptr().cast(),
            geometry: self.geometry,
            num_blocks: self.num_blocks,
            borrow: std::marker::PhantomData,
        }
    }

    /// Overwrites every element with `bits`, to show that stale contents do not matter.
    #[cfg(test)]
    pub(crate) fn fill(&mut self, bits: u16) {
        self.elements_mut().fill(bits);
    }
}

/// Shared access to a pool inside a step: slots of different tokens are written by different threads, and read after a
/// barrier.
#[derive(Clone, Copy)]
pub struct KvView<'a> {
    elements: *mut u16,
    geometry: KvGeometry,
    num_blocks: usize,
    borrow: std::marker::PhantomData<&'a mut KvPool>,
}

// SAFETY: the pool is borrowed exclusively for 'a, and the unsafe methods' callers keep apart who writes what.
unsafe impl Send for KvView<'_> {}
// SAFETY: as above.
unsafe impl Sync for KvView<'_> {}

impl KvView<'_> {
    /// Sizes of the pool.
    pub fn geometry(&self) -> &KvGeometry {
        &self.geometry
    }

    /// K of one block and head, `[D][B]`. Panics if there is no such layer, block or head.
    pub fn keys(&self, layer: usize, block_id: u32, head: usize) -> *mut u16 {
        let g = &self.geometry;
        assert!((block_id as usize) < self.num_blocks && layer < g.num_layers && head < g.num_kv_heads);
        let offset =
            block_id as usize * g.block_elements() + layer * g.layer_elements() + head * g.head_elements();
        // SAFETY: inside the mapping by the assertion.
        unsafe { self.elements.add(offset) }
    }

    /// V of one block and head, `[B][D padded]`. Panics as [`KvView::keys`].
    pub fn values(&self, layer: usize, block_id: u32, head: usize) -> *mut u16 {
        // SAFETY: V follows K of the same head.
        unsafe { self.keys(layer, block_id, head).add(self.geometry.key_elements()) }
    }

    /// Stores key and value `[G * D]` of one token in the slot `offset` of `block_id`.
    ///
    /// # Safety
    /// No other thread reads or writes this slot of `layer` meanwhile.
    pub unsafe fn write(
        &self,
        isa: Isa,
        layer: usize,
        block_id: u32,
        offset: usize,
        key: &[f32],
        value: &[f32],
    ) {
        let g = &self.geometry;
        assert!(offset < g.block_size);
        assert!(key.len() == g.num_kv_heads * g.head_size && value.len() == key.len());
        let mut half = [0u16; MAX_HEAD_SIZE];
        let half = &mut half[..g.padded_head_size()];
        for (head, (key, value)) in
            key.chunks_exact(g.head_size).zip(value.chunks_exact(g.head_size)).enumerate()
        {
            let keys = self.keys(layer, block_id, head);
            to_half(isa, key, half);
            for (d, bits) in half[..g.head_size].iter().enumerate() {
                // SAFETY: d < D and offset < B, so inside K; nobody else touches this slot.
                unsafe { *keys.add(d * g.block_size + offset) = *bits };
            }
            to_half(isa, value, half);
            // SAFETY: row `offset` of V is `half.len()` long; nobody else touches this slot.
            unsafe {
                let row = self.values(layer, block_id, head).add(offset * half.len());
                std::ptr::copy_nonoverlapping(half.as_ptr(), row, half.len());
            }
        }
    }
}

#[inline(always)]
unsafe fn to_half_generic<L: Lanes>(x: &[f32], out: &mut [u16]) {
    assert!(out.len() == x.len().next_multiple_of(LANES));
    let mut i = 0;
    while i < x.len() {
        // SAFETY: reads below x.len(), writes below it rounded up to LANES.
        unsafe {
            L::load_first(x.as_ptr().add(i), (x.len() - i).min(LANES)).store_f16(out.as_mut_ptr().add(i));
        }
        i += LANES;
    }
}

simd_entry! {
    /// Rounds to half precision, nearest even; `out` is x's length rounded up to whole vectors, the rest becomes 0.
    fn to_half = to_half_generic(x: &[f32], out: &mut [u16]);
}

#[cfg(test)]
mod tests {
    use super::*;

    const GEOMETRY: KvGeometry = KvGeometry { num_layers: 2, num_kv_heads: 3, head_size: 20, block_size: 16 };

    fn token(seed: usize) -> Vec<f32> {
        (0..60).map(|i| ((i * 7 + seed * 31) % 512) as f32 / 8.0 - 20.0).collect()
    }

    fn read(pool: &mut KvPool, layer: usize, block: u32, offset: usize) -> (Vec<f32>, Vec<f32>) {
        let view = pool.view();
        let (mut key, mut value) = (vec![], vec![]);
        for head in 0..3 {
            for d in 0..20 {
                // SAFETY: inside the pool, no other thread.
                unsafe {
                    key.push(
                        half::f16::from_bits(*view.keys(layer, block, head).add(d * 16 + offset)).to_f32(),
                    );
                    value.push(
                        half::f16::from_bits(*view.values(layer, block, head).add(offset * 32 + d)).to_f32(),
                    );
                }
            }
        }
        (key, value)
    }

    #[test]
    fn what_is_written_is_read_and_partial_copies_copy_only_their_part() {
        for isa in Isa::available() {
            let mut pool = KvPool::new(GEOMETRY, 3).unwrap();
            for layer in 0..2 {
                for offset in 0..16 {
                    let (k, v) = (token(offset + layer), token(offset + 100));
                    // SAFETY: one thread.
                    unsafe { pool.view().write(isa, layer, 0, offset, &k, &v) };
                    // SAFETY: one thread.
                    unsafe { pool.view().write(isa, layer, 2, offset, &v, &k) };
                }
            }
            pool.copy_block(0, 2, 5).unwrap();
            for layer in 0..2 {
                for offset in 0..16 {
                    let (k, v) = (token(offset + layer), token(offset + 100));
                    assert_eq!(read(&mut pool, layer, 0, offset), (k.clone(), v.clone()));
                    let expected = if offset < 5 { (k, v) } else { (v, k) };
                    assert_eq!(read(&mut pool, layer, 2, offset), expected);
                }
            }
            pool.copy_block(0, 1, 16).unwrap();
            assert_eq!(read(&mut pool, 1, 1, 15), read(&mut pool, 1, 0, 15));
        }
    }

    #[test]
    fn bad_geometry_and_bad_copies_are_refused_by_name() {
        let error = KvPool::new(KvGeometry { block_size: 24, ..GEOMETRY }, 3).unwrap_err().to_string();
        assert_eq!(error, "`block_size` is 24, expected 16, 32, 64 or 128");
        assert!(KvPool::new(GEOMETRY, 0).is_err());
        let mut pool = KvPool::new(GEOMETRY, 3).unwrap();
        let error = pool.copy_block(0, 3, 1).unwrap_err().to_string();
        assert_eq!(error, "block 3 does not exist, the pool has 3 blocks");
        for (source, destination, num_tokens) in [(0, 1, 0), (0, 1, 17), (1, 1, 4)] {
            assert!(matches!(
                pool.copy_block(source, destination, num_tokens),
                Err(KvPoolError::BadCopy { .. })
            ));
        }
    }
}
