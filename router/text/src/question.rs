//! The prompt that asks a language model whether two texts fit each other, for models that score pairs by their answer.

use serde_json::{Map, Value};

use crate::chat_template::{ChatMessage, ChatRequest, ChatTemplates};
use crate::error::TextError;
use crate::model_files::ModelText;
use crate::tokenizer::EncodeSpecial;

/// The roles of the two texts in templates of sentence-transformers.
const ROLES: [&str; 2] = ["query", "document"];
/// The name of a template in GGUF files, in which [`PLACES`] stand for the texts.
const GGUF_TEMPLATE: &str = "rerank";
const PLACES: [&str; 2] = ["{query}", "{document}"];
/// The prompt of Qwen3-Reranker (arXiv:2506.05176), with the task of its model card.
const QWEN3: &str = "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the \
    Instruct provided. Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n<|im_start|>user\n<Instruct>: \
    Given a web search query, retrieve relevant passages that answer the query\n<Query>: {query}\n<Document>: \
    {document}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n";

/// A model's prompt for pairs of texts.
pub struct Question<'a> {
    model: &'a ModelText,
    /// The prompt, if it is not the model's chat template.
    own: Option<ChatTemplates>,
}

impl ModelText {
    /// Returns the prompt for pairs: that of a GGUF file, the chat template if it has roles for both texts, or that of
    /// Qwen3-Reranker for models of its architecture.
    pub fn question(&self) -> Result<Question<'_>, TextError> {
        let own = |prompt: &str| {
            let own = templates_of(prompt)?;
            Ok(Question { model: self, own: Some(own) })
        };
        if let Some(prompt) = self.chat_templates.as_ref().and_then(|all| all.source(GGUF_TEMPLATE)) {
            return own(prompt);
        }
        if self.chat_templates.as_ref().is_some_and(has_both_roles) {
            return Ok(Question { model: self, own: None });
        }
        if self.architecture == "qwen3" { own(QWEN3) } else { Err(TextError::NoPairTemplate) }
    }
}

impl Question<'_> {
    /// Renders and encodes the prompt. Control tokens in the texts are plain text.
    ///
    /// With `max_tokens`, the end of the second text is dropped from a longer prompt.
    ///
    /// The texts cannot be encoded on their own, because the template writes no control token between them and its own
    /// words: a token may hold the end of one and the beginning of the other.
    pub fn encode(
        &self,
        first: &str,
        second: &str,
        max_tokens: Option<usize>,
    ) -> Result<Vec<u32>, TextError> {
        let mut second = second;
        loop {
            let chat = chat(first, second);
            let prompt = match &self.own {
                Some(templates) => self.model.encode_chat_with(templates, &chat)?,
                None => self.model.encode_chat(&chat)?,
            };
            let excess = prompt.token_ids.len().saturating_sub(max_tokens.unwrap_or(usize::MAX));
            if excess == 0 || second.is_empty() {
                return Ok(prompt.token_ids);
            }
            let tokens = self.model.tokenizer.encode_with_ranges(second, EncodeSpecial::Plain)?;
            let cut = tokens.len().checked_sub(excess).map_or(0, |kept| tokens[kept].range.start);
            second = if cut < second.len() { &second[..cut] } else { "" };
        }
    }
}

fn chat(first: &str, second: &str) -> ChatRequest {
    let messages = ROLES.into_iter().zip([first, second]);
    ChatRequest {
        messages: messages.map(|(role, text)| ChatMessage::new(role, text)).collect(),
        add_generation_prompt: true,
        ..ChatRequest::default()
    }
}

/// Returns true if the default template writes both texts.
fn has_both_roles(templates: &ChatTemplates) -> bool {
    let texts = ["first-text-3f0a", "second-text-3f0a"];
    let rendered = templates.render(&chat(texts[0], texts[1]));
    rendered.is_ok_and(|prompt| texts.iter().all(|text| prompt.contains(text)))
}

/// Compiles a prompt with [`PLACES`] as a template of a chat.
fn templates_of(prompt: &str) -> Result<ChatTemplates, TextError> {
    let split = prompt.split_once(PLACES[0]).and_then(|(before, rest)| {
        let (between, after) = rest.split_once(PLACES[1])?;
        Some([before, between, after])
    });
    let Some(parts) = split else { return Err(TextError::NoPairTemplate) };
    // A template drops the newline at its end, but not that of a string, which it spells as JSON does.
    let [before, between, after] = parts.map(|text| Value::from(text).to_string());
    let source = format!(
        "{{{{ {before} }}}}{{{{ messages[0].content }}}}{{{{ {between} }}}}{{{{ messages[1].content }}}}{{{{ {after} }}}}"
    );
    ChatTemplates::compile(vec![("default".to_owned(), source)], Map::new())
}
