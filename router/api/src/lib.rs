//! The APIs that clients speak. Each parses into the same `GenerationRequest` and renders the same event stream.
//!
//! [`route`] is the table of routes. A dialect is a folder (`openai`, `anthropic`, `responses`, `tgi`, `llama`,
//! `ollama`, `vectors`) with the types of its requests and answers; the path that all share is `pipeline.rs`.
//! [`openapi`] makes the document from handlers and table. This crate may use all others of the router except the one
//! that starts the server. Begin with [`route`], then `openai/chat.rs` and `pipeline.rs`.

pub mod adapters;
pub(crate) mod anthropic;
pub mod app;
pub mod chat;
pub(crate) mod conversations;
pub mod dialect;
mod forms;
pub mod history;
mod joined;
pub mod kept_streams;
pub(crate) mod kv;
pub mod lists;
pub(crate) mod llama;
mod loading;
mod message_size;
pub(crate) mod models;
mod of_model;
pub mod ollama;
pub(crate) mod openai;
pub mod openapi;
pub mod operate;
pub mod page;
mod pipeline;
pub mod respond;
pub mod response_store;
pub mod responses;
pub mod route;
mod sampling_body;
pub mod shown;
pub mod steps;
pub(crate) mod stream;
pub mod streams;
pub mod tgi;
pub(crate) mod usage;
pub(crate) mod vectors;
