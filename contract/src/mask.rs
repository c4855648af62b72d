use std::fmt;
use std::sync::Arc;

use prost::bytes::Bytes;

/// The tokens that may be sampled, and penalties, in the format of `Chunk.allowed_tokens` in `shard.proto`. Cloning is
/// cheap.
#[derive(Clone, PartialEq, Eq)]
pub struct TokenMask(pub Arc<[u8]>);

impl TokenMask {
    /// Creates a mask from one bit for each token of the shard's vocabulary, and from what to add to the logits of
    /// tokens.
    pub fn new(bits: Arc<[u8]>, penalties: &[(u32, f32)]) -> Self {
        if penalties.is_empty() {
            return Self(bits);
        }
        let pairs =
            penalties.iter().flat_map(|(id, addend)| [id.to_le_bytes(), addend.to_le_bytes()]).flatten();
        Self(bits.iter().copied().chain(pairs).collect())
    }

    /// Creates a mask of these tokens. Ids beyond the vocabulary are ignored.
    pub fn of(token_ids: impl IntoIterator<Item = u32>, vocab_size: u32) -> Self {
        let mut bits = vec![0; Self::num_bytes(vocab_size)];
        for token_id in token_ids.into_iter().filter(|&id| id < vocab_size) {
            bits[token_id as usize / 8] |= 1 << (token_id % 8);
        }
        Self(bits.into())
    }

    /// Reads the mask of a message; an empty one is none.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        (!bytes.is_empty()).then(|| Self(bytes.into()))
    }

    /// Returns the bytes of a mask without penalties.
    pub const fn num_bytes(vocab_size: u32) -> usize {
        vocab_size.div_ceil(8) as usize
    }
}

/// Shares the mask's memory.
impl From<TokenMask> for Bytes {
    fn from(mask: TokenMask) -> Self {
        Self::from_owner(mask.0)
    }
}

impl fmt::Debug for TokenMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TokenMask({} bytes)", self.0.len())
    }
}
