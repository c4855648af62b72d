//! Chats, shared by the dialects that have them. This module renders messages to a prompt, and separates a reply into
//! text, reasoning and calls.

pub mod arguments;
pub mod call_ids;
pub(crate) mod conversation;
pub mod prompt;
pub mod reply;
pub mod structured;
pub mod system_messages;
pub mod tools;
