//! The API of text-generation-inference: <https://huggingface.github.io/text-generation-inference>.

pub(crate) mod detokenize;
mod error;
pub(crate) mod generate;
pub(crate) mod info;
pub(crate) mod platforms;
mod timings;
pub(crate) mod tokenize;
mod types;

pub use error::{ErrorResponse, unhealthy};
pub use types::StreamAnswer;
