//! Storing the key and value of one token.

use super::{KvDtype, KvGeometry, MAX_HEAD_SIZE, QUAD, VALUE_GROUP};
use crate::ops::hadamard::transform;
use crate::ops::quantize_head::quantize_head;
use crate::ops::vector::{ByteLanes, LANES, simd_entry};

/// Bit that turns a signed byte into one that is 128 larger and unsigned.
const SIGN: u8 = 0x80;

/// Where one token's key and value of one head go.
#[derive(Clone, Copy)]
pub(super) struct Slot {
    /// First byte of the block and head.
    pub(super) head: *mut u8,
    pub(super) offset: usize,
}

/// Rounds to 16-bit floats, nearest even; `out` is x's length rounded up to whole vectors, the rest becomes 0.
#[inline(always)]
unsafe fn to_half<L: ByteLanes>(dtype: KvDtype, x: &[f32], out: &mut [u16]) {
    assert!(out.len() == x.len().next_multiple_of(LANES));
    if dtype == KvDtype::Bf16 {
        out[x.len()..].fill(0);
        out.iter_mut().zip(x).for_each(|(out, x)| *out = half::bf16::from_f32(*x).to_bits());
        return;
    }
    for i in (0..x.len()).step_by(LANES) {
        // SAFETY: reads below x.len(), writes below it rounded up to whole vectors.
        unsafe {
            L::load_first(x.as_ptr().add(i), (x.len() - i).min(LANES)).store_f16(out.as_mut_ptr().add(i));
        }
    }
}

/// One key and value as 16-bit floats: K `[D][B]`, V `[B][D padded]`.
#[inline(always)]
unsafe fn write_half<L: ByteLanes>(g: &KvGeometry, slot: Slot, key: &[f32], value: &[f32]) {
    let mut half = [0u16; MAX_HEAD_SIZE];
    let half = &mut half[..g.padded_head_size()];
    // SAFETY: elements of this slot, d < D and offset < B; nobody else touches them.
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

/// Transforms a head and rounds it to bytes, as many as the head size rounded up to whole vectors; returns the scale.
#[inline(always)]
unsafe fn to_bytes<L: ByteLanes>(x: &[f32], out: &mut [i8]) -> f32 {
    let mut transformed = [0.0f32; MAX_HEAD_SIZE];
    transformed[..x.len()].copy_from_slice(x);
    // SAFETY: the buffer is whole vectors, zeros beyond the head.
    unsafe { transform::<L>(transformed.as_mut_ptr(), x.len()) };
    quantize_head(&transformed[..out.len()], out)
}

/// One key and value as bytes: K `[B / 16][D / 4][16][4]`, V `[B / 64][16][D padded][4]`, scales of each `[B]`.
#[inline(always)]
unsafe fn write_int8<L: ByteLanes>(g: &KvGeometry, slot: Slot, key: &[f32], value: &[f32]) {
    let stride = g.padded_head_size();
    let (mut keys, mut values) = ([0i8; MAX_HEAD_SIZE], [0i8; MAX_HEAD_SIZE]);
    // SAFETY: lane arithmetic.
    let (mut key_scale, mut value_scale) =
        unsafe { (to_bytes::<L>(key, &mut keys[..stride]), to_bytes::<L>(value, &mut values[..stride])) };
    if key_scale.is_nan() || value_scale.is_nan() {
        // A value that is not finite makes probabilities NaN, as a key does: bytes cannot say it.
        (key_scale, value_scale) = (f32::NAN, f32::NAN);
    }
    let (vector, lane) = (slot.offset / LANES, slot.offset % LANES);
    // SAFETY: bytes and scales of this slot alone.
    unsafe {
        let quads = slot.head.add((vector * g.key_quads() * LANES + lane) * QUAD);
        for (i, quad) in keys[..g.key_quads() * QUAD].chunks_exact(QUAD).enumerate() {
            let quad: [u8; QUAD] = std::array::from_fn(|j| quad[j] as u8 ^ SIGN);
            quads.add(i * LANES * QUAD).cast::<[u8; QUAD]>().write(quad);
        }
        let quad = slot.offset / VALUE_GROUP * LANES + lane;
        let row = slot.head.add(g.key_bytes() + quad * stride * QUAD + slot.offset % VALUE_GROUP / LANES);
        for (d, byte) in values[..stride].iter().enumerate() {
            *row.add(d * QUAD) = *byte as u8;
        }
        let scales = slot.head.add(g.key_bytes() + g.value_bytes()).cast::<f32>();
        *scales.add(slot.offset) = key_scale;
        *scales.add(g.block_size + slot.offset) = value_scale;
    }
}

#[inline(always)]
unsafe fn write_generic<L: ByteLanes>(g: &KvGeometry, slot: Slot, key: &[f32], value: &[f32]) {
    for (head, (key, value)) in key.chunks_exact(g.head_size).zip(value.chunks_exact(g.head_size)).enumerate()
    {
        // SAFETY: heads of a layer follow each other.
        unsafe {
            let slot = Slot { head: slot.head.add(head * g.head_bytes()), ..slot };
            match g.dtype {
                KvDtype::Int8 => write_int8::<L>(g, slot, key, value),
                KvDtype::F16 | KvDtype::Bf16 => write_half::<L>(g, slot, key, value),
            }
        }
    }
}

simd_entry! {
    /// Stores key and value `[G * D]` of one token; `slot` is that of head 0.
    ///
    /// # Safety
    /// `slot` lies in a pool of this geometry, and no other thread reads or writes it in this layer meanwhile.
    pub(super) unsafe fn write_slot = write_generic(g: &KvGeometry, slot: Slot, key: &[f32], value: &[f32]);
}
