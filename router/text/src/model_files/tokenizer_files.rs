//! Chooses among the tokenizer files of a folder, and reads the tokens that its configuration adds.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};
use tokenizers::AddedToken;

use super::read::read;
use crate::error::TextError;
use crate::framing::Framing;
use crate::tokenizer::Tokenizer;
use crate::tokenizer::from_json::tokenizer_from_json;
use crate::tokenizer::sentence_piece::{SpaceRules, tokenizer_from_sentence_piece};
use crate::tokenizer::tiktoken::{is_tiktoken, tokenizer_from_tiktoken};

/// Largest `tokenizer.json`. With 256,000 tokens it has some 35 MB.
const MAX_TOKENIZER_BYTES: u64 = 256 << 20;
/// Largest `tokenizer.model` or tiktoken file. With 256,000 tokens they have some 5 MB.
const MAX_VOCABULARY_BYTES: u64 = 32 << 20;

/// A tokenizer, with defaults for what the configuration does not say.
pub(super) struct FolderTokenizer {
    pub tokenizer: Tokenizer,
    /// The ids around texts whose vectors are asked for.
    pub framing: Framing,
    /// True if BOS precedes every text.
    pub adds_bos: bool,
    /// Names of the tokens that have a role, by their key in `tokenizer_config.json`.
    pub special_texts: Vec<(&'static str, String)>,
}

/// The JSON files beside the tokenizer.
pub(super) struct Configs<'a> {
    /// The value of `model_type` in `config.json`.
    pub model_type: &'a str,
    pub tokenizer_config: &'a Map<String, Value>,
    pub special_tokens_map: &'a Map<String, Value>,
    /// Ids by text: transformers' older way to list added tokens.
    pub added_tokens: &'a Map<String, Value>,
}

/// Reads `tokenizer.json`, or else `tokenizer.model`, or else the only `.tiktoken` file.
pub(super) fn load(folder: &Path, configs: &Configs<'_>) -> Result<FolderTokenizer, TextError> {
    if let Some(json) = read(&folder.join("tokenizer.json"), MAX_TOKENIZER_BYTES)? {
        let built = tokenizer_from_json(&json)?;
        return Ok(FolderTokenizer {
            tokenizer: built.tokenizer,
            framing: built.framing,
            adds_bos: false,
            special_texts: Vec::new(),
        });
    }
    let bytes = match read(&folder.join("tokenizer.model"), MAX_VOCABULARY_BYTES)? {
        Some(bytes) => bytes,
        None => read(&only_tiktoken_file(folder)?, MAX_VOCABULARY_BYTES)?.unwrap_or_default(),
    };
    let added = configs
        .added_tokens()
        .map_err(|detail| TextError::InvalidFile { path: folder.join("tokenizer_config.json"), detail })?;
    if is_tiktoken(&bytes) {
        let built = tokenizer_from_tiktoken(&bytes, added, configs.model_type)?;
        return Ok(FolderTokenizer {
            tokenizer: built.tokenizer,
            framing: Framing::around(built.prefix_ids, Vec::new()),
            adds_bos: false,
            special_texts: Vec::new(),
        });
    }
    let flag = |name: &str| configs.tokenizer_config.get(name).and_then(Value::as_bool);
    let rules = SpaceRules { add_prefix_space: flag("add_prefix_space"), legacy: flag("legacy") };
    let built = tokenizer_from_sentence_piece(&bytes, added, rules)?;
    Ok(FolderTokenizer {
        tokenizer: built.tokenizer,
        framing: Framing::default(),
        adds_bos: true,
        special_texts: built.special_texts,
    })
}

fn only_tiktoken_file(folder: &Path) -> Result<PathBuf, TextError> {
    let read_error = |source| TextError::Read { path: folder.to_owned(), source };
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).map_err(read_error)? {
        let path = entry.map_err(read_error)?.path();
        if path.extension().is_some_and(|extension| extension == "tiktoken") {
            found.push(path);
        }
    }
    match (found.pop(), found.is_empty()) {
        (Some(path), true) => Ok(path),
        (Some(path), false) => Err(TextError::InvalidFile {
            path,
            detail: "the folder has more than one `.tiktoken` file; hint: keep the model's own".to_owned(),
        }),
        (None, _) => Err(TextError::MissingFile {
            folder: folder.to_owned(),
            file: "tokenizer.json",
            hint: "write it with transformers' `AutoTokenizer.from_pretrained(...).save_pretrained(...)`, or add the \
                   model's `tokenizer.model` or `.tiktoken` file",
        }),
    }
}

impl Configs<'_> {
    /// Returns the tokens that the files add to the vocabulary, by id.
    fn added_tokens(&self) -> Result<BTreeMap<u32, AddedToken>, String> {
        let mut out = BTreeMap::new();
        for (text, id) in self.added_tokens {
            let id = id.as_u64().and_then(|id| u32::try_from(id).ok());
            let id = id.ok_or_else(|| format!("`added_tokens.json` has no id for `{text}`"))?;
            out.insert(id, AddedToken::from(text.clone(), self.is_special(text)).normalized(false));
        }
        let Some(decoder) = self.tokenizer_config.get("added_tokens_decoder") else { return Ok(out) };
        let decoder = decoder.as_object().ok_or("`added_tokens_decoder` is not an object")?;
        for (id, entry) in decoder {
            let problem = |problem: &str| format!("`added_tokens_decoder` entry `{id}` {problem}");
            let number = id.parse().map_err(|_| problem("is not an id"))?;
            let text =
                entry.get("content").and_then(Value::as_str).ok_or_else(|| problem("has no `content`"))?;
            let flag = |name: &str| entry.get(name).and_then(Value::as_bool).unwrap_or(false);
            let token = AddedToken::from(text, flag("special") || self.is_special(text))
                .normalized(false)
                .single_word(flag("single_word"))
                .lstrip(flag("lstrip"))
                .rstrip(flag("rstrip"));
            out.insert(number, token);
        }
        Ok(out)
    }

    /// Returns true if a token has a role in the configuration.
    fn is_special(&self, text: &str) -> bool {
        let is = |value: &Value| value.as_str().or_else(|| value.get("content")?.as_str()) == Some(text);
        [self.tokenizer_config, self.special_tokens_map].into_iter().any(|config| {
            let listed = config.get("additional_special_tokens").and_then(Value::as_array);
            listed.is_some_and(|tokens| tokens.iter().any(is))
                || config.iter().any(|(name, value)| name.ends_with("_token") && is(value))
        })
    }
}
