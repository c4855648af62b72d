//! Sixteen f32 lanes, the unit in which every float kernel of this crate is written.
//!
//! A kernel is one generic function over [`Lanes`], instantiated per instruction set. Each operation of the trait is a
//! single IEEE operation per lane (fused multiply-add included), so all instantiations give the same bits; sums over
//! lanes run through one fixed tree ([`Lanes::sum`]). The scalar instantiation is the oracle of the tests.

mod bytes;
#[cfg(target_arch = "x86_64")]
mod x86;

pub use bytes::{ByteLanes, MAGIC};

pub const LANES: usize = 16;

/// Sixteen f32 values.
///
/// # Safety
/// The CPU must have the instruction set of the type; pointers must be valid for the elements named, aligned or not.
pub trait Lanes: Copy {
    /// Values that the registers hold at once; 1 if there are no vector registers.
    const REGISTERS: usize;
    /// There are vector registers. A condition that is this constant, and no expression of it, keeps the compiler from
    /// making code for the other case.
    const IS_VECTOR: bool = Self::REGISTERS > 1;
    /// The registers hold the sums of large groups of rows, and several vectors of each row at once.
    const IS_WIDE: bool = Self::REGISTERS >= 32;
    /// All lanes equal to `x`.
    unsafe fn splat(x: f32) -> Self;
    /// Sixteen elements from `p`.
    unsafe fn load(p: *const f32) -> Self;
    /// The first `n <= 16` elements from `p`, the other lanes 0; reads nothing beyond.
    unsafe fn load_first(p: *const f32, n: usize) -> Self;
    /// Sixteen IEEE half-precision elements from `p`, widened exactly.
    unsafe fn load_f16(p: *const u16) -> Self;
    /// Sixteen bfloat16 elements from `p`, widened exactly.
    unsafe fn load_bf16(p: *const u16) -> Self;
    /// Writes sixteen elements to `p`.
    unsafe fn store(self, p: *mut f32);
    /// Writes the first `n <= 16` lanes to `p` and nothing beyond.
    unsafe fn store_first(self, p: *mut f32, n: usize);
    /// Writes sixteen half-precision elements to `p`, rounded to nearest even.
    unsafe fn store_f16(self, p: *mut u16);
    /// `self + other`.
    unsafe fn add(self, other: Self) -> Self;
    /// `self - other`.
    unsafe fn sub(self, other: Self) -> Self;
    /// `self * other`.
    unsafe fn mul(self, other: Self) -> Self;
    /// `self / other`.
    unsafe fn div(self, other: Self) -> Self;
    /// `self * b + c`, rounded once.
    unsafe fn fma(self, b: Self, c: Self) -> Self;
    /// `c - self * b`, rounded once.
    unsafe fn fnma(self, b: Self, c: Self) -> Self;
    /// `self > other ? self : other` (so `other` where either is NaN).
    unsafe fn max(self, other: Self) -> Self;
    /// `self < other ? self : other` (so `other` where either is NaN).
    unsafe fn min(self, other: Self) -> Self;
    /// Lane i is `a` for `i < n`, else `b`.
    unsafe fn select_first(n: usize, a: Self, b: Self) -> Self;
    /// Lane i is `a` where `self < bound`, else `b` (so `b` where either is NaN).
    unsafe fn select_below(self, bound: Self, a: Self, b: Self) -> Self;
    /// Lane i is `a` where bit i is set, else `b`.
    unsafe fn select_bits(bits: u16, a: Self, b: Self) -> Self;
    /// Bit i is set if lane i is `>= bound` (never for NaN).
    unsafe fn at_least(self, bound: Self) -> u16;
    /// 2^n for lanes that hold `n + 1.5 * 2^23` with whole n in -126..=127.
    unsafe fn exp2_from_magic(self) -> Self;
    /// Sum of all lanes by the tree (i, i+8), (i, i+4), (i, i+2), (i, i+1).
    unsafe fn sum(self) -> f32;
    /// Largest lane, by the same tree with [`Lanes::max`].
    unsafe fn max_lane(self) -> f32;
}

/// The portable instantiation and the oracle: plain arrays.
#[derive(Clone, Copy)]
#[cfg_attr(not(isa = "scalar"), allow(dead_code))]
pub struct ScalarLanes([f32; LANES]);

#[cfg_attr(not(isa = "scalar"), allow(dead_code))]
impl ScalarLanes {
    #[inline]
    fn zip(self, other: Self, f: impl Fn(f32, f32) -> f32) -> Self {
        Self(std::array::from_fn(|i| f(self.0[i], other.0[i])))
    }

    #[inline]
    fn fold(self, f: impl Fn(f32, f32) -> f32) -> f32 {
        let mut lanes = self.0;
        for half in [8, 4, 2, 1] {
            for i in 0..half {
                lanes[i] = f(lanes[i], lanes[i + half]);
            }
        }
        lanes[0]
    }
}

impl Lanes for ScalarLanes {
    const REGISTERS: usize = 1;
    #[inline(never)]
    unsafe fn splat(x: f32) -> Self {
        Self([x; LANES])
    }
    #[inline(never)]
    unsafe fn load(p: *const f32) -> Self {
        // SAFETY: the caller promises 16 readable elements.
        Self(unsafe { p.cast::<[f32; LANES]>().read_unaligned() })
    }
    #[inline(never)]
    unsafe fn load_first(p: *const f32, n: usize) -> Self {
        let mut lanes = [0.0; LANES];
        for (i, lane) in lanes.iter_mut().enumerate().take(n) {
            // SAFETY: i < n, and the caller promises n readable elements.
            *lane = unsafe { p.add(i).read_unaligned() };
        }
        Self(lanes)
    }
    #[inline(never)]
    unsafe fn load_f16(p: *const u16) -> Self {
        // SAFETY: the caller promises 16 readable elements.
        let bits = unsafe { p.cast::<[u16; LANES]>().read_unaligned() };
        Self(bits.map(|b| half::f16::from_bits(b).to_f32()))
    }
    #[inline(never)]
    unsafe fn load_bf16(p: *const u16) -> Self {
        // SAFETY: the caller promises 16 readable elements.
        let bits = unsafe { p.cast::<[u16; LANES]>().read_unaligned() };
        Self(bits.map(|b| half::bf16::from_bits(b).to_f32()))
    }
    #[inline(never)]
    unsafe fn store(self, p: *mut f32) {
        // SAFETY: the caller promises 16 writable elements.
        unsafe { p.cast::<[f32; LANES]>().write_unaligned(self.0) }
    }
    #[inline(never)]
    unsafe fn store_first(self, p: *mut f32, n: usize) {
        for (i, lane) in self.0.iter().enumerate().take(n) {
            // SAFETY: i < n, and the caller promises n writable elements.
            unsafe { p.add(i).write_unaligned(*lane) }
        }
    }
    #[inline(never)]
    unsafe fn store_f16(self, p: *mut u16) {
        let bits = self.0.map(|x| half::f16::from_f32(x).to_bits());
        // SAFETY: the caller promises 16 writable elements.
        unsafe { p.cast::<[u16; LANES]>().write_unaligned(bits) }
    }
    #[inline(never)]
    unsafe fn add(self, other: Self) -> Self {
        self.zip(other, |a, b| a + b)
    }
    #[inline(never)]
    unsafe fn sub(self, other: Self) -> Self {
        self.zip(other, |a, b| a - b)
    }
    #[inline(never)]
    unsafe fn mul(self, other: Self) -> Self {
        self.zip(other, |a, b| a * b)
    }
    #[inline(never)]
    unsafe fn div(self, other: Self) -> Self {
        self.zip(other, |a, b| a / b)
    }
    #[inline(never)]
    unsafe fn fma(self, b: Self, c: Self) -> Self {
        Self(std::array::from_fn(|i| self.0[i].mul_add(b.0[i], c.0[i])))
    }
    #[inline(never)]
    unsafe fn fnma(self, b: Self, c: Self) -> Self {
        Self(std::array::from_fn(|i| (-self.0[i]).mul_add(b.0[i], c.0[i])))
    }
    #[inline(never)]
    unsafe fn max(self, other: Self) -> Self {
        self.zip(other, |a, b| if a > b { a } else { b })
    }
    #[inline(never)]
    unsafe fn min(self, other: Self) -> Self {
        self.zip(other, |a, b| if a < b { a } else { b })
    }
    #[inline(never)]
    unsafe fn select_first(n: usize, a: Self, b: Self) -> Self {
        Self(std::array::from_fn(|i| if i < n { a.0[i] } else { b.0[i] }))
    }
    #[inline(never)]
    unsafe fn select_below(self, bound: Self, a: Self, b: Self) -> Self {
        Self(std::array::from_fn(|i| if self.0[i] < bound.0[i] { a.0[i] } else { b.0[i] }))
    }
    #[inline(never)]
    unsafe fn select_bits(bits: u16, a: Self, b: Self) -> Self {
        Self(std::array::from_fn(|i| if bits >> i & 1 == 1 { a.0[i] } else { b.0[i] }))
    }
    #[inline(never)]
    unsafe fn at_least(self, bound: Self) -> u16 {
        (0..LANES).fold(0, |mask, i| mask | u16::from(self.0[i] >= bound.0[i]) << i)
    }
    #[inline(never)]
    unsafe fn exp2_from_magic(self) -> Self {
        Self(self.0.map(|x| f32::from_bits((x.to_bits() << 23).wrapping_add(0x3f80_0000))))
    }
    #[inline(never)]
    unsafe fn sum(self) -> f32 {
        self.fold(|a, b| a + b)
    }
    #[inline(never)]
    unsafe fn max_lane(self) -> f32 {
        self.fold(|a, b| if a > b { a } else { b })
    }
}

#[cfg(target_arch = "aarch64")]
pub mod neon;
#[cfg(target_arch = "x86_64")]
#[cfg_attr(not(feature = "every-isa"), allow(unused_imports))]
pub use x86::{Avx2Lanes, Avx512Lanes};

/// `each_vector!(n, |i, lanes| body)` runs `body` for each vector of `n` elements: `i` is its first, `lanes` how many
/// it has.
///
/// All but the last have a constant number, for which [`Lanes::load_first`] and [`Lanes::store_first`] are plain loads
/// and stores: masked ones cost several times as much.
macro_rules! each_vector {
    ($n:expr, |$i:ident, $lanes:ident| $body:block) => {{
        let n: usize = $n;
        let mut $i = 0;
        while $i + $crate::ops::vector::LANES <= n {
            let $lanes = $crate::ops::vector::LANES;
            $body
            $i += $lanes;
        }
        if $i < n {
            let $lanes = n - $i;
            $body
        }
    }};
}
pub(crate) use each_vector;

/// Defines a function that runs a generic kernel in the instantiation for an [`Isa`](crate::isa::Isa).
///
/// `simd_entry! { /// doc  pub fn name = generic(x: &[f32], y: &mut [f32]) -> f32; }` makes
/// `pub fn name(isa: Isa, x, y) -> f32`, which calls `unsafe fn generic::<L: Lanes>(x, y)`. The generic function must
/// be `#[inline(always)]`, so that it is compiled with the instruction set's features. If it is sound for every input
/// the entry is a `fn`; else an `unsafe fn`, whose doc says what the caller must promise.
macro_rules! simd_entry {
    ($(#[$meta:meta])* $vis:vis fn $name:ident = $generic:ident $args:tt $(-> $ret:ty)? ;) => {
        $crate::ops::vector::simd_entry! { @ [$(#[$meta])* $vis] $name $generic $args [$($ret)?] }
    };
    ($(#[$meta:meta])* $vis:vis unsafe fn $name:ident = $generic:ident $args:tt $(-> $ret:ty)? ;) => {
        $crate::ops::vector::simd_entry! { @ [$(#[$meta])* $vis unsafe] $name $generic $args [$($ret)?] }
    };
    (@ [$($head:tt)*] $name:ident $generic:ident ( $($arg:ident : $ty:ty),* $(,)? ) [$($ret:ty)?]) => {
        $($head)* fn $name(isa: $crate::isa::Isa, $($arg: $ty),*) $(-> $ret)? {
            #[cfg(isa = "avx512")]
            #[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c")]
            fn avx512($($arg: $ty),*) $(-> $ret)? {
                // SAFETY: this function's own features are those that the instantiation needs; the rest is the entry's
                // condition.
                unsafe { $generic::<$crate::ops::vector::Avx512Lanes>($($arg),*) }
            }
            #[cfg(any(isa = "avx2", isa = "avx_vnni"))]
            #[target_feature(enable = "avx2,fma,f16c")]
            fn avx2($($arg: $ty),*) $(-> $ret)? {
                // SAFETY: as above.
                unsafe { $generic::<$crate::ops::vector::Avx2Lanes>($($arg),*) }
            }
            #[cfg(isa = "neon")]
            #[target_feature(enable = "neon,dotprod")]
            fn neon($($arg: $ty),*) $(-> $ret)? {
                // SAFETY: as above.
                unsafe { $generic::<$crate::ops::vector::neon::NeonLanes<false>>($($arg),*) }
            }
            #[cfg(isa = "neon_i8mm")]
            #[target_feature(enable = "neon,dotprod")]
            fn neon_i8mm($($arg: $ty),*) $(-> $ret)? {
                // SAFETY: as above; products of matrices are written as instructions.
                unsafe { $generic::<$crate::ops::vector::neon::NeonLanes<true>>($($arg),*) }
            }
            match isa.kind() {
                #[cfg(isa = "avx512")]
                // SAFETY: an `Isa` is only made for a CPU that has its features.
                $crate::isa::IsaKind::Avx512 => unsafe { avx512($($arg),*) },
                #[cfg(any(isa = "avx2", isa = "avx_vnni"))]
                // SAFETY: as above.
                $crate::isa::IsaKind::Avx2 | $crate::isa::IsaKind::AvxVnni => unsafe { avx2($($arg),*) },
                #[cfg(isa = "neon")]
                // SAFETY: as above.
                $crate::isa::IsaKind::Neon => unsafe { neon($($arg),*) },
                #[cfg(isa = "neon_i8mm")]
                // SAFETY: as above.
                $crate::isa::IsaKind::NeonI8mm => unsafe { neon_i8mm($($arg),*) },
                #[cfg(isa = "scalar")]
                // SAFETY: the scalar instantiation needs no features.
                $crate::isa::IsaKind::Scalar => unsafe { $generic::<$crate::ops::vector::ScalarLanes>($($arg),*) },
                kind => unreachable!("{kind:?}: an `Isa` exists only for a CPU and a build that have it"),
            }
        }
    };
}
pub(crate) use simd_entry;
