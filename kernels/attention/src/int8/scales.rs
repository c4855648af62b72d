//! The scales of a tile as f32, converted once for all rows of an item.

use trunkline_kernels_core::kv_pool::{KvDtype, KvGeometry, MAX_BLOCK_SIZE};
use trunkline_kernels_core::vector::{ByteLanes, LANES};

/// The scales of each position, `[B]` each.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Scales {
    pub(crate) keys: [f32; MAX_BLOCK_SIZE],
    pub(crate) values: [f32; MAX_BLOCK_SIZE],
}

impl Scales {
    pub(crate) const ZERO: Self = Self { keys: [0.0; MAX_BLOCK_SIZE], values: [0.0; MAX_BLOCK_SIZE] };

    /// Converts the stored scales of keys and values, which are bf16 for int8 and f16 for int4. Prefetches the bytes at
    /// a distance of `ahead`.
    ///
    /// # Safety
    /// The CPU must have the instruction set of `L`, and each of `stored` must point to a block's scales.
    #[inline(always)]
    pub(crate) unsafe fn fill<L: ByteLanes>(&mut self, g: &KvGeometry, stored: [*const u8; 2], ahead: isize) {
        for (stored, out) in stored.into_iter().zip([&mut self.keys, &mut self.values]) {
            assert!(g.block_size <= out.len());
            for i in (0..g.block_size).step_by(LANES) {
                // SAFETY: the caller guarantees `stored`, and the assertion `out`; blocks are whole vectors.
                unsafe {
                    let stored = stored.cast::<u16>().add(i);
                    L::prefetch(stored.cast::<u8>().wrapping_offset(ahead));
                    let scales =
                        if g.dtype == KvDtype::Int4 { L::load_f16(stored) } else { L::load_bf16(stored) };
                    scales.store(out.as_mut_ptr().add(i));
                }
            }
        }
    }
}
