//! The sizes of a block and its parts, for each dtype.

use std::fmt;
use std::str::FromStr;

use super::KvPoolError;
use crate::vector::LANES;

/// The smallest block size. Block sizes are powers of two.
const MIN_BLOCK_SIZE: usize = 16;
/// The largest block size; it divides the positions of a segment of attention.
pub const MAX_BLOCK_SIZE: usize = 128;
/// The largest head size that fits in the kernels' stack buffers.
pub const MAX_HEAD_SIZE: usize = 512;
/// The largest key with a latent. It needs no stack buffer, so this only bounds what a model may claim.
const MAX_LATENT_KEY_SIZE: usize = 1024;
/// Adjacent bytes that one lane of an integer dot product takes.
pub const QUAD: usize = 4;
/// Four-bit numbers in a byte.
pub const NIBBLES: usize = 2;

/// Positions whose values are interleaved in int8 and int4. Smaller blocks are padded to as many.
pub const VALUE_GROUP: usize = 64;

/// The storage format of K and V.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KvDtype {
    /// Signed bytes of the transformed head ([`crate::ops::hadamard`]), one bf16 scale per token and head.
    Int8,
    /// Four bits of the transformed head ([`crate::ops::quantize_nibbles`]), one f16 scale per token and head.
    Int4,
    F16,
    Bf16,
}

impl KvDtype {
    pub const ALL: [KvDtype; 4] = [KvDtype::Int8, KvDtype::Int4, KvDtype::F16, KvDtype::Bf16];

    /// The name in flags and in `Describe`.
    pub fn name(self) -> &'static str {
        match self {
            KvDtype::Int8 => "int8",
            KvDtype::Int4 => "int4",
            KvDtype::F16 => "f16",
            KvDtype::Bf16 => "bf16",
        }
    }
}

impl fmt::Display for KvDtype {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

impl FromStr for KvDtype {
    type Err = KvPoolError;

    fn from_str(name: &str) -> Result<Self, KvPoolError> {
        let found = Self::ALL.into_iter().find(|dtype| dtype.name() == name);
        found.ok_or_else(|| KvPoolError::UnknownDtype { name: name.to_owned() })
    }
}

/// The sizes and the dtype of a pool. The letters are those of [`crate::ops`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvGeometry {
    pub num_layers: usize,
    /// Number of KV heads per layer, G.
    pub num_kv_heads: usize,
    /// Elements per head, D.
    pub head_size: usize,
    /// Positions per block, B.
    pub block_size: usize,
    pub dtype: KvDtype,
    /// With latent attention, this many last elements of a key are its value. `None` stores values apart.
    pub latent_size: Option<usize>,
}

impl KvGeometry {
    pub fn check(&self) -> Result<(), KvPoolError> {
        let bad = |field, value, expected| Err(KvPoolError::Geometry { field, value, expected });
        let block_size = self.block_size;
        if !(1..=4096).contains(&self.num_layers) {
            return bad("num_layers", self.num_layers, "1 to 4096");
        }
        if !(1..=1024).contains(&self.num_kv_heads) {
            return bad("num_kv_heads", self.num_kv_heads, "1 to 1024");
        }
        if let Some(latent_size) = self.latent_size {
            if !matches!(self.dtype, KvDtype::F16 | KvDtype::Bf16) {
                return Err(KvPoolError::LatentDtype { dtype: self.dtype });
            }
            if self.num_kv_heads != 1 {
                return bad("num_kv_heads", self.num_kv_heads, "1 with a latent");
            }
            if !(1..=MAX_LATENT_KEY_SIZE).contains(&self.head_size) {
                return bad("head_size", self.head_size, "1 to 1024 with a latent");
            }
            if latent_size == 0 || latent_size > self.head_size || !latent_size.is_multiple_of(LANES) {
                return bad("latent_size", latent_size, "a multiple of 16 up to the head size");
            }
        } else if self.head_size == 0 || self.head_size > MAX_HEAD_SIZE {
            return bad("head_size", self.head_size, "1 to 512");
        }
        if !(MIN_BLOCK_SIZE..=MAX_BLOCK_SIZE).contains(&block_size) || !block_size.is_power_of_two() {
            return bad("block_size", block_size, "16, 32, 64 or 128");
        }
        Ok(())
    }

    /// The head size rounded up to whole vectors, which is the stride of V's rows, and of keys with a latent.
    #[inline]
    pub fn padded_head_size(&self) -> usize {
        self.head_size.next_multiple_of(LANES)
    }

    /// Elements of a value.
    #[inline]
    pub fn value_size(&self) -> usize {
        self.latent_size.unwrap_or(self.head_size)
    }

    /// The elements of a value rounded up to whole vectors.
    #[inline]
    pub fn padded_value_size(&self) -> usize {
        self.value_size().next_multiple_of(LANES)
    }

    /// Offset of V in one block and head, in bytes.
    #[inline]
    pub(super) fn values_offset(&self) -> usize {
        match self.latent_size {
            Some(latent_size) => (self.head_size - latent_size) * size_of::<u16>(),
            None => self.key_bytes(),
        }
    }

    #[inline]
    pub fn key_quads(&self) -> usize {
        self.head_size.div_ceil(QUAD)
    }

    /// Quads of bytes that one position of K takes in int8 and int4.
    #[inline]
    pub(super) fn stored_key_quads(&self) -> usize {
        match self.dtype {
            KvDtype::Int4 => self.key_quads().div_ceil(NIBBLES),
            _ => self.key_quads(),
        }
    }

    /// Bytes that one position of V takes in int8 and int4.
    #[inline]
    pub(super) fn stored_value_bytes(&self) -> usize {
        match self.dtype {
            KvDtype::Int4 => self.head_size.next_multiple_of(NIBBLES * LANES) / NIBBLES,
            _ => self.padded_head_size(),
        }
    }

    /// Bytes of K of one block and head; V follows.
    #[inline]
    pub(super) fn key_bytes(&self) -> usize {
        match self.dtype {
            KvDtype::Int8 | KvDtype::Int4 => self.stored_key_quads() * QUAD * self.block_size,
            KvDtype::F16 | KvDtype::Bf16 => {
                let stored =
                    if self.latent_size.is_some() { self.padded_head_size() } else { self.head_size };
                stored * self.block_size * size_of::<u16>()
            }
        }
    }

    /// Bytes of V of one block and head; the scales follow.
    #[inline]
    pub(super) fn value_bytes(&self) -> usize {
        if self.latent_size.is_some() {
            return 0;
        }
        match self.dtype {
            KvDtype::Int8 | KvDtype::Int4 => self.stored_value_bytes() * self.block_size.max(VALUE_GROUP),
            KvDtype::F16 | KvDtype::Bf16 => self.padded_head_size() * self.block_size * size_of::<u16>(),
        }
    }

    /// Bytes of the scales of K or of V of one block and head.
    #[inline]
    pub(super) fn scale_bytes(&self) -> usize {
        self.block_size * self.bytes_per_scale()
    }

    /// Bytes of the scale of one key or value.
    #[inline]
    pub(super) fn bytes_per_scale(&self) -> usize {
        match self.dtype {
            KvDtype::Int8 | KvDtype::Int4 => size_of::<u16>(),
            KvDtype::F16 | KvDtype::Bf16 => 0,
        }
    }

    /// Bytes of a block's first key; 0 if it is not stored separately.
    #[inline]
    pub(super) fn first_key_bytes(&self) -> usize {
        match self.dtype {
            KvDtype::Int4 => self.key_quads() * QUAD,
            _ => 0,
        }
    }

    /// Offset of the first key in one block and head.
    #[inline]
    pub(super) fn first_key_offset(&self) -> usize {
        self.key_bytes() + self.value_bytes() + 2 * self.scale_bytes()
    }

    /// Bytes of one block and head of a layer.
    pub(super) fn head_bytes(&self) -> usize {
        self.first_key_offset() + self.first_key_bytes()
    }

    pub fn layer_bytes(&self) -> usize {
        self.head_bytes() * self.num_kv_heads
    }

    /// Bytes of one block: K and V of all layers.
    pub fn bytes_per_block(&self) -> usize {
        self.layer_bytes() * self.num_layers
    }
}
