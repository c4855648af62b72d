//! Scales of a tile in f32: once per tile, for all rows of an item.

use crate::kv_pool::{KvDtype, KvGeometry, MAX_BLOCK_SIZE};
use crate::ops::vector::{ByteLanes, LANES};

/// Scales by position, `[B]` each.
#[derive(Debug)]
#[repr(C, align(64))]
pub(in crate::ops::attention) struct Scales {
    pub(in crate::ops::attention) keys: [f32; MAX_BLOCK_SIZE],
    pub(in crate::ops::attention) values: [f32; MAX_BLOCK_SIZE],
}

impl Scales {
    pub(in crate::ops::attention) const ZERO: Self =
        Self { keys: [0.0; MAX_BLOCK_SIZE], values: [0.0; MAX_BLOCK_SIZE] };

    /// Takes those of keys and of values, bf16 in int8 and f16 in int4. What lies `ahead` bytes further is asked for.
    ///
    /// # Safety
    /// The CPU has the instruction set of `L`; each of `stored` holds a block's scales.
    #[inline(always)]
    pub(in crate::ops::attention) unsafe fn fill<L: ByteLanes>(
        &mut self,
        g: &KvGeometry,
        stored: [*const u8; 2],
        ahead: isize,
    ) {
        for (stored, out) in stored.into_iter().zip([&mut self.keys, &mut self.values]) {
            assert!(g.block_size <= out.len());
            for i in (0..g.block_size).step_by(LANES) {
                // SAFETY: by the contract, and `out` by the assertion: blocks are whole vectors.
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
