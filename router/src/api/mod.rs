//! The APIs that clients speak. Each parses into the same `GenerationRequest` and renders the same event stream.

pub(crate) mod anthropic;
pub mod app;
#[doc(hidden)]
pub mod chat;
pub(crate) mod dialect;
mod forms;
mod joined;
pub(crate) mod kv;
#[doc(hidden)]
pub mod lists;
mod message_size;
pub(crate) mod models;
pub(crate) mod openai;
pub mod openapi;
pub(crate) mod operate;
mod pipeline;
pub mod respond;
pub mod response_store;
pub mod responses;
pub mod route;
pub(crate) mod stream;
pub mod tgi;
pub(crate) mod usage;
pub(crate) mod vectors;
