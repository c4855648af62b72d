//! The APIs that clients speak. Each parses into the same `GenerationRequest` and renders the same event stream.

pub mod anthropic;
pub mod app;
#[doc(hidden)]
pub mod chat;
pub mod dialect;
mod forms;
pub mod kv;
#[doc(hidden)]
pub mod lists;
pub mod openai;
pub mod openapi;
pub mod operate;
mod pipeline;
pub mod respond;
pub mod response_store;
pub mod responses;
pub mod stream;
pub mod tgi;
