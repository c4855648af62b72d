//! Derives merges from a vocabulary that only scores its tokens.

use std::collections::HashSet;

use tokenizers::models::bpe::Vocab;

/// Longest token for which merges are derived, which takes time quadratic in its length.
const MAX_MERGED_TOKEN_CHARS: usize = 512;

/// Returns every way to make one of `tokens` from two others, with the best score first.
pub fn merges_by_score(tokens: &[(&str, f64)], vocab: &Vocab) -> Vec<(String, String)> {
    let texts: HashSet<&str> = tokens.iter().map(|(text, _)| *text).collect();
    let mut merges: Vec<(f64, &str, &str)> = Vec::new();
    for &(text, score) in tokens {
        if text.chars().count() > MAX_MERGED_TOKEN_CHARS {
            continue;
        }
        let mut ways: Vec<(&str, &str)> = text
            .char_indices()
            .skip(1)
            .map(|(at, _)| text.split_at(at))
            .filter(|(left, right)| texts.contains(left) && texts.contains(right))
            .collect();
        ways.sort_by_key(|(left, right)| (vocab.get(*left), vocab.get(*right)));
        merges.extend(ways.into_iter().map(|(left, right)| (score, left, right)));
    }
    // As in transformers, merges of equal score are ordered by the longer left part, then by the longer right part.
    merges.sort_by(|a, b| {
        let lengths = |merge: &(f64, &str, &str)| (merge.1.chars().count(), merge.2.chars().count());
        b.0.total_cmp(&a.0).then_with(|| lengths(b).cmp(&lengths(a)))
    });
    merges.into_iter().map(|(_, left, right)| (left.to_owned(), right.to_owned())).collect()
}
