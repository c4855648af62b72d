//! Activations as signed bytes, for products with integer weights.
//!
//! Each row is cut into groups of [`QUANT_GROUP`] elements, and element `x` becomes `scale * quant + offset`, the
//! quants spread from -128 at the group's smallest element to 127 at its largest. In f32, with `range = max - min`:
//!
//! ```text
//! scale  = range / 255
//! quant  = round((x - min) * (255 / range)) - 128      to nearest, ties to even
//! offset = min + 128 * scale
//! ```
//!
//! A row's bits depend on that row alone. A group whose range is below 2^-100 has the scale 0, quants 0 and `min` as
//! its offset. A group that holds NaN or an infinity, or whose range overflows, has the scale NaN, quants 0 and
//! offset 0, so that its row's products are NaN and no other's. docs/decisions/0006 says why the groups are small and
//! have offsets.

use std::ops::Range;

use crate::aligned::ALIGNMENT_BYTES;
use crate::isa::{self, Isa, IsaKind};
use crate::linear::{PANEL, QUAD};
use crate::shared_mut::SharedMut;

/// Elements of a row that share scale and offset.
pub const QUANT_GROUP: usize = 16;

/// Elements whose sum is kept: the group of every weight format that has minima.
pub(crate) const SUM_GROUP: usize = 2 * QUANT_GROUP;

/// Steps from the smallest quant to the largest.
const STEPS: f32 = 255.0;

/// Steps from the smallest quant to quant 0.
pub(crate) const STEPS_BELOW_ZERO: i32 = 128;

/// Groups whose range is below this (2^-100) count as constant: the reciprocal would overflow, and beside any weight
/// the differences are nothing.
const SMALLEST_RANGE: f32 = f32::from_bits(27 << 23);

/// [`order_key`] of infinity and of minus infinity; keys from there on outwards are not finite.
const INFINITY_KEY: i32 = 0xff << 23;
const NEGATIVE_INFINITY_KEY: i32 = !INFINITY_KEY;

/// Bytes of f32 and of i32.
const WORD: usize = 4;

/// An integer that orders as the f32 of these bits, -0 below 0 and NaN outermost. Its own inverse.
///
/// Minimum and maximum of such integers are the same in any order; those of floats are not, for zeros and NaN.
pub(crate) fn order_key(bits: i32) -> i32 {
    bits ^ (bits >> 31 & i32::MAX)
}

/// How the elements of a group become quants.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GroupCode {
    pub(crate) scale: f32,
    pub(crate) offset: f32,
    /// Quant: `round((x - min) * reciprocal) - 128`; if this is 0, 0.
    pub(crate) reciprocal: f32,
    pub(crate) min: f32,
}

impl GroupCode {
    /// That of a group whose smallest and largest element have these keys.
    #[inline]
    pub(crate) fn new(min_key: i32, max_key: i32) -> Self {
        // Bits, not numbers.
        let value = |key: i32| f32::from_bits(order_key(key).cast_unsigned());
        let (min, max) = (value(min_key), value(max_key));
        let range = max - min;
        if min_key <= NEGATIVE_INFINITY_KEY || max_key >= INFINITY_KEY || range == f32::INFINITY {
            Self { scale: f32::NAN, offset: 0.0, reciprocal: 0.0, min: 0.0 }
        } else if range < SMALLEST_RANGE {
            Self { scale: 0.0, offset: min, reciprocal: 0.0, min }
        } else {
            let scale = range / STEPS;
            // 128 times the scale is exact.
            Self { scale, offset: min + STEPS_BELOW_ZERO as f32 * scale, reciprocal: STEPS / range, min }
        }
    }
}

/// Shape of quantised rows, and thereby the layout of their bytes.
///
/// Rows stand in panels of [`PANEL`] (the last one may be narrower), `w` rows side by side:
///
/// ```text
/// scales        [panel][element / 16][w]      f32
/// offsets       [panel][element / 16][w]      f32
/// negated_sums  [panel][element / 16][w]      i32: - sum of quants
/// sums          [panel][element / 32][w]      f32: sum of what the quants stand for
/// quants        [panel][element / 4][w][4]    i8
/// ```
///
/// A sum is `fma(scale, sum of quants, 16 * offset)` of its first group plus the same of its second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuantizedShape {
    num_rows: usize,
    in_features: usize,
}

impl QuantizedShape {
    /// Panics unless `in_features` is a multiple of 32, as that of every integer weight is.
    pub fn new(num_rows: usize, in_features: usize) -> Self {
        assert!(in_features.is_multiple_of(SUM_GROUP), "{in_features} features in groups of {SUM_GROUP}");
        Self { num_rows, in_features }
    }

    /// Rows.
    pub fn num_rows(&self) -> usize {
        self.num_rows
    }

    /// Elements of a row.
    pub fn in_features(&self) -> usize {
        self.in_features
    }

    /// Bytes of the quantised rows. Grows with `num_rows`, so a buffer for the most rows fits fewer.
    pub fn num_bytes(&self) -> usize {
        self.quants_offset() + self.num_rows * self.in_features
    }

    pub(crate) fn groups_per_row(&self) -> usize {
        self.in_features / QUANT_GROUP
    }

    fn meta_bytes(&self) -> usize {
        (self.num_rows * self.groups_per_row() * WORD).next_multiple_of(ALIGNMENT_BYTES)
    }

    fn sum_bytes(&self) -> usize {
        (self.num_rows * self.in_features / SUM_GROUP * WORD).next_multiple_of(ALIGNMENT_BYTES)
    }

    fn sums_offset(&self) -> usize {
        3 * self.meta_bytes()
    }

    fn quants_offset(&self) -> usize {
        self.sums_offset() + self.sum_bytes()
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
    offsets: &'a [f32],
    negated_sums: &'a [i32],
    sums: &'a [f32],
    quants: &'a [i8],
}

/// The parts of one panel, each from its first element.
#[derive(Debug, Clone, Copy)]
pub(crate) struct QuantizedPanel<'a> {
    pub(crate) num_rows: usize,
    pub(crate) scales: &'a [f32],
    pub(crate) offsets: &'a [f32],
    pub(crate) negated_sums: &'a [i32],
    pub(crate) sums: &'a [f32],
    pub(crate) quants: &'a [i8],
}

impl QuantizedPanel<'_> {
    /// Panics if a part is too short for rows of `in_features`.
    pub(crate) fn check(&self, in_features: usize) {
        let num_metas = in_features / QUANT_GROUP * self.num_rows;
        assert!(self.quants.len() >= in_features * self.num_rows);
        let metas = [self.scales.len(), self.offsets.len(), self.negated_sums.len()];
        assert!(metas.iter().all(|&len| len >= num_metas));
        assert!(self.sums.len() >= num_metas / 2);
    }
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
        // SAFETY: `num_bytes` covers the five parts, whose offsets are multiples of 4; every bit pattern is a value.
        unsafe {
            Self {
                shape,
                scales: std::slice::from_raw_parts(base.cast(), count),
                offsets: std::slice::from_raw_parts(base.add(shape.meta_bytes()).cast(), count),
                negated_sums: std::slice::from_raw_parts(base.add(2 * shape.meta_bytes()).cast(), count),
                sums: std::slice::from_raw_parts(base.add(shape.sums_offset()).cast(), count / 2),
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
            offsets: &self.offsets[meta.clone()],
            sums: &self.sums[meta.start / 2..meta.end / 2],
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
    pub(crate) offsets: *mut f32,
    pub(crate) negated_sums: *mut i32,
    /// Likewise, for the first two groups.
    pub(crate) sums: *mut f32,
    /// Elements 0 to 3 of the row; the next four are `stride` times 4 bytes further.
    pub(crate) quants: *mut i8,
    /// Rows of the panel.
    pub(crate) stride: usize,
}

impl RowTarget {
    /// Writes group `group_idx`, of which `sum` is the sum of its quants. Groups go in order.
    ///
    /// # Safety
    /// The pointers are those of a row with more than `group_idx` groups, and nobody else uses it.
    #[inline]
    pub(crate) unsafe fn put(&self, group_idx: usize, code: GroupCode, sum: i32, quants: &[i8; QUANT_GROUP]) {
        let at = group_idx * self.stride;
        // |sum| <= 16 * 128, exact in f32.
        let value_sum = code.scale.mul_add(sum as f32, QUANT_GROUP as f32 * code.offset);
        // SAFETY: by the contract.
        unsafe {
            self.scales.add(at).write(code.scale);
            self.offsets.add(at).write(code.offset);
            self.negated_sums.add(at).write(-sum);
            let pair_sum = self.sums.add(group_idx / 2 * self.stride);
            pair_sum.write(if group_idx.is_multiple_of(2) { value_sum } else { pair_sum.read() + value_sum });
            for (index, quad) in quants.chunks_exact(QUAD).enumerate() {
                let target = self.quants.add(at * QUANT_GROUP + index * QUAD * self.stride);
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
                IsaKind::Scalar => isa::scalar::quantize_row(x, target),
                #[cfg(target_arch = "x86_64")]
                IsaKind::Avx2 | IsaKind::Avx512 => isa::x86::quantize_row(x, target),
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
            offsets: base.add(shape.meta_bytes()).cast::<f32>().add(meta + lane),
            negated_sums: base.add(2 * shape.meta_bytes()).cast::<i32>().add(meta + lane),
            sums: base.add(shape.sums_offset()).cast::<f32>().add(meta / 2 + lane),
            quants: base.add(shape.quants_offset()).cast::<i8>().add(first * shape.in_features + lane * QUAD),
            stride,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Random;

    /// Quantises one row with every instruction set; returns the values that the last one's quants stand for, and the
    /// sums of 32.
    fn values_and_sums(x: &[f32]) -> (Vec<f64>, Vec<f32>) {
        let shape = QuantizedShape::new(1, x.len());
        let mut bytes = crate::aligned::AlignedBytes::zeroed(shape.num_bytes());
        for isa in Isa::available() {
            let out = SharedMut::new(bytes.as_mut_slice());
            // SAFETY: one thread.
            unsafe { quantize_rows(isa, shape, x, x.len(), 0..1, out) };
        }
        let rows = QuantizedRows::new(shape, bytes.as_slice());
        let value = |(at, quant): (usize, &i8)| {
            let group = at / QUANT_GROUP;
            f64::from(rows.scales[group]) * f64::from(*quant) + f64::from(rows.offsets[group])
        };
        (rows.quants.iter().enumerate().map(value).collect(), rows.sums.to_vec())
    }

    #[test]
    fn quants_span_the_range_of_their_group_wherever_it_lies() {
        let mut random = Random::new(31);
        for (offset, size) in [(0.0, 1.0), (1e3, 1e-2), (-3e-9, 4e-9), (2e30, 1e30), (0.5, 1e-20)] {
            let x: Vec<f32> = (0..64).map(|_| offset + size * random.float()).collect();
            let (values, sums) = values_and_sums(&x);
            for (x, values) in x.chunks(QUANT_GROUP).zip(values.chunks(QUANT_GROUP)) {
                let min = x.iter().copied().fold(f32::INFINITY, f32::min);
                let max = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                let largest = f64::from(min.abs().max(max.abs()));
                // Half a step, and the rounding of f32.
                let bound = 0.5001 * f64::from(max - min) / f64::from(STEPS) + 3e-7 * largest;
                for (x, value) in x.iter().zip(values) {
                    assert!((f64::from(*x) - value).abs() <= bound, "{x} as {value}, {min}..{max}");
                }
            }
            for (sum, values) in sums.iter().zip(values.chunks(SUM_GROUP)) {
                let magnitude: f64 = values.iter().map(|value| value.abs()).sum();
                let exact: f64 = values.iter().sum();
                assert!((f64::from(*sum) - exact).abs() <= 1e-6 * magnitude, "{sum} for {exact}");
            }
        }
    }

    #[test]
    fn constant_groups_are_exact() {
        for value in [0.0, 1.5, -0.1, 1e-45, f32::MAX, f32::MIN] {
            let (values, _) = values_and_sums(&[value; 32]);
            assert!(values.iter().all(|&actual| actual == f64::from(value)), "{value}: {values:?}");
        }
    }

    #[test]
    fn a_group_without_a_finite_range_is_nan_and_its_neighbour_is_not() {
        for bad in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MIN] {
            let mut x = [f32::MAX; 64];
            x[17] = bad;
            let (values, sums) = values_and_sums(&x);
            assert!(values[16..32].iter().all(|value| value.is_nan()), "{bad}: {values:?}");
            assert!(values[..16].iter().chain(&values[32..]).all(|value| value.is_finite()), "{bad}");
            assert!(sums[0].is_nan(), "{bad}: {sums:?}");
        }
    }

    #[test]
    fn keys_order_as_numbers_and_are_their_own_inverse() {
        let ascending =
            [f32::NEG_INFINITY, f32::MIN, -1.0, -1e-45, -0.0, 0.0, 1e-45, 1.0, f32::MAX, f32::INFINITY];
        let keys = ascending.map(|x| order_key(x.to_bits().cast_signed()));
        assert!(keys.is_sorted_by(|a, b| a < b), "{keys:?}");
        assert_eq!((keys[0], keys[9]), (NEGATIVE_INFINITY_KEY, INFINITY_KEY));
        assert_eq!(keys.map(|key| order_key(key).cast_unsigned()), ascending.map(f32::to_bits));
        assert!(order_key(f32::NAN.to_bits().cast_signed()) > INFINITY_KEY);
        assert!(order_key((-f32::NAN).to_bits().cast_signed()) < NEGATIVE_INFINITY_KEY);
    }
}
