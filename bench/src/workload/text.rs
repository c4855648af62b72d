//! Prompts as text, without a tokenizer: common English words are one token each for nearly every one.

use std::sync::LazyLock;

use super::Piece;
use crate::random::Random;

static WORDS: LazyLock<Vec<&str>> =
    LazyLock::new(|| include_str!("words.txt").split_whitespace().collect::<Vec<_>>());

/// The number of tokens that a server counts for a word, as measured by [`Scale::measured`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scale {
    tokens_per_word: f64,
}

impl Scale {
    pub const ONE: Self = Self { tokens_per_word: 1.0 };

    /// Returns the scale of a server that counts `short` tokens for a prompt, and `long` for one with `words` words
    /// more.
    pub fn measured(short: u64, long: u64, words: u64) -> Self {
        let tokens_per_word = long.saturating_sub(short) as f64 / words as f64;
        if tokens_per_word > 0.0 { Self { tokens_per_word } } else { Self::ONE }
    }

    pub fn tokens_per_word(self) -> f64 {
        self.tokens_per_word
    }
}

/// Appends the words of a piece to `text`. A shorter piece of the same seed is the beginning of a longer one.
pub fn write(piece: Piece, scale: Scale, text: &mut String) {
    let words = (f64::from(piece.tokens) / scale.tokens_per_word).round().max(1.0) as u64;
    let mut random = Random::new(piece.seed);
    for _ in 0..words {
        let word = WORDS[random.range(0, WORDS.len() as u64 - 1) as usize];
        text.push(' ');
        text.push_str(word);
    }
}
