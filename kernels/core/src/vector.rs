//! Vectors of sixteen f32 lanes, with which every float kernel of this crate is written.
//!
//! A kernel is one function that is generic over [`Lanes`] and instantiated for each instruction set. Each operation of
//! the trait is a single IEEE operation per lane (fused multiply-add included), and sums over lanes use one fixed tree
//! ([`Lanes::sum`]), so all instantiations give the same bits. The scalar instantiation is the reference of the tests.
#![allow(clippy::missing_safety_doc, reason = "the traits state the conditions of their functions")]

mod bytes;
#[cfg(target_arch = "x86_64")]
#[cfg_attr(not(isa = "avx512"), allow(dead_code, reason = "the build has no use for lanes of AVX-512"))]
mod x86;

pub use bytes::{ByteLanes, MAGIC};

pub const LANES: usize = 16;

/// A vector of sixteen f32 lanes.
///
/// # Safety
/// For all functions, the CPU must have the instruction set of the type, and pointers must be valid for the elements
/// that are read or written. They need not be aligned.
pub trait Lanes: Copy {
    /// The number of values that the vector registers hold; 1 without vector registers.
    const REGISTERS: usize;
    /// True if there are vector registers. The compiler omits the other branch only of a condition that is a constant,
    /// not an expression.
    const IS_VECTOR: bool = Self::REGISTERS > 1;
    /// True if the registers hold the sums of large groups of rows, with several vectors of each row.
    const IS_WIDE: bool = Self::REGISTERS >= 32;
    unsafe fn splat(x: f32) -> Self;
    unsafe fn load(p: *const f32) -> Self;
    /// Loads the first `n <= 16` elements from `p` and sets the other lanes to 0. Reads nothing beyond them.
    unsafe fn load_first(p: *const f32, n: usize) -> Self;
    /// Loads sixteen IEEE half-precision elements from `p`, widened exactly.
    unsafe fn load_f16(p: *const u16) -> Self;
    /// Loads sixteen unsigned bytes from `p` and converts them.
    unsafe fn load_unsigned(p: *const u8) -> Self;
    /// Loads sixteen bfloat16 elements from `p`, widened exactly.
    unsafe fn load_bf16(p: *const u16) -> Self;
    /// Loads one bfloat16 of each of sixteen pairs from `p`, widened exactly: the second one if `is_second`.
    unsafe fn load_bf16_of_pairs(p: *const u32, is_second: bool) -> Self;
    unsafe fn store(self, p: *mut f32);
    /// Stores the first `n <= 16` lanes to `p` and nothing beyond them.
    unsafe fn store_first(self, p: *mut f32, n: usize);
    /// Stores sixteen half-precision elements to `p`, rounded to nearest, ties to even.
    unsafe fn store_f16(self, p: *mut u16);
    unsafe fn add(self, other: Self) -> Self;
    unsafe fn sub(self, other: Self) -> Self;
    unsafe fn mul(self, other: Self) -> Self;
    unsafe fn div(self, other: Self) -> Self;
    /// Computes `self * b + c`, rounded once.
    unsafe fn fma(self, b: Self, c: Self) -> Self;
    /// Computes `c - self * b`, rounded once.
    unsafe fn fnma(self, b: Self, c: Self) -> Self;
    /// Selects `self` where `self > other`, otherwise `other`, also where either is NaN.
    unsafe fn max(self, other: Self) -> Self;
    /// Selects `self` where `self < other`, otherwise `other`, also where either is NaN.
    unsafe fn min(self, other: Self) -> Self;
    /// Selects `a` in the first `n` lanes and `b` in the others.
    unsafe fn select_first(n: usize, a: Self, b: Self) -> Self;
    /// Selects `a` where `self < bound`, otherwise `b`, also where either is NaN.
    unsafe fn select_below(self, bound: Self, a: Self, b: Self) -> Self;
    /// Selects `a` in lane i if bit i of `bits` is set, otherwise `b`.
    unsafe fn select_bits(bits: u16, a: Self, b: Self) -> Self;
    /// Returns a mask in which bit i is set if lane i is at least `bound`. The bit of a NaN is not set.
    unsafe fn at_least(self, bound: Self) -> u16;
    /// Computes 2^n for lanes that hold `n + 1.5 * 2^23` with an integer n in -126..=127.
    unsafe fn exp2_from_magic(self) -> Self;
    /// Sums all lanes by the tree (i, i+8), (i, i+4), (i, i+2), (i, i+1).
    unsafe fn sum(self) -> f32;
    /// Returns the largest lane, by the same tree with [`Lanes::max`].
    unsafe fn max_lane(self) -> f32;
    /// Prefetches the cache line at `p`, which may be any address, to the first-level cache.
    unsafe fn prefetch_near(p: *const u8);
}

/// The portable instantiation, with plain arrays. It is the reference for the others.
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
        // SAFETY: the caller guarantees 16 readable elements.
        Self(unsafe { p.cast::<[f32; LANES]>().read_unaligned() })
    }
    #[inline(never)]
    unsafe fn load_first(p: *const f32, n: usize) -> Self {
        let mut lanes = [0.0; LANES];
        for (i, lane) in lanes.iter_mut().enumerate().take(n) {
            // SAFETY: i < n, and the caller guarantees n readable elements.
            *lane = unsafe { p.add(i).read_unaligned() };
        }
        Self(lanes)
    }
    #[inline(never)]
    unsafe fn load_f16(p: *const u16) -> Self {
        // SAFETY: the caller guarantees 16 readable elements.
        let bits = unsafe { p.cast::<[u16; LANES]>().read_unaligned() };
        Self(bits.map(|b| half::f16::from_bits(b).to_f32()))
    }
    #[inline(never)]
    unsafe fn load_unsigned(p: *const u8) -> Self {
        // SAFETY: the caller guarantees 16 readable elements.
        Self(unsafe { p.cast::<[u8; LANES]>().read_unaligned() }.map(f32::from))
    }
    #[inline(never)]
    unsafe fn load_bf16(p: *const u16) -> Self {
        // SAFETY: the caller guarantees 16 readable elements.
        let bits = unsafe { p.cast::<[u16; LANES]>().read_unaligned() };
        Self(bits.map(|b| half::bf16::from_bits(b).to_f32()))
    }
    #[inline(never)]
    unsafe fn load_bf16_of_pairs(p: *const u32, is_second: bool) -> Self {
        // SAFETY: the caller guarantees 16 readable pairs.
        let pairs = unsafe { p.cast::<[u32; LANES]>().read_unaligned() };
        Self(pairs.map(|pair| f32::from_bits(if is_second { pair & 0xffff_0000 } else { pair << 16 })))
    }
    #[inline(never)]
    unsafe fn store(self, p: *mut f32) {
        // SAFETY: the caller guarantees 16 writable elements.
        unsafe { p.cast::<[f32; LANES]>().write_unaligned(self.0) }
    }
    #[inline(never)]
    unsafe fn store_first(self, p: *mut f32, n: usize) {
        for (i, lane) in self.0.iter().enumerate().take(n) {
            // SAFETY: i < n, and the caller guarantees n writable elements.
            unsafe { p.add(i).write_unaligned(*lane) }
        }
    }
    #[inline(never)]
    unsafe fn store_f16(self, p: *mut u16) {
        let bits = self.0.map(|x| half::f16::from_f32(x).to_bits());
        // SAFETY: the caller guarantees 16 writable elements.
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
    #[inline(always)]
    unsafe fn prefetch_near(_p: *const u8) {}
}

#[cfg(target_arch = "aarch64")]
pub mod neon;
#[cfg(target_arch = "x86_64")]
#[cfg_attr(not(feature = "every-isa"), allow(unused_imports))]
pub use x86::{Avx2Lanes, Avx512Lanes};

/// `each_vector!(n, |i, lanes| body)` runs `body` for each vector of `n` elements. `i` is the index of its first
/// element, and `lanes` the number of its elements.
///
/// For all vectors but the last, `lanes` is a constant, so [`Lanes::load_first`] and [`Lanes::store_first`] compile to
/// plain loads and stores. Masked ones cost several times as much.
#[macro_export]
macro_rules! each_vector {
    ($n:expr, |$i:ident, $lanes:ident| $body:block) => {{
        let n: usize = $n;
        let mut $i = 0;
        while $i + $crate::vector::LANES <= n {
            let $lanes = $crate::vector::LANES;
            $body
            $i += $lanes;
        }
        if $i < n {
            let $lanes = n - $i;
            $body
        }
    }};
}
pub use each_vector;

/// Defines a function that calls the instantiation of a generic kernel for an [`Isa`](crate::isa::Isa).
///
/// `simd_entry! { /// doc  pub fn name = generic(x: &[f32], y: &mut [f32]) -> f32; }` defines
/// `pub fn name(isa: Isa, x, y) -> f32`, which calls `unsafe fn generic::<L: Lanes>(x, y)`. The generic function must
/// be `#[inline(always)]`, so that it is compiled with the instruction set's features. An entry that is sound for every
/// input is a `fn`. Otherwise it is an `unsafe fn` whose documentation states the conditions; it may have a type
/// parameter, which follows `L`.
#[macro_export]
macro_rules! simd_entry {
    ($(#[$meta:meta])* $vis:vis fn $name:ident = $generic:ident $args:tt $(-> $ret:ty)? ;) => {
        $crate::vector::simd_entry! { @ [$(#[$meta])* $vis] $name [] $generic $args [$($ret)?] }
    };
    (
        $(#[$meta:meta])* $vis:vis unsafe fn $name:ident $(<$type:ident : $bound:ident>)? = $generic:ident $args:tt
        $(-> $ret:ty)? ;
    ) => {
        $crate::vector::simd_entry! {
            @ [$(#[$meta])* $vis unsafe] $name [$($type: $bound)?] $generic $args [$($ret)?]
        }
    };
    (
        @ [$($head:tt)*] $name:ident [$($type:ident : $bound:ident)?] $generic:ident ( $($arg:ident : $ty:ty),* $(,)? ) [$($ret:ty)?]
    ) => {
        $($head)* fn $name$(<$type: $bound>)?(isa: $crate::isa::Isa, $($arg: $ty),*) $(-> $ret)? {
            #[cfg(isa = "avx512")]
            #[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c")]
            fn avx512$(<$type: $bound>)?($($arg: $ty),*) $(-> $ret)? {
                // SAFETY: this function enables the features that the instantiation needs; the rest is the condition of
                // the entry.
                unsafe { $generic::<$crate::vector::Avx512Lanes $(, $type)?>($($arg),*) }
            }
            #[cfg(any(isa = "avx2", isa = "avx_vnni"))]
            #[target_feature(enable = "avx2,fma,f16c")]
            fn avx2$(<$type: $bound>)?($($arg: $ty),*) $(-> $ret)? {
                // SAFETY: as above.
                unsafe { $generic::<$crate::vector::Avx2Lanes $(, $type)?>($($arg),*) }
            }
            #[cfg(isa = "neon")]
            #[target_feature(enable = "neon,dotprod")]
            fn neon$(<$type: $bound>)?($($arg: $ty),*) $(-> $ret)? {
                // SAFETY: as above.
                unsafe { $generic::<$crate::vector::neon::NeonLanes<false> $(, $type)?>($($arg),*) }
            }
            #[cfg(isa = "neon_i8mm")]
            #[target_feature(enable = "neon,dotprod")]
            fn neon_i8mm$(<$type: $bound>)?($($arg: $ty),*) $(-> $ret)? {
                // SAFETY: as above; matrix products are inline assembly.
                unsafe { $generic::<$crate::vector::neon::NeonLanes<true> $(, $type)?>($($arg),*) }
            }
            match isa.kind() {
                #[cfg(isa = "avx512")]
                // SAFETY: an `Isa` exists only on a CPU that has its features.
                $crate::isa::IsaKind::Avx512 | $crate::isa::IsaKind::Avx512Bf16 | $crate::isa::IsaKind::Amx => unsafe { avx512$(::<$type>)?($($arg),*) },
                #[cfg(any(isa = "avx2", isa = "avx_vnni"))]
                // SAFETY: as above.
                $crate::isa::IsaKind::Avx2 | $crate::isa::IsaKind::AvxVnni => unsafe { avx2$(::<$type>)?($($arg),*) },
                #[cfg(isa = "neon")]
                // SAFETY: as above.
                $crate::isa::IsaKind::Neon => unsafe { neon$(::<$type>)?($($arg),*) },
                #[cfg(isa = "neon_i8mm")]
                // SAFETY: as above.
                $crate::isa::IsaKind::NeonI8mm => unsafe { neon_i8mm$(::<$type>)?($($arg),*) },
                #[cfg(isa = "scalar")]
                // SAFETY: the scalar instantiation needs no features.
                $crate::isa::IsaKind::Scalar => unsafe { $generic::<$crate::vector::ScalarLanes $(, $type)?>($($arg),*) },
                kind => unreachable!("{kind:?}: an `Isa` exists only for a CPU and a build that have it"),
            }
        }
    };
}
pub use simd_entry;
