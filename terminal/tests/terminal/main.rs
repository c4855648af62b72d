//! Tests of the terminal's pure parts. `launcher/tests` has those of the commands.
#![allow(clippy::unwrap_used)] // a test's way to fail

mod conversation;
mod markdown;
mod reply;
mod slash;
mod sse;
mod top;
