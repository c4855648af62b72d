//! Writes the key and value of one token to a block.

use std::mem::MaybeUninit;

use super::{HeadScaling, KeyScaling, KvDtype, KvGeometry, MAX_HEAD_SIZE, NIBBLES, QUAD, VALUE_GROUP};
use crate::ops::hadamard::transform;
use crate::ops::quantize_head::quantize_vectors;
use crate::ops::quantize_nibbles::quantize_nibbles;
use crate::ops::rope::rope_generic;
use crate::vector::{ByteLanes, LANES, MAGIC, each_vector, simd_entry};

/// XOR with this adds 128 to four signed bytes, which makes them unsigned.
const SIGNS: u32 = 0x8080_8080;

/// The destination of one token's key and value of one head.
#[derive(Clone, Copy)]
pub(super) struct Slot {
    /// Pointer to the first byte of the block and head.
    pub(super) head: *mut u8,
    pub(super) offset: usize,
}

const LINE: usize = 64;

/// Prefetches the cache line at `p` for writing. `p` may be any address.
#[inline(always)]
fn prefetch_line(p: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the instruction reads nothing and never faults; CPUs that do not support it treat it as a no-op.
    unsafe {
        std::arch::asm!("prefetchw [{0}]", in(reg) p, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = p;
}

/// Prefetches the cache lines of a token's key and value in all heads of a layer. Only int8 and int4, which scatter
/// them in quads, need it.
pub(super) fn prefetch_slot(g: &KvGeometry, slot: Slot) {
    if !matches!(g.dtype, KvDtype::Int8 | KvDtype::Int4) {
        return;
    }
    let (vector, lane) = (slot.offset / LANES, slot.offset % LANES);
    let row_bytes = g.stored_value_bytes() * QUAD;
    let row = g.key_bytes() + (slot.offset / VALUE_GROUP * LANES + lane) * row_bytes;
    let scales = g.key_bytes() + g.value_bytes() + slot.offset * g.bytes_per_scale();
    for head in 0..g.num_kv_heads {
        let head = slot.head.wrapping_add(head * g.head_bytes());
        for quad in 0..g.stored_key_quads() {
            prefetch_line(head.wrapping_add((vector * g.stored_key_quads() + quad) * LANES * QUAD));
        }
        (0..row_bytes).step_by(LINE).for_each(|byte| prefetch_line(head.wrapping_add(row + byte)));
        prefetch_line(head.wrapping_add(scales));
        prefetch_line(head.wrapping_add(scales + g.scale_bytes()));
    }
}

/// Rounds to 16-bit floats, ties to even. `out` has the length of `x` rounded up to whole vectors; the rest becomes 0.
#[inline(always)]
unsafe fn to_half<L: ByteLanes>(dtype: KvDtype, x: &[f32], out: &mut [u16]) {
    assert!(out.len() == x.len().next_multiple_of(LANES));
    if dtype == KvDtype::Bf16 {
        out[x.len()..].fill(0);
        out.iter_mut().zip(x).for_each(|(out, x)| *out = half::bf16::from_f32(*x).to_bits());
        return;
    }
    for i in (0..x.len()).step_by(LANES) {
        // SAFETY: reads elements below x.len() and writes elements below x.len() rounded up to whole vectors.
        unsafe {
            L::load_first(x.as_ptr().add(i), (x.len() - i).min(LANES)).store_f16(out.as_mut_ptr().add(i));
        }
    }
}

/// Writes one key and value as 16-bit floats: K `[D][B]`, V `[B][D padded]`.
#[inline(always)]
unsafe fn write_half<L: ByteLanes>(g: &KvGeometry, slot: Slot, key: &[f32], value: &[f32]) {
    let mut half = [0u16; MAX_HEAD_SIZE];
    let half = &mut half[..g.padded_head_size()];
    // SAFETY: accesses only elements of this slot, d < D and offset < B, to which the caller has exclusive access.
    unsafe {
        to_half::<L>(g.dtype, key, half);
        let keys = slot.head.cast::<u16>();
        for (d, bits) in half[..g.head_size].iter().enumerate() {
            *keys.add(d * g.block_size + slot.offset) = *bits;
        }
        to_half::<L>(g.dtype, value, half);
        let row = slot.head.add(g.key_bytes()).cast::<u16>().add(slot.offset * half.len());
        std::ptr::copy_nonoverlapping(half.as_ptr(), row, half.len());
    }
}

/// An uninitialised buffer for the elements of a head. Its vectors never cross a cache line.
#[repr(align(64))]
struct HeadBuffer<T>([MaybeUninit<T>; MAX_HEAD_SIZE]);

impl<T> HeadBuffer<T> {
    #[inline(always)]
    fn new() -> Self {
        Self([const { MaybeUninit::uninit() }; MAX_HEAD_SIZE])
    }

    #[inline(always)]
    fn as_mut_ptr(&mut self) -> *mut T {
        self.0.as_mut_ptr().cast()
    }
}

/// Copies a head of `head_size` elements to `out`.
#[inline(always)]
unsafe fn copy_head<L: ByteLanes>(x: *const f32, head_size: usize, out: &mut HeadBuffer<f32>) {
    let out = out.as_mut_ptr();
    // SAFETY: the buffer holds the largest head in whole vectors; lanes beyond the head are loaded as zeros.
    unsafe {
        each_vector!(head_size, |i, lanes| {
            L::load_first(x.add(i), lanes).store(out.add(i));
        });
    }
}

/// Transforms and rounds a head of `head_size` elements to `out`, in the format of [`quantize_vectors`]. Returns the
/// scale.
#[inline(always)]
unsafe fn to_bytes<L: ByteLanes>(x: *const f32, head_size: usize, out: &mut HeadBuffer<f32>) -> half::bf16 {
    // SAFETY: the buffer holds the largest head in whole vectors.
    unsafe {
        copy_head::<L>(x, head_size, out);
        let out = out.as_mut_ptr();
        transform::<L>(out, head_size);
        half::bf16::from_f32(quantize_vectors::<L>(out, head_size.next_multiple_of(LANES)))
    }
}

/// Writes one key and value as bytes: K `[B / 16][D / 4][16][4]`, V `[B / 64][16][D padded][4]`, scales `[B]` each.
///
/// `head_size` equals `g.head_size`. If it is a constant, the compiler keeps the head in registers.
#[inline(always)]
unsafe fn write_int8<L: ByteLanes>(g: &KvGeometry, head_size: usize, slot: Slot, key: &[f32], value: &[f32]) {
    assert!(key.len() == head_size && value.len() == head_size);
    let (stride, key_quads) = (head_size.next_multiple_of(LANES), head_size.div_ceil(QUAD));
    let (mut keys, mut values) = (HeadBuffer::new(), HeadBuffer::new());
    // SAFETY: key and value have `head_size` elements.
    let (mut key_scale, mut value_scale) = unsafe {
        (
            to_bytes::<L>(key.as_ptr(), head_size, &mut keys),
            to_bytes::<L>(value.as_ptr(), head_size, &mut values),
        )
    };
    if key_scale.is_nan() || value_scale.is_nan() {
        // Bytes cannot represent NaN, so a key or value that is not finite makes both scales NaN.
        (key_scale, value_scale) = (half::bf16::NAN, half::bf16::NAN);
    }
    let (keys, values) = (keys.as_mut_ptr(), values.as_mut_ptr());
    let (vector, lane) = (slot.offset / LANES, slot.offset % LANES);
    // SAFETY: writes only bytes and scales of this slot; the buffers were filled up to `stride`.
    unsafe {
        let quads = slot.head.add((vector * key_quads * LANES + lane) * QUAD).cast::<u32>();
        let quad = slot.offset / VALUE_GROUP * LANES + lane;
        let row = slot.head.add(g.key_bytes() + quad * stride * QUAD + slot.offset % VALUE_GROUP / LANES);
        for i in (0..stride).step_by(LANES) {
            let mut vector = [0u32; LANES / QUAD];
            L::load(keys.add(i)).store_low_bytes(vector.as_mut_ptr().cast());
            for (quad, bytes) in (i / QUAD..key_quads).zip(vector) {
                quads.add(quad * LANES).write(bytes ^ SIGNS);
            }
            L::load(values.add(i)).store_low_bytes_apart(row.add(i * QUAD));
        }
        let scales = slot.head.add(g.key_bytes() + g.value_bytes()).cast::<u16>();
        *scales.add(slot.offset) = key_scale.to_bits();
        *scales.add(g.block_size + slot.offset) = value_scale.to_bits();
    }
}

/// The scaling of a key, with its head's mean rotated to its block.
#[derive(Clone, Copy)]
struct TokenScaling<'a> {
    head: HeadScaling<'a>,
    /// The rotation from [`KeyTurns::row`](super::KeyTurns::row).
    turn: &'a [f32],
}

/// Copies a key of `head_size` elements to `out` and scales it.
#[inline(always)]
unsafe fn scale_key<L: ByteLanes>(
    x: *const f32,
    head_size: usize,
    TokenScaling { head: HeadScaling { mean, factor, .. }, turn }: TokenScaling<'_>,
    out: &mut HeadBuffer<f32>,
) {
    assert!(mean.len() == head_size && factor.len() == head_size);
    // SAFETY: the buffer holds the largest head in whole vectors; the assertion ensures the lengths of mean and factor.
    unsafe {
        copy_head::<L>(mean.as_ptr(), head_size, out);
        let out = out.as_mut_ptr();
        rope_generic::<L>(std::slice::from_raw_parts_mut(out, head_size), turn, head_size);
        each_vector!(head_size, |i, lanes| {
            let moved = L::load_first(x.add(i), lanes).sub(L::load_first(out.add(i), lanes));
            moved.mul(L::load_first(factor.as_ptr().add(i), lanes)).store(out.add(i));
        });
    }
}

/// Transforms and rounds a head of `head_size` elements in place, in the format of [`quantize_nibbles`], padded to
/// whole pairs of vectors. Returns the scale.
#[inline(always)]
unsafe fn to_nibbles<L: ByteLanes>(head_size: usize, out: &mut HeadBuffer<f32>) -> half::f16 {
    let out = out.as_mut_ptr();
    // SAFETY: the buffer holds the largest head in whole pairs of vectors.
    unsafe {
        transform::<L>(out, head_size);
        let scale = quantize_nibbles::<L>(out, head_size);
        let stride = head_size.next_multiple_of(LANES);
        if !stride.is_multiple_of(NIBBLES * LANES) {
            L::splat(0.0).store(out.add(stride));
        }
        scale
    }
}

/// Writes a block's first key as bytes and returns its scale.
#[inline(always)]
unsafe fn write_first_key<L: ByteLanes>(
    g: &KvGeometry,
    head_size: usize,
    slot: Slot,
    key: *const f32,
    scaling: TokenScaling<'_>,
) -> half::f16 {
    let mut bytes = HeadBuffer::new();
    // SAFETY: reads a key of `head_size` elements; writes only bytes of the block's first key, in whole quads.
    unsafe {
        scale_key::<L>(key, head_size, scaling, &mut bytes);
        let bytes = bytes.as_mut_ptr();
        transform::<L>(bytes, head_size);
        // f16 represents a bf16 number exactly in f16's normal range.
        let scale = half::f16::from_f32(quantize_vectors::<L>(bytes, head_size.next_multiple_of(LANES)));
        let quads = slot.head.add(g.first_key_offset()).cast::<u32>();
        for i in (0..head_size).step_by(LANES) {
            let mut vector = [0u32; LANES / QUAD];
            L::load(bytes.add(i)).store_low_bytes(vector.as_mut_ptr().cast());
            for (quad, bytes) in (i / QUAD..head_size.div_ceil(QUAD)).zip(vector) {
                quads.add(quad).write_unaligned(bytes ^ SIGNS);
            }
        }
        if scale.is_finite() { scale } else { half::f16::NAN }
    }
}

/// Writes one key and value as nibbles: K `[B / 16][D / 8][16][4]`, V `[B / 64][16][D / 32][16][4]`, scales `[B]` each.
///
/// `head_size` is passed as in [`write_int8`].
#[inline(always)]
unsafe fn write_int4<L: ByteLanes>(
    g: &KvGeometry,
    head_size: usize,
    slot: Slot,
    key: &[f32],
    value: &[f32],
    scaling: TokenScaling<'_>,
) {
    assert!(key.len() == head_size && value.len() == head_size);
    let pair = NIBBLES * LANES;
    let (value_bytes, key_quads) =
        (head_size.next_multiple_of(pair) / NIBBLES, head_size.div_ceil(QUAD).div_ceil(NIBBLES));
    let (mut keys, mut values) = (HeadBuffer::new(), HeadBuffer::new());
    // SAFETY: key and value have `head_size` elements.
    let (mut key_scale, mut value_scale) = unsafe {
        scale_key::<L>(key.as_ptr(), head_size, scaling, &mut keys);
        copy_head::<L>(value.as_ptr(), head_size, &mut values);
        (to_nibbles::<L>(head_size, &mut keys), to_nibbles::<L>(head_size, &mut values))
    };
    if slot.offset == 0 {
        // SAFETY: the key has `head_size` elements; only the writer of slot 0 writes the block's first key.
        key_scale = unsafe { write_first_key::<L>(g, head_size, slot, key.as_ptr(), scaling) };
    }
    if key_scale.is_nan() || value_scale.is_nan() {
        // As for int8.
        (key_scale, value_scale) = (half::f16::NAN, half::f16::NAN);
    }
    let (keys, values) = (keys.as_mut_ptr(), values.as_mut_ptr());
    let (vector, lane) = (slot.offset / LANES, slot.offset % LANES);
    // SAFETY: writes only bytes and scales of this slot; the buffers were filled up to whole pairs of vectors.
    unsafe {
        let magic = L::splat(MAGIC);
        let quads = slot.head.add((vector * key_quads * LANES + lane) * QUAD).cast::<u32>();
        for i in (0..head_size).step_by(LANES) {
            let mut bytes = [0u32; LANES / QUAD];
            L::load(keys.add(i)).add(magic).store_low_bytes(bytes.as_mut_ptr().cast());
            for (quad, bytes) in (i / QUAD / NIBBLES..key_quads).zip(bytes.chunks_exact(NIBBLES)) {
                quads.add(quad * LANES).write(bytes[0] | bytes[1] << 4);
            }
        }
        let quad = slot.offset / VALUE_GROUP * LANES + lane;
        let row = g.key_bytes() + quad * value_bytes * QUAD + slot.offset % VALUE_GROUP / LANES;
        let row = slot.head.add(row);
        for i in (0..head_size).step_by(pair) {
            let (low, high) = (L::load(values.add(i)), L::load(values.add(i + LANES)));
            let bytes = high.fma(L::splat(16.0), low.add(magic));
            bytes.store_low_bytes_apart(row.add(i / NIBBLES * QUAD));
        }
        let scales = slot.head.add(g.key_bytes() + g.value_bytes()).cast::<u16>();
        *scales.add(slot.offset) = key_scale.to_bits();
        *scales.add(g.block_size + slot.offset) = value_scale.to_bits();
    }
}

#[inline(always)]
unsafe fn write_generic<L: ByteLanes>(
    g: &KvGeometry,
    (scaling, turn): (&KeyScaling, &[f32]),
    layer: usize,
    slot: Slot,
    key: &[f32],
    value: &[f32],
) {
    for (head, (key, value)) in key.chunks_exact(g.head_size).zip(value.chunks_exact(g.head_size)).enumerate()
    {
        // SAFETY: the heads of a layer are contiguous.
        unsafe {
            let slot = Slot { head: slot.head.add(head * g.head_bytes()), ..slot };
            match g.dtype {
                KvDtype::Int8 => match g.head_size {
                    64 => write_int8::<L>(g, 64, slot, key, value),
                    128 => write_int8::<L>(g, 128, slot, key, value),
                    head_size => write_int8::<L>(g, head_size, slot, key, value),
                },
                KvDtype::Int4 => {
                    let scaling = TokenScaling { head: scaling.head(layer, head), turn };
                    match g.head_size {
                        64 => write_int4::<L>(g, 64, slot, key, value, scaling),
                        128 => write_int4::<L>(g, 128, slot, key, value, scaling),
                        head_size => write_int4::<L>(g, head_size, slot, key, value, scaling),
                    }
                }
                KvDtype::F16 | KvDtype::Bf16 => write_half::<L>(g, slot, key, value),
            }
        }
    }
}

simd_entry! {
    /// Stores the key and value, `[G * D]` each, of one token. `slot` is the slot of head 0. `scaling` is the scaling
    /// of int4 keys with the rotation of their means to this block.
    ///
    /// # Safety
    /// `slot` must lie in a pool of this geometry, and no other thread may read or write it in this layer during the
    /// call.
    pub(super) unsafe fn write_slot = write_generic(
        g: &KvGeometry,
        scaling: (&KeyScaling, &[f32]),
        layer: usize,
        slot: Slot,
        key: &[f32],
        value: &[f32],
    );
}

#[inline(always)]
unsafe fn write_latent_generic<L: ByteLanes>(g: &KvGeometry, slot: Slot, key: &[f32]) {
    let stride = g.padded_head_size();
    for (head, key) in key.chunks_exact(g.head_size).enumerate() {
        // SAFETY: the heads of a layer are contiguous, and so are the rows of a head, which are padded to `stride`.
        unsafe {
            let row = slot.head.add(head * g.head_bytes()).cast::<u16>().add(slot.offset * stride);
            to_half::<L>(g.dtype, key, std::slice::from_raw_parts_mut(row, stride));
        }
    }
}

simd_entry! {
    /// Stores the key `[G * D]` of one token with a latent: K `[B][D padded]`.
    ///
    /// # Safety
    /// As for [`write_slot`].
    pub(super) unsafe fn write_latent_slot = write_latent_generic(g: &KvGeometry, slot: Slot, key: &[f32]);
}
