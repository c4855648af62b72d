//! What a person sees in the terminal: `trunkline chat`, `trunkline run` and `trunkline top`.
//!
//! ```text
//! chat/         a conversation: turns, commands, editing; and the answer to one question
//! talk          asks for one reply and writes it while it comes
//! conversation  messages and settings; the body of a request
//! reply         the events of a reply, and what it cost
//! markdown/     Markdown while it streams
//! top/          the live view of a server
//! client        HTTP; `sse` reads the events of a stream
//! server        a server that is started for one command
//! status        the line that says what is going on; `style` has colours, `width` columns
//! guard         signals
//! ```
//!
//! The launcher parses the arguments and finds the server; it says how to trust it. `sse`, `reply`, `conversation`,
//! `markdown`, [`chat::slash`], [`top::metrics`] and [`top::view`] do no I/O.

pub mod chat;
pub mod client;
pub mod conversation;
pub mod error;
mod guard;
pub mod markdown;
pub mod reply;
pub mod server;
pub mod sse;
mod status;
pub mod style;
mod talk;
pub mod top;
mod width;

pub use guard::guard;
