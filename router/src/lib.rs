//! The router of Trunkline: HTTP in the dialects that clients speak, text to tokens and back, the task that drives the
//! scheduler, and the link to the shard.
//!
//! A request's way: a dialect parses it (`dialects`), `validate` checks it against every limit, `generate` submits it
//! to the `driver`, which owns the scheduler; its tokens come back through a bounded channel, become text, and leave
//! as events or in one piece (`http::sse`).
//!
//! Modules that are hidden here are `pub` only for `tests/router`. A test there makes the calls of this example:
//!
//! ```no_run
//! # async fn example() -> anyhow::Result<()> {
//! use trunkline_router::{app::Model, limits::Limits, server::Server, tenants::Access};
//! let model = Model::load("model.gguf".as_ref(), "my-model".into())?;
//! let server = Server::start(model, Limits::default(), Access::open(), "/run/shard.sock".into())?;
//! let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
//! server.run(listener, std::future::pending()).await?;
//! # Ok(()) }
//! ```

pub mod admission;
pub mod app;
pub mod args;
pub mod choices;
pub mod compiling;
pub mod deadline;
pub mod dialects;
pub mod driver;
pub mod error;
pub mod exit;
pub mod generate;
pub mod grammar_cache;
pub mod grammars;
pub mod http;
pub mod kv_events;
pub mod limits;
pub mod log;
pub mod metrics;
pub mod object;
pub mod openapi;
pub mod process;
pub mod random;
pub mod request;
pub mod retention;
pub mod server;
pub mod service_tier;
pub mod shard;
pub mod shutdown;
pub mod step_thread;
pub mod stops;
pub mod tenants;
pub mod tls;
pub mod token_fields;
pub mod validate;
pub mod watermark;
