//! Quantises activations for products with integer weights: to signed bytes, except one quad per group to 16 bits.
//!
//! Each row is divided into groups of [`QUANT_GROUP`] elements, and an element `x` becomes `scale * quant`. The group's
//! top quad (the 4 adjacent elements with its largest magnitude) gets quants of 16 bits, so that it does not coarsen
//! the other seven quads, which get 8 bits. In f32, where `top` is the largest magnitude of the group and `rest` that
//! of the other quads:
//!
//! ```text
//! scale = max(rest * (1 / 127), top * (1 / 32639), 2^-100), its significand rounded up to 4 bits
//! quant = round(x * (1 / scale))                            to nearest, ties to even
//! quant = low + 256 * high                                  low is -128 to 127; high is 0 outside the top quad
//! ```
//!
//! If several quads share the largest magnitude, the first is the top quad. 32639 is 127 + 256 * 127. With significands
//! of 4 bits the product with any weight's scale is exact, and there are few different products, so kernels can look
//! them up instead of multiplying.
//!
//! The bits of a row depend only on that row. If a group holds NaN or a magnitude of 2^100 or more, its quants are 0
//! and the row's sums start from NaN, so that the products of this row, and of no other, are NaN. docs/decisions/0009
//! explains why one quad gets 16 bits.

use std::ops::Range;

use trunkline_kernels_core::aligned::ALIGNMENT_BYTES;
use trunkline_kernels_core::pack::int::IntFormat;
use trunkline_kernels_core::pack::{QUAD, TILE};
use trunkline_kernels_core::shared_mut::SharedMut;

/// Elements of a row that share a scale.
pub const QUANT_GROUP: usize = 32;

pub(super) const GROUP_QUADS: usize = QUANT_GROUP / QUAD;

/// The scale for a largest magnitude of 1 outside the top quad.
pub(super) const REST_SCALE: f32 = 1.0 / 127.0;
/// The scale for a largest magnitude of 1 in the top quad.
pub(super) const TOP_SCALE: f32 = 1.0 / 32639.0;

/// The smallest scale, 2^-100. Products with scales of weights (zero, or 2^-24 to 2^23) are still normal numbers.
pub(super) const SMALLEST_SCALE: f32 = f32::from_bits((127 - 100) << 23);

/// The bits of 2^100. Larger magnitudes count as not finite, so that no product of scales overflows.
pub(super) const TOO_LARGE_BITS: i32 = (127 + 100) << 23;

/// Bytes of a vector: one quad for each of 16 output features.
pub(super) const VECTOR_BYTES: usize = TILE * QUAD;

/// Bits of a significand that scales drop. They keep 4, including the hidden bit.
pub(super) const DROPPED_BITS: u32 = 20;

/// Number of different significands of scales.
pub(super) const NUM_LEVELS: usize = 8;

/// A quantised group of a row, which is one cache line.
#[derive(Debug, Clone, Copy, PartialEq)]
#[repr(C)]
pub(super) struct QuantGroup {
    /// The low byte of each quant.
    pub(super) low: [i8; QUANT_GROUP],
    /// The high bytes of the top quad's quants.
    pub(super) high: [i8; QUAD],
    pub(super) scale: f32,
    /// `scale` times the sum of the quants.
    pub(super) sum: f32,
    /// The negated sum of the quants.
    pub(super) negated_sum: i32,
    /// The negated sum of the first 16 quants.
    pub(super) negated_half_sum: i32,
    /// Index of the top quad, 0 to 7, times 64: the offset of its vector of weights.
    pub(super) top_offset: u16,
    /// Index of `scale`'s significand among [`NUM_LEVELS`], times 64: the offset of its vector in a table.
    pub(super) level_offset: u16,
    /// The mask of the top quad's weights in formats with two weights per byte, which store the first half of a group
    /// in the low nibbles.
    pub(super) nibble_mask: u32,
    /// The left shift, 8 or 4, that turns products with the masked weights into products with 256 times the high bytes.
    pub(super) nibble_shift: u32,
}

const _: () = assert!(size_of::<QuantGroup>() == ALIGNMENT_BYTES);

/// The parameters of quantising one group.
#[derive(Debug, Clone, Copy)]
pub(super) struct GroupCode {
    pub(super) scale: f32,
    /// The factor of elements: `quant = round(x * reciprocal)`.
    pub(super) reciprocal: f32,
    pub(super) is_finite: bool,
}

impl GroupCode {
    /// Computes the parameters from the bits of the largest magnitudes of the top quad and of the other quads.
    #[inline(always)]
    pub(super) fn new(top_bits: i32, rest_bits: i32) -> Self {
        let is_finite = top_bits < TOO_LARGE_BITS;
        let magnitude = |bits: i32| f32::from_bits(if is_finite { bits.cast_unsigned() } else { 0 });
        let least =
            (magnitude(rest_bits) * REST_SCALE).max(magnitude(top_bits) * TOP_SCALE).max(SMALLEST_SCALE);
        let kept = (1u32 << DROPPED_BITS) - 1;
        let scale = f32::from_bits((least.to_bits() + kept) & !kept);
        Self { scale, reciprocal: if is_finite { 1.0 / scale } else { 0.0 }, is_finite }
    }
}

impl QuantGroup {
    /// Sets all fields except the quants. `sum` is the sum of all quants, and `half_sum` that of the first 16.
    #[inline(always)]
    pub(super) fn put_numbers(&mut self, code: GroupCode, top_quad: u32, sum: i32, half_sum: i32) {
        self.scale = code.scale;
        // |sum| <= 28 * 127 + 4 * 32639, which is exact in f32.
        self.sum = code.scale * sum as f32;
        self.negated_sum = -sum;
        self.negated_half_sum = -half_sum;
        // Both are below 8 * 64.
        self.top_offset = (top_quad as usize * VECTOR_BYTES) as u16;
        self.level_offset =
            ((code.scale.to_bits() >> DROPPED_BITS) as usize % NUM_LEVELS * VECTOR_BYTES) as u16;
        let is_low = top_quad < GROUP_QUADS as u32 / 2;
        (self.nibble_mask, self.nibble_shift) = if is_low { (0x0f0f_0f0f, 8) } else { (0xf0f0_f0f0, 4) };
    }

    /// Sets the contents of a group that is not finite: zero quants, and the same numbers on every instruction set.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn put_not_finite(&mut self) {
        (self.low, self.high) = ([0; QUANT_GROUP], [0; QUAD]);
        self.put_numbers(GroupCode::new(i32::MAX, 0), 0, 0, 0);
    }

    /// Returns `scale` times the sum of the quants that the weights' group `part` multiplies.
    #[inline(always)]
    pub(super) fn part_sum<F: IntFormat>(&self, part: usize) -> f32 {
        match (F::GROUP < QUANT_GROUP, part) {
            (false, _) => self.sum,
            (true, 0) => self.scale * (-self.negated_half_sum) as f32,
            (true, _) => self.scale * (self.negated_half_sum - self.negated_sum) as f32,
        }
    }

    /// The index of the top quad, 0 to 7.
    #[inline(always)]
    pub(super) fn top_quad(&self) -> usize {
        usize::from(self.top_offset) / VECTOR_BYTES % GROUP_QUADS
    }
}

/// The significand with index `level`, 1 to 1.875.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(super) fn level_value(level: usize) -> f32 {
    1.0 + level as f32 / NUM_LEVELS as f32
}

/// The shape of quantised rows, which determines their layout: the start value of each row's sums (f32, 0 or NaN), then
/// the groups of each row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuantizedShape {
    num_rows: usize,
    in_features: usize,
}

impl QuantizedShape {
    /// Creates the shape. Panics unless `in_features` is a multiple of 32, as it is for every integer weight.
    pub fn new(num_rows: usize, in_features: usize) -> Self {
        assert!(in_features.is_multiple_of(QUANT_GROUP), "{in_features} features in groups of {QUANT_GROUP}");
        Self { num_rows, in_features }
    }

    pub fn num_rows(&self) -> usize {
        self.num_rows
    }

    pub fn in_features(&self) -> usize {
        self.in_features
    }

    /// Bytes of the quantised rows. The size grows with `num_rows`, so a buffer for more rows also fits fewer.
    pub fn num_bytes(&self) -> usize {
        self.groups_offset() + self.num_rows * self.row_stride() * size_of::<QuantGroup>()
    }

    pub(super) fn groups_per_row(&self) -> usize {
        self.in_features / QUANT_GROUP
    }

    /// Distance between rows in groups. It is odd, so that adjacent rows do not map to the same cache set.
    pub(super) fn row_stride(&self) -> usize {
        self.groups_per_row() | 1
    }

    fn groups_offset(&self) -> usize {
        (self.num_rows * size_of::<f32>()).next_multiple_of(ALIGNMENT_BYTES)
    }
}

/// Quantised rows, ready for [`crate`].
#[derive(Debug, Clone, Copy)]
pub struct QuantizedRows<'a> {
    shape: QuantizedShape,
    starts: &'a [f32],
    groups: &'a [QuantGroup],
}

#[derive(Debug, Clone, Copy)]
pub(super) struct QuantizedBlock<'a> {
    /// The start value of each row's sums.
    pub(super) starts: &'a [f32],
    /// The groups from the first of the first row to the last of the last row.
    pub(super) groups: &'a [QuantGroup],
    /// Distance between rows, in groups.
    pub(super) row_stride: usize,
}

impl QuantizedBlock<'_> {
    pub(super) fn num_rows(&self) -> usize {
        self.starts.len()
    }

    /// The same rows from their group `first` on.
    pub(super) fn starting_at(&self, first: usize) -> Self {
        Self { groups: &self.groups[first..], ..*self }
    }

    /// Panics if there are no rows, or if rows are shorter than `in_features`.
    pub(super) fn check(&self, in_features: usize) {
        let len = (self.num_rows() - 1) * self.row_stride + in_features / QUANT_GROUP;
        assert!(self.groups.len() >= len, "{} groups of {len}", self.groups.len());
    }
}

impl<'a> QuantizedRows<'a> {
    /// Views the rows that [`quantize_rows`] wrote to `bytes`.
    ///
    /// Panics if `bytes` is too short or its address is not a multiple of 64.
    pub fn new(shape: QuantizedShape, bytes: &'a [u8]) -> Self {
        check_buffer(shape, bytes.as_ptr(), bytes.len());
        let base = bytes.as_ptr();
        // SAFETY: `num_bytes` covers both parts, whose offsets are multiples of 64, and every bit pattern is valid.
        unsafe {
            Self {
                shape,
                starts: std::slice::from_raw_parts(base.cast(), shape.num_rows),
                groups: std::slice::from_raw_parts(
                    base.add(shape.groups_offset()).cast(),
                    shape.num_rows * shape.row_stride(),
                ),
            }
        }
    }

    pub fn shape(&self) -> QuantizedShape {
        self.shape
    }

    /// The rows of a range, as rows of their own.
    pub fn rows(&self, rows: Range<usize>) -> Self {
        let QuantizedBlock { starts, groups, row_stride: _ } = self.block(rows.clone());
        Self { shape: QuantizedShape::new(rows.len(), self.shape.in_features), starts, groups }
    }

    /// Copies row `from` to row `to` of rows of the shape `shape`, which has the same number of features.
    ///
    /// Panics if a row does not exist, or if `out` is too short or misaligned.
    ///
    /// # Safety
    /// No other thread may access row `to` of `out` during the call.
    pub unsafe fn copy_row(&self, from: usize, shape: QuantizedShape, to: usize, out: SharedMut<'_, u8>) {
        assert_eq!(shape.in_features, self.shape.in_features, "features of a row");
        assert!(to < shape.num_rows, "row {to} of {shape:?}");
        check_buffer(shape, out.as_mut_ptr(), out.len());
        let source = &self.groups[from * shape.row_stride()..][..shape.groups_per_row()];
        // SAFETY: both places are inside `out`, whose length and alignment are checked, and the caller guarantees
        // exclusive access to the row.
        unsafe {
            out.as_mut_ptr().cast::<f32>().add(to).write(self.starts[from]);
            let groups = out.as_mut_ptr().add(shape.groups_offset()).cast::<QuantGroup>();
            let target = groups.add(to * shape.row_stride());
            std::ptr::copy_nonoverlapping(source.as_ptr(), target, source.len());
        }
    }

    pub(super) fn block(&self, rows: Range<usize>) -> QuantizedBlock<'a> {
        let row_stride = self.shape.row_stride();
        let groups = &self.groups[rows.start * row_stride..rows.end * row_stride];
        QuantizedBlock { starts: &self.starts[rows], groups, row_stride }
    }
}

fn check_buffer(shape: QuantizedShape, start: *const u8, len: usize) {
    assert!(len >= shape.num_bytes(), "{len} bytes for {shape:?}");
    assert!(start.addr().is_multiple_of(ALIGNMENT_BYTES), "misaligned buffer");
}

pub(super) struct QuantizeJob<'a> {
    shape: QuantizedShape,
    /// The elements from the first of the first row on.
    x: &'a [f32],
    row_stride: usize,
    num_rows: usize,
    /// The start values of the rows' sums, initialised to 0.
    starts: *mut f32,
    /// Pointer to the first group of the first row.
    groups: *mut QuantGroup,
}

impl<'a> QuantizeJob<'a> {
    /// Creates the job for `rows` of `shape`, whose elements begin at `x` and are `row_stride` elements apart. Panics
    /// if a slice is too short or the address of `out` is not a multiple of 64.
    ///
    /// # Safety
    /// While the job lives, no other thread may access the same rows of `out`.
    pub(super) unsafe fn new(
        shape: QuantizedShape,
        x: &'a [f32],
        row_stride: usize,
        rows: Range<usize>,
        out: SharedMut<'a, u8>,
    ) -> Self {
        assert!(rows.end <= shape.num_rows, "{rows:?} of {shape:?}");
        check_buffer(shape, out.as_mut_ptr(), out.len());
        let len = rows.len().checked_sub(1).map_or(0, |last| last * row_stride + shape.in_features);
        assert!(x.len() >= len, "{} elements of {rows:?}", x.len());
        // SAFETY: the offsets are inside `out`, whose length and alignment are checked, and the caller guarantees
        // exclusive access to the rows.
        unsafe {
            let starts = out.as_mut_ptr().cast::<f32>().add(rows.start);
            (0..rows.len()).for_each(|row| starts.add(row).write(0.0));
            let groups = out.as_mut_ptr().add(shape.groups_offset()).cast::<QuantGroup>();
            let groups = groups.add(rows.start * shape.row_stride());
            Self { shape, x, row_stride, num_rows: rows.len(), starts, groups }
        }
    }
}

impl QuantizeJob<'_> {
    #[cfg(target_arch = "x86_64")]
    pub(super) fn num_rows(&self) -> usize {
        self.num_rows
    }

    pub(super) fn groups_per_row(&self) -> usize {
        self.shape.groups_per_row()
    }

    pub(super) fn x(&self, row: usize) -> &[f32] {
        &self.x[row * self.row_stride..][..self.shape.in_features]
    }

    /// Pointer to the [`QuantizeJob::groups_per_row`] groups of a row.
    pub(super) fn groups(&self, row: usize) -> *mut QuantGroup {
        assert!(row < self.num_rows);
        // SAFETY: the row belongs to the job.
        unsafe { self.groups.add(row * self.shape.row_stride()) }
    }

    /// Calls `quantize_row` for each row. It returns false if the row is not finite.
    pub(super) fn each_row(&self, quantize_row: impl Fn(&[f32], &mut [QuantGroup]) -> bool) {
        for row in 0..self.num_rows {
            // SAFETY: the job has exclusive access to its rows, and their bytes are initialised.
            unsafe {
                let groups = std::slice::from_raw_parts_mut(self.groups(row), self.groups_per_row());
                if !quantize_row(self.x(row), groups) {
                    self.starts.add(row).write(f32::NAN);
                }
            }
        }
    }

    /// Writes a group that is not finite and marks its row.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn put_not_finite(&self, row: usize, group: usize) {
        assert!(group < self.groups_per_row());
        // SAFETY: the group and the row belong to the job.
        unsafe {
            (*self.groups(row).add(group)).put_not_finite();
            self.starts.add(row).write(f32::NAN);
        }
    }
}
