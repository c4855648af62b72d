//! What a model's files say about text.

use std::path::Path;
use std::sync::Arc;

use crate::{ChatRequest, ChatTemplates, TextError, Tokenizer};

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

/// A chat as a prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChatPrompt {
    /// The rendered template.
    pub text: String,
    /// Its tokens.
    pub token_ids: Vec<u32>,
}

/// Everything about text that a model's files say.
#[derive(Debug)]
pub struct ModelText {
    /// Text to ids.
    pub tokenizer: Arc<Tokenizer>,
    /// Messages to text; `None` for a model without a chat template.
    pub chat_templates: Option<ChatTemplates>,
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
    /// Whether `encode_prompt` puts the BOS token first.
    pub add_bos: bool,
}

impl ModelText {
    /// Reads a `.gguf` file or a folder with `tokenizer.json`, `config.json` and company.
    pub fn load(_path: &Path) -> Result<Self, TextError> {
        unimplemented!()
    }

    /// A plain prompt's tokens: control tokens written in the text are parsed, BOS is put first if the model asks for it
    /// and the text does not begin with it.
    pub fn encode_prompt(&self, _text: &str) -> Result<Vec<u32>, TextError> {
        unimplemented!()
    }

    /// A chat's prompt. Control tokens are parsed where the template writes them; where a message's text spells one, it
    /// stays text.
    pub fn encode_chat(&self, _chat: &ChatRequest) -> Result<ChatPrompt, TextError> {
        unimplemented!()
    }
}
