//! The API of text-generation-inference: <https://huggingface.github.io/text-generation-inference>.

mod error;
pub mod generate;
pub mod info;
pub mod platforms;
mod timings;
pub mod tokenize;
mod types;

pub use error::{ErrorResponse, unhealthy};
pub use types::{
    Body, Details, GenerateAnswer, Parameters, StreamAnswer, StreamDetails, Token, finish_reason,
};
