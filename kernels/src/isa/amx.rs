//! Kernel for AMX with bytes (tile registers), of Sapphire Rapids and later; the others are those of AVX-512.
//!
//! 16 rows at a time: `tdpbsud` multiplies a group of their activations, as it lies in memory, with the group of
//! weights of 16 output features, which are in the order of its second operand: vectors of 16 lanes of quads. A group's
//! sums are taken out of the tile at once, because its scales are its own; what follows is as in the other files.
//!
//! The instructions are reached through [`Unit`]. Tests put a model of them in its place, written from the manual; no
//! processor that has them has run this file yet, which is why [`crate::isa::Isa::detect`] does not choose it.

mod model;

use std::arch::asm;
use std::arch::x86_64::*;
use std::sync::OnceLock;

use crate::isa::avx512;
use crate::linear::{QUAD, TILE, TileOutput};
use crate::pack::int::IntFormat;
use crate::pack::{Tile, group_vectors};
use crate::quantize::{GROUP_QUADS, QUANT_GROUP, QuantGroup, QuantizedBlock};

pub use model::linear_by_model;

pub(crate) use super::avx512::linear_float;
pub(crate) use super::avx512_quantize::quantize_rows;

/// Rows of a tile register.
const ROWS: usize = 16;
/// Bytes of a vector of a tile of weights, and of a row of a tile register.
const VECTOR: usize = 64;
/// Linux: `arch_prctl` asks for the use of a part of the registers' state, and the number of the tile registers in it.
const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
const XFEATURE_XTILEDATA: libc::c_long = 18;

/// Sums of 16 rows and 16 output features.
#[repr(C, align(64))]
struct Sums([[i32; TILE]; ROWS]);

/// Weights of a group, a byte each: [quad][lane][4 elements].
#[repr(C, align(64))]
struct Weights([u8; GROUP_QUADS * VECTOR]);

/// The tile instructions.
trait Unit {
    /// Readies this thread for products over `depth` elements, a multiple of 4 up to 64.
    ///
    /// # Safety
    /// The CPU has the unit.
    unsafe fn configure(depth: usize);

    /// `sums[r][lane]` = sum over k below the depth of `x[r * x_stride + k]` (signed) times
    /// `weights[(k / 4 * 16 + lane) * 4 + k % 4]` (unsigned).
    ///
    /// # Safety
    /// This thread was configured, and has not been released; the pointers are valid for 16 rows and the depth.
    unsafe fn product(x: *const i8, x_stride: usize, weights: *const u8, sums: &mut Sums);

    /// Gives the tiles back.
    ///
    /// # Safety
    /// The CPU has the unit.
    unsafe fn release();
}

/// The CPU's own.
enum Hardware {}

/// What `ldtilecfg` reads: palette 1, then bytes of a row and rows of each tile register.
#[repr(C, align(64))]
struct Configuration {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

impl Unit for Hardware {
    #[inline(always)]
    unsafe fn configure(depth: usize) {
        let mut configuration =
            Configuration { palette: 1, start_row: 0, reserved: [0; 14], row_bytes: [0; 16], rows: [0; 16] };
        // Sums, activations, weights. The depth is at most 64.
        configuration.row_bytes[..3].copy_from_slice(&[VECTOR as u16, depth as u16, VECTOR as u16]);
        configuration.rows[..3].copy_from_slice(&[ROWS as u8, ROWS as u8, (depth / QUAD) as u8]);
        // SAFETY: 64 bytes are read.
        unsafe { asm!("ldtilecfg [{0}]", in(reg) &raw const configuration, options(readonly, nostack)) }
    }

    #[inline(always)]
    unsafe fn product(x: *const i8, x_stride: usize, weights: *const u8, sums: &mut Sums) {
        // SAFETY: by the contract; the compiler uses no tile registers.
        unsafe {
            asm!(
                "tilezero tmm0",
                "tileloadd tmm1, [{x} + {x_stride}]",
                "tileloadd tmm2, [{weights} + {stride}]",
                "tdpbsud tmm0, tmm1, tmm2",
                "tilestored [{sums} + {stride}], tmm0",
                x = in(reg) x, x_stride = in(reg) x_stride, weights = in(reg) weights, stride = in(reg) VECTOR,
                sums = in(reg) &raw mut *sums, options(nostack)
            );
        }
    }

    #[inline(always)]
    unsafe fn release() {
        // SAFETY: touches tile registers alone.
        unsafe { asm!("tilerelease", options(nomem, nostack)) }
    }
}

/// True if the CPU has the unit and the system lets this process use it, for which it is asked once.
pub(super) fn is_supported() -> bool {
    static IS_SUPPORTED: OnceLock<bool> = OnceLock::new();
    *IS_SUPPORTED.get_or_init(|| {
        // Leaf 7: AMX-TILE is bit 24 of EDX, AMX-INT8 bit 25.
        let wanted = 0b11 << 24;
        let has_unit = __cpuid(0).eax >= 7 && __cpuid_count(7, 0).edx & wanted == wanted;
        has_unit && is_permitted()
    })
}

#[cfg(target_os = "linux")]
fn is_permitted() -> bool {
    // SAFETY: takes numbers, touches no memory.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0 }
}

#[cfg(not(target_os = "linux"))]
fn is_permitted() -> bool {
    false
}

/// Rows times one tile of integer weights.
///
/// # Safety
/// The CPU has the features; `out` may be written for the block's rows and `num_lanes` lanes.
pub(crate) unsafe fn linear_int<F: IntFormat>(
    in_features: usize,
    tile: &Tile<'_>,
    block: &QuantizedBlock<'_>,
    out: &TileOutput<'_>,
) {
    // SAFETY: by the contract.
    unsafe { linear_int_on::<F, Hardware>(in_features, tile, block, out) }
}

/// # Safety
/// As [`linear_int`], on unit `U`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn linear_int_on<F: IntFormat, U: Unit>(
    in_features: usize,
    tile: &Tile<'_>,
    block: &QuantizedBlock<'_>,
    out: &TileOutput<'_>,
) {
    let num_groups = in_features / F::GROUP;
    assert!(tile.quants.len() >= num_groups * group_vectors::<F>() * VECTOR);
    assert!(tile.scales.len() >= num_groups * TILE * scale_bytes::<F>());
    assert!(!F::HAS_MIN || tile.mins.len() >= num_groups * TILE * scale_bytes::<F>());
    block.check(in_features);
    let whole = block.num_rows() / ROWS * ROWS;
    // SAFETY: lengths are checked; the rest by the contract.
    unsafe {
        if whole > 0 {
            U::configure(F::GROUP);
            for first_row in (0..whole).step_by(ROWS) {
                rows_of_tile::<F, U>(in_features, tile, block, first_row, &out.row(first_row));
            }
            U::release();
        }
        if whole < block.num_rows() {
            let rest = QuantizedBlock {
                starts: &block.starts[whole..],
                groups: &block.groups[whole * block.row_stride..],
                row_stride: block.row_stride,
            };
            avx512::linear_int::<F>(in_features, tile, &rest, &out.row(whole));
        }
    }
}

/// 16 rows from `first_row` on.
///
/// # Safety
/// As [`linear_int`], which has checked the lengths; this thread is configured for groups of `F`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn rows_of_tile<F: IntFormat, U: Unit>(
    in_features: usize,
    tile: &Tile<'_>,
    block: &QuantizedBlock<'_>,
    first_row: usize,
    out: &TileOutput<'_>,
) {
    let parts = QUANT_GROUP / F::GROUP;
    let mut sums = Sums([[0; TILE]; ROWS]);
    let mut unpacked = Weights([0; GROUP_QUADS * VECTOR]);
    let mut acc: [__m512; ROWS] = std::array::from_fn(|row| _mm512_set1_ps(block.starts[first_row + row]));
    // SAFETY: groups and rows are within the lengths checked before.
    unsafe {
        let groups = block.groups.as_ptr().add(first_row * block.row_stride);
        for group in 0..in_features / F::GROUP {
            let (x_group, part) = (group / parts, group % parts);
            let packed = tile.quants.as_ptr().add(group * group_vectors::<F>() * VECTOR);
            let weights = if F::NIBBLES { unpack(packed, &mut unpacked) } else { packed };
            let x = groups.add(x_group);
            let low = (&raw const (*x).low).cast::<i8>().add(part * F::GROUP);
            U::product(low, block.row_stride * size_of::<QuantGroup>(), weights, &mut sums);
            let scale = load_scales::<F>(tile.scales.as_ptr().add(group * TILE * scale_bytes::<F>()));
            for (row, acc) in acc.iter_mut().enumerate() {
                let x = &*x.add(row * block.row_stride);
                let dot = finish::<F>(_mm512_load_si512(sums.0[row].as_ptr().cast()), weights, x, part);
                let scale = _mm512_mul_ps(scale, _mm512_set1_ps(x.scale));
                *acc = _mm512_fmadd_ps(scale, _mm512_cvtepi32_ps(dot), *acc);
            }
            if F::HAS_MIN {
                let min = load_scales::<F>(tile.mins.as_ptr().add(group * TILE * scale_bytes::<F>()));
                for (row, acc) in acc.iter_mut().enumerate() {
                    let sum = _mm512_set1_ps((*x.add(row * block.row_stride)).sum);
                    *acc = _mm512_fmadd_ps(min, sum, *acc);
                }
            }
        }
        // At most 16 lanes.
        let mask = ((1u32 << out.num_lanes) - 1) as __mmask16;
        let bias = out.bias.map(|bias| _mm512_maskz_loadu_ps(mask, bias.as_ptr()));
        for (row, acc) in acc.into_iter().enumerate() {
            let value = bias.map_or(acc, |bias| _mm512_add_ps(acc, bias));
            _mm512_mask_storeu_ps(out.values.add(row * out.row_stride), mask, value);
        }
    }
}

/// What a tile's sums lack: the high bytes of the top quad, and the zero point.
///
/// # Safety
/// `weights` are of part `part` of those that meet `x`, a byte each.
#[inline]
#[target_feature(enable = "avx512f,avx512vnni")]
unsafe fn finish<F: IntFormat>(sums: __m512i, weights: *const u8, x: &QuantGroup, part: usize) -> __m512i {
    let quads = F::GROUP / QUAD;
    let mut sums = sums;
    if x.top_quad() / quads == part {
        let at = x.top_quad() % quads * VECTOR;
        // SAFETY: by the contract.
        let (weights, high) = unsafe {
            (_mm512_loadu_si512(weights.add(at).cast()), x.high.as_ptr().cast::<i32>().read_unaligned())
        };
        let high = _mm512_dpbusd_epi32(_mm512_setzero_si512(), weights, _mm512_set1_epi32(high));
        sums = _mm512_add_epi32(sums, _mm512_slli_epi32::<8>(high));
    }
    if F::ZERO_POINT != 0 {
        let negated_sum = match (F::GROUP < QUANT_GROUP, part) {
            (false, _) => x.negated_sum,
            (true, 0) => x.negated_half_sum,
            (true, _) => x.negated_sum - x.negated_half_sum,
        };
        sums = _mm512_add_epi32(sums, _mm512_set1_epi32(i32::from(F::ZERO_POINT) * negated_sum));
    }
    sums
}

/// A group of nibbles as bytes: the low ones are the first half.
///
/// # Safety
/// `packed` has 4 vectors.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn unpack(packed: *const u8, unpacked: &mut Weights) -> *const u8 {
    let nibble = _mm512_set1_epi8(15);
    for vector in 0..GROUP_QUADS / 2 {
        // SAFETY: 4 vectors are read, 8 written.
        unsafe {
            let bytes = _mm512_loadu_si512(packed.add(vector * VECTOR).cast());
            let target = unpacked.0.as_mut_ptr().add(vector * VECTOR);
            _mm512_store_si512(target.cast(), _mm512_and_si512(bytes, nibble));
            let high = _mm512_and_si512(_mm512_srli_epi16::<4>(bytes), nibble);
            _mm512_store_si512(target.add(GROUP_QUADS / 2 * VECTOR).cast(), high);
        }
    }
    unpacked.0.as_ptr()
}

/// Bytes of a scale or minimum.
const fn scale_bytes<F: IntFormat>() -> usize {
    if F::HALF_SCALES { 2 } else { 4 }
}

/// # Safety
/// `pointer` has 16 scales.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn load_scales<F: IntFormat>(pointer: *const u8) -> __m512 {
    // SAFETY: by the contract.
    unsafe {
        if F::HALF_SCALES {
            _mm512_cvtph_ps(_mm256_loadu_si256(pointer.cast()))
        } else {
            _mm512_loadu_ps(pointer.cast())
        }
    }
}
