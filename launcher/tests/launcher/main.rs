//! Tests of the launcher's modules, and of the whole command with a fake shard and a fake router.
#![allow(clippy::unwrap_used)] // a test's way to fail

mod cache;
mod cache_server;
mod cli;
mod failures;
mod flags;
mod lanes;
mod lifecycle;
mod models;
mod parts;
mod reload;
mod replicas;
mod status;
mod support;
mod terminal;
