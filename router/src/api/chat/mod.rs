//! Chats, for the dialects that have them: from messages to a prompt, and from a reply to text, reasoning and calls.

pub mod arguments;
pub mod call_ids;
pub mod conversation;
pub mod prompt;
pub mod reply;
pub mod structured;
pub mod tools;
