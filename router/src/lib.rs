//! The router of Trunkline: HTTP in the dialects that clients speak, text to tokens and back, the task that drives the
//! scheduler, and the link to the shard.
//!
//! A request passes through the folders from top to bottom: a dialect in `api` parses it, `request` checks it against
//! every limit, `generation` submits it to the driver in `engine`, which owns the scheduler. Its tokens come back
//! through a bounded channel, become text, and leave as events or in one piece.
//!
//! Modules are `pub` for the executables and for `tests/router`, and `pub(crate)` where neither uses them. A test makes
//! the calls of this example:
//!
//! ```no_run
//! # async fn example() -> anyhow::Result<()> {
//! use trunkline_router::{limits::ServerLimits, model::Model, server::Server, tenants::Access};
//! let model = Model::load("model.gguf".as_ref(), "my-model".into())?;
//! let server = Server::start(model, ServerLimits::default(), Access::open(), "/run/shard.sock".into())?;
//! let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
//! server.run(listener, std::future::pending()).await?;
//! # Ok(()) }
//! ```

pub mod api;
pub mod args;
pub(crate) mod clock;
pub mod engine;
pub mod error;
pub mod exit;
pub mod generation;
pub mod grammars;
pub mod http;
pub mod kv_events;
pub mod limits;
pub mod log;
pub mod metrics;
pub mod model;
pub mod process;
pub(crate) mod random;
pub mod repeats;
pub mod request;
pub mod request_id;
pub mod server;
pub mod shutdown;
pub mod tenants;
pub mod trace;
pub mod watermark;
