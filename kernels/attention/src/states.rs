//! The running states (m, l, o) of rows, and their merging.

use super::Scheme;
use trunkline_kernels_core::aligned::AlignedFloats;
use trunkline_kernels_core::vector::{ByteLanes, LANES};

/// Size of one row's state (m, l and o), in f32 elements.
#[inline]
pub fn state_size(padded_head_size: usize) -> usize {
    padded_head_size + 2
}

/// The running states of rows: `max` is m, `sum` is l, and `out` is o `[row][D padded]`.
#[derive(Debug, Default)]
pub(super) struct States {
    pub(super) max: Vec<f32>,
    pub(super) sum: Vec<f32>,
    pub(super) out: AlignedFloats,
}

impl States {
    pub(super) fn new(rows: usize, padded_head_size: usize) -> Self {
        Self {
            max: vec![0.0; rows],
            sum: vec![0.0; rows],
            out: AlignedFloats::zeroed(rows * padded_head_size),
        }
    }

    #[inline]
    pub(super) fn parts(&self, rows: usize, padded_head_size: usize) -> Parts<'_> {
        Parts { max: &self.max[..rows], sum: &self.sum[..rows], out: &self.out[..rows * padded_head_size] }
    }

    #[inline]
    pub(super) fn clear(&mut self, rows: usize, padded_head_size: usize) {
        self.max[..rows].fill(f32::NEG_INFINITY);
        self.sum[..rows].fill(0.0);
        self.out[..rows * padded_head_size].fill(0.0);
    }
}

/// A borrowed view of the states of rows.
#[derive(Clone, Copy)]
pub(super) struct Parts<'a> {
    pub(super) max: &'a [f32],
    pub(super) sum: &'a [f32],
    pub(super) out: &'a [f32],
}

impl<'a> Parts<'a> {
    /// Divides `rows * state_size` elements into m, l and o.
    #[inline]
    pub(super) fn new(state: &'a [f32], rows: usize) -> Self {
        let (max, rest) = state.split_at(rows);
        let (sum, out) = rest.split_at(rows);
        Self { max, sum, out }
    }
}

/// Merges the states of rows into the totals. The totals are of earlier segments.
#[inline(always)]
pub(super) unsafe fn merge_rows<L: ByteLanes, K: Scheme>(
    total: &mut States,
    Parts { max, sum, out }: Parts<'_>,
) {
    let rows = max.len();
    let stride = out.len() / rows;
    assert!(sum.len() == rows && total.max.len() >= rows && total.sum.len() >= rows);
    assert!(stride.is_multiple_of(LANES) && total.out.len() >= out.len());
    for first in (0..rows).step_by(LANES) {
        let lanes = (rows - first).min(LANES);
        let [mut old_factors, mut new_factors] = [[0.0f32; LANES]; 2];
        // SAFETY: the assertions ensure that the lanes are existing rows, and that rows of `o` are whole vectors.
        unsafe {
            let (total_max, total_sum) =
                (total.max.as_mut_ptr().add(first), total.sum.as_mut_ptr().add(first));
            let (old, new) = (L::load_first(total_max, lanes), L::load_first(max.as_ptr().add(first), lanes));
            let both = new.max(old);
            let (old_factor, new_factor) = (K::power(old.sub(both)), K::power(new.sub(both)));
            let new_sum = L::load_first(sum.as_ptr().add(first), lanes).mul(new_factor);
            L::load_first(total_sum, lanes).fma(old_factor, new_sum).store_first(total_sum, lanes);
            both.store_first(total_max, lanes);
            old_factor.store(old_factors.as_mut_ptr());
            new_factor.store(new_factors.as_mut_ptr());
            for row in 0..lanes {
                let (a, b) = (L::splat(old_factors[row]), L::splat(new_factors[row]));
                let into = total.out.as_mut_ptr().add((first + row) * stride);
                let out = out.as_ptr().add((first + row) * stride);
                for d in (0..stride).step_by(LANES) {
                    L::load(into.add(d)).fma(a, L::load(out.add(d)).mul(b)).store(into.add(d));
                }
            }
        }
    }
}
