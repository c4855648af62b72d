//! Dot products of bytes and related operations, in addition to the f32 operations of [`Lanes`].

use super::{LANES, Lanes, ScalarLanes};

/// 1.5 * 2^23. Adding a number below 2^22 in magnitude leaves the nearest integer, ties to even, in the low bits.
pub const MAGIC: f32 = 12_582_912.0;

/// Integer dot products for sixteen lanes. A lane of `Bytes` holds four bytes (a quad), and a lane of `Ints` one i32.
///
/// # Safety
/// The conditions are those of [`Lanes`].
pub trait ByteLanes: Lanes {
    /// A vector of sixteen quads of bytes, signed or unsigned.
    type Bytes: Copy;
    /// A vector of sixteen i32.
    type Ints: Copy;
    unsafe fn load_bytes(p: *const u8) -> Self::Bytes;
    unsafe fn store_bytes(x: Self::Bytes, p: *mut u8);
    /// Loads the table of 16 bytes at `p` for [`ByteLanes::look_up`].
    unsafe fn load_table(p: *const u8) -> Self::Bytes;
    /// Returns the entries of a table for the lower nibbles of `nibbles` and those for the upper nibbles.
    unsafe fn look_up(table: Self::Bytes, nibbles: Self::Bytes) -> [Self::Bytes; 2];
    /// Sets all lanes to the four bytes at `p`.
    unsafe fn splat_quad(p: *const u8) -> Self::Bytes;
    unsafe fn splat_int(x: i32) -> Self::Ints;
    /// Adds the four products of each lane's unsigned and signed bytes to `sums`, exactly.
    unsafe fn dot(sums: Self::Ints, unsigned: Self::Bytes, signed: Self::Bytes) -> Self::Ints;
    /// Converts each integer to the nearest float.
    unsafe fn floats(x: Self::Ints) -> Self;
    unsafe fn times_256(x: Self::Ints) -> Self::Ints;
    /// Stores 16 quads to the 64 bytes at `p`. Byte k of quad i is byte `BYTE` (0 is the lowest) of the bits of lane i
    /// of `x[k]`. For lanes that hold `n + MAGIC` with an integer n from 0 to 65535, bytes 0 and 1 are those of n.
    unsafe fn store_quads<const BYTE: u32>(x: [Self; 4], p: *mut u8);
    /// Stores the lowest byte of each lane's bits to the 16 bytes at `p`.
    unsafe fn store_low_bytes(self, p: *mut u8);
    /// Stores the lowest byte of lane i's bits to `p[4 * i]` and leaves the bytes between unchanged.
    #[inline(always)]
    unsafe fn store_low_bytes_apart(self, p: *mut u8) {
        let mut bytes = [0; LANES];
        // SAFETY: the array has 16 bytes, and the caller guarantees the bytes at distances of 4.
        unsafe {
            self.store_low_bytes(bytes.as_mut_ptr());
            for (i, byte) in bytes.into_iter().enumerate() {
                p.add(4 * i).write(byte);
            }
        }
    }
    /// Returns the largest lane and the largest of the other fifteen. No lane may be NaN.
    unsafe fn two_largest(self) -> (f32, f32);
    /// Computes [`ByteLanes::two_largest`] of `R` rows, at most 8. Lane r of both results belongs to row r; the other
    /// lanes are unspecified.
    #[inline(always)]
    unsafe fn two_largest_each<const R: usize>(rows: &[Self; R]) -> (Self, Self) {
        let (mut first, mut second) = ([0.0; LANES], [0.0; LANES]);
        // SAFETY: the arrays have sixteen elements; the other conditions are the caller's.
        unsafe {
            for (row, (first, second)) in rows.iter().zip(first.iter_mut().zip(&mut second)) {
                (*first, *second) = row.two_largest();
            }
            (Self::load(first.as_ptr()), Self::load(second.as_ptr()))
        }
    }
    /// Multiplies by 2^n, where `shifted` holds `n + MAGIC`. Lanes and results must be normal numbers.
    unsafe fn times_exp2(self, shifted: Self) -> Self;
    /// Sets lane i to `x[i] + x[j]` if i < j and otherwise to `x[j] - x[i]`, where j = i ^ `DISTANCE`.
    unsafe fn butterfly<const DISTANCE: usize>(self) -> Self;
    /// Prefetches the cache line at `p`, which may be any address, to the second-level cache. More requests can be in
    /// flight to it than to the first (Zen 4: 13 % less time for decoding 8 sequences of 512 positions).
    unsafe fn prefetch(p: *const u8);
}

impl ByteLanes for ScalarLanes {
    type Bytes = [[u8; 4]; LANES];
    type Ints = [i32; LANES];
    #[inline(never)]
    unsafe fn load_bytes(p: *const u8) -> Self::Bytes {
        // SAFETY: the caller guarantees 64 readable bytes.
        unsafe { p.cast::<Self::Bytes>().read_unaligned() }
    }
    #[inline(never)]
    unsafe fn store_bytes(x: Self::Bytes, p: *mut u8) {
        // SAFETY: the caller guarantees 64 writable bytes.
        unsafe { p.cast::<Self::Bytes>().write_unaligned(x) }
    }
    #[inline(never)]
    unsafe fn load_table(p: *const u8) -> Self::Bytes {
        // SAFETY: the caller guarantees 16 readable bytes.
        let table = unsafe { p.cast::<[[u8; 4]; 4]>().read_unaligned() };
        std::array::from_fn(|i| table[i % 4])
    }
    #[inline(never)]
    unsafe fn look_up(table: Self::Bytes, nibbles: Self::Bytes) -> [Self::Bytes; 2] {
        let at = |i: u8| table[usize::from(i) / 4][usize::from(i) % 4];
        [
            nibbles.map(|quad| quad.map(|byte| at(byte & 0xf))),
            nibbles.map(|quad| quad.map(|byte| at(byte >> 4))),
        ]
    }
    #[inline(never)]
    unsafe fn splat_quad(p: *const u8) -> Self::Bytes {
        // SAFETY: the caller guarantees 4 readable bytes.
        [unsafe { p.cast::<[u8; 4]>().read_unaligned() }; LANES]
    }
    #[inline(never)]
    unsafe fn splat_int(x: i32) -> Self::Ints {
        [x; LANES]
    }
    #[inline(never)]
    unsafe fn dot(sums: Self::Ints, unsigned: Self::Bytes, signed: Self::Bytes) -> Self::Ints {
        std::array::from_fn(|i| {
            let products = unsigned[i].iter().zip(signed[i]).map(|(u, s)| i32::from(*u) * i32::from(s as i8));
            products.fold(sums[i], i32::wrapping_add)
        })
    }
    #[inline(never)]
    unsafe fn floats(x: Self::Ints) -> Self {
        Self(x.map(|x| x as f32))
    }
    #[inline(never)]
    unsafe fn times_256(x: Self::Ints) -> Self::Ints {
        x.map(|x| x << 8)
    }
    #[inline(never)]
    unsafe fn store_quads<const BYTE: u32>(x: [Self; 4], p: *mut u8) {
        let quads: Self::Bytes = std::array::from_fn(|i| x.map(|x| (x.0[i].to_bits() >> (8 * BYTE)) as u8));
        // SAFETY: the caller guarantees 64 writable bytes.
        unsafe { p.cast::<Self::Bytes>().write_unaligned(quads) }
    }
    #[inline(never)]
    unsafe fn store_low_bytes(self, p: *mut u8) {
        // SAFETY: the caller guarantees 16 writable bytes.
        unsafe { p.cast::<[u8; LANES]>().write_unaligned(self.0.map(|x| x.to_bits() as u8)) }
    }
    #[inline(never)]
    unsafe fn two_largest(self) -> (f32, f32) {
        self.0[1..].iter().fold((self.0[0], f32::NEG_INFINITY), |(first, second), x| {
            if *x > first { (*x, first) } else { (first, second.max(*x)) }
        })
    }
    #[inline(never)]
    unsafe fn times_exp2(self, shifted: Self) -> Self {
        self.zip(shifted, |x, n| f32::from_bits(x.to_bits().wrapping_add(n.to_bits() << 23)))
    }
    #[inline(never)]
    unsafe fn butterfly<const DISTANCE: usize>(self) -> Self {
        let x = self.0;
        Self(std::array::from_fn(|i| {
            let other = x[i ^ DISTANCE];
            if i & DISTANCE == 0 { other + x[i] } else { other - x[i] }
        }))
    }
    #[inline(never)]
    unsafe fn prefetch(_p: *const u8) {}
}
