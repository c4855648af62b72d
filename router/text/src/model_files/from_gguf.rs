//! Loads a model from a GGUF file, whose keys <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md> documents.

use std::path::Path;
use std::sync::Arc;

use serde_json::Map;

use super::infill_tokens::Role;
use super::{GenerationDefaults, InfillTokens, ModelText, SpecialToken, SpecialTokens};
use crate::error::TextError;
use crate::framing::Framing;
use crate::gguf::{GgufArray, GgufMetadata, GgufValue};
use crate::tokenizer::from_gguf::tokenizer_from_gguf;

/// Control tokens that end a turn or a text in every model that has them.
///
/// A GGUF file names only one end token. It lacks the model's `generation_config.json`, which often lists these too.
const END_TOKENS: [&str; 10] = [
    "<|eot_id|>",
    "<|eom_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|return|>",
    "<end_of_turn>",
    "<end_of_utterance>",
    "<EOT>",
];
/// In the harmony format these tokens end the output, and `<|end|>` ends only one message of it.
const HARMONY_RETURN: &str = "<|return|>";
const HARMONY_CALL: &str = "<|call|>";

pub fn load(path: &Path, chat_template: Option<String>) -> Result<ModelText, TextError> {
    let mut metadata = GgufMetadata::open(path)?;
    let built = tokenizer_from_gguf(&mut metadata)?;
    let special = |key: &str, default: Option<u32>| -> Option<SpecialToken> {
        let id = id(&metadata, key).or(default)?;
        let (text, _) = built.tokens.get(usize::try_from(id).ok()?)?;
        Some(SpecialToken { id, text: text.clone() })
    };
    let [bos, eos, unk] = built.default_special_ids;
    let special_tokens = SpecialTokens {
        bos: special("tokenizer.ggml.bos_token_id", bos),
        eos: special("tokenizer.ggml.eos_token_id", eos),
        unk: special("tokenizer.ggml.unknown_token_id", unk),
        pad: special("tokenizer.ggml.padding_token_id", None),
    };

    let named_ends = ["tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"];
    let mut end_token_ids: Vec<u32> =
        named_ends.iter().filter_map(|key| special(key, None)).map(|t| t.id).collect();
    end_token_ids.extend(special_tokens.eos.as_ref().map(|token| token.id));
    let is_harmony = built.tokens.iter().any(|(text, _)| text == HARMONY_RETURN);
    let is_end = |text: &str| match text {
        "<|end|>" => !is_harmony,
        HARMONY_CALL => is_harmony,
        _ => END_TOKENS.contains(&text),
    };
    let spelled = (0..).zip(&built.tokens).filter(|(_, (text, is_control))| *is_control && is_end(text));
    end_token_ids.extend(spelled.map(|(id, _)| id));
    end_token_ids.sort_unstable();
    end_token_ids.dedup();

    let architecture = text(&metadata, "general.architecture").unwrap_or_default();
    let context_length = metadata.get(&format!("{architecture}.context_length"));
    let add_bos = match metadata.get("tokenizer.ggml.add_bos_token") {
        Some(GgufValue::Bool(add_bos)) => *add_bos,
        _ => built.add_bos_by_default,
    };
    let prefix_ids: Vec<u32> = special_tokens.bos.iter().filter(|_| add_bos).map(|token| token.id).collect();
    let add_eos = matches!(metadata.get("tokenizer.ggml.add_eos_token"), Some(GgufValue::Bool(true)));
    let suffix_ids = special_tokens.eos.iter().filter(|_| add_eos).map(|token| token.id).collect();

    let sources =
        chat_template.map_or_else(|| templates(&metadata), |source| vec![("default".to_owned(), source)]);
    let (chat_templates, chat_template_problem) =
        super::compile_templates(sources, &special_tokens, Map::new());
    Ok(ModelText {
        infill: InfillTokens::find(&built.tokenizer, |role| infill_id(&metadata, role)),
        tokenizer: Arc::new(built.tokenizer),
        chat_templates,
        chat_template_problem,
        end_token_ids,
        max_context_tokens: context_length.and_then(as_u32),
        name: text(&metadata, "general.name"),
        architecture,
        generation_defaults: GenerationDefaults::default(),
        framing: built.framing.unwrap_or_else(|| Framing::around(prefix_ids.clone(), suffix_ids)),
        prefix_ids,
        special_tokens,
    })
}

fn text(metadata: &GgufMetadata, key: &str) -> Option<String> {
    match metadata.get(key) {
        Some(GgufValue::String(text)) => Some(text.clone()),
        _ => None,
    }
}

fn as_u32(value: &GgufValue) -> Option<u32> {
    match *value {
        GgufValue::Unsigned(value) => u32::try_from(value).ok(),
        GgufValue::Signed(value) => u32::try_from(value).ok(),
        _ => None,
    }
}

fn id(metadata: &GgufMetadata, key: &str) -> Option<u32> {
    metadata.get(key).and_then(as_u32)
}

/// Returns the id that a file states for a fill-in-the-middle token. Older files have other names for three of them.
fn infill_id(metadata: &GgufMetadata, role: Role) -> Option<u32> {
    let (key, old_key) = match role {
        Role::Prefix => ("fim_pre", Some("prefix")),
        Role::Suffix => ("fim_suf", Some("suffix")),
        Role::Middle => ("fim_mid", Some("middle")),
        Role::Pad => ("fim_pad", None),
        Role::Repository => ("fim_rep", None),
        Role::File => ("fim_sep", None),
    };
    let keys = [Some(key), old_key].into_iter().flatten();
    keys.map(|key| format!("tokenizer.ggml.{key}_token_id")).find_map(|key| id(metadata, &key))
}

/// Returns `tokenizer.chat_template`, and the templates that `tokenizer.chat_templates` lists by name.
fn templates(metadata: &GgufMetadata) -> Vec<(String, String)> {
    const KEY: &str = "tokenizer.chat_template";
    let mut out: Vec<_> =
        text(metadata, KEY).map(|source| ("default".to_owned(), source)).into_iter().collect();
    if let Some(GgufValue::Array(GgufArray::Strings(names))) = metadata.get("tokenizer.chat_templates") {
        let named =
            names.iter().filter_map(|name| Some((name.clone(), text(metadata, &format!("{KEY}.{name}"))?)));
        out.extend(named);
    }
    out
}
