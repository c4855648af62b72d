//! The `trunkline` command as a library: resolves a model, starts the shard and the router, and keeps them running.
//!
//! ```text
//! commands     serve, download, env, cache
//! args/        what was typed, what a file adds, what it means
//! programs     where the other programs are, and their command lines
//! listen       the port, before anything is loaded
//! resolve      model name -> files
//! runtime_dir  the private folder of the sockets
//! process      one child: group, lifeline, end
//! output       the lines of one child
//! pace         how long children are given
//! supervise    both children; restart; ready; drain
//! report       `trunkline env`
//! cache/       `trunkline cache`
//! ```

pub mod args;
pub mod cache;
pub mod commands;
pub mod drain;
pub mod error;
pub mod listen;
pub mod log;
pub mod output;
pub mod pace;
pub mod process;
pub mod programs;
pub mod ready;
pub mod report;
pub mod resolve;
pub mod restart;
pub mod runtime_dir;
pub mod signals;
pub mod supervise;
pub mod tls_probe;
