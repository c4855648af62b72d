//! Activations as signed bytes, for products with integer weights.
//!
//! Each row is cut into groups (of 32 or 16, as the weight needs). A group's scale is `max |x| / 127` in f32, its
//! quants are `x * (127 / max |x|)` rounded to nearest, ties to even. A row's bits depend on that row alone. A group
//! that holds NaN or an infinity gets the scale NaN and quants 0, so that its row's products are NaN and no other's.

use std::ops::Range;

use crate::aligned::ALIGNMENT_BYTES;
use crate::isa::{self, Isa, IsaKind};
use crate::linear::{PANEL, QUAD};
use crate::shared_mut::SharedMut;

/// Largest quant.
pub(crate) const MAX_QUANT: f32 = 127.0;

/// Groups whose largest magnitude is below this (2^-100) count as zero: their reciprocal would overflow, and beside
/// any weight their product is nothing.
pub(crate) const SMALLEST_MAX: f32 = f32::from_bits(27 << 23);

/// Bits of f32 infinity; magnitudes from here on are not finite.
pub(crate) const INFINITY_BITS: u32 = 0xff << 23;

/// Bytes of f32 and of i32.
const WORD: usize = 4;

/// Shape of quantised rows, and thereby the layout of their bytes.
///
/// Rows stand in panels of [`PANEL`] (the last one may be narrower), `w` rows side by side:
///
/// ```text
/// scales        [panel][group][w]             f32
/// scaled_sums   [panel][group][w]             f32: scale * sum of quants
/// negated_sums  [panel][group][w]             i32: - sum of quants
/// quants        [panel][element / 4][w][4]    i8
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuantizedShape {
    num_rows: usize,
    in_features: usize,
    group: usize,
}

impl QuantizedShape {
    /// Panics unless `group` is 16 or 32 and divides `in_features`.
    pub fn new(num_rows: usize, in_features: usize, group: usize) -> Self {
        assert!(group == 16 || group == 32, "group of {group}");
        assert!(in_features.is_multiple_of(group), "{in_features} features in groups of {group}");
        Self { num_rows, in_features, group }
    }

    /// Rows.
    pub fn num_rows(&self) -> usize {
        self.num_rows
    }

    /// Elements of a row.
    pub fn in_features(&self) -> usize {
        self.in_features
    }

    /// Elements that share a scale.
    pub fn group(&self) -> usize {
        self.group
    }

    /// Bytes of the quantised rows. Grows with `num_rows`, so a buffer for the most rows fits fewer.
    pub fn num_bytes(&self) -> usize {
        self.quants_offset() + self.num_rows * self.in_features
    }

    pub(crate) fn groups_per_row(&self) -> usize {
        self.in_features / self.group
    }

    fn meta_bytes(&self) -> usize {
        (self.num_rows * self.groups_per_row() * WORD).next_multiple_of(ALIGNMENT_BYTES)
    }

    fn quants_offset(&self) -> usize {
        3 * self.meta_bytes()
    }

    /// First row and number of rows of the panel that holds `row`.
    pub(crate) fn panel_of(&self, row: usize) -> (usize, usize) {
        let first = row / PANEL * PANEL;
        (first, PANEL.min(self.num_rows - first))
    }
}

/// Quantised rows, ready for [`crate::linear::linear`].
#[derive(Debug, Clone, Copy)]
pub struct QuantizedRows<'a> {
    shape: QuantizedShape,
    scales: &'a [f32],
    scaled_sums: &'a [f32],
    negated_sums: &'a [i32],
    quants: &'a [i8],
}

/// The parts of one panel, each from its first element.
#[derive(Debug, Clone, Copy)]
pub(crate) struct QuantizedPanel<'a> {
    pub(crate) num_rows: usize,
    pub(crate) scales: &'a [f32],
    pub(crate) scaled_sums: &'a [f32],
    pub(crate) negated_sums: &'a [i32],
    pub(crate) quants: &'a [i8],
}

impl<'a> QuantizedRows<'a> {
    /// The rows that [`quantize_rows`] wrote into `bytes`.
    ///
    /// Panics if `bytes` is too short or does not start at a multiple of 4.
    pub fn new(shape: QuantizedShape, bytes: &'a [u8]) -> Self {
        assert!(bytes.len() >= shape.num_bytes(), "{} bytes for {shape:?}", bytes.len());
        assert!(bytes.as_ptr().addr().is_multiple_of(WORD), "misaligned buffer");
        let count = shape.num_rows * shape.groups_per_row();
        let base = bytes.as_ptr();
        // SAFETY: `num_bytes` covers the four parts, whose offsets are multiples of 4; every bit pattern is a value.
        unsafe {
            Self {
                shape,
                scales: std::slice::from_raw_parts(base.cast(), count),
                scaled_sums: std::slice::from_raw_parts(base.add(shape.meta_bytes()).cast(), count),
                negated_sums: std::slice::from_raw_parts(base.add(2 * shape.meta_bytes()).cast(), count),
                quants: std::slice::from_raw_parts(
                    base.add(shape.quants_offset()).cast(),
                    shape.num_rows * shape.in_features,
                ),
            }
        }
    }

    /// Their shape.
    pub fn shape(&self) -> QuantizedShape {
        self.shape
    }

    /// The panel whose first row is `first_row`.
    pub(crate) fn panel(&self, first_row: usize) -> QuantizedPanel<'a> {
        let (first, num_rows) = self.shape.panel_of(first_row);
        debug_assert_eq!(first, first_row);
        let meta = first * self.shape.groups_per_row()..(first + num_rows) * self.shape.groups_per_row();
        let quants = first * self.shape.in_features..(first + num_rows) * self.shape.in_features;
        QuantizedPanel {
            num_rows,
            scales: &self.scales[meta.clone()],
            scaled_sums: &self.scaled_sums[meta.clone()],
            negated_sums: &self.negated_sums[meta],
            quants: &self.quants[quants],
        }
    }
}

/// Where the quantised form of one row goes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RowTarget {
    /// Group 0 of the row in each array of numbers per group; the next group is `stride` further.
    pub(crate) scales: *mut f32,
    pub(crate) scaled_sums: *mut f32,
    pub(crate) negated_sums: *mut i32,
    /// Elements 0 to 3 of the row; the next four are `stride` times 4 bytes further.
    pub(crate) quants: *mut i8,
    /// Rows of the panel.
    pub(crate) stride: usize,
}

impl RowTarget {
    /// Writes group `group_idx`.
    ///
    /// # Safety
    /// The pointers are those of a row with more than `group_idx` groups of `quants.len()`, and nobody else uses it.
    #[inline]
    pub(crate) unsafe fn put(&self, group_idx: usize, scale: f32, sum: i32, quants: &[i8]) {
        let at = group_idx * self.stride;
        // |sum| <= 32 * 127, exact in f32.
        let scaled_sum = scale * sum as f32;
        // SAFETY: by the contract.
        unsafe {
            self.scales.add(at).write(scale);
            self.scaled_sums.add(at).write(scaled_sum);
            self.negated_sums.add(at).write(-sum);
            for (index, quad) in quants.chunks_exact(QUAD).enumerate() {
                let target = self.quants.add((at * quants.len()) + index * QUAD * self.stride);
                target.copy_from_nonoverlapping(quad.as_ptr(), QUAD);
            }
        }
    }
}

/// Quantises rows `rows` of `x`, which are `row_stride` elements apart, into their places in `out`.
///
/// `shape` is that of all rows; threads take disjoint `rows` (whole panels of [`PANEL`] avoid false sharing). Panics if
/// a slice is too short.
///
/// # Safety
/// No other thread uses the same rows of `out` meanwhile.
pub unsafe fn quantize_rows(
    isa: Isa,
    shape: QuantizedShape,
    x: &[f32],
    row_stride: usize,
    rows: Range<usize>,
    out: SharedMut<'_, u8>,
) {
    assert!(rows.end <= shape.num_rows, "{rows:?} of {shape:?}");
    assert!(out.len() >= shape.num_bytes(), "{} bytes for {shape:?}", out.len());
    assert!(out.as_mut_ptr().addr().is_multiple_of(WORD), "misaligned buffer");
    for row in rows {
        let x = &x[row * row_stride..][..shape.in_features];
        // SAFETY: the offsets lie inside `out`, whose length was checked; the caller keeps others from this row.
        unsafe {
            let target = row_target(shape, row, out.as_mut_ptr());
            match isa.kind() {
                IsaKind::Scalar => isa::scalar::quantize_row(x, shape.group, target),
                #[cfg(target_arch = "x86_64")]
                IsaKind::Avx2 => isa::avx2::quantize_row(x, shape.group, target),
                #[cfg(target_arch = "x86_64")]
                IsaKind::Avx512 => isa::avx512::quantize_row(x, shape.group, target),
                #[cfg(not(target_arch = "x86_64"))]
                _ => unreachable!("an `Isa` exists only if the CPU has it"),
            }
        }
    }
}

/// # Safety
/// `base` points to `shape.num_bytes()` bytes, and `row` is one of its rows.
unsafe fn row_target(shape: QuantizedShape, row: usize, base: *mut u8) -> RowTarget {
    let (first, stride) = shape.panel_of(row);
    let (lane, meta) = (row - first, first * shape.groups_per_row());
    // SAFETY: all offsets are inside the parts that `QuantizedShape` lays out.
    unsafe {
        RowTarget {
            scales: base.cast::<f32>().add(meta + lane),
            scaled_sums: base.add(shape.meta_bytes()).cast::<f32>().add(meta + lane),
            negated_sums: base.add(2 * shape.meta_bytes()).cast::<i32>().add(meta + lane),
            quants: base.add(shape.quants_offset()).cast::<i8>().add(first * shape.in_features + lane * QUAD),
            stride,
        }
    }
}
