//! `tokenizer.model` of SentencePiece, and tiktoken's text form.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use proptest::prelude::*;
use serde::Deserialize;
use tokenizers::AddedToken;
use trunkline_text::parts::{SpaceRules, tokenizer_from_sentence_piece, tokenizer_from_tiktoken};
use trunkline_text::{DecodeSpecial, EncodeSpecial, TextStart, Tokenizer};

use crate::support::{drawn, fixture, testdata};

#[derive(Deserialize)]
struct Encoding {
    text: String,
    ids: Vec<u32>,
}

fn sentence_piece(name: &str) -> Tokenizer {
    let bytes = std::fs::read(testdata(&format!("{name}.model"))).unwrap();
    tokenizer_from_sentence_piece(&bytes, BTreeMap::new(), SpaceRules::default()).unwrap().tokenizer
}

fn tiktoken_bytes() -> Vec<u8> {
    std::fs::read(testdata("small.tiktoken")).unwrap()
}

fn control_tokens() -> BTreeMap<u32, AddedToken> {
    let control = |text: &str| AddedToken::from(text, true).normalized(false);
    BTreeMap::from([(500, control("<|begin_of_text|>")), (510, control("<|end_of_text|>"))])
}

fn tiktoken() -> Tokenizer {
    tokenizer_from_tiktoken(&tiktoken_bytes(), control_tokens(), "llama").unwrap().tokenizer
}

fn differing(tokenizer: &Tokenizer, encodings: &[Encoding]) -> Vec<String> {
    let differs = |Encoding { text, ids }: &Encoding| {
        let own = tokenizer.encode(text, EncodeSpecial::Plain).unwrap();
        (own != *ids).then(|| format!("{text:?}: {own:?}, not {ids:?}"))
    };
    encodings.iter().filter_map(differs).collect()
}

#[test]
fn sentence_piece_models_encode_like_sentencepiece() {
    for (name, encodings) in fixture::<BTreeMap<String, Vec<Encoding>>>("sentence_piece.json") {
        let differing = differing(&sentence_piece(&name), &encodings);
        assert!(
            differing.is_empty(),
            "{name}: {} of {}: {}",
            differing.len(),
            encodings.len(),
            differing.join("\n")
        );
    }
}

#[test]
fn byte_pairs_encode_like_tiktoken() {
    let encodings: Vec<Encoding> = fixture("tiktoken.json");
    assert_eq!(differing(&tiktoken(), &encodings), [""; 0]);
}

#[test]
fn space_before_text_depends_on_the_configuration() {
    let bytes = std::fs::read(testdata("bpe.model")).unwrap();
    let added = BTreeMap::from([(900, AddedToken::from("[END]", true).normalized(false))]);
    let ids = |add_prefix_space, legacy| {
        let rules = SpaceRules { add_prefix_space, legacy };
        let built = tokenizer_from_sentence_piece(&bytes, added.clone(), rules).unwrap().tokenizer;
        let ids = built.encode("the[END]the", EncodeSpecial::Allow).unwrap();
        assert_eq!(
            built.decode(&ids, DecodeSpecial::Keep, TextStart::Beginning).replace(' ', ""),
            "the[END]the"
        );
        assert_eq!((built.vocab_size(), built.token_id("[END]")), (901, Some(900)));
        ids
    };
    let plain = |text| sentence_piece("bpe").encode(text, EncodeSpecial::Plain).unwrap();
    let spaced = plain("the");
    // After a space of its own, the text has no other.
    let bare = plain("\nthe")[plain("\n").len()..].to_vec();
    assert_ne!(spaced, bare);
    let end = [900];
    for legacy in [None, Some(true)] {
        assert_eq!(ids(None, legacy), [&spaced[..], &end, &spaced].concat());
    }
    assert_eq!(ids(None, Some(false)), [&spaced[..], &end, &bare].concat());
    assert_eq!(ids(Some(false), None), [&bare[..], &end, &bare].concat());
}

#[test]
fn control_tokens_are_recognised_only_where_allowed() {
    for (name, text) in [("bpe", "<s>a<|user|>b</s><unk><0x41>"), ("unigram_bytes", "<s>ab</s><unk><0x41>")] {
        let tokenizer = sentence_piece(name);
        let plain = tokenizer.encode(text, EncodeSpecial::Plain).unwrap();
        assert!(plain.iter().all(|&id| !tokenizer.is_special(id)), "{name}: {plain:?}");
        assert_eq!(tokenizer.decode(&plain, DecodeSpecial::Skip, TextStart::Beginning), text);
        let allowed = tokenizer.encode(text, EncodeSpecial::Allow).unwrap();
        assert_eq!(allowed[0], tokenizer.token_id("<s>").unwrap());
        let special = allowed.iter().filter(|&&id| tokenizer.is_special(id)).count();
        assert_eq!(special, text.matches('<').count() - 1);
    }
}

#[test]
fn tiktoken_control_tokens_come_from_the_configuration() {
    let built = tokenizer_from_tiktoken(&tiktoken_bytes(), control_tokens(), "llama").unwrap();
    assert_eq!(built.prefix_ids, [500]);
    assert_eq!(built.tokenizer.vocab_size(), 511);
    assert_eq!(built.tokenizer.token_bytes(505), None);
    let ids = built.tokenizer.encode("<|end_of_text|>", EncodeSpecial::Allow).unwrap();
    assert_eq!(ids, [510]);
    // Qwen separates digits.
    let qwen = tokenizer_from_tiktoken(&tiktoken_bytes(), control_tokens(), "qwen2").unwrap();
    assert_eq!(qwen.prefix_ids, [0u32; 0]);
    assert_eq!(qwen.tokenizer.encode("366", EncodeSpecial::Allow).unwrap().len(), 3);
}

#[test]
fn damaged_tiktoken_files_are_errors() {
    let text = String::from_utf8(tiktoken_bytes()).unwrap();
    for (bytes, expected) in [
        (text.replacen("AA== 0\n", "", 1), "byte 0 has no token"),
        (text.replacen(" 7\n", " 8\n", 1), "line 9 repeats a token or a rank"),
        (
            text.replacen(" 7\n", " 3000000\n", 1),
            "the largest rank is 3000000, but there are only 500 tokens",
        ),
        (text.replacen(" 7\n", " 4294967295\n", 1), "line 8 has an empty token, or a rank"),
        (format!("{text}YWI=\n"), "line 501 is not a token in base64, a space and a rank"),
        (format!("{text}=== 600\n"), "line 501 is not a token"),
    ] {
        let message =
            tokenizer_from_tiktoken(bytes.as_bytes(), control_tokens(), "llama").unwrap_err().to_string();
        assert!(message.contains(expected), "{message}");
    }
    let message =
        tokenizer_from_tiktoken(text.as_bytes(), control_tokens(), "martian").unwrap_err().to_string();
    assert!(
        message.contains("known only for `model_type` llama, qwen2") && message.contains("`martian`"),
        "{message}"
    );
    let message = tokenizer_from_tiktoken(text.as_bytes(), BTreeMap::new(), "llama").unwrap_err().to_string();
    assert!(message.contains("control tokens are missing"), "{message}");
}

/// Returns a message field of protobuf.
fn field(number: u8, content: &[u8]) -> Vec<u8> {
    assert!(content.len() < 128);
    [&[number << 3 | 2, content.len() as u8], content].concat()
}

/// Returns a model of these pieces, each with its type, followed by other fields.
fn model(pieces: &[(&str, u8)], rest: &[Vec<u8>]) -> Vec<u8> {
    let piece =
        |(text, kind): &(&str, u8)| field(1, &[field(1, text.as_bytes()), vec![3 << 3, *kind]].concat());
    [pieces.iter().flat_map(piece).collect(), rest.concat()].concat()
}

#[test]
fn damaged_sentence_piece_models_are_errors() {
    let unknown = ("<unk>", 2);
    let charsmap = |bytes: &[u8]| field(3, &field(2, bytes));
    for (bytes, expected) in [
        (Vec::new(), "the vocabulary is empty"),
        (b"\x0a\x7f".to_vec(), "`tokenizer.model`: the file ends inside a field"),
        (b"\x0b".to_vec(), "is not a SentencePiece model"),
        (vec![0xff; 11], "a number has more than 64 bits"),
        (field(1, &field(1, b"\xff")), "a piece is not UTF-8"),
        (model(&[("a", 1)], &[]), "it has 0 unknown pieces"),
        (model(&[unknown], &[]), "it has no normal piece"),
        (model(&[unknown, ("a", 1), ("a", 1)], &[]), "piece `a` occurs twice"),
        (model(&[unknown, ("", 1)], &[]), "piece 1 is empty"),
        (model(&[unknown, ("a", 5)], &[]), "piece 1 has type 5"),
        (model(&[unknown, ("a", 6)], &[]), "byte piece 1 is `a`"),
        (model(&[unknown, ("b", 1), ("a", 3)], &[]), "control piece `a` is a single character"),
        (model(&[unknown, ("a", 1)], &[field(2, &[3 << 3, 4])]), "`model_type` of `tokenizer.model` is 4"),
        (
            model(&[unknown, ("a", 1)], &[field(2, &[0x98, 2, 1])]),
            "`byte_fallback` is set, but it has 0 byte pieces",
        ),
        (model(&[unknown, ("a", 1)], &[field(2, &[0xc0, 1, 1])]), "`treat_whitespace_as_suffix`"),
        (model(&[unknown, ("a", 1)], &[field(3, &[5 << 3, 0])]), "`escape_whitespaces = false`"),
        (model(&[unknown, ("a", 1)], &[charsmap(&[1, 2])]), "has no size"),
        (model(&[unknown, ("a", 1)], &[charsmap(&[9, 0, 0, 0, 1])]), "is shorter than its size"),
        (model(&[unknown, ("a", 1)], &[charsmap(&[2, 0, 0, 0, 1, 2, 0])]), "trie of an impossible size"),
        (
            model(&[unknown, ("a", 1)], &[charsmap(&[4, 0, 0, 0, 1, 2, 3, 4, b'x'])]),
            "has a text without an end",
        ),
    ] {
        let built = tokenizer_from_sentence_piece(&bytes, BTreeMap::new(), SpaceRules::default());
        let message = built.unwrap_err().to_string();
        assert!(message.contains(expected), "{message:?} is not about {expected:?}");
    }
}

fn reversible() -> &'static [Tokenizer] {
    static TOKENIZERS: OnceLock<[Tokenizer; 3]> = OnceLock::new();
    TOKENIZERS.get_or_init(|| [sentence_piece("bpe"), sentence_piece("unigram_bytes"), tiktoken()])
}

proptest! {
    #![proptest_config(drawn(200))]

    /// Vocabularies that do not normalize keep every text. They cannot represent `▁` itself.
    #[test]
    fn decoding_inverts_encoding(text in "(\\PC|[ \n\t0-9a-z<|>]){0,40}") {
        prop_assume!(!text.contains('▁'));
        for tokenizer in reversible() {
            let ids = tokenizer.encode(&text, EncodeSpecial::Plain).unwrap();
            prop_assert_eq!(&tokenizer.decode(&ids, DecodeSpecial::Keep, TextStart::Beginning), &text);
            let mut end = 0;
            for token in tokenizer.encode_with_ranges(&text, EncodeSpecial::Plain).unwrap() {
                prop_assert!(token.range.start <= end && text.get(token.range.clone()).is_some());
                end = end.max(token.range.end);
            }
            prop_assert_eq!(end, text.len());
        }
    }
}
