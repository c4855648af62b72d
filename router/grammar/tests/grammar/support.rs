//! A small vocabulary, and random outputs under a grammar's masks.

use serde_json::{Map, Value, json};
use trunkline_grammar::{
    Constraint, Forcing, Grammar, GrammarCompiler, GrammarError, GrammarLimits, JsonSchema, Next,
};
use trunkline_reply::ReasoningMarks;
use trunkline_text::{ModelText, Tokenizer};

use crate::draw::Random;
use crate::validator::Validator;

/// Tokens longer than a byte. As in real vocabularies, some cross the borders of lexemes.
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
/// Most tokens of one output.
const MAX_TOKENS: usize = 3000;

/// Returns the character that stands for a byte in GPT-2's alphabet.
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

/// Returns a model whose vocabulary has all bytes, `WORDS`, an end token and another control token.
pub fn model() -> ModelText {
    model_with(&[END, CONTROL], 1, &WORDS)
}

/// Returns a model whose vocabulary has all bytes, then control tokens, of which the first `num_ends` are end tokens,
/// and then words.
pub fn model_with(control: &[&str], num_ends: usize, words: &[&str]) -> ModelText {
    let folder = tempfile::tempdir().unwrap();
    let mut vocab = Map::new();
    for byte in 0..=255 {
        vocab.insert(char_of_byte(byte).to_string(), vocab.len().into());
    }
    let added: Vec<Value> = (vocab.len()..)
        .zip(control)
        .map(|(id, content)| {
            json!({"id": id, "content": content, "special": true, "normalized": false, "lstrip": false,
                   "rstrip": false, "single_word": false})
        })
        .collect();
    let end_token_ids: Vec<usize> = (vocab.len()..).take(num_ends).collect();
    for &token in control {
        vocab.insert(token.to_owned(), vocab.len().into());
    }
    for word in words {
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
    write("tokenizer_config.json", json!({"eos_token": control[0]}));
    write("config.json", json!({"model_type": "llama", "eos_token_id": end_token_ids}));
    ModelText::load(folder.path()).unwrap()
}

/// Returns a compiler with the server's default limits.
pub fn compiler(model: &ModelText) -> GrammarCompiler {
    compiler_with(model, ReasoningMarks::Think)
}

/// Returns a compiler for a model that reasons between these marks.
pub fn compiler_with(model: &ModelText, marks: ReasoningMarks) -> GrammarCompiler {
    GrammarCompiler::new(&model.tokenizer, &model.end_token_ids, marks, GrammarLimits::default()).unwrap()
}

/// Returns true if these tokens may be a whole output.
pub fn allows(mut constraint: Constraint, ids: &[u32], end_token_id: u32) -> bool {
    let mut may_follow = |id: u32, is_end: bool| match constraint.allowed(Forcing::Never).unwrap().next {
        Next::End => is_end,
        Next::Mask(mask) => mask.iter().any(|other| other == id) && constraint.accept(id).is_ok(),
    };
    ids.iter().all(|&id| may_follow(id, false)) && may_follow(end_token_id, true)
}

/// Writes an output of at most `MAX_TOKENS` tokens, or returns `None` if it grows longer.
///
/// The longer the output is, the likelier are tokens that close something.
pub fn write_at_random(
    tokenizer: &Tokenizer,
    end_token_ids: &[u32],
    mut constraint: Constraint,
    rng: &mut Random,
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

/// The results of writing outputs under a schema.
#[derive(Debug, Default)]
pub struct Check {
    pub num_finished: usize,
    /// Finished outputs that do not parse or validate, and masks that failed.
    pub faults: Vec<String>,
}

/// Writes `count` outputs under a schema, and checks whether all finished ones parse and validate.
pub fn check_schema(
    name: &str,
    schema: &Value,
    model: &ModelText,
    compiler: &GrammarCompiler,
    count: u64,
) -> Result<Check, GrammarError> {
    let constraint = compiler.compile(&Grammar::JsonSchema(schema.clone().into()))?;
    Ok(check_outputs(name, schema, model, &constraint, count))
}

/// Writes outputs under a schema without those keywords that no grammar can hold, and returns their names too. Outputs
/// must validate under the other keywords.
pub fn check_relaxed(
    name: &str,
    schema: &Value,
    model: &ModelText,
    compiler: &GrammarCompiler,
    count: u64,
) -> Result<(Check, Vec<String>), GrammarError> {
    let constraint = compiler.compile(&Grammar::JsonSchema(JsonSchema::new(schema.clone(), false)))?;
    let relaxed: Vec<String> = constraint.relaxed().map(str::to_owned).collect();
    let promised = without(schema, &relaxed);
    Ok((check_outputs(name, &promised, model, &constraint, count), relaxed))
}

/// Returns a value without the members of these names, and with `anyOf` in place of `oneOf` if that is one of them.
fn without(value: &Value, names: &[String]) -> Value {
    match value {
        Value::Array(list) => list.iter().map(|inner| without(inner, names)).collect(),
        Value::Object(map) => {
            let is_relaxed = |name: &String| names.contains(name);
            let mut rest: Map<String, Value> = map
                .iter()
                .filter(|(name, inner)| !is_relaxed(name) || name.as_str() == "format" && inner.is_object())
                .map(|(name, inner)| (name.clone(), without(inner, names)))
                .collect();
            if let Some(alternatives) = map.get("oneOf").filter(|_| is_relaxed(&"oneOf".to_owned())) {
                let any = json!({"anyOf": without(alternatives, names)});
                let all = rest.remove("allOf").and_then(|all| all.as_array().cloned()).unwrap_or_default();
                rest.insert("allOf".to_owned(), all.into_iter().chain([any]).collect());
            }
            Value::Object(rest)
        }
        other => other.clone(),
    }
}

/// Writes `count` outputs under a constraint, and checks them against a schema that may differ from the constraint's.
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
            write_at_random(&model.tokenizer, &model.end_token_ids, constraint.fork(), &mut Random(seed));
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
    let Ok(text) = String::from_utf8(text) else { return Some("not UTF-8".to_owned()) };
    let value: Value = match serde_json::from_str(&text) {
        Ok(value) => value,
        // JSON does not limit numbers, but serde does.
        Err(error) if error.to_string().starts_with("number out of range") => return None,
        Err(error) => return Some(format!("{error} in {text}")),
    };
    validator.validate(&value).err().map(|fault| format!("{fault} in {text}"))
}
