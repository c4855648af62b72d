//! The stored responses that a request brings into its prompt: those that it continues, and items to which it refers.
//!
//! A small request can bring in much more than it has itself. So its handler only looks up what there is, checks the
//! limits, and takes the memory; [`Continued::add_to`] copies the messages where the prompt is tokenized.

use std::sync::Arc;

use trunkline_text::{ChatMessage, ChatRequest};

use super::input::{self, Input};
use super::unknown;
use crate::app::App;
use crate::lists::TextOrList;
use crate::response_store::{Messages, ResponseStore, Turn};
use trunkline_base::error::ApiError;
use trunkline_base::tenants::Caller;
use trunkline_generation::answer_memory::AnswerMemory;

/// A request's input, and the stored responses that its prompt includes.
pub struct Continued {
    input: Input,
    instructions: Option<String>,
    store: Arc<ResponseStore>,
    owner: Option<String>,
    before: Option<Arc<Turn>>,
    num_referred_bytes: usize,
    /// The memory of what is stored, twice: the store may evict it while the request runs, and the prompt is a copy.
    memory: AnswerMemory,
}

/// The part of a conversation that a request adds to the stored turns.
pub struct Added {
    pub store: Arc<ResponseStore>,
    /// The name of the tenant; `None` without API keys.
    pub owner: Option<String>,
    /// The last turn of the conversation before this request.
    pub before: Option<Arc<Turn>>,
    pub input: Messages,
    /// The memory of what is in `before` and copied to `input`. The store may evict it while the request runs.
    memory: AnswerMemory,
    num_bytes: usize,
}

impl Continued {
    /// Finds the stored responses that an input refers to, and the one that it continues.
    pub fn find(
        input: Input,
        instructions: Option<String>,
        previous_response_id: Option<&str>,
        app: &App,
        caller: &Caller,
    ) -> Result<Self, ApiError> {
        let (store, owner) = (app.responses.clone(), caller.name());
        let before = match previous_response_id {
            None => None,
            Some(id) => Some(store.get(owner, id).ok_or_else(|| unknown(id))?.0),
        };
        input::check(&input, before.is_some(), &app.limits)?;
        let size = before.as_ref().map(|turn| turn.size()).unwrap_or_default();
        let num_messages = size.num_messages + input.num_listed();
        app.limits.check_stored("previous_response_id", size.num_text_bytes, num_messages)?;
        let mut num_referred_bytes = 0;
        if let TextOrList::List(items) = &input {
            for (idx, item) in items.iter().enumerate() {
                let Some(id) = item.referred() else { continue };
                num_referred_bytes += store.item(owner, id).ok_or_else(|| unknown(id))?.len();
                let num_bytes = size.num_text_bytes + num_referred_bytes;
                app.limits.check_stored(&format!("input[{idx}].id"), num_bytes, num_messages)?;
            }
        }
        let mut memory = app.admission.answer_memory(caller);
        memory.grow_to(2 * (size.num_bytes + num_referred_bytes))?;
        Ok(Self {
            input,
            instructions,
            owner: owner.map(str::to_owned),
            store,
            before,
            num_referred_bytes,
            memory,
        })
    }

    /// Returns the approximate size in bytes of the text that is added to the prompt.
    pub fn num_bytes(&self) -> usize {
        let stored = self.before.as_ref().map_or(0, |turn| turn.size().num_text_bytes);
        let own = input::num_bytes(&self.input) + self.instructions.as_ref().map_or(0, String::len);
        stored + self.num_referred_bytes + own
    }

    /// Adds the instructions, then the earlier conversation, then the input. O(conversation).
    pub fn add_to(self, chat: &mut ChatRequest) -> Result<Added, ApiError> {
        let Self { input, instructions, store, owner, before, num_referred_bytes, memory } = self;
        let stored_item = |id: &str| {
            let json = store.item(owner.as_deref(), id).ok_or_else(|| unknown(id))?;
            Ok(input::stored_item(&json))
        };
        let input = Messages::from(input::messages(input, stored_item)?);
        chat.messages.extend(instructions.map(|text| ChatMessage::new("system", text)));
        chat.messages.extend(before.iter().flat_map(|turn| turn.conversation()));
        chat.messages.extend_from_slice(input.list());
        let num_bytes = num_referred_bytes + before.as_ref().map_or(0, |turn| turn.size().num_bytes);
        Ok(Added { store, owner, before, input, memory, num_bytes })
    }
}

impl Added {
    /// Gives back the memory of the copy in the prompt, which is tokenized.
    pub fn shrink(&mut self) {
        self.memory.shrink_to(self.num_bytes);
    }
}
