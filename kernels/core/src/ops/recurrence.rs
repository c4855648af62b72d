//! Linear recurrences whose state is a matrix for each head: selective scans (Mamba-2, arXiv:2405.21060) and the gated
//! delta rule (arXiv:2412.06464).
//!
//! At each position the state `S` `[P][N]` decays by a factor `d`. Then row `p` takes in the key, `[N]`:
//!
//! ```text
//! scan    S_p = d S_p + s v_p k                    the strength s is the step size
//! delta   S_p = d S_p + s (v_p - d S_p . k) k      v_p replaces what the state has for the key; s is beta
//! ```
//!
//! The result is `S_p . q`, plus `skip * v_p`. Positions are computed one after the other, so the bits do not depend on
//! where a sequence is cut into runs.

use crate::vector::{Lanes, each_vector, simd_entry};

/// The rule by which a state takes in a key and a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recurrence {
    Scan,
    Delta,
}

/// Rows of an operand: row `i` begins at `first + i * stride`.
#[derive(Clone, Copy, Debug)]
pub struct HeadRows {
    pub first: *const f32,
    pub stride: usize,
}

/// A run of consecutive positions of one sequence, for one head.
#[derive(Clone, Copy, Debug)]
pub struct HeadRun {
    pub rule: Recurrence,
    pub num_rows: usize,
    /// `[P]` for each row.
    pub value: HeadRows,
    /// `[N]` for each row.
    pub key: HeadRows,
    pub query: HeadRows,
    /// A number for each row.
    pub decay: HeadRows,
    pub strength: HeadRows,
    pub skip: f32,
    /// `[P]` for each row.
    pub out: *mut f32,
    pub out_stride: usize,
    /// `[P][N]`: the state before the run, and afterwards the one behind it.
    pub state: *mut f32,
    pub value_size: usize,
    pub key_size: usize,
}

impl HeadRows {
    #[inline(always)]
    fn row(self, row: usize) -> *const f32 {
        self.first.wrapping_add(row * self.stride)
    }
}

#[inline(always)]
unsafe fn recur_generic<L: Lanes>(run: HeadRun) {
    let n = run.key_size;
    // SAFETY: all accesses are within the operands, whose sizes the caller states.
    unsafe {
        for row in 0..run.num_rows {
            let (key, query, value) = (run.key.row(row), run.query.row(row), run.value.row(row));
            let (decay, strength) = (L::splat(*run.decay.row(row)), *run.strength.row(row));
            let out = run.out.add(row * run.out_stride);
            for p in 0..run.value_size {
                let state = run.state.add(p * n);
                let taken = match run.rule {
                    Recurrence::Scan => strength * *value.add(p),
                    Recurrence::Delta => {
                        let mut known = L::splat(0.0);
                        each_vector!(n, |i, lanes| {
                            let kept = L::load_first(state.add(i), lanes).mul(decay);
                            known = kept.fma(L::load_first(key.add(i), lanes), known);
                        });
                        strength * (*value.add(p) - known.sum())
                    }
                };
                let taken = L::splat(taken);
                let mut sum = L::splat(0.0);
                each_vector!(n, |i, lanes| {
                    let kept = L::load_first(state.add(i), lanes).mul(decay);
                    let new = L::load_first(key.add(i), lanes).fma(taken, kept);
                    new.store_first(state.add(i), lanes);
                    sum = new.fma(L::load_first(query.add(i), lanes), sum);
                });
                *out.add(p) = run.skip.mul_add(*value.add(p), sum.sum());
            }
        }
    }
}

simd_entry! {
    /// Computes one head of a run.
    ///
    /// # Safety
    /// The pointers are valid for the sizes that [`HeadRun`] states, the result and the state overlap nothing else, and
    /// no other thread uses them.
    pub unsafe fn recur = recur_generic(run: HeadRun);
}
