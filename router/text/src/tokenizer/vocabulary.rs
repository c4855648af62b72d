//! The bytes and the kind of each token id.

use std::collections::BTreeMap;

use tokenizers::AddedToken;

use crate::error::TextError;

/// Largest number of ids. The table of a vocabulary has a row for each.
pub const MAX_VOCAB_SIZE: u32 = 1 << 22;

#[derive(Debug, Default)]
pub struct Vocabulary {
    /// The bytes of all tokens, concatenated.
    bytes: Vec<u8>,
    /// The end of each token in `bytes`. Token `id` is `bytes[ends[id - 1]..ends[id]]`.
    ends: Vec<usize>,
    kinds: Vec<Kind>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Text,
    Special,
    /// The id has no token.
    Absent,
}

impl Vocabulary {
    /// Lists the bytes of a model's tokens, by id, with added tokens in place of those that have the same id.
    pub fn new(
        tokens: impl ExactSizeIterator<Item = Option<Vec<u8>>>,
        added: &BTreeMap<u32, AddedToken>,
    ) -> Result<Self, TextError> {
        let last_added = added.last_key_value().map_or(0, |(id, _)| u64::from(*id) + 1);
        let num_ids = check_size(last_added.max(tokens.len() as u64))?;
        let mut vocabulary = Self::default();
        for (id, token) in (0..num_ids).zip(tokens.chain(std::iter::repeat(None))) {
            match (added.get(&id), token) {
                (Some(added), _) => vocabulary.push(added.content.as_bytes(), added.special),
                (None, Some(token)) => vocabulary.push(&token, false),
                (None, None) => vocabulary.push_hole(),
            }
        }
        Ok(vocabulary)
    }

    pub fn push(&mut self, bytes: &[u8], is_special: bool) {
        self.bytes.extend_from_slice(bytes);
        self.ends.push(self.bytes.len());
        self.kinds.push(if is_special { Kind::Special } else { Kind::Text });
    }

    /// Leaves the next id without a token.
    fn push_hole(&mut self) {
        self.ends.push(self.bytes.len());
        self.kinds.push(Kind::Absent);
    }

    pub fn num_ids(&self) -> u32 {
        // `check_size` has checked the range.
        u32::try_from(self.ends.len()).unwrap_or(u32::MAX)
    }

    pub fn bytes(&self, token_id: u32) -> Option<&[u8]> {
        let idx = usize::try_from(token_id).ok()?;
        if *self.kinds.get(idx)? == Kind::Absent {
            return None;
        }
        let start = if idx == 0 { 0 } else { self.ends[idx - 1] };
        self.bytes.get(start..self.ends[idx])
    }

    pub fn is_special(&self, token_id: u32) -> bool {
        usize::try_from(token_id).ok().and_then(|idx| self.kinds.get(idx)) == Some(&Kind::Special)
    }
}

/// Checks that a vocabulary of `num_ids` ids is within the limit.
pub fn check_size(num_ids: u64) -> Result<u32, TextError> {
    match u32::try_from(num_ids) {
        Ok(0) => Err(TextError::InvalidTokenizer { detail: "the vocabulary is empty".into() }),
        Ok(count) if count <= MAX_VOCAB_SIZE => Ok(count),
        _ => Err(TextError::InvalidTokenizer {
            detail: format!("the vocabulary has {num_ids} ids, but the limit is {MAX_VOCAB_SIZE}"),
        }),
    }
}
