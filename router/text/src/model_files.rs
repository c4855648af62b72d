//! What a model's files say about text.

mod from_folder;
mod from_gguf;

use std::path::Path;
use std::sync::Arc;

use serde_json::{Map, Value};

use crate::{ChatTemplates, EncodeSpecial, TextError, Tokenizer};

/// A token with a role.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpecialToken {
    /// Its id.
    pub id: u32,
    /// Its text in the vocabulary.
    pub text: String,
}

/// The tokens that have a role in the model's files.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SpecialTokens {
    /// Beginning of a text.
    pub bos: Option<SpecialToken>,
    /// End of a text.
    pub eos: Option<SpecialToken>,
    /// Unknown.
    pub unk: Option<SpecialToken>,
    /// Padding.
    pub pad: Option<SpecialToken>,
}

/// What `generation_config.json` proposes; `None` where it says nothing.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GenerationDefaults {
    /// Whether to sample at all; `false` means greedy.
    pub do_sample: Option<bool>,
    /// Sampling temperature.
    pub temperature: Option<f32>,
    /// Nucleus.
    pub top_p: Option<f32>,
    /// Likeliest k.
    pub top_k: Option<u32>,
    /// Least probability relative to the likeliest token's.
    pub min_p: Option<f32>,
    /// Penalty on tokens seen.
    pub repetition_penalty: Option<f32>,
    /// Most tokens to generate.
    pub max_new_tokens: Option<u32>,
}

/// Everything about text that a model's files say.
#[derive(Debug)]
pub struct ModelText {
    /// Text to ids.
    pub tokenizer: Arc<Tokenizer>,
    /// Messages to text; `None` for a model without a chat template.
    pub chat_templates: Option<ChatTemplates>,
    /// Why there are no templates although the model has some: they do not compile. Worth a warning at the start; chats
    /// are refused, plain prompts work.
    pub chat_template_problem: Option<String>,
    /// Tokens with a role.
    pub special_tokens: SpecialTokens,
    /// All tokens that end an output, ascending.
    pub end_token_ids: Vec<u32>,
    /// Most tokens of prompt and output together that the model was made for.
    pub max_context_tokens: Option<u32>,
    /// `general.architecture` of a GGUF, `model_type` of a `config.json`.
    pub architecture: String,
    /// The model's name, if its files say one.
    pub name: Option<String>,
    /// What the model's makers propose for sampling.
    pub generation_defaults: GenerationDefaults,
    /// What `encode_prompt` puts first: BOS, or nothing.
    pub prefix_ids: Vec<u32>,
}

impl ModelText {
    /// Reads a `.gguf` file or a folder with `tokenizer.json`, `config.json` and company.
    pub fn load(path: &Path) -> Result<Self, TextError> {
        if path.is_dir() { from_folder::load(path) } else { from_gguf::load(path) }
    }

    /// A plain prompt's tokens: control tokens written in the text are parsed, BOS is put first if the model asks for
    /// it and the text does not begin with it.
    pub fn encode_prompt(&self, text: &str) -> Result<Vec<u32>, TextError> {
        let ids = self.tokenizer.encode(text, EncodeSpecial::Allow)?;
        if ids.starts_with(&self.prefix_ids) {
            return Ok(ids);
        }
        Ok([self.prefix_ids.as_slice(), &ids].concat())
    }
}

/// Compiles a model's templates with its tokens as variables. A template that does not compile is a problem to report,
/// not a reason to refuse the model.
fn compile_templates(
    sources: Vec<(String, String)>,
    special_tokens: &SpecialTokens,
    mut variables: Map<String, Value>,
) -> (Option<ChatTemplates>, Option<String>) {
    if sources.is_empty() {
        return (None, None);
    }
    let named = [
        ("bos_token", &special_tokens.bos),
        ("eos_token", &special_tokens.eos),
        ("unk_token", &special_tokens.unk),
        ("pad_token", &special_tokens.pad),
    ];
    for (name, token) in named {
        if let Some(token) = token {
            variables.insert(name.to_owned(), Value::String(token.text.clone()));
        }
    }
    match ChatTemplates::new(sources, variables) {
        Ok(templates) => (Some(templates), None),
        Err(error) => (None, Some(error.to_string())),
    }
}
