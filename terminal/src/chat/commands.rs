//! Does what the commands with a slash say.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use serde_json::Value;

use super::Chat;
use super::slash::{COMMANDS, Change, Slash};
use crate::conversation::{Conversation, Message};
use crate::error::Error;
use crate::style::harmless;

const PRIVATE_FILE_MODE: u32 = 0o600;

/// What follows a command.
pub(super) enum Next {
    /// The prompt, which begins with this text.
    Prompt(String),
    /// A reply to the conversation as it is.
    Reply,
    Leave,
}

impl Chat<'_> {
    pub(super) fn execute(&mut self, command: Slash) -> Result<Next, Error> {
        match command {
            Slash::Help => self.help(),
            Slash::Exit => return Ok(Next::Leave),
            Slash::Clear => {
                self.conversation.clear();
                self.say("a new conversation begins");
            }
            Slash::Retry if self.conversation.drop_reply() => return Ok(Next::Reply),
            Slash::Edit => match self.conversation.take_question() {
                Some(text) => return Ok(Next::Prompt(text)),
                None => return Err(nothing_asked()),
            },
            Slash::Retry => return Err(nothing_asked()),
            Slash::System(None) => match self.conversation.system() {
                Some(text) => self.say(text),
                None => self.say("there is no system prompt; hint: `/system You answer in verse.`"),
            },
            Slash::System(Some(Change::Set(text))) => {
                self.conversation.set_system(Some(&text));
                self.say("the system prompt is set; replies so far stay");
            }
            Slash::System(Some(Change::Off)) => {
                self.conversation.set_system(None);
                self.say("there is no system prompt any more");
            }
            Slash::Seed(change) => {
                match change {
                    None => {}
                    Some(Change::Set(seed)) => self.conversation.seed = Some(seed),
                    Some(Change::Off) => self.conversation.seed = None,
                }
                match self.conversation.seed {
                    Some(seed) => self.say(&format!("the seed is {seed}")),
                    None => self.say("each reply has a random seed"),
                }
            }
            Slash::Stats(None) => match &self.last {
                Some(stats) => self.say(&stats.line()),
                None => self.say("no reply has come yet; hint: `/stats on` shows them after each"),
            },
            Slash::Stats(Some(shows)) => {
                self.shows_stats = shows;
                self.say(if shows { "statistics follow each reply" } else { "statistics are off" });
            }
            Slash::Tools(None) => self.list_tools(),
            Slash::Tools(Some(Change::Off)) => {
                self.conversation.tools.clear();
                self.list_tools();
            }
            Slash::Tools(Some(Change::Set(path))) => {
                self.conversation.tools = read_tools(&path)?;
                self.list_tools();
            }
            Slash::Model(name) => self.choose_model(name)?,
            Slash::Save(path) => self.save(&path)?,
            Slash::Load(path) => self.load(&path)?,
        }
        Ok(Next::Prompt(String::new()))
    }

    fn help(&self) {
        for (name, argument, what) in COMMANDS {
            self.say(&format!("{:24}{what}", format!("{name} {argument}")));
        }
        self.say("Alt-Enter, or \\ at the end of a line, begins a new one. Ctrl-C stops a reply.");
    }

    fn list_tools(&self) {
        let name = |tool: &Value| tool["function"]["name"].as_str().map(str::to_owned);
        let names: Vec<String> = self.conversation.tools.iter().filter_map(name).collect();
        if names.is_empty() {
            self.say("the model may call no tools; hint: `/tools FILE` reads a JSON list of them");
        } else {
            self.say(&format!("the model may call {}", names.join(", ")));
        }
    }

    fn choose_model(&mut self, name: Option<String>) -> Result<(), Error> {
        let models = self.endpoint.models()?;
        let ids: Vec<&str> = models.iter().map(|model| model.id.as_str()).collect();
        let Some(name) = name else {
            let chosen = self.conversation.model.as_deref().or(ids.first().copied());
            for model in &models {
                let mark = if chosen == Some(&model.id) { "*" } else { " " };
                let state = model.status.as_ref().map(|status| format!(" ({})", status.value));
                self.say(&format!("{mark} {}{}", model.id, state.unwrap_or_default()));
            }
            return Ok(());
        };
        if !ids.contains(&name.as_str()) {
            let problem = format!("the server has no model `{name}`; it has {}", harmless(&ids.join(", ")));
            return Err(Error::Usage(problem));
        }
        self.say(&format!("{name} answers from now on"));
        self.conversation.model = Some(name);
        Ok(())
    }

    fn save(&self, path: &Path) -> Result<(), Error> {
        let fail = |source| Error::File { what: "write", path: path.to_owned(), source };
        let text =
            serde_json::to_string_pretty(&self.conversation).map_err(|error| fail(error.into()))? + "\n";
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(PRIVATE_FILE_MODE);
        options.open(path).and_then(|mut file| file.write_all(text.as_bytes())).map_err(fail)?;
        self.say(&format!("{} messages are in `{}`", self.conversation.len(), path.display()));
        Ok(())
    }

    pub(super) fn load(&mut self, path: &Path) -> Result<(), Error> {
        let model = self.conversation.model.take();
        self.conversation = read_conversation(path)?;
        // What the server has is known; what it had when the file was written is not.
        self.conversation.model = model;
        let count = self.conversation.len();
        self.say(&format!("{count} messages from `{}`; the conversation goes on", path.display()));
        if let Some(Message { content: Some(text), role, .. }) = self.conversation.messages.last() {
            self.say(&format!("{role}: {text}"));
        }
        Ok(())
    }
}

fn nothing_asked() -> Error {
    Error::Usage("nothing has been asked yet; hint: type a question".to_owned())
}

/// Reads what `/save` wrote, or any other body of a request.
fn read_conversation(path: &Path) -> Result<Conversation, Error> {
    let text = fs::read_to_string(path).map_err(|source| Error::File {
        what: "read",
        path: path.to_owned(),
        source,
    })?;
    serde_json::from_str(&text).map_err(|error| Error::Content {
        what: "the conversation",
        path: path.to_owned(),
        problem: format!("{error}; hint: it is a JSON object with `messages`, as `/save` writes it"),
    })
}

/// Reads a list of tools, or an object with `tools`.
fn read_tools(path: &Path) -> Result<Vec<Value>, Error> {
    let text = fs::read_to_string(path).map_err(|source| Error::File {
        what: "read",
        path: path.to_owned(),
        source,
    })?;
    let fail = |problem: String| Error::Content { what: "the list of tools", path: path.to_owned(), problem };
    let value: Value = serde_json::from_str(&text).map_err(|error| fail(error.to_string()))?;
    let list = value.as_array().or_else(|| value["tools"].as_array());
    let list =
        list.ok_or_else(|| fail("it is no JSON list; hint: `[{\"type\": \"function\", ...}]`".to_owned()))?;
    if let Some(place) = list.iter().position(|tool| !tool["function"]["name"].is_string()) {
        return Err(fail(format!("tool {place} has no `function.name`")));
    }
    Ok(list.clone())
}
