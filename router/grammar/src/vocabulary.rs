//! The vocabulary as a trie of bytes, which the parser walks.

use llguidance::toktrie::{SimpleVob, TokRxInfo, TokTrie, TokenId, TokenizerEnv};
use trunkline_text::Tokenizer;

use crate::error::GrammarError;

/// Longer tokens are never allowed, because the trie stores the depth of a node in ten bits.
const MAX_TOKEN_BYTES: usize = 1000;
/// The trie stores the number of a node in 22 bits.
const MAX_TRIE_NODES: usize = 1 << 22;
/// Precedes a special token's name in the trie. The byte occurs in no UTF-8 text.
const SPECIAL_MARKER: u8 = TokTrie::SPECIAL_TOKEN_MARKER;

/// The parser's view of a tokenizer.
pub(crate) struct Vocabulary {
    trie: TokTrie,
}

impl Vocabulary {
    /// Creates the trie, and returns with it the tokens that an output under a grammar may contain: text tokens and end
    /// tokens.
    pub(crate) fn new(
        tokenizer: &Tokenizer,
        end_token_ids: &[u32],
    ) -> Result<(Self, SimpleVob), GrammarError> {
        let error = |detail: &str| GrammarError::Vocabulary { detail: detail.to_owned() };
        let vocab_size = tokenizer.vocab_size();
        let end_token_ids: Vec<u32> = end_token_ids.iter().copied().filter(|&id| id < vocab_size).collect();
        let first_end = *end_token_ids.first().ok_or_else(|| error("it has no end token"))?;
        let mut permitted = SimpleVob::alloc(vocab_size as usize);
        let mut words: Vec<Vec<u8>> = Vec::with_capacity(vocab_size as usize);
        for id in 0..vocab_size {
            let bytes = tokenizer.token_bytes(id).unwrap_or_default();
            let word = if end_token_ids.contains(&id) {
                permitted.allow_token(id);
                [&[SPECIAL_MARKER], bytes].concat()
            } else if tokenizer.is_special(id)
                || bytes.len() > MAX_TOKEN_BYTES
                || bytes.first() == Some(&SPECIAL_MARKER)
            {
                Vec::new()
            } else {
                if !bytes.is_empty() {
                    permitted.allow_token(id);
                }
                bytes.to_vec()
            };
            words.push(word);
        }
        // Each byte of a token is at most one node, so the total number of bytes is an upper bound.
        if words.iter().map(Vec::len).sum::<usize>() >= MAX_TRIE_NODES {
            return Err(error("it has too many long tokens"));
        }
        let trie = TokTrie::from(&TokRxInfo::new(vocab_size, first_end), &words);
        Ok((Self { trie: trie.with_eos_tokens(&end_token_ids) }, permitted))
    }
}

impl TokenizerEnv for Vocabulary {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<TokenId> {
        self.trie.greedy_tokenize(bytes)
    }

    /// Returns false, so that a mask contains every way to tokenize a forced text. Allowing only one of them would
    /// change the distribution.
    fn tokenize_is_canonical(&self) -> bool {
        false
    }
}
