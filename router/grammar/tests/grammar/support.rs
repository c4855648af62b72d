//! A small vocabulary, and outputs at random under a grammar's masks.

use serde_json::{Map, Value, json};
use trunkline_grammar::{Constraint, Forcing, Grammar, GrammarCompiler, GrammarError, GrammarLimits, Next};
use trunkline_reply::ReasoningMarks;
use trunkline_text::{ModelText, Tokenizer};

use crate::validator::Validator;

/// Tokens longer than a byte, as models have them: across the borders of lexemes too.
const WORDS: [&str; 31] = [
    "tr",
    "tru",
    "true",
    "fa",
    "false",
    "nu",
    "null",
    "\":",
    "\": ",
    "{\"",
    "\",",
    "\"}",
    "\"]",
    "},",
    "[{",
    "]]",
    "00",
    "12",
    "-1",
    "  ",
    "\n  ",
    "é",
    "日本",
    "ab",
    "<think>",
    "</think>",
    "</think>x",
    "[THINK]",
    "[/THINK]",
    "[/THINK]x",
    ">y",
];
const END: &str = "<|end|>";
const CONTROL: &str = "<|control|>";
/// Tokens of one output at most.
const MAX_TOKENS: usize = 3000;

/// SplitMix64.
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }
}

/// GPT-2's alphabet, which the library can only be asked for.
fn char_of_byte(byte: u8) -> char {
    let printable = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    if printable(byte) {
        return char::from(byte);
    }
    let before = (0..byte).filter(|&other| !printable(other)).count() as u32;
    char::from_u32(0x100 + before).unwrap()
}

fn spelled(text: &str) -> String {
    text.bytes().map(char_of_byte).collect()
}

/// A model whose vocabulary has all bytes, `WORDS`, an end token and another control token.
pub fn model() -> ModelText {
    let folder = tempfile::tempdir().unwrap();
    let mut vocab = Map::new();
    for byte in 0..=255 {
        vocab.insert(char_of_byte(byte).to_string(), vocab.len().into());
    }
    let added: Vec<Value> = (vocab.len()..)
        .zip([END, CONTROL])
        .map(|(id, content)| {
            json!({"id": id, "content": content, "special": true, "normalized": false, "lstrip": false,
                   "rstrip": false, "single_word": false})
        })
        .collect();
    for token in [END, CONTROL] {
        vocab.insert(token.to_owned(), vocab.len().into());
    }
    for word in WORDS {
        vocab.insert(spelled(word), vocab.len().into());
    }
    let level =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false});
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "post_processor": null,
        "added_tokens": added, "pre_tokenizer": level, "decoder": level,
        "model": {"type": "BPE", "vocab": vocab, "merges": [], "dropout": null, "unk_token": null,
                  "continuing_subword_prefix": null, "end_of_word_suffix": null, "fuse_unk": false,
                  "byte_fallback": false, "ignore_merges": true},
    });
    let write =
        |name: &str, value: Value| std::fs::write(folder.path().join(name), value.to_string()).unwrap();
    write("tokenizer.json", tokenizer);
    write("tokenizer_config.json", json!({"eos_token": END}));
    write("config.json", json!({"model_type": "llama", "eos_token_id": 256}));
    ModelText::load(folder.path()).unwrap()
}

/// A compiler for `model`, with the limits that the server has.
pub fn compiler(model: &ModelText) -> GrammarCompiler {
    compiler_with(model, ReasoningMarks::Think)
}

/// For a model that reasons between these marks.
pub fn compiler_with(model: &ModelText, marks: ReasoningMarks) -> GrammarCompiler {
    GrammarCompiler::new(&model.tokenizer, &model.end_token_ids, marks, GrammarLimits::default()).unwrap()
}

/// A finished output of at most `MAX_TOKENS`, or none if it grew too long. Tokens that close something are the likelier
/// the longer it is.
pub fn write_at_random(
    tokenizer: &Tokenizer,
    end_token_ids: &[u32],
    mut constraint: Constraint,
    rng: &mut Rng,
) -> Result<Option<Vec<u8>>, GrammarError> {
    let forcing = if rng.below(2) == 0 { Forcing::Allow } else { Forcing::Never };
    let mut text = Vec::new();
    let mut num_tokens = 0;
    while num_tokens < MAX_TOKENS {
        let allowed = constraint.allowed(forcing)?;
        num_tokens += allowed.forced.len() + 1;
        for id in allowed.forced {
            text.extend_from_slice(tokenizer.token_bytes(id).unwrap());
        }
        let mask = match allowed.next {
            Next::End => return Ok(Some(text)),
            Next::Mask(mask) => mask,
        };
        let mut ids: Vec<u32> = mask.iter().collect();
        if rng.below(120) < 20 + num_tokens {
            let closes = |id: &u32| {
                let bytes = tokenizer.token_bytes(*id).unwrap();
                end_token_ids.contains(id) || matches!(bytes, b"\"" | b"}" | b"]" | b":" | b"\"}" | b"\"]")
            };
            let closing: Vec<u32> = ids.iter().copied().filter(closes).collect();
            if !closing.is_empty() {
                ids = closing;
            }
        }
        let id = ids[rng.below(ids.len())];
        constraint.accept(id)?;
        if end_token_ids.contains(&id) {
            return Ok(Some(text));
        }
        assert!(!tokenizer.is_special(id), "a control token is not text");
        text.extend_from_slice(tokenizer.token_bytes(id).unwrap());
    }
    Ok(None)
}

/// What came of outputs under a schema.
#[derive(Debug, Default)]
pub struct Check {
    pub num_finished: usize,
    /// Outputs that are finished and do not parse or validate, and masks that failed.
    pub faults: Vec<String>,
}

/// Writes `count` outputs under a schema, and looks whether all that are finished parse and validate.
pub fn check_schema(
    name: &str,
    schema: &Value,
    model: &ModelText,
    compiler: &GrammarCompiler,
    count: u64,
) -> Result<Check, GrammarError> {
    let constraint = compiler.compile(&Grammar::JsonSchema(schema.clone()))?;
    Ok(check_outputs(name, schema, model, &constraint, count))
}

/// The same under a constraint, whichever schema it was made from.
pub fn check_outputs(
    name: &str,
    schema: &Value,
    model: &ModelText,
    constraint: &Constraint,
    count: u64,
) -> Check {
    let (mut validator, mut check) = (Validator::new(schema), Check::default());
    for seed in 0..count {
        let written =
            write_at_random(&model.tokenizer, &model.end_token_ids, constraint.fork(), &mut Rng(seed));
        match written.map(|text| text.map(|text| fault(text, &mut validator))) {
            Ok(None) => {}
            Ok(Some(None)) => check.num_finished += 1,
            Ok(Some(Some(fault))) => check.faults.push(format!("{name}, seed {seed}: {fault}")),
            Err(error) => check.faults.push(format!("{name}, seed {seed}: {error}")),
        }
    }
    check
}

fn fault(text: Vec<u8>, validator: &mut Validator<'_>) -> Option<String> {
    let Ok(text) = String::from_utf8(text) else { return Some("no UTF-8".to_owned()) };
    let value: Value = match serde_json::from_str(&text) {
        Ok(value) => value,
        // JSON sets no bound to numbers, this reader does.
        Err(error) if error.to_string().starts_with("number out of range") => return None,
        Err(error) => return Some(format!("{error} in {text}")),
    };
    validator.validate(&value).err().map(|fault| format!("{fault} in {text}"))
}
