//! Tests of single modules of the launcher, without processes.

mod args;
mod cache_forest;
mod cache_live;
mod cache_render;
mod cache_server;
mod child;
mod drain;
mod listen;
mod log;
mod output;
mod ready;
mod report;
mod resolve;
mod restart;
mod runtime_dir;
mod signals;
