//! The `trunkline` command as a library: resolves a model, starts the shard and the router, and supervises them.
//!
//! ```text
//! commands     serve, download, env, cache
//! args/        command line, environment and configuration file
//! programs     finds the other programs and builds their command lines
//! listen       checks the port before anything is loaded
//! resolve      model name to files
//! runtime_dir  the private folder with the sockets and the router's settings
//! child        the children's names
//! process      a child process: group, lifeline, end
//! output       a child's output lines
//! pace         time limits for the children
//! supervise    starts, restarts and stops both children
//! report       `trunkline env`
//! cache/       `trunkline cache`
//! ```

pub mod args;
pub mod cache;
pub mod child;
pub mod commands;
pub mod drain;
pub mod error;
pub mod exit;
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
mod tls_probe;
