//! The HTTP layer that all dialects share: bodies, JSON, event streams, the listener and TLS.

mod body;
pub mod browser;
pub mod cors;
mod event_frame;
mod events;
mod json;
mod json_error;
pub(crate) mod serve;
#[doc(hidden)]
pub mod stall;
pub mod tls;
mod unread;

pub use body::{check_encoding, read_body};
pub use event_frame::EventFrame;
pub use events::Events;
pub use json::{Refused, num_values, parse};
pub use unread::announce_close;
