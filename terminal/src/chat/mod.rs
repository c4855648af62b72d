//! `trunkline chat`: a conversation in the terminal.
//!
//! ```text
//! mod      the conversation's turns
//! slash    the commands that begin with a slash; `commands` does what they say
//! editor   reads what is typed
//! ```

mod commands;
mod editor;
pub mod slash;

use std::io::{IsTerminal, Read, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use self::editor::{Editor, Entry};
use crate::client::Endpoint;
use crate::conversation::Conversation;
use crate::error::Error;
use crate::guard::Quiet;
use crate::reply::Stats;
use crate::style::{self, Style};
use crate::talk::{Ended, Form, talk};
use crate::width;

const PROMPT: &str = "> ";
/// Text wider than this is tiring to read.
const MAX_COLUMNS: usize = 100;

/// What the command line says about a chat.
#[derive(Debug, Default)]
pub struct Options {
    /// The file of the history, if there is one.
    pub history: Option<PathBuf>,
    /// Shows the statistics of each reply.
    pub stats: bool,
    /// A saved conversation to go on with.
    pub load: Option<PathBuf>,
}

/// Returns true if a person is at the terminal, so that `chat` talks instead of answering one question.
pub fn is_interactive() -> bool {
    std::io::stdin().is_terminal() && std::io::stdout().is_terminal()
}

/// A conversation with a server.
struct Chat<'a> {
    endpoint: &'a Endpoint,
    conversation: Conversation,
    editor: Editor,
    colours: bool,
    shows_stats: bool,
    last: Option<Stats>,
    stop: Arc<AtomicBool>,
}

/// Talks until the person leaves. `stop` is set by Ctrl-C.
pub fn chat(
    endpoint: &Endpoint,
    conversation: Conversation,
    options: Options,
    stop: Arc<AtomicBool>,
) -> Result<(), Error> {
    let colours = style::has_colours(&std::io::stdout());
    let editor = Editor::new(options.history, colours)?;
    let mut chat =
        Chat { endpoint, conversation, editor, colours, shows_stats: options.stats, last: None, stop };
    chat.greet()?;
    if let Some(path) = options.load {
        chat.load(&path)?;
    }
    let (mut initial, mut interrupts) = (String::new(), 0);
    loop {
        let typed = chat.editor.read(PROMPT, &std::mem::take(&mut initial))?;
        // A key that was pressed too late for the last reply is not meant for the next one.
        chat.stop.store(false, Ordering::Relaxed);
        let text = match typed {
            Entry::End => return Ok(()),
            Entry::Interrupted if interrupts > 0 => return Ok(()),
            Entry::Interrupted => {
                interrupts += 1;
                chat.say("press Ctrl-C again, or Ctrl-D, to leave");
                continue;
            }
            Entry::Text(text) => text,
        };
        interrupts = 0;
        if text.trim().is_empty() {
            continue;
        }
        chat.editor.remember(&text);
        match slash::parse(&text) {
            Some(Ok(command)) => match chat.execute(command) {
                Ok(commands::Next::Prompt(text)) => initial = text,
                Ok(commands::Next::Leave) => return Ok(()),
                Ok(commands::Next::Reply) => chat.turn()?,
                Err(error) => chat.complain(&error),
            },
            Some(Err(problem)) => chat.complain(&Error::Usage(problem)),
            None => {
                chat.conversation.ask(slash::message(&text));
                chat.turn()?;
            }
        }
    }
}

impl Chat<'_> {
    fn greet(&mut self) -> Result<(), Error> {
        let models = self.endpoint.models()?;
        let chosen = self.conversation.model.as_deref();
        let model = models.iter().find(|model| chosen.is_none_or(|chosen| chosen == model.id));
        let name = model.map(|model| model.id.as_str()).or(chosen).unwrap_or("the server's model");
        let text = format!("{name} at {}; /help lists commands, Ctrl-D leaves", self.endpoint.url);
        self.say(&text);
        Ok(())
    }

    /// Gets a reply, and leaves a line before the next prompt.
    fn turn(&mut self) -> Result<(), Error> {
        self.reply()?;
        self.say("");
        Ok(())
    }

    /// Gets replies until the model calls no tool whose result the person gives.
    fn reply(&mut self) -> Result<(), Error> {
        loop {
            let columns = width::columns(&std::io::stdout()).min(MAX_COLUMNS);
            let form = Form::Rendered { columns, colours: self.colours };
            let mut out = std::io::stdout();
            let quiet = Quiet::new();
            let (reply, ended) = talk(self.endpoint, &self.conversation, form, &mut out, &self.stop)?;
            drop(quiet);
            if !reply.is_empty() {
                self.last = Some(reply.stats);
                if self.shows_stats {
                    self.say(&reply.stats.line());
                }
            }
            let (is_whole, calls) = (matches!(ended, Ended::Whole), reply.calls);
            if is_whole || !reply.text.is_empty() {
                // The calls of a reply that was cut may be cut themselves.
                let kept = if is_whole { calls.clone() } else { Vec::new() };
                self.conversation.add_reply(&reply.text, &reply.reasoning, kept);
            }
            match ended {
                Ended::Whole if calls.is_empty() => {
                    if reply.finish_reason.as_deref() == Some("length") {
                        self.say("the reply was cut by its limit of tokens");
                    }
                    return Ok(());
                }
                Ended::Whole => {
                    for call in &calls {
                        let prompt = format!("result of {}> ", style::harmless(&call.function.name));
                        let Entry::Text(result) = self.editor.read(&prompt, "")? else {
                            self.conversation.drop_reply();
                            self.say("the calls were taken back; `/retry` asks again");
                            return Ok(());
                        };
                        self.conversation.tell(call, &result);
                    }
                }
                Ended::Stopped => {
                    self.say("stopped");
                    return Ok(());
                }
                Ended::Failed(error) => {
                    self.complain(&error);
                    if error.is_refusal() {
                        // It would be refused again, and so would all that follows it.
                        self.conversation.take_question();
                        self.say("the message was taken back; the Up key brings it to the prompt");
                    } else {
                        self.say("the conversation is kept; `/retry` asks again");
                    }
                    return Ok(());
                }
            }
        }
    }

    /// Writes something about the conversation, which is not part of it.
    fn say(&self, text: &str) {
        let text = style::harmless(text);
        let text = if self.colours { Style::DIM.paint(&text) } else { text };
        // A terminal that has gone away ends the conversation when the next line is read.
        let _ = writeln!(std::io::stdout(), "{text}");
    }

    fn complain(&self, error: &Error) {
        let text = style::harmless(&format!("error: {error}"));
        let text = if self.colours { Style::ERROR.paint(&text) } else { text };
        let _ = writeln!(std::io::stdout(), "{text}");
    }
}

/// Answers one question, and writes nothing else to stdout. The question is `prompt`, then what stands on the standard
/// input, if that is no terminal.
pub fn answer(
    endpoint: &Endpoint,
    mut conversation: Conversation,
    prompt: Option<&str>,
) -> Result<(), Error> {
    let mut input = String::new();
    let is_typed = std::io::stdin().is_terminal();
    if prompt.is_none() && is_typed {
        let _ = writeln!(std::io::stderr(), "type the question, then Ctrl-D in a new line");
    }
    if prompt.is_none() || !is_typed {
        let fail = |source| Error::File { what: "read", path: "standard input".into(), source };
        std::io::stdin().read_to_string(&mut input).map_err(fail)?;
    }
    let parts: Vec<&str> = [prompt.unwrap_or_default(), &input]
        .into_iter()
        .map(str::trim)
        .filter(|text| !text.is_empty())
        .collect();
    if parts.is_empty() {
        return Err(Error::Usage(
            "the question is empty; hint: `echo \"Why is the sky blue?\" | trunkline chat`".into(),
        ));
    }
    conversation.ask(&parts.join("\n\n"));
    let never = AtomicBool::new(false);
    match talk(endpoint, &conversation, Form::Raw, &mut std::io::stdout(), &never)? {
        (_, Ended::Failed(error)) => Err(error),
        (reply, Ended::Whole | Ended::Stopped) => {
            if reply.finish_reason.as_deref() == Some("length") {
                let _ = writeln!(std::io::stderr(), "the reply was cut by its limit of tokens");
            }
            Ok(())
        }
    }
}
