//! Dot products of bytes and what goes with them, beside the f32 lanes of [`Lanes`].

use super::{LANES, Lanes, ScalarLanes};

/// 1.5 * 2^23: a number below 2^22 in magnitude that is added to it leaves its nearest whole number (ties to even) in
/// the low bits.
pub const MAGIC: f32 = 12_582_912.0;

/// Integer products for sixteen lanes: each lane holds four bytes (a quad) of `Bytes`, or one i32 of `Ints`.
///
/// # Safety
/// As [`Lanes`].
pub trait ByteLanes: Lanes {
    /// Sixteen quads of bytes, signed or unsigned.
    type Bytes: Copy;
    /// Sixteen i32.
    type Ints: Copy;
    /// 64 bytes from `p`.
    unsafe fn load_bytes(p: *const u8) -> Self::Bytes;
    /// Writes 64 bytes to `p`.
    unsafe fn store_bytes(x: Self::Bytes, p: *mut u8);
    /// The 16 bytes at `p`, four times, for [`ByteLanes::look_up`].
    unsafe fn load_table(p: *const u8) -> Self::Bytes;
    /// The bytes of a table that the lower nibbles of `nibbles` count to, and those that the upper ones do.
    unsafe fn look_up(table: Self::Bytes, nibbles: Self::Bytes) -> [Self::Bytes; 2];
    /// The four bytes at `p` in each lane.
    unsafe fn splat_quad(p: *const u8) -> Self::Bytes;
    /// All lanes equal to `x`.
    unsafe fn splat_int(x: i32) -> Self::Ints;
    /// `sums` + the four products of each lane's unsigned and signed bytes, exactly.
    unsafe fn dot(sums: Self::Ints, unsigned: Self::Bytes, signed: Self::Bytes) -> Self::Ints;
    /// Each integer as the nearest float.
    unsafe fn floats(x: Self::Ints) -> Self;
    /// Each integer times 2^8.
    unsafe fn times_256(x: Self::Ints) -> Self::Ints;
    /// Writes the quads of byte `BYTE` (0 the lowest) of each lane's bits to the 64 bytes at `p`, byte k of a quad from
    /// `x[k]`. For lanes that hold `n + MAGIC` with whole n from 0 to 65535, bytes 0 and 1 are those of n.
    unsafe fn store_quads<const BYTE: u32>(x: [Self; 4], p: *mut u8);
    /// Writes the lowest byte of each lane's bits to the 16 bytes at `p`.
    unsafe fn store_low_bytes(self, p: *mut u8);
    /// Writes the lowest byte of lane i's bits to `p[4 * i]`, and nothing between.
    #[inline(always)]
    unsafe fn store_low_bytes_apart(self, p: *mut u8) {
        let mut bytes = [0; LANES];
        // SAFETY: 16 bytes; the caller promises the bytes at distances of 4.
        unsafe {
            self.store_low_bytes(bytes.as_mut_ptr());
            for (i, byte) in bytes.into_iter().enumerate() {
                p.add(4 * i).write(byte);
            }
        }
    }
    /// The largest lane and the largest of the other fifteen, for lanes that are numbers.
    unsafe fn two_largest(self) -> (f32, f32);
    /// [`ByteLanes::two_largest`] of each row, `R` up to 8: lane r of both results is that of row r, the others say
    /// nothing.
    #[inline(always)]
    unsafe fn two_largest_each<const R: usize>(rows: &[Self; R]) -> (Self, Self) {
        let (mut first, mut second) = ([0.0; LANES], [0.0; LANES]);
        // SAFETY: arrays of sixteen; the rest is the caller's.
        unsafe {
            for (row, (first, second)) in rows.iter().zip(first.iter_mut().zip(&mut second)) {
                (*first, *second) = row.two_largest();
            }
            (Self::load(first.as_ptr()), Self::load(second.as_ptr()))
        }
    }
    /// For lanes that hold a normal number: times 2^n, where `shifted` holds `n + MAGIC` and the result is normal.
    unsafe fn times_exp2(self, shifted: Self) -> Self;
    /// With i' = i ^ `DISTANCE`: lane i becomes `x[i] + x[i']` where i < i', else `x[i'] - x[i]`.
    unsafe fn butterfly<const DISTANCE: usize>(self) -> Self;
    /// Asks for the cache line at `p`, which may be any address, into the second-level cache: more requests can be on
    /// their way to it than to the first (Zen 4: 13 % less time for a decode of 8 behind 512 positions).
    unsafe fn prefetch(p: *const u8);
}

impl ByteLanes for ScalarLanes {
    type Bytes = [[u8; 4]; LANES];
    type Ints = [i32; LANES];
    #[inline(never)]
    unsafe fn load_bytes(p: *const u8) -> Self::Bytes {
        // SAFETY: the caller promises 64 readable bytes.
        unsafe { p.cast::<Self::Bytes>().read_unaligned() }
    }
    #[inline(never)]
    unsafe fn store_bytes(x: Self::Bytes, p: *mut u8) {
        // SAFETY: the caller promises 64 writable bytes.
        unsafe { p.cast::<Self::Bytes>().write_unaligned(x) }
    }
    #[inline(never)]
    unsafe fn load_table(p: *const u8) -> Self::Bytes {
        // SAFETY: the caller promises 16 readable bytes.
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
        // SAFETY: the caller promises 4 readable bytes.
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
        // SAFETY: the caller promises 64 writable bytes.
        unsafe { p.cast::<Self::Bytes>().write_unaligned(quads) }
    }
    #[inline(never)]
    unsafe fn store_low_bytes(self, p: *mut u8) {
        // SAFETY: the caller promises 16 writable bytes.
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
