//! The implementation of [`Lanes`] for AArch64, with four registers of four lanes.
//!
//! Half-precision conversions are inline assembly, because their intrinsics need a newer compiler than this crate does.
#![allow(clippy::undocumented_unsafe_blocks, reason = "the conditions of every block are those of the trait")]

mod bytes;

use std::arch::aarch64::*;
use std::arch::asm;

use super::{LANES, Lanes};

const REGISTERS: usize = 4;

/// Sixteen lanes in four 128-bit registers. Needs NEON, which every AArch64 CPU that runs an operating system has.
#[derive(Clone, Copy)]
pub struct NeonLanes<const I8MM: bool>([float32x4_t; REGISTERS]);

impl<const I8MM: bool> NeonLanes<I8MM> {
    #[inline(always)]
    fn zip(self, other: Self, f: impl Fn(float32x4_t, float32x4_t) -> float32x4_t) -> Self {
        Self(std::array::from_fn(|i| f(self.0[i], other.0[i])))
    }

    #[inline(always)]
    fn map(self, f: impl Fn(float32x4_t) -> float32x4_t) -> Self {
        Self(self.0.map(f))
    }

    /// A mask that is all ones in the lanes of register `i` whose index in the vector is below `n`.
    #[inline(always)]
    unsafe fn mask(n: usize, i: usize) -> uint32x4_t {
        unsafe {
            let lanes = vaddq_u32(vld1q_u32([0, 1, 2, 3].as_ptr()), vdupq_n_u32(4 * i as u32));
            // `n` is at most 16.
            vcltq_u32(lanes, vdupq_n_u32(n as u32))
        }
    }

    /// Folds all lanes by the tree of [`Lanes::sum`].
    #[inline(always)]
    unsafe fn fold(
        self,
        f: impl Fn(float32x4_t, float32x4_t) -> float32x4_t,
        g: impl Fn(float32x2_t, float32x2_t) -> float32x2_t,
    ) -> f32 {
        unsafe {
            let [a, b, c, d] = self.0;
            let four = f(f(a, c), f(b, d));
            let two = g(vget_low_f32(four), vget_high_f32(four));
            vget_lane_f32::<0>(g(two, vdup_lane_f32::<1>(two)))
        }
    }
}

/// Selects `a` where `a > b`, otherwise `b`.
#[inline(always)]
unsafe fn larger(a: float32x4_t, b: float32x4_t) -> float32x4_t {
    unsafe { vbslq_f32(vcgtq_f32(a, b), a, b) }
}

impl<const I8MM: bool> Lanes for NeonLanes<I8MM> {
    const REGISTERS: usize = 8;
    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        unsafe { Self([vdupq_n_f32(x); REGISTERS]) }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        unsafe { Self(std::array::from_fn(|i| vld1q_f32(p.add(4 * i)))) }
    }
    #[inline(always)]
    unsafe fn load_first(p: *const f32, n: usize) -> Self {
        debug_assert!(n <= LANES);
        let mut lanes = [0.0; LANES];
        unsafe {
            lanes.as_mut_ptr().cast::<u8>().copy_from_nonoverlapping(p.cast(), n * size_of::<f32>());
            Self::load(lanes.as_ptr())
        }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> Self {
        unsafe {
            Self(std::array::from_fn(|i| {
                let half = vld1_u16(p.add(4 * i));
                let wide: float32x4_t;
                asm!("fcvtl {0:v}.4s, {1:v}.4h", lateout(vreg) wide, in(vreg) half,
                    options(pure, nomem, nostack, preserves_flags));
                wide
            }))
        }
    }
    #[inline(always)]
    unsafe fn load_unsigned(p: *const u8) -> Self {
        unsafe {
            let bytes = vld1q_u8(p);
            let halves = [vmovl_u8(vget_low_u8(bytes)), vmovl_u8(vget_high_u8(bytes))];
            Self(std::array::from_fn(|i| {
                let half = halves[i / 2];
                let half = if i % 2 == 0 { vget_low_u16(half) } else { vget_high_u16(half) };
                vcvtq_f32_u32(vmovl_u16(half))
            }))
        }
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> Self {
        unsafe {
            Self(std::array::from_fn(|i| vreinterpretq_f32_u32(vshll_n_u16::<16>(vld1_u16(p.add(4 * i))))))
        }
    }
    #[inline(always)]
    unsafe fn load_bf16_of_pairs(p: *const u32, is_second: bool) -> Self {
        unsafe {
            Self(std::array::from_fn(|i| {
                let pairs = vld1q_u32(p.add(4 * i));
                vreinterpretq_f32_u32(if is_second {
                    vandq_u32(pairs, vdupq_n_u32(0xffff_0000))
                } else {
                    vshlq_n_u32::<16>(pairs)
                })
            }))
        }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        for (i, x) in self.0.into_iter().enumerate() {
            unsafe { vst1q_f32(p.add(4 * i), x) }
        }
    }
    #[inline(always)]
    unsafe fn store_first(self, p: *mut f32, n: usize) {
        debug_assert!(n <= LANES);
        let mut lanes = [0.0f32; LANES];
        unsafe {
            self.store(lanes.as_mut_ptr());
            p.cast::<u8>().copy_from_nonoverlapping(lanes.as_ptr().cast(), n * size_of::<f32>());
        }
    }
    #[inline(always)]
    unsafe fn store_f16(self, p: *mut u16) {
        for (i, x) in self.0.into_iter().enumerate() {
            unsafe {
                let half: uint16x4_t;
                // Rounds in the mode of the control register, which is to nearest even unless a program changes it.
                asm!("fcvtn {0:v}.4h, {1:v}.4s", lateout(vreg) half, in(vreg) x,
                    options(pure, nomem, nostack, preserves_flags));
                vst1_u16(p.add(4 * i), half);
            }
        }
    }
    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        self.zip(other, |a, b| unsafe { vaddq_f32(a, b) })
    }
    #[inline(always)]
    unsafe fn sub(self, other: Self) -> Self {
        self.zip(other, |a, b| unsafe { vsubq_f32(a, b) })
    }
    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        self.zip(other, |a, b| unsafe { vmulq_f32(a, b) })
    }
    #[inline(always)]
    unsafe fn div(self, other: Self) -> Self {
        self.zip(other, |a, b| unsafe { vdivq_f32(a, b) })
    }
    #[inline(always)]
    unsafe fn fma(self, b: Self, c: Self) -> Self {
        unsafe { Self(std::array::from_fn(|i| vfmaq_f32(c.0[i], self.0[i], b.0[i]))) }
    }
    #[inline(always)]
    unsafe fn fnma(self, b: Self, c: Self) -> Self {
        unsafe { Self(std::array::from_fn(|i| vfmsq_f32(c.0[i], self.0[i], b.0[i]))) }
    }
    #[inline(always)]
    unsafe fn max(self, other: Self) -> Self {
        self.zip(other, |a, b| unsafe { larger(a, b) })
    }
    #[inline(always)]
    unsafe fn min(self, other: Self) -> Self {
        self.zip(other, |a, b| unsafe { vbslq_f32(vcltq_f32(a, b), a, b) })
    }
    #[inline(always)]
    unsafe fn select_first(n: usize, a: Self, b: Self) -> Self {
        unsafe { Self(std::array::from_fn(|i| vbslq_f32(Self::mask(n, i), a.0[i], b.0[i]))) }
    }
    #[inline(always)]
    unsafe fn select_below(self, bound: Self, a: Self, b: Self) -> Self {
        unsafe { Self(std::array::from_fn(|i| vbslq_f32(vcltq_f32(self.0[i], bound.0[i]), a.0[i], b.0[i]))) }
    }
    #[inline(always)]
    unsafe fn select_bits(bits: u16, a: Self, b: Self) -> Self {
        unsafe {
            let each = vld1q_u32([1, 2, 4, 8].as_ptr());
            Self(std::array::from_fn(|i| {
                let is_set = vtstq_u32(vdupq_n_u32(u32::from(bits >> (4 * i))), each);
                vbslq_f32(is_set, a.0[i], b.0[i])
            }))
        }
    }
    #[inline(always)]
    unsafe fn at_least(self, bound: Self) -> u16 {
        unsafe {
            let bits = vld1q_u32([1, 2, 4, 8].as_ptr());
            (0..REGISTERS).fold(0, |mask, i| {
                let four = vaddvq_u32(vandq_u32(vcgeq_f32(self.0[i], bound.0[i]), bits));
                mask | (four as u16) << (4 * i)
            })
        }
    }
    #[inline(always)]
    unsafe fn exp2_from_magic(self) -> Self {
        self.map(|x| unsafe {
            let shifted = vshlq_n_s32::<23>(vreinterpretq_s32_f32(x));
            vreinterpretq_f32_s32(vaddq_s32(shifted, vdupq_n_s32(0x3f80_0000)))
        })
    }
    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        unsafe { self.fold(|a, b| vaddq_f32(a, b), |a, b| vadd_f32(a, b)) }
    }
    #[inline(always)]
    unsafe fn max_lane(self) -> f32 {
        unsafe { self.fold(|a, b| larger(a, b), |a, b| vbsl_f32(vcgt_f32(a, b), a, b)) }
    }
    #[inline(always)]
    unsafe fn prefetch_near(p: *const u8) {
        unsafe { asm!("prfm pldl1keep, [{0}]", in(reg) p, options(readonly, nostack, preserves_flags)) }
    }
}
