//! The implementation of [`ByteLanes`] for AArch64.
#![allow(clippy::undocumented_unsafe_blocks, reason = "the conditions of every block are those of the trait")]

use std::arch::aarch64::*;
use std::arch::asm;

use super::{NeonLanes, REGISTERS};
use crate::vector::{ByteLanes, LANES};

/// Half of 128, the difference between unsigned bytes and their signed form.
const HALF_SIGN: i8 = 64;

/// Adds the four products of each lane's signed bytes to `sums`. It is inline assembly, because the intrinsic needs a
/// newer compiler than this crate does.
#[inline(always)]
unsafe fn dot(mut sums: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    unsafe {
        asm!(".arch_extension dotprod", "sdot {0:v}.4s, {1:v}.16b, {2:v}.16b",
            inout(vreg) sums, in(vreg) a, in(vreg) b, options(pure, nomem, nostack, preserves_flags));
    }
    sums
}

/// Adds the four products of each lane's unsigned and signed bytes to `sums`.
#[inline(always)]
unsafe fn mixed_dot(mut sums: int32x4_t, unsigned: uint8x16_t, signed: int8x16_t) -> int32x4_t {
    unsafe {
        asm!(".arch_extension i8mm", "usdot {0:v}.4s, {1:v}.16b, {2:v}.16b",
            inout(vreg) sums, in(vreg) unsigned, in(vreg) signed, options(pure, nomem, nostack, preserves_flags));
    }
    sums
}

impl<const I8MM: bool> ByteLanes for NeonLanes<I8MM> {
    type Bytes = [uint8x16_t; REGISTERS];
    type Ints = [int32x4_t; REGISTERS];
    #[inline(always)]
    unsafe fn load_bytes(p: *const u8) -> Self::Bytes {
        unsafe { std::array::from_fn(|i| vld1q_u8(p.add(16 * i))) }
    }
    #[inline(always)]
    unsafe fn store_bytes(x: Self::Bytes, p: *mut u8) {
        unsafe {
            for (i, x) in x.into_iter().enumerate() {
                vst1q_u8(p.add(16 * i), x);
            }
        }
    }
    #[inline(always)]
    unsafe fn load_table(p: *const u8) -> Self::Bytes {
        unsafe { [vld1q_u8(p); REGISTERS] }
    }
    #[inline(always)]
    unsafe fn look_up(table: Self::Bytes, nibbles: Self::Bytes) -> [Self::Bytes; 2] {
        let mut out = [nibbles; 2];
        unsafe {
            let mask = vdupq_n_u8(0xf);
            for i in 0..REGISTERS {
                out[0][i] = vqtbl1q_u8(table[i], vandq_u8(nibbles[i], mask));
                out[1][i] = vqtbl1q_u8(table[i], vshrq_n_u8::<4>(nibbles[i]));
            }
        }
        out
    }
    #[inline(always)]
    unsafe fn splat_quad(p: *const u8) -> Self::Bytes {
        unsafe { [vreinterpretq_u8_u32(vdupq_n_u32(p.cast::<u32>().read_unaligned())); REGISTERS] }
    }
    #[inline(always)]
    unsafe fn splat_int(x: i32) -> Self::Ints {
        unsafe { [vdupq_n_s32(x); REGISTERS] }
    }
    #[inline(always)]
    unsafe fn dot(sums: Self::Ints, unsigned: Self::Bytes, signed: Self::Bytes) -> Self::Ints {
        unsafe {
            let (sign, half) = (vdupq_n_u8(0x80), vdupq_n_s8(HALF_SIGN));
            std::array::from_fn(|i| {
                let signed = vreinterpretq_s8_u8(signed[i]);
                if I8MM {
                    return mixed_dot(sums[i], unsigned[i], signed);
                }
                // Multiply the unsigned bytes minus 128, then add 128 times the signed bytes in two halves that fit in
                // bytes.
                let sums = dot(sums[i], vreinterpretq_s8_u8(veorq_u8(unsigned[i], sign)), signed);
                dot(dot(sums, half, signed), half, signed)
            })
        }
    }
    #[inline(always)]
    unsafe fn floats(x: Self::Ints) -> Self {
        unsafe { Self(x.map(|x| vcvtq_f32_s32(x))) }
    }
    #[inline(always)]
    unsafe fn times_256(x: Self::Ints) -> Self::Ints {
        unsafe { x.map(|x| vshlq_n_s32::<8>(x)) }
    }
    #[inline(always)]
    unsafe fn store_quads<const BYTE: u32>(x: [Self; 4], p: *mut u8) {
        let mut bits = [[0u32; LANES]; 4];
        unsafe {
            for (bits, x) in bits.iter_mut().zip(x) {
                crate::vector::Lanes::store(x, bits.as_mut_ptr().cast());
            }
            let quads: [[u8; 4]; LANES] =
                std::array::from_fn(|i| bits.map(|bits| (bits[i] >> (8 * BYTE)) as u8));
            p.cast::<[[u8; 4]; LANES]>().write_unaligned(quads);
        }
    }
    #[inline(always)]
    unsafe fn store_low_bytes(self, p: *mut u8) {
        unsafe {
            for (i, x) in self.0.chunks_exact(2).enumerate() {
                let words = [x[0], x[1]].map(|x| vmovn_u32(vreinterpretq_u32_f32(x)));
                vst1_u8(p.add(8 * i), vmovn_u16(vcombine_u16(words[0], words[1])));
            }
        }
    }
    #[inline(always)]
    unsafe fn two_largest(self) -> (f32, f32) {
        unsafe {
            let [a, b, c, d] = self.0;
            let pair = |a1, a2, b1, b2| (vmaxq_f32(a1, b1), vmaxq_f32(vminq_f32(a1, b1), vmaxq_f32(a2, b2)));
            let (x1, x2) = pair(vmaxq_f32(a, b), vminq_f32(a, b), vmaxq_f32(c, d), vminq_f32(c, d));
            let (x1, x2) = pair(x1, x2, vextq_f32::<2>(x1, x1), vextq_f32::<2>(x2, x2));
            let (x1, x2) = pair(x1, x2, vextq_f32::<1>(x1, x1), vextq_f32::<1>(x2, x2));
            (vgetq_lane_f32::<0>(x1), vgetq_lane_f32::<0>(x2))
        }
    }
    #[inline(always)]
    unsafe fn times_exp2(self, shifted: Self) -> Self {
        unsafe {
            Self(std::array::from_fn(|i| {
                let exponent = vshlq_n_s32::<23>(vreinterpretq_s32_f32(shifted.0[i]));
                vreinterpretq_f32_s32(vaddq_s32(exponent, vreinterpretq_s32_f32(self.0[i])))
            }))
        }
    }
    #[inline(always)]
    unsafe fn butterfly<const DISTANCE: usize>(self) -> Self {
        let mut x = [0.0f32; LANES];
        unsafe {
            crate::vector::Lanes::store(self, x.as_mut_ptr());
            let y: [f32; LANES] = std::array::from_fn(|i| {
                let other = x[i ^ DISTANCE];
                if i & DISTANCE == 0 { other + x[i] } else { other - x[i] }
            });
            crate::vector::Lanes::load(y.as_ptr())
        }
    }
    #[inline(always)]
    unsafe fn prefetch(_p: *const u8) {}
}
