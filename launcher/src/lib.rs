//! The `trunkline` command as a library: resolves a model, starts the shard and the router, and supervises them.
//!
//! ```text
//! commands     runs the command that the arguments name
//! args/        command line, environment and configuration file
//! programs     finds the other programs and builds their command lines
//! listen       the listening socket
//! resolve      model name to files
//! runtime_dir  the private folder with the sockets and the settings of the children
//! child        the children's names
//! devices      the GPUs of shards
//! process      a child process: group, lifeline, end
//! output       a child's output lines
//! pace         time limits for the children
//! plan         what a pair needs to start; `pair` is a router with its shards
//! start_trace  the trace of a start
//! supervise/   restarts, drains, replaces and stops them, and loads and unloads models
//! lanes        the lanes of a pair that are drained
//! reload       a reload under way
//! retired      pairs that were replaced
//! control      the socket for `trunkline reload`, `lanes` and `status`; `caller` waits for the answer
//! status       `trunkline status`, and the list of `trunkline lanes`
//! models       `trunkline models`; `adapters` is `trunkline adapters`
//! terminal     `trunkline chat`, `run` and `top`
//! report       `trunkline env`
//! table        tables for a terminal
//! cache/       `trunkline cache`
//! ```
//!
//! The router and the shard are other processes, of which the crate knows the settings, the reports and the log. It may
//! use these crates, the store's and the terminal's. Begin with [`commands`], then [`pair`] and [`supervise`].

mod adapters;
pub mod args;
pub mod cache;
pub mod caller;
pub mod child;
pub mod commands;
pub mod control;
mod devices;
pub mod drain;
pub mod error;
pub mod exit;
mod lanes;
pub mod listen;
pub mod log;
pub mod model;
mod models;
mod models_folder;
pub mod output;
pub mod pace;
pub mod pair;
pub mod plan;
mod prepare;
pub mod process;
pub mod programs;
pub mod ready;
mod reload;
pub mod report;
pub mod resolve;
pub mod restart;
mod retired;
pub mod runtime_dir;
pub mod signals;
mod start_trace;
mod status;
pub mod supervise;
mod supervised;
mod table;
mod terminal;
