//! Tests of the router through HTTP, with a mock shard that speaks the real protocol on a real socket. `unit` tests
//! single modules.

// The whole crate is tests, but clippy's own exception applies only inside test functions.
#![allow(clippy::unwrap_used)]

#[path = "../../kv/tests/kv/draw.rs"]
mod draw;
#[path = "../../../object/tests/object/support/mod.rs"]
mod faulty;
#[path = "../mock/mod.rs"]
mod mock;
mod support;

mod access;
mod adapters;
mod anthropic;
mod cancel;
mod choices;
mod connections;
mod conversation;
mod deadlines;
mod edges;
mod errors;
mod flags;
mod foreign_fields;
mod front;
mod grammar;
mod history;
mod infill;
mod inspector;
mod kept_streams;
mod kv;
mod kv_events;
mod lanes;
mod lifecycle;
mod metrics_port;
mod models;
mod objects;
mod ollama;
mod open_requests;
mod openai;
mod operate;
mod page;
mod panics;
mod parts;
mod rates;
mod reasoning;
mod relaxed_keywords;
mod responses;
mod retention;
mod scores;
mod slow;
mod steps;
mod stored;
mod stores;
mod streams;
mod structured;
mod system_messages;
mod tgi;
mod tls;
mod token_fields;
mod tools;
mod traces;
mod unit;
mod vectors;
mod zmq;
