//! OpenAI's Responses API: <https://platform.openai.com/docs/api-reference/responses>.

mod input;
pub mod route;
mod store;
mod types;
mod writer;

pub use store::ResponseStore;
pub use types::{Body, Deleted, ResponseObject, ResponsesUsage};
