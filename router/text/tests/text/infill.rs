use std::fs;

use serde_json::{Map, Value, json};
use trunkline_text::parts::char_of_byte;
use trunkline_text::{DecodeSpecial, EncodeSpecial, Infill, InfillFile, ModelText, TextError, TextStart};

use crate::support::{smollm2, testdata};

/// Tokens of families, their kind in the model's own file, and their prompts without and with another file.
const FAMILIES: [(&[&str], bool, [&str; 2]); 7] = [
    (
        &[
            "<|fim_prefix|>",
            "<|fim_suffix|>",
            "<|fim_middle|>",
            "<|fim_pad|>",
            "<|repo_name|>",
            "<|file_sep|>",
        ],
        false,
        [
            "<|fim_prefix|>pre<|fim_suffix|>suf<|fim_middle|>mid",
            "<|repo_name|>myproject\n<|file_sep|>a.rs\ntext\n<|file_sep|>filename\n\
             <|fim_prefix|>pre<|fim_suffix|>suf<|fim_middle|>mid",
        ],
    ),
    (
        &["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|file_separator|>"],
        true,
        [
            "<|fim_prefix|>pre<|fim_suffix|>suf<|fim_middle|>mid",
            "<|file_separator|>a.rs\ntext\n<|file_separator|>filename\n\
             <|fim_prefix|>pre<|fim_suffix|>suf<|fim_middle|>mid",
        ],
    ),
    (
        &["<fim_prefix>", "<fim_suffix>", "<fim_middle>", "<fim_pad>", "<repo_name>", "<file_sep>"],
        true,
        [
            "<fim_prefix>pre<fim_suffix>suf<fim_middle>mid",
            "<file_sep>a.rs\ntext\n<file_sep><fim_prefix>pre<fim_suffix>suf<fim_middle>mid",
        ],
    ),
    (
        &["<fim-prefix>", "<fim-suffix>", "<fim-middle>", "<fim-pad>"],
        true,
        [
            "<fim-prefix>pre<fim-suffix>suf<fim-middle>mid",
            "a.rs\ntext\n<fim-prefix>pre<fim-suffix>suf<fim-middle>mid",
        ],
    ),
    (
        &["<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"],
        false,
        [
            "<｜fim▁begin｜>pre<｜fim▁hole｜>suf<｜fim▁end｜>mid",
            "a.rs\ntext\n<｜fim▁begin｜>pre<｜fim▁hole｜>suf<｜fim▁end｜>mid",
        ],
    ),
    (
        &["▁<PRE>", "▁<SUF>", "▁<MID>", "▁<EOT>"],
        true,
        ["▁<PRE>pre▁<SUF>suf▁<MID>mid", "a.rs\ntext\n▁<PRE>pre▁<SUF>suf▁<MID>mid"],
    ),
    (
        &["[PREFIX]", "[SUFFIX]", "[MIDDLE]"],
        true,
        ["[SUFFIX]suf[PREFIX]premid", "a.rs\ntext\n[SUFFIX]suf[PREFIX]premid"],
    ),
];

/// The id of the first added token of [`byte_model`].
const FIRST_ADDED: u32 = 256;

fn added(names: &[&str], first_id: u32, special: bool) -> Value {
    let token = |(id, name): (u32, &&str)| {
        json!({"id": id, "content": name, "single_word": false, "lstrip": false, "rstrip": false,
               "normalized": false, "special": special})
    };
    (first_id..).zip(names).map(token).collect()
}

fn load(tokenizer: &Value) -> ModelText {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
    fs::write(folder.path().join("config.json"), json!({"model_type": "llama"}).to_string()).unwrap();
    ModelText::load(folder.path()).unwrap()
}

/// Makes a model whose first 256 tokens are bytes.
fn byte_model(names: &[&str], special: bool) -> ModelText {
    let vocab: Map<String, Value> =
        (0..=255u8).map(|byte| (char_of_byte(byte).to_string(), byte.into())).collect();
    let byte_level =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    load(&json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added(names, FIRST_ADDED, special),
        "normalizer": null, "pre_tokenizer": byte_level, "post_processor": null, "decoder": byte_level,
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                  "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "vocab": vocab, "merges": []},
    }))
}

/// Makes the SentencePiece model of `testdata/` with more tokens. Returns the id of the first one, too.
fn sentence_piece_model(names: &[&str]) -> (ModelText, u32) {
    let text = fs::read_to_string(testdata("spm_tokenizer.json")).unwrap();
    let mut tokenizer: Value = serde_json::from_str(&text).unwrap();
    let first_id = tokenizer["model"]["vocab"].as_object().unwrap().len() as u32;
    let more = added(names, first_id, true);
    tokenizer["added_tokens"].as_array_mut().unwrap().extend(more.as_array().unwrap().iter().cloned());
    (load(&tokenizer), first_id)
}

fn infill(prefix: &str, suffix: &str, middle: &str) -> Infill {
    Infill { prefix: prefix.into(), suffix: suffix.into(), middle: middle.into(), files: Vec::new() }
}

fn with_file(infill: Infill) -> Infill {
    Infill { files: vec![InfillFile { name: "a.rs".into(), text: "text".into() }], ..infill }
}

fn encode(model: &ModelText, infill: &Infill) -> Vec<u32> {
    model.encode_infill(infill, "suffix").unwrap()
}

#[test]
fn each_family_has_the_prompt_of_its_training() {
    for (names, special, [plain, with_files]) in FAMILIES {
        let model = byte_model(names, special);
        let ends: Vec<u32> = (FIRST_ADDED..).zip(names).map(|(id, _)| id).collect();
        assert_eq!(model.infill.as_ref().unwrap().end_token_ids(), ends, "{names:?}");
        let asked = infill("pre", "suf", "mid");
        for (asked, expected) in [(asked.clone(), plain), (with_file(asked), with_files)] {
            let ids = encode(&model, &asked);
            assert_eq!(model.tokenizer.decode(&ids, DecodeSpecial::Keep, TextStart::Beginning), expected);
            assert_eq!(ids, model.tokenizer.encode(expected, EncodeSpecial::Allow).unwrap(), "{expected}");
        }
    }
}

#[test]
fn a_text_never_becomes_a_token_of_infill() {
    for (names, _, _) in FAMILIES {
        for special in [true, false] {
            let model = byte_model(names, special);
            let all = names.concat();
            let mut asked = infill(&all, &all, &all);
            asked.files = vec![InfillFile { name: all.clone(), text: all.clone() }];
            let num_added =
                |asked: &Infill| encode(&model, asked).iter().filter(|id| **id >= FIRST_ADDED).count();
            let expected = num_added(&with_file(infill("", "", "")));
            assert_eq!(num_added(&asked), expected, "{names:?}");
        }
    }
}

#[test]
fn typing_changes_no_token_before_the_cursor() {
    let model = byte_model(FAMILIES[0].0, false);
    let typed = |prefix: &str, middle: &str| encode(&model, &with_file(infill(prefix, "}\n", middle)));
    let shared =
        |a: &[u32], b: &[u32]| a.iter().zip(b).position(|(a, b)| a != b).unwrap_or(a.len().min(b.len()));
    let (first, next) = (typed("fn main() {", ""), typed("fn main() {\n", ""));
    assert_eq!(shared(&first, &next), first.len() - "}\n".len() - 2, "all but the suffix and its two tokens");
    let (first, next) = (typed("fn main() {\n", "le"), typed("fn main() {\n", "let"));
    assert_eq!(shared(&first, &next), first.len(), "the beginning of the middle is last");
    let model = byte_model(FAMILIES[6].0, true);
    let typed = |prefix: &str| encode(&model, &infill(prefix, "}\n", ""));
    let (first, next) = (typed("fn main() {"), typed("fn main() {\n"));
    assert_eq!(shared(&first, &next), first.len(), "the prefix is last");
}

#[test]
fn only_the_prefix_has_the_extra_space_of_sentence_piece() {
    let names = FAMILIES[5].0;
    let (model, first_id) = sentence_piece_model(names);
    let encode_text = |text: &str| model.tokenizer.encode(text, EncodeSpecial::Plain).unwrap();
    for text in ["word", " word", "\n  word", "élève", ""] {
        let ids = encode(&model, &infill("hello", text, text));
        let at = |id: u32| ids.iter().position(|found| *found == first_id + id).unwrap();
        let (prefix, suffix, middle) = (at(0), at(1), at(2));
        assert_eq!(ids[..prefix], model.prefix_ids[..]);
        assert_eq!(ids[prefix + 1..suffix], encode_text("hello"));
        assert_eq!(ids[suffix + 1..middle], ids[middle + 1..], "{text:?}");
        let shown = model.tokenizer.decode(&ids[middle + 1..], DecodeSpecial::Skip, TextStart::Continuation);
        assert_eq!(shown, text);
    }
}

#[test]
fn a_gguf_file_states_the_tokens() {
    let load = |keys: &[(&str, u32)]| {
        // Keys begin behind the magic number, the version and two counts.
        let mut bytes = fs::read(testdata("spm.gguf")).unwrap();
        let count = u64::from_le_bytes(bytes[16..24].try_into().unwrap()) + keys.len() as u64;
        bytes[16..24].copy_from_slice(&count.to_le_bytes());
        for (key, id) in keys {
            let name = format!("tokenizer.ggml.{key}_token_id");
            let entry =
                [&(name.len() as u64).to_le_bytes(), name.as_bytes(), &4u32.to_le_bytes(), &id.to_le_bytes()];
            bytes.splice(24..24, entry.concat());
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.gguf");
        fs::write(&path, bytes).unwrap();
        ModelText::load(&path).unwrap()
    };
    let model = load(&[("fim_pre", 10), ("fim_suf", 11), ("fim_mid", 12), ("fim_pad", 13), ("fim_sep", 14)]);
    assert_eq!(model.infill.as_ref().unwrap().end_token_ids(), [10, 11, 12, 13, 14]);
    let controls = |infill: Infill| {
        let ids = encode(&model, &infill);
        ids.into_iter().filter(|id| *id <= 14).collect::<Vec<_>>()
    };
    assert_eq!(controls(infill("", "", "")), [1, 10, 11, 12]);
    let old = load(&[("prefix", 10), ("suffix", 11), ("middle", 12)]);
    assert_eq!(encode(&old, &infill("", "", "")), [1, 10, 11, 12]);
    assert!(load(&[("fim_pre", 10), ("fim_suf", 11)]).infill.is_none(), "the middle is missing");
    assert!(load(&[("fim_pre", 10), ("fim_suf", 11), ("fim_mid", u32::MAX)]).infill.is_none());
}

#[test]
fn a_model_without_the_tokens_is_refused_by_name() {
    let error = smollm2().encode_infill(&infill("a", "b", ""), "suffix").unwrap_err();
    assert!(matches!(error, TextError::NoInfillTokens { field: "suffix" }));
    assert_eq!(error.code(), "infill_tokens_missing");
    assert_eq!(
        error.to_string(),
        "`suffix` needs fill-in-the-middle tokens, which this model's tokenizer lacks; hint: use a model for code"
    );
    assert!(byte_model(&["<|fim_prefix|>", "<|fim_suffix|>"], true).infill.is_none());
}
