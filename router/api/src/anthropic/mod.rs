//! Anthropic's Messages API: <https://docs.anthropic.com/en/api/messages>.

mod block;
mod blocks;
mod error;
pub mod messages;
mod stream;
mod texts;
mod tools;
mod types;

pub use error::ErrorResponse;

use trunkline_generation::generate::FinishReason;

/// Returns Anthropic's name of a finish reason; a complete reply with calls ends with `tool_use`.
fn stop_reason(reason: FinishReason, has_calls: bool) -> &'static str {
    match reason {
        FinishReason::EndToken | FinishReason::StopToken { .. } if has_calls => "tool_use",
        FinishReason::EndToken | FinishReason::StopToken { .. } => "end_turn",
        FinishReason::Length => "max_tokens",
        FinishReason::StopString { .. } => "stop_sequence",
    }
}

fn stop_sequence(reason: FinishReason, stops: &[String]) -> Option<String> {
    match reason {
        FinishReason::StopString { index } => stops.get(index).cloned(),
        FinishReason::EndToken | FinishReason::StopToken { .. } | FinishReason::Length => None,
    }
}
