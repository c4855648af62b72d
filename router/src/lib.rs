//! The router of Trunkline: HTTP in the dialects that clients speak, text to tokens and back, the task that drives the
//! scheduler, and the link to the shard.
//!
//! This crate puts the others together: it reads settings, opens the listener, starts the server with its middleware
//! ([`server`]), and ends the process with an exit code. The layers are crates, each of which uses only those before
//! it: `trunkline-base` (limits, errors, tenants, metrics), `trunkline-http`, `trunkline-engine` (the driver of the
//! scheduler, the link to the shard), `trunkline-generation` (checked requests, running generations) and
//! `trunkline-api` (dialects). Begin with [`process`].
//!
//! ```no_run
//! # async fn example() -> anyhow::Result<()> {
//! use trunkline_base::{limits::ServerLimits, tenants::Access};
//! use trunkline_generation::model::Model;
//! use trunkline_router::server::Server;
//! let model = Model::load("model.gguf".as_ref(), "my-model".into())?;
//! let server = Server::start(model, ServerLimits::default(), Access::open(), "/run/shard.sock".into())?;
//! let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
//! server.run(listener, std::future::pending()).await?;
//! # Ok(()) }
//! ```

pub mod args;
pub mod exit;
mod launcher;
mod models;
pub mod process;
pub mod server;
