//! Scores of keys that are rows; see [`super::latent`].

use trunkline_kernels_core::kv_pool::MAX_BLOCK_SIZE;
use trunkline_kernels_core::pack::float::FloatFormat;
use trunkline_kernels_core::vector::{LANES, Lanes};

/// Computes the scores of `R` rows from position `begin` to `end` of a tile, as many at a time as fit in registers. `q`
/// and `k` point to rows of `stride` elements, which is whole vectors, and `out` to the rows of a tile.
#[inline(always)]
pub(super) unsafe fn tile_scores<L: Lanes, E: FloatFormat, const R: usize>(
    q: *const f32,
    k: *const u16,
    stride: usize,
    begin: usize,
    end: usize,
    out: *mut [f32; MAX_BLOCK_SIZE],
) {
    let mut r = 0;
    // SAFETY: r + the number of rows is at most R in each branch, and blocks are multiples of four positions.
    unsafe {
        let some = |r: usize| (q.add(r * stride), out.add(r).cast::<f32>());
        if L::IS_WIDE {
            while r + 6 <= R {
                let (q, out) = some(r);
                scores_of_rows::<L, E, 6, 4>(q, k, stride, (begin, end), out);
                r += 6;
            }
            while r + 3 <= R {
                let (q, out) = some(r);
                scores_of_rows::<L, E, 3, 4>(q, k, stride, (begin, end), out);
                r += 3;
            }
        }
        if L::IS_VECTOR {
            while r + 2 <= R {
                let (q, out) = some(r);
                scores_of_rows::<L, E, 2, 2>(q, k, stride, (begin, end), out);
                r += 2;
            }
        }
        while r < R {
            let (q, out) = some(r);
            scores_of_rows::<L, E, 1, 2>(q, k, stride, (begin, end), out);
            r += 1;
        }
    }
}

/// Computes the scores of `R` rows from `begin` to `end`, `N` positions at a time.
#[inline(always)]
unsafe fn scores_of_rows<L: Lanes, E: FloatFormat, const R: usize, const N: usize>(
    q: *const f32,
    k: *const u16,
    stride: usize,
    (begin, end): (usize, usize),
    out: *mut f32,
) {
    for b in (begin..end).step_by(N) {
        // SAFETY: the caller provides R rows of queries, N rows of keys from `b` on, and R rows of a tile.
        unsafe {
            let mut sums = [[L::splat(0.0); N]; R];
            for d in (0..stride).step_by(LANES) {
                let mut keys = [L::splat(0.0); N];
                for (j, key) in keys.iter_mut().enumerate() {
                    *key = E::load::<L>(k.add((b + j) * stride + d).cast());
                }
                for (r, sums) in sums.iter_mut().enumerate() {
                    let query = L::load(q.add(r * stride + d));
                    for (sum, key) in sums.iter_mut().zip(keys) {
                        *sum = query.fma(key, *sum);
                    }
                }
            }
            for (r, sums) in sums.iter().enumerate() {
                for (j, sum) in sums.iter().enumerate() {
                    *out.add(r * MAX_BLOCK_SIZE + b + j) = sum.sum();
                }
            }
        }
    }
}
