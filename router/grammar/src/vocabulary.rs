//! The vocabulary as a trie of bytes, as the parser walks it.

use llguidance::toktrie::{SimpleVob, TokRxInfo, TokTrie, TokenId, TokenizerEnv};
use trunkline_text::Tokenizer;

use crate::GrammarError;

/// Longer tokens are never allowed: the trie's nodes count their depth in ten bits.
const MAX_TOKEN_BYTES: usize = 1000;
/// Most nodes of the trie: it counts them in 22 bits.
const MAX_TRIE_NODES: usize = 1 << 22;
/// In front of a special token's name in the trie: no UTF-8 text has this byte.
const SPECIAL_MARKER: u8 = TokTrie::SPECIAL_TOKEN_MARKER;

/// A tokenizer as the parser sees it.
pub(crate) struct Vocabulary {
    trie: TokTrie,
}

impl Vocabulary {
    /// The trie, and the tokens that an output under a grammar may hold: text, and the end tokens.
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
        // An upper bound: each byte of each token is a node at most.
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

    /// Masks hold all ways to write what the grammar forces: narrowing them to one would change the distribution.
    fn tokenize_is_canonical(&self) -> bool {
        false
    }
}
