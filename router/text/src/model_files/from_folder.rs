//! Loads a model from a folder as on the Hub.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::read::{MAX_CONFIG_BYTES, read, read_text};
use super::{GenerationDefaults, InfillTokens, ModelText, SpecialToken, SpecialTokens, tokenizer_files};
use crate::error::TextError;
use crate::framing::Framing;
use crate::tokenizer::Tokenizer;

/// Most files read from `additional_chat_templates/`.
const MAX_ADDITIONAL_TEMPLATES: usize = 32;

pub fn load(folder: &Path, chat_template: Option<String>) -> Result<ModelText, TextError> {
    let config = read_json(folder, "config.json")?.ok_or(TextError::MissingFile {
        folder: folder.to_owned(),
        file: "config.json",
        hint: "use a `.gguf` file, or a folder with `config.json`, a tokenizer and weights",
    })?;
    let model_type = config.get("model_type").and_then(Value::as_str).unwrap_or_default().to_owned();
    let tokenizer_config = read_json(folder, "tokenizer_config.json")?.unwrap_or_default();
    let special_tokens_map = read_json(folder, "special_tokens_map.json")?.unwrap_or_default();
    let configs = tokenizer_files::Configs {
        model_type: &model_type,
        tokenizer_config: &tokenizer_config,
        special_tokens_map: &special_tokens_map,
        added_tokens: &read_json(folder, "added_tokens.json")?.unwrap_or_default(),
    };
    let built = tokenizer_files::load(folder, &configs)?;
    let mut special_texts = special_texts(&tokenizer_config);
    let defaults = built.special_texts.into_iter().map(|(name, text)| (name.to_owned(), Value::String(text)));
    for (name, text) in self::special_texts(&special_tokens_map).into_iter().chain(defaults) {
        special_texts.entry(name).or_insert(text);
    }
    let generation_config = read_json(folder, "generation_config.json")?.unwrap_or_default();
    let special_tokens = special_tokens(&built.tokenizer, &special_texts);

    let add_bos = tokenizer_config.get("add_bos_token").and_then(Value::as_bool);
    let prefix_ids = match (add_bos.or(built.adds_bos.then_some(true)), &special_tokens.bos) {
        (Some(false), _) => Vec::new(),
        (Some(true), Some(bos)) if built.framing.before.is_empty() => vec![bos.id],
        _ => built.framing.before.clone(),
    };
    let adds_eos = tokenizer_config.get("add_eos_token").and_then(Value::as_bool) == Some(true);
    let framing = if built.framing == Framing::default() {
        let eos = special_tokens.eos.iter().filter(|_| adds_eos).map(|token| token.id);
        Framing::around(prefix_ids.clone(), eos.collect())
    } else {
        built.framing
    };
    let sources = match chat_template {
        Some(source) => vec![("default".to_owned(), source)],
        None => templates(folder, &tokenizer_config)?,
    };
    let (chat_templates, chat_template_problem) =
        super::compile_templates(sources, &special_tokens, special_texts);
    Ok(ModelText {
        end_token_ids: end_token_ids(&generation_config, &config, &special_tokens),
        infill: InfillTokens::find(&built.tokenizer, |_| None),
        tokenizer: Arc::new(built.tokenizer),
        chat_templates,
        chat_template_problem,
        special_tokens,
        max_context_tokens: number(&config, "max_position_embeddings")
            .or_else(|| number(config.get("text_config")?.as_object()?, "max_position_embeddings")),
        architecture: model_type,
        name: config
            .get("_name_or_path")
            .and_then(Value::as_str)
            .filter(|name| !name.is_empty())
            .map(str::to_owned),
        generation_defaults: generation_defaults(&generation_config),
        prefix_ids,
        framing,
    })
}

fn read_json(folder: &Path, file: &str) -> Result<Option<Map<String, Value>>, TextError> {
    let path = folder.join(file);
    let Some(bytes) = read(&path, MAX_CONFIG_BYTES)? else { return Ok(None) };
    serde_json::from_slice(&bytes)
        .map(Some)
        .map_err(|error| TextError::InvalidFile { path, detail: error.to_string() })
}

/// Returns all `..._token` entries. An entry is a string, or an added token with its `content`.
fn special_texts(config: &Map<String, Value>) -> Map<String, Value> {
    let text = |value: &Value| value.as_str().or_else(|| value.get("content")?.as_str()).map(str::to_owned);
    config
        .iter()
        .filter(|(name, _)| name.ends_with("_token"))
        .filter_map(|(name, value)| Some((name.clone(), Value::String(text(value)?))))
        .collect()
}

fn special_tokens(tokenizer: &Tokenizer, texts: &Map<String, Value>) -> SpecialTokens {
    let token = |name: &str| {
        let text = texts.get(name)?.as_str()?;
        Some(SpecialToken { id: tokenizer.token_id(text)?, text: text.to_owned() })
    };
    SpecialTokens {
        bos: token("bos_token"),
        eos: token("eos_token"),
        unk: token("unk_token"),
        pad: token("pad_token"),
    }
}

fn number(config: &Map<String, Value>, key: &str) -> Option<u32> {
    config.get(key).and_then(Value::as_u64).and_then(|value| u32::try_from(value).ok())
}

/// Returns the ids of a key, whose value is an id or a list of ids.
fn ids(config: &Map<String, Value>, key: &str) -> Vec<u32> {
    let id = |value: &Value| value.as_u64().and_then(|value| u32::try_from(value).ok());
    match config.get(key) {
        Some(Value::Array(values)) => values.iter().filter_map(id).collect(),
        Some(value) => id(value).into_iter().collect(),
        None => Vec::new(),
    }
}

/// Returns the end tokens in `generation_config.json`, or else those in `config.json`, and always the tokenizer's EOS.
fn end_token_ids(
    generation_config: &Map<String, Value>,
    config: &Map<String, Value>,
    special_tokens: &SpecialTokens,
) -> Vec<u32> {
    let mut out = ids(generation_config, "eos_token_id");
    if out.is_empty() {
        out = ids(config, "eos_token_id");
    }
    out.extend(special_tokens.eos.as_ref().map(|token| token.id));
    out.sort_unstable();
    out.dedup();
    out
}

fn generation_defaults(config: &Map<String, Value>) -> GenerationDefaults {
    let float = |key: &str| config.get(key).and_then(Value::as_f64).map(|value| value as f32);
    GenerationDefaults {
        do_sample: config.get("do_sample").and_then(Value::as_bool),
        temperature: float("temperature"),
        top_p: float("top_p"),
        top_k: number(config, "top_k"),
        min_p: float("min_p"),
        repetition_penalty: float("repetition_penalty"),
        max_new_tokens: number(config, "max_new_tokens"),
    }
}

/// Returns the model's templates by name. Template files take precedence over `tokenizer_config.json`.
fn templates(
    folder: &Path,
    tokenizer_config: &Map<String, Value>,
) -> Result<Vec<(String, String)>, TextError> {
    let mut out = Vec::new();
    let mut add = |name: &str, source: String| {
        if !out.iter().any(|(known, _)| known == name) {
            out.push((name.to_owned(), source));
        }
    };
    if let Some(source) = read_text(&folder.join("chat_template.jinja"))? {
        add("default", source);
    }
    let additional = folder.join("additional_chat_templates");
    if additional.is_dir() {
        let read_error = |source| TextError::Read { path: additional.clone(), source };
        let entries = fs::read_dir(&additional).map_err(read_error)?;
        let mut paths = entries
            .map(|entry| entry.map(|entry| entry.path()))
            .collect::<Result<Vec<_>, _>>()
            .map_err(read_error)?;
        paths.retain(|path| path.extension().is_some_and(|extension| extension == "jinja"));
        paths.sort();
        for path in paths.into_iter().take(MAX_ADDITIONAL_TEMPLATES) {
            if let (Some(name), Some(source)) =
                (path.file_stem().and_then(|name| name.to_str()), read_text(&path)?)
            {
                add(name, source);
            }
        }
    }
    let chat_template_json = read_json(folder, "chat_template.json")?.unwrap_or_default();
    for config in [&chat_template_json, tokenizer_config] {
        match config.get("chat_template") {
            Some(Value::String(source)) => add("default", source.clone()),
            Some(Value::Array(named)) => {
                for entry in named {
                    let field = |name: &str| entry.get(name).and_then(Value::as_str);
                    if let (Some(name), Some(source)) = (field("name"), field("template")) {
                        add(name, source.to_owned());
                    }
                }
            }
            _ => {}
        }
    }
    Ok(out)
}
