//! The HTTP layer that all dialects share: connections, TLS, bodies, JSON and event streams.
//!
//! [`serve`] accepts connections and closes those that stall ([`stall`]), [`read_body`] reads a body within limits of
//! bytes and time, [`parse`] reads its JSON and refuses fields by name, and [`Events`] writes a stream. Nothing here
//! knows a dialect, a model or the engine. It may use `trunkline-base`. Begin with [`serve`].

mod body;
pub mod browser;
pub mod cors;
mod event_frame;
mod events;
mod ignored;
mod json;
mod json_error;
mod known_fields;
pub mod pace;
mod poll_time;
pub mod serve;
pub mod stall;
pub mod tls;
mod unread;

pub use body::{check_encoding, read_body};
pub use event_frame::EventFrame;
pub use events::{Events, StreamForm};
pub use ignored::{IgnoredFields, RelaxedKeywords};
pub use json::{OtherFields, Refused, num_values, parse, parse_noting};
pub use poll_time::LongestPoll;
pub use unread::announce_close;
