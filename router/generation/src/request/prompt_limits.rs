//! The limits of a prompt and its output, and those that a request sets itself.

use super::raw::ContextField;
use trunkline_base::error::ApiError;

/// The limits of a prompt and its output.
#[derive(Debug, Clone, Copy)]
pub struct PromptLimits {
    /// The most tokens of prompt and output.
    pub max_total_tokens: u32,
    pub max_input_tokens: u32,
    /// The flag or the request's field that limits prompts; `None` if the model's context does.
    pub prompt_flag: Option<&'static str>,
    /// The size of the vocabulary; token ids are below it.
    pub vocab_size: u32,
}

impl PromptLimits {
    /// Returns the limits of a request that sets one itself.
    pub(super) fn within(self, own: ContextField) -> Result<Self, ApiError> {
        let ContextField { field, num_tokens } = own;
        let most = self.max_total_tokens;
        if !(1..=i64::from(most)).contains(&num_tokens) {
            let problem = format!("is {num_tokens}, this server's context has 1 to {most} tokens");
            return Err(ApiError::value(field, problem));
        }
        let room = num_tokens as u32 - 1;
        let is_shorter = room < self.max_input_tokens;
        Ok(Self {
            max_total_tokens: num_tokens as u32,
            max_input_tokens: self.max_input_tokens.min(room),
            prompt_flag: if is_shorter { Some(field) } else { self.prompt_flag },
            ..self
        })
    }
}
