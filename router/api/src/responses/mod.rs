//! OpenAI's Responses API: <https://platform.openai.com/docs/api-reference/responses>.

mod continued;
mod input;
pub(crate) mod items;
pub(crate) mod route;
mod types;
mod writer;

pub use types::ResponseObject;

use trunkline_base::error::ApiError;

/// Returns the error for an id under which nothing is stored. Long ids are cut.
fn unknown(id: &str) -> ApiError {
    ApiError::UnknownResponse { id: id.chars().take(64).collect() }
}
