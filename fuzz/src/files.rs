//! Files that a server reads at its start. Invalid contents must give an error.

use std::collections::BTreeMap;

use trunkline_base::tenants::read_key_file;
use trunkline_text::parts::{AddedToken, SpaceRules, tokenizer_from_sentence_piece, tokenizer_from_tiktoken};
use trunkline_text::{EncodeSpecial, GgufMetadata};

use crate::memory::peak_bytes;

/// Memory that parsing may take per byte of a GGUF file. Bytes in a list are stored as eight-byte numbers, and a table
/// that grows is briefly in memory twice.
const MAX_BYTES_OF_BYTE: usize = 16;
/// Memory that parsing any GGUF file may take, for an error and an empty table.
const FIXED_BYTES: usize = 4096;

pub fn gguf(data: &[u8]) {
    // The values are checked where they are used. Here parsing must end, and must not take memory for claimed sizes.
    let peak = peak_bytes(|| GgufMetadata::parse(data));
    let limit = FIXED_BYTES + MAX_BYTES_OF_BYTE * data.len();
    assert!(peak <= limit, "{peak} bytes of memory for a file of {} bytes, the limit is {limit}", data.len());
}

/// Returns a header with values of many types, and one that claims the largest sizes.
pub fn gguf_seeds() -> Vec<Vec<u8>> {
    let text = |text: &str| [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat();
    let value = |key: &str, kind: u32, bytes: &[u8]| [&text(key), &kind.to_le_bytes()[..], bytes].concat();
    let list =
        |kind: u32, len: u64, bytes: &[u8]| [&kind.to_le_bytes()[..], &len.to_le_bytes(), bytes].concat();
    let names = [text("a"), text("b")].concat();
    let values = [
        value("general.architecture", 8, &text("llama")),
        value("llama.context_length", 4, &2048_u32.to_le_bytes()),
        value("tokenizer.ggml.tokens", 9, &list(8, 2, &names)),
        value("tokenizer.ggml.scores", 9, &list(6, 2, &[0; 8])),
        value("u8", 0, &[1]),
        value("i64", 11, &[255; 8]),
        value("f64", 12, &1.5_f64.to_le_bytes()),
        value("bool", 7, &[1]),
        value("nested", 9, &list(9, 1, &list(0, 2, &[1, 2]))),
    ];
    let head = |num_tensors: u64, num_values: u64| {
        [&b"GGUF"[..], &3_u32.to_le_bytes(), &num_tensors.to_le_bytes(), &num_values.to_le_bytes()].concat()
    };
    vec![[head(0, values.len() as u64), values.concat()].concat(), head(u64::MAX, u64::MAX)]
}

/// Memory that building a tokenizer may take per byte of its file: a short piece has entries in several tables.
const MAX_VOCABULARY_BYTES_OF_BYTE: usize = 256;
/// Memory that building any tokenizer may take, for rules such as the expressions that cut text.
const FIXED_VOCABULARY_BYTES: usize = 1 << 20;

/// A text in which rules of all kinds apply, at the beginning and at the end too.
const TEXT: &str = " é <s>e\u{301}\u{200b}\u{200b} ﬁx  the the½<0x41>🙂▁<|call|>  ";

/// Builds a tokenizer from `tokenizer.model`, or says why not. One that is built encodes any text.
pub fn vocabulary(data: &[u8]) {
    let mut built = None;
    let peak = peak_bytes(|| {
        built = tokenizer_from_sentence_piece(data, BTreeMap::new(), SpaceRules::default())
            .map(|built| built.tokenizer)
            .or_else(|_| {
                let end = [(300, AddedToken::from("<s>", true))];
                tokenizer_from_tiktoken(data, end.into(), "llama").map(|built| built.tokenizer)
            })
            .ok();
    });
    let limit = FIXED_VOCABULARY_BYTES + MAX_VOCABULARY_BYTES_OF_BYTE * data.len();
    assert!(peak <= limit, "{peak} bytes of memory for {} bytes, the limit is {limit}", data.len());
    let Some(tokenizer) = built else { return };
    for special in [EncodeSpecial::Allow, EncodeSpecial::Plain] {
        let ids = tokenizer.encode(TEXT, special).unwrap();
        assert!(ids.iter().all(|&id| tokenizer.token_bytes(id).is_some()), "{ids:?}");
        for token in tokenizer.encode_with_ranges(TEXT, special).unwrap() {
            assert!(TEXT.get(token.range).is_some());
        }
    }
}

/// Returns a unigram model with a table of replacements, and the beginning of a tiktoken file with all bytes.
pub fn vocabulary_seeds() -> Vec<Vec<u8>> {
    let tiktoken = include_bytes!("../../router/text/testdata/small.tiktoken");
    let bytes = tiktoken.iter().enumerate().filter(|(_, byte)| **byte == b'\n').nth(260);
    let unigram = include_bytes!("../../router/text/testdata/unigram.model");
    vec![unigram.to_vec(), tiktoken[..=bytes.map_or(0, |(at, _)| at)].to_vec()]
}

pub fn keys(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    if let Err(error) = read_key_file(&text) {
        assert!(error.place.line >= 1 && error.place.line <= 1 + text.matches('\n').count(), "{error}");
        assert!(!error.to_string().contains("sk-secret"), "an error quotes a key: {error}");
    }
}

/// Returns key files in different TOML forms.
pub fn key_seeds() -> Vec<Vec<u8>> {
    [
        "[tenants.alice]\nkeys = [\"sk-secret-of-alice-1\"]\nshare = 2\nadmin = true\n\n[tenants.bob]\nkey_sha256 = \
         [\"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855\"]\n",
        "tenants.x.keys = [\"sk-secret-of-x-12345\", \"sk-secret-of-x-12345\"]",
    ]
    .map(Vec::from)
    .to_vec()
}

pub fn key_words() -> Vec<String> {
    [
        "keys = [",
        "[tenants.",
        "share = ",
        "\"sk-secret-again-12\"",
        "]\n",
        "'''",
        "#",
        "= {a = 1}",
        "99999999999999",
    ]
    .map(String::from)
    .to_vec()
}
