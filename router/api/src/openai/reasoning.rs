//! The fields of chats that ask for reasoning and limit it.

use serde::Deserialize;
use utoipa::ToSchema;

use trunkline_base::error::ApiError;
use trunkline_generation::grammars::AskedBudget;
use trunkline_generation::request::number::count;

/// The `reasoning` object of a chat, as in OpenRouter's API.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[schema(as = ChatReasoning)]
pub struct ReasoningField {
    /// The same as `reasoning_effort`, which counts if both are sent.
    pub effort: Option<String>,
    /// The most tokens of reasoning. Its closing mark follows the last of them.
    #[schema(minimum = 0)]
    pub max_tokens: Option<i64>,
    /// If true, the response leaves the reasoning out.
    pub exclude: Option<bool>,
    /// Sets `enable_thinking` for the chat template.
    pub enabled: Option<bool>,
}

/// Returns the most tokens of reasoning. The fields that limit it may not contradict each other.
pub(super) fn budget(
    thinking_token_budget: Option<i64>,
    reasoning_budget_tokens: Option<i64>,
    reasoning: Option<&ReasoningField>,
) -> Result<Option<AskedBudget>, ApiError> {
    let unless_unlimited = |tokens: Option<i64>| tokens.filter(|tokens| *tokens != -1);
    let fields = [
        ("thinking_token_budget", unless_unlimited(thinking_token_budget)),
        ("reasoning_budget_tokens", unless_unlimited(reasoning_budget_tokens)),
        ("reasoning.max_tokens", reasoning.and_then(|reasoning| reasoning.max_tokens)),
    ];
    let mut budget: Option<AskedBudget> = None;
    for (field, tokens) in fields {
        let Some(tokens) = tokens else { continue };
        let num_tokens = count(field, tokens, i64::from(u32::MAX))?;
        if let Some(other) = budget.filter(|other| other.num_tokens != num_tokens) {
            let (name, limit) = (other.field, other.num_tokens);
            let problem = format!("is {num_tokens}, but `{name}` is {limit}; hint: send only one of them");
            return Err(ApiError::value(field, problem));
        }
        budget = Some(AskedBudget { field, num_tokens });
    }
    Ok(budget)
}
