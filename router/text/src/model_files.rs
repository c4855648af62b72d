//! The parts of a model's files that concern text.

mod from_folder;
mod from_gguf;
mod infill_tokens;
mod load;
mod read;
mod tokenizer_files;

pub use infill_tokens::InfillTokens;

use std::sync::Arc;

use serde_json::{Map, Value};

use crate::chat_template::ChatTemplates;
use crate::error::TextError;
use crate::framing::Framing;
use crate::tokenizer::{EncodeSpecial, Tokenizer};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpecialToken {
    pub id: u32,
    pub text: String,
}

/// The tokens that have a role in the model's files.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SpecialTokens {
    pub bos: Option<SpecialToken>,
    pub eos: Option<SpecialToken>,
    /// The token for text that the vocabulary lacks.
    pub unk: Option<SpecialToken>,
    pub pad: Option<SpecialToken>,
}

/// The sampling parameters in `generation_config.json`. Absent ones are `None`.
#[derive(Debug, Clone, Default, PartialEq)]
#[allow(missing_docs, reason = "the fields are those of the file")]
pub struct GenerationDefaults {
    /// `false` means greedy decoding.
    pub do_sample: Option<bool>,
    pub temperature: Option<f32>,
    pub top_p: Option<f32>,
    pub top_k: Option<u32>,
    pub min_p: Option<f32>,
    pub repetition_penalty: Option<f32>,
    pub max_new_tokens: Option<u32>,
}

/// The parts of a model's files that concern text.
#[derive(Debug)]
pub struct ModelText {
    /// Converts text to token ids and back.
    pub tokenizer: Arc<Tokenizer>,
    /// Render messages as a prompt. `None` for a model without a chat template that compiles.
    pub chat_templates: Option<ChatTemplates>,
    /// The error of a chat template that does not compile. Chats are then refused, and plain prompts work.
    pub chat_template_problem: Option<String>,
    pub special_tokens: SpecialTokens,
    /// All tokens that end an output, in ascending order.
    pub end_token_ids: Vec<u32>,
    /// Largest number of tokens of prompt and output together that the model was trained for.
    pub max_context_tokens: Option<u32>,
    /// The value of `general.architecture` in a GGUF file, or of `model_type` in `config.json`.
    pub architecture: String,
    pub name: Option<String>,
    /// Sampling parameters that the model's authors propose.
    pub generation_defaults: GenerationDefaults,
    /// Ids that `encode_prompt` puts first, for most models BOS or nothing.
    pub prefix_ids: Vec<u32>,
    /// The ids around texts whose vectors are asked for.
    pub framing: Framing,
    /// The tokens of prompts for a text between two others. `None` if the tokenizer lacks them.
    pub infill: Option<InfillTokens>,
}

impl ModelText {
    /// Encodes a plain prompt. Control tokens in the text are recognised.
    ///
    /// BOS is put first if the model requires it and the text does not begin with it.
    pub fn encode_prompt(&self, text: &str) -> Result<Vec<u32>, TextError> {
        let ids = self.tokenizer.encode(text, EncodeSpecial::Allow)?;
        if ids.starts_with(&self.prefix_ids) {
            return Ok(ids);
        }
        Ok([self.prefix_ids.as_slice(), &ids].concat())
    }
}

/// Compiles a model's templates with its tokens as variables.
///
/// If a template does not compile, its error message is returned in place of the templates, because the model is still
/// usable with plain prompts.
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
