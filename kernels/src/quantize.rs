//! Activations as signed bytes, one quad of each group in 16 bits, for products with integer weights.
//!
//! Each row is cut into groups of [`QUANT_GROUP`] elements, and element `x` becomes `scale * quant`. A group's quad (4
//! neighbours) that holds its largest magnitude takes quants of 16 bits, so that it does not coarsen the other seven,
//! which take 8. In f32, with `top` the largest magnitude of the group and `rest` that of the other quads:
//!
//! ```text
//! scale = max(rest * (1 / 127), top * (1 / 32639), 2^-100), its significand rounded up to 4 bits
//! quant = round(x * (1 / scale))                            to nearest, ties to even
//! quant = low + 256 * high                                  low -128 to 127; high 0 but in the top quad
//! ```
//!
//! Of quads with equal magnitudes the first is on top. 32639 is 127 + 256 * 127. Scales of 4 bits make the product with
//! any weight's scale exact, and of few kinds: kernels look those products up instead of multiplying.
//!
//! A row's bits depend on that row alone. A group that holds NaN or a magnitude of 2^100 or more has quants 0, and its
//! row starts its sums from NaN, so that its products are NaN and no other row's. docs/decisions/0009 says why a quad.

use std::ops::Range;

use crate::aligned::ALIGNMENT_BYTES;
use crate::isa::{Isa, call_isa};
use crate::linear::{QUAD, TILE};
use crate::shared_mut::SharedMut;

/// Elements of a row that share a scale.
pub const QUANT_GROUP: usize = 32;

/// Quads of a group.
pub(crate) const GROUP_QUADS: usize = QUANT_GROUP / QUAD;

/// Scale for a largest magnitude of 1 outside the top quad, and in it.
pub(crate) const REST_SCALE: f32 = 1.0 / 127.0;
pub(crate) const TOP_SCALE: f32 = 1.0 / 32639.0;

/// Least scale, 2^-100: products with the scales of weights (zero, or 2^-24 to 2^23) stay normal numbers.
pub(crate) const SMALLEST_SCALE: f32 = f32::from_bits((127 - 100) << 23);

/// Bits of 2^100. Magnitudes from there on count as not finite, so that no product of scales overflows.
pub(crate) const TOO_LARGE_BITS: i32 = (127 + 100) << 23;

/// Bytes of 4 for each of 16 output features.
pub(crate) const VECTOR_BYTES: usize = TILE * QUAD;

/// Bits of a significand behind the 4 that scales keep, the hidden one among them.
pub(crate) const DROPPED_BITS: u32 = 20;

/// Significands that a scale can have.
pub(crate) const NUM_LEVELS: usize = 8;

/// One group of a row: a cache line.
#[derive(Debug, Clone, Copy, PartialEq)]
#[repr(C)]
pub(crate) struct QuantGroup {
    /// Low byte of each quant.
    pub(crate) low: [i8; QUANT_GROUP],
    /// High bytes of the top quad.
    pub(crate) high: [i8; QUAD],
    pub(crate) scale: f32,
    /// `scale` times the sum of quants.
    pub(crate) sum: f32,
    /// - sum of quants.
    pub(crate) negated_sum: i32,
    /// - sum of the first 16 quants.
    pub(crate) negated_half_sum: i32,
    /// Which quad is on top, 0 to 7, times 64: where its vector of weights begins.
    pub(crate) top_offset: u16,
    /// Which of the [`NUM_LEVELS`] significands `scale` has, times 64: where its vector in a table of them begins.
    pub(crate) level_offset: u16,
    /// Where two weights share a byte, the first half of the group low: the bits of the top quad's weights.
    pub(crate) nibble_mask: u32,
    /// And by how much products with those bits fall short of products with the high bytes: 8 or 4.
    pub(crate) nibble_shift: u32,
}

const _: () = assert!(size_of::<QuantGroup>() == ALIGNMENT_BYTES);

/// How the elements of a group become quants.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GroupCode {
    pub(crate) scale: f32,
    /// Quant: `round(x * reciprocal)`.
    pub(crate) reciprocal: f32,
    pub(crate) is_finite: bool,
}

impl GroupCode {
    /// That of a group whose top quad's largest magnitude and that of the other quads have these bits.
    #[inline(always)]
    pub(crate) fn new(top_bits: i32, rest_bits: i32) -> Self {
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
    /// The numbers of a group beside its quants. `sum` and `half_sum` are of all quants and of the first 16.
    #[inline(always)]
    pub(crate) fn put_numbers(&mut self, code: GroupCode, top_quad: u32, sum: i32, half_sum: i32) {
        self.scale = code.scale;
        // |sum| <= 28 * 127 + 4 * 32639, exact in f32.
        self.sum = code.scale * sum as f32;
        self.negated_sum = -sum;
        self.negated_half_sum = -half_sum;
        // Both below 8 * 64.
        self.top_offset = (top_quad as usize * VECTOR_BYTES) as u16;
        self.level_offset =
            ((code.scale.to_bits() >> DROPPED_BITS) as usize % NUM_LEVELS * VECTOR_BYTES) as u16;
        let is_low = top_quad < GROUP_QUADS as u32 / 2;
        (self.nibble_mask, self.nibble_shift) = if is_low { (0x0f0f_0f0f, 8) } else { (0xf0f0_f0f0, 4) };
    }

    /// A group that is not finite: no quants, and numbers that are the same everywhere.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn put_not_finite(&mut self) {
        (self.low, self.high) = ([0; QUANT_GROUP], [0; QUAD]);
        self.put_numbers(GroupCode::new(i32::MAX, 0), 0, 0, 0);
    }

    /// Which quad is on top, 0 to 7.
    #[inline(always)]
    pub(crate) fn top_quad(&self) -> usize {
        usize::from(self.top_offset) / VECTOR_BYTES % GROUP_QUADS
    }
}

/// The significand number `level`, 1 to 1.875.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) fn level_value(level: usize) -> f32 {
    1.0 + level as f32 / NUM_LEVELS as f32
}

/// Shape of quantised rows, and thereby the layout of their bytes: what each row's sums start from (f32: 0, or NaN),
/// then the groups of each row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuantizedShape {
    num_rows: usize,
    in_features: usize,
}

impl QuantizedShape {
    /// Panics unless `in_features` is a multiple of 32, as that of every integer weight is.
    pub fn new(num_rows: usize, in_features: usize) -> Self {
        assert!(in_features.is_multiple_of(QUANT_GROUP), "{in_features} features in groups of {QUANT_GROUP}");
        Self { num_rows, in_features }
    }

    pub fn num_rows(&self) -> usize {
        self.num_rows
    }

    /// Elements of a row.
    pub fn in_features(&self) -> usize {
        self.in_features
    }

    /// Bytes of the quantised rows. Grows with `num_rows`, so a buffer for the most rows fits fewer.
    pub fn num_bytes(&self) -> usize {
        self.groups_offset() + self.num_rows * self.row_stride() * size_of::<QuantGroup>()
    }

    pub(crate) fn groups_per_row(&self) -> usize {
        self.in_features / QUANT_GROUP
    }

    /// Groups from a row to the next: odd, so that neighbouring rows do not fall into one set of a cache.
    pub(crate) fn row_stride(&self) -> usize {
        self.groups_per_row() | 1
    }

    fn groups_offset(&self) -> usize {
        (self.num_rows * size_of::<f32>()).next_multiple_of(ALIGNMENT_BYTES)
    }
}

/// Quantised rows, ready for [`crate::linear::linear`].
#[derive(Debug, Clone, Copy)]
pub struct QuantizedRows<'a> {
    shape: QuantizedShape,
    starts: &'a [f32],
    groups: &'a [QuantGroup],
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct QuantizedBlock<'a> {
    /// What each row's sums start from.
    pub(crate) starts: &'a [f32],
    /// From the first group of the first row to the last one of the last row.
    pub(crate) groups: &'a [QuantGroup],
    /// Groups from a row to the next.
    pub(crate) row_stride: usize,
}

impl QuantizedBlock<'_> {
    pub(crate) fn num_rows(&self) -> usize {
        self.starts.len()
    }

    /// Panics if there is no row, or one is shorter than `in_features`.
    pub(crate) fn check(&self, in_features: usize) {
        let len = (self.num_rows() - 1) * self.row_stride + in_features / QUANT_GROUP;
        assert!(self.groups.len() >= len, "{} groups of {len}", self.groups.len());
    }
}

impl<'a> QuantizedRows<'a> {
    /// The rows that [`quantize_rows`] wrote into `bytes`.
    ///
    /// Panics if `bytes` is too short or does not start at a multiple of 64.
    pub fn new(shape: QuantizedShape, bytes: &'a [u8]) -> Self {
        check_buffer(shape, bytes.as_ptr(), bytes.len());
        let base = bytes.as_ptr();
        // SAFETY: `num_bytes` covers both parts, whose offsets are multiples of 64; every bit pattern is a value.
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

    /// Rows `rows`.
    pub(crate) fn block(&self, rows: Range<usize>) -> QuantizedBlock<'a> {
        let row_stride = self.shape.row_stride();
        let groups = &self.groups[rows.start * row_stride..rows.end * row_stride];
        QuantizedBlock { starts: &self.starts[rows], groups, row_stride }
    }
}

fn check_buffer(shape: QuantizedShape, start: *const u8, len: usize) {
    assert!(len >= shape.num_bytes(), "{len} bytes for {shape:?}");
    assert!(start.addr().is_multiple_of(ALIGNMENT_BYTES), "misaligned buffer");
}

/// Quantises rows `rows` of `x`, which are `row_stride` elements apart, into their places in `out`.
///
/// `shape` is that of all rows; threads take disjoint `rows`. Panics if a slice is too short or `out` does not start at
/// a multiple of 64.
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
    // SAFETY: the caller's condition.
    unsafe { quantize_rows_from(isa, shape, &x[rows.start * row_stride..], row_stride, rows, out) }
}

/// [`quantize_rows`] for an `x` that begins with row `rows.start`.
///
/// # Safety
/// As there.
pub(crate) unsafe fn quantize_rows_from(
    isa: Isa,
    shape: QuantizedShape,
    x: &[f32],
    row_stride: usize,
    rows: Range<usize>,
    out: SharedMut<'_, u8>,
) {
    assert!(rows.end <= shape.num_rows, "{rows:?} of {shape:?}");
    check_buffer(shape, out.as_mut_ptr(), out.len());
    if rows.is_empty() || shape.in_features == 0 {
        return;
    }
    assert!(x.len() >= (rows.len() - 1) * row_stride + shape.in_features, "{} elements of {rows:?}", x.len());
    // SAFETY: inside `out`, whose length and alignment were checked; the caller keeps others from these rows.
    let job = unsafe {
        let starts = out.as_mut_ptr().cast::<f32>().add(rows.start);
        let groups = out.as_mut_ptr().add(shape.groups_offset()).cast::<QuantGroup>();
        QuantizeJob {
            shape,
            x,
            row_stride,
            num_rows: rows.len(),
            starts,
            groups: groups.add(rows.start * shape.row_stride()),
        }
    };
    for row in 0..rows.len() {
        // SAFETY: as above.
        unsafe { job.starts.add(row).write(0.0) };
    }
    // SAFETY: the `Isa` proves the CPU.
    unsafe { call_isa!(isa, quantize_rows(&job)) };
}

/// Some neighbouring rows to quantise: pointers that may be written, checked by [`quantize_rows_from`].
pub(crate) struct QuantizeJob<'a> {
    shape: QuantizedShape,
    /// Elements, from the first of the first row on.
    x: &'a [f32],
    row_stride: usize,
    num_rows: usize,
    /// What the rows' sums start from, 0 when a kernel begins.
    starts: *mut f32,
    /// The first row's first group.
    groups: *mut QuantGroup,
}

impl QuantizeJob<'_> {
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn num_rows(&self) -> usize {
        self.num_rows
    }

    pub(crate) fn groups_per_row(&self) -> usize {
        self.shape.groups_per_row()
    }

    /// Elements of a row.
    pub(crate) fn x(&self, row: usize) -> &[f32] {
        &self.x[row * self.row_stride..][..self.shape.in_features]
    }

    /// First group of a row, of [`QuantizeJob::groups_per_row`] that lie together.
    pub(crate) fn groups(&self, row: usize) -> *mut QuantGroup {
        assert!(row < self.num_rows);
        // SAFETY: a row of the job.
        unsafe { self.groups.add(row * self.shape.row_stride()) }
    }

    /// Quantises row by row; `quantize_row` returns false if its row is not finite.
    pub(crate) fn each_row(&self, quantize_row: impl Fn(&[f32], &mut [QuantGroup]) -> bool) {
        for row in 0..self.num_rows {
            // SAFETY: this job's alone; bytes are initialised whatever they hold.
            unsafe {
                let groups = std::slice::from_raw_parts_mut(self.groups(row), self.groups_per_row());
                if !quantize_row(self.x(row), groups) {
                    self.starts.add(row).write(f32::NAN);
                }
            }
        }
    }

    /// Writes group `group` of row `row` as one that is not finite.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn put_not_finite(&self, row: usize, group: usize) {
        assert!(group < self.groups_per_row());
        // SAFETY: a group of the job, and its row.
        unsafe {
            (*self.groups(row).add(group)).put_not_finite();
            self.starts.add(row).write(f32::NAN);
        }
    }
}
