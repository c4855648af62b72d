//! Calls in a text, in any of the forms.

use crate::call::{CallReader, Reading};
use crate::json::{Scan, Scanner};
use crate::loose::LooseScanner;
use crate::parser::{ReplyEnd, give};
use crate::pythonic::{self, ListEnd, ListScanner};
use crate::sections::overlap;
use crate::{Piece, ToolFormat};

/// Between name and arguments of a call of Mistral's.
pub const ARGS: &str = "[ARGS]";
/// Before a call's id, between its name and [`ARGS`].
pub const CALL_ID: &str = "[CALL_ID]";

#[derive(Debug, Clone)]
enum State {
    /// In text.
    Text,
    /// The buffer begins with an opening mark.
    Opened,
    /// In a JSON object that may be a call.
    Call { reader: CallReader, in_list: bool },
    /// In a Python list that may hold calls.
    Pythonic(ListScanner),
    /// In the arguments of a call that was named before them.
    Arguments(LooseScanner),
    /// Right after a call.
    AfterCall { in_list: bool },
    /// In what is no call in a list of calls: it is text, and the list goes on behind it.
    Item(Scanner),
}

/// Tells text and calls apart.
#[derive(Debug, Clone)]
pub struct ToolReader {
    format: ToolFormat,
    names: Vec<String>,
    state: State,
    /// What is not given yet. While a call is not certain it begins where the text would go on if it is none.
    buffer: String,
    /// White space at the end of the text so far: it is left out before a call, and at the end after one.
    spaces: String,
    /// Nothing but white space came.
    at_start: bool,
    has_calls: bool,
    /// A mark began what is read.
    is_marked: bool,
    /// All of the reply is in the buffer, and how it ended.
    whole: Option<ReplyEnd>,
}

impl ToolReader {
    /// `names`: the tools that may be called.
    pub fn new(format: ToolFormat, names: Vec<String>) -> Self {
        Self {
            format,
            names,
            state: State::Text,
            buffer: String::new(),
            spaces: String::new(),
            at_start: true,
            has_calls: false,
            is_marked: false,
            whole: None,
        }
    }

    /// Before the only text: a call whose arguments are no JSON is text, as none of it was given.
    pub fn expect_whole(&mut self, end: ReplyEnd) {
        self.whole = Some(end);
    }

    /// More text.
    pub fn push(&mut self, text: &str, out: &mut Vec<Piece>) {
        self.buffer.push_str(text);
        while self.advance(out) {}
    }

    /// There is no more.
    pub fn finish(&mut self, out: &mut Vec<Piece>) {
        loop {
            match &self.state {
                State::Text => break,
                State::Arguments(_) => {
                    out.push(Piece::CallEnd);
                    self.buffer.clear();
                    self.state = State::Text;
                }
                State::Call { reader, .. } if reader.is_begun() => {
                    // Cut in its arguments, which were given as they came.
                    out.push(Piece::CallEnd);
                    self.buffer.clear();
                    self.state = State::Text;
                }
                State::AfterCall { .. } => {
                    let rest = self.buffer.trim();
                    let rest = self.without_closings(rest);
                    if self.format.closing_mark().is_some_and(|mark| mark.starts_with(rest)) {
                        self.buffer.clear();
                    }
                    self.state = State::Text;
                }
                State::Item(_) => self.state = State::Text,
                State::Opened | State::Call { .. } | State::Pythonic(_) => {
                    self.no_call(out);
                    while self.advance(out) {}
                }
            }
        }
        let rest = std::mem::take(&mut self.buffer);
        self.give_text(&rest, out);
        if !self.has_calls {
            give(&self.spaces, Piece::Text, out);
        }
        self.spaces.clear();
    }

    /// One step; whether another may follow before more text comes.
    fn advance(&mut self, out: &mut Vec<Piece>) -> bool {
        match &mut self.state {
            State::Text => self.text(out),
            State::Opened => self.opened(out),
            State::Pythonic(scanner) => match scanner.read(&self.buffer) {
                ListEnd::NoList => self.no_call(out),
                ListEnd::Open if pythonic::may_be_calls(self.unmarked(), &self.names) => false,
                ListEnd::Open => self.no_call(out),
                ListEnd::At(end) => self.python_list(end, out),
            },
            State::Call { .. } => self.call(out),
            State::Arguments(scanner) => {
                let mut arguments = String::new();
                let scan = scanner.read(&self.buffer, &mut arguments);
                give(&arguments, Piece::Arguments, out);
                let (Scan::Ended(at) | Scan::Broken(at)) = scan else { return false };
                out.push(Piece::CallEnd);
                self.ended_call(at, false)
            }
            State::Item(scanner) => match scanner.feed(self.buffer.as_bytes()) {
                Scan::Open => {
                    self.take_text(self.buffer.len(), out);
                    false
                }
                Scan::Ended(len) => {
                    self.take_text(len, out);
                    self.state = State::AfterCall { in_list: true };
                    true
                }
                Scan::Broken(len) => {
                    self.take_text(len, out);
                    self.state = State::Text;
                    true
                }
            },
            State::AfterCall { in_list } => {
                let in_list = *in_list;
                self.after_call(in_list)
            }
        }
    }

    fn call(&mut self, out: &mut Vec<Piece>) -> bool {
        let State::Call { reader, in_list } = &mut self.state else { return false };
        let in_list = *in_list;
        let names = &self.names;
        let mut pieces = Vec::new();
        let reading = reader.read(&self.buffer, &|name| names.iter().any(|known| known == name), &mut pieces);
        let is_broken = match reading {
            Reading::NoCall => true,
            Reading::Broken(_) => self.whole.is_some(),
            Reading::Open => self.whole == Some(ReplyEnd::Stopped) && reader.has_open_arguments(),
            Reading::Ended(_) => false,
        };
        if is_broken {
            return self.no_call(out);
        }
        if reader.is_begun() {
            self.begun_call();
        }
        out.append(&mut pieces);
        match reading {
            Reading::Ended(at) | Reading::Broken(at) => self.ended_call(at, in_list),
            Reading::Open | Reading::NoCall => false,
        }
    }

    fn text(&mut self, out: &mut Vec<Piece>) -> bool {
        self.is_marked = false;
        if self.at_start && self.format.may_begin_bare() {
            let begun = self.buffer.trim_start();
            let offset = self.buffer.len() - begun.len();
            match (begun.chars().next(), self.format) {
                (None, _) => return false,
                (Some('{'), ToolFormat::Llama3 | ToolFormat::Json) => return self.enter_call(offset, false),
                (Some('['), ToolFormat::Llama3 | ToolFormat::Json) => {
                    return self.enter_call(offset + 1, true);
                }
                (Some('['), ToolFormat::Pythonic) => {
                    self.state = State::Pythonic(ListScanner::new(offset));
                    return true;
                }
                _ => self.at_start = false,
            }
        }
        let marks = self.format.opening_marks();
        if let Some(at) = marks.iter().filter_map(|mark| self.buffer.find(mark)).min() {
            self.take_text(at, out);
            self.state = State::Opened;
            return true;
        }
        let held = marks.iter().map(|mark| overlap(&self.buffer, mark)).max().unwrap_or(0);
        self.take_text(self.buffer.len() - held, out);
        false
    }

    /// What follows an opening mark says what it opened.
    fn opened(&mut self, out: &mut Vec<Piece>) -> bool {
        self.is_marked = true;
        let begun = self.unmarked().trim_start();
        let offset = self.buffer.len() - begun.len();
        match (begun.chars().next(), self.format) {
            (None, _) => false,
            (Some('['), ToolFormat::Pythonic) => {
                self.state = State::Pythonic(ListScanner::new(offset));
                true
            }
            (Some('{'), _) if self.format != ToolFormat::Pythonic => self.enter_call(offset, false),
            (Some('['), _) => self.enter_call(offset + 1, true),
            (_, ToolFormat::Mistral) => self.named(offset, out),
            _ => self.no_call(out),
        }
    }

    /// Mistral's `name[ARGS]{...}`; a `[CALL_ID]...` between is passed over.
    fn named(&mut self, offset: usize, out: &mut Vec<Piece>) -> bool {
        let begun = &self.buffer[offset..];
        let Some(name_len) = begun.find(['[', '{']) else {
            let begun = begun.trim_end();
            return if self.names.iter().any(|name| name.starts_with(begun)) {
                false
            } else {
                self.no_call(out)
            };
        };
        let name = begun[..name_len].trim();
        if !self.names.iter().any(|known| known == name) {
            return self.no_call(out);
        }
        let args_at = match named_arguments(&begun[name_len..]) {
            Named::Open => return false,
            Named::NoCall => return self.no_call(out),
            Named::At(at) => offset + name_len + at,
        };
        let scanner = LooseScanner::new(args_at);
        let is_broken =
            self.whole.is_some_and(|end| match scanner.clone().read(&self.buffer, &mut String::new()) {
                Scan::Broken(_) => true,
                Scan::Open => end == ReplyEnd::Stopped,
                Scan::Ended(_) => false,
            });
        if is_broken {
            return self.no_call(out);
        }
        out.push(Piece::CallBegin { name: name.to_owned() });
        self.begun_call();
        self.state = State::Arguments(scanner);
        true
    }

    fn python_list(&mut self, end: usize, out: &mut Vec<Piece>) -> bool {
        let list = self.buffer[..end].trim_start_matches(self.format.opening_marks()[0]);
        let calls = pythonic::parse(list).filter(|calls| {
            !calls.is_empty() && calls.iter().all(|(name, _)| self.names.iter().any(|known| known == name))
        });
        let Some(calls) = calls else { return self.no_call(out) };
        for (name, arguments) in calls {
            out.push(Piece::CallBegin { name });
            out.push(Piece::Arguments(arguments));
            out.push(Piece::CallEnd);
        }
        self.begun_call();
        self.ended_call(end, false)
    }

    fn after_call(&mut self, in_list: bool) -> bool {
        let rest = self.buffer.trim_start();
        let offset = self.buffer.len() - rest.len();
        let Some(first) = rest.chars().next() else { return false };
        match (first, in_list) {
            (',', true) => return self.enter_call(offset + 1, true),
            (']', true) => {
                self.buffer.drain(..=offset);
                self.state = State::AfterCall { in_list: false };
                return true;
            }
            ('{', false) => return self.enter_call(offset, false),
            (';' | ',', false) if self.format == ToolFormat::Llama3 => {
                return self.enter_call(offset + 1, false);
            }
            _ => {}
        }
        if let Some(mark) = self.format.closing_mark() {
            let closing = self.without_closings(rest);
            if closing.starts_with(mark) {
                self.buffer.drain(..self.buffer.len() - closing.len() + mark.len());
            } else if mark.starts_with(closing) {
                return false;
            }
        }
        self.state = State::Text;
        true
    }

    fn enter_call(&mut self, at: usize, in_list: bool) -> bool {
        self.state = State::Call { reader: CallReader::new(at, self.is_marked), in_list };
        true
    }

    fn begun_call(&mut self) {
        self.at_start = false;
        self.has_calls = true;
        self.spaces.clear();
    }

    fn ended_call(&mut self, at: usize, in_list: bool) -> bool {
        self.buffer.drain(..at);
        self.state = State::AfterCall { in_list };
        true
    }

    /// What follows a call without the brackets that it closes too often, if a mark is to close it.
    fn without_closings<'a>(&self, rest: &'a str) -> &'a str {
        if self.is_marked {
            rest.trim_start_matches(|c: char| matches!(c, '}' | ']') || c.is_whitespace())
        } else {
            rest
        }
    }

    /// Whether the buffer begins with an item of a list of calls, behind others: it is text then, without its comma.
    fn enter_item(&mut self) -> bool {
        let item = self.buffer.trim_start().strip_prefix(',').map(str::trim_start);
        let Some(item) = item.filter(|item| item.starts_with('{')) else { return false };
        self.buffer.drain(..self.buffer.len() - item.len());
        self.state = State::Item(Scanner::default());
        true
    }

    /// The buffer begins no call: its first mark or character is text.
    fn no_call(&mut self, out: &mut Vec<Piece>) -> bool {
        if matches!(self.state, State::Call { in_list: true, .. }) && self.enter_item() {
            return true;
        }
        self.at_start = false;
        self.state = State::Text;
        let len = self.buffer.len() - self.unmarked().len();
        let spaces = self.buffer.len() - self.buffer.trim_start().len();
        let first = self.buffer[spaces..].chars().next().map_or(0, char::len_utf8);
        self.take_text(if len > 0 { len } else { spaces + first }, out);
        true
    }

    /// The buffer after the opening mark that it begins with, if it does.
    fn unmarked(&self) -> &str {
        let mut marks = self.format.opening_marks().iter();
        marks.find_map(|mark| self.buffer.strip_prefix(mark)).unwrap_or(&self.buffer)
    }

    fn take_text(&mut self, len: usize, out: &mut Vec<Piece>) {
        let text: String = self.buffer.drain(..len).collect();
        self.give_text(&text, out);
    }

    fn give_text(&mut self, text: &str, out: &mut Vec<Piece>) {
        let certain = text.trim_end();
        if certain.is_empty() {
            self.spaces.push_str(text);
            return;
        }
        let spaces = std::mem::replace(&mut self.spaces, text[certain.len()..].to_owned());
        give(&(spaces + certain), Piece::Text, out);
    }
}

/// Where the arguments are that follow a name.
enum Named {
    /// More must come before that is known.
    Open,
    NoCall,
    /// Their `{` is at this byte.
    At(usize),
}

/// What follows the name of a call of Mistral's: `{...}`, `[ARGS]{...}` or `[CALL_ID]id[ARGS]{...}`.
fn named_arguments(text: &str) -> Named {
    let rest = match text.strip_prefix(CALL_ID) {
        Some(id) => id.trim_start_matches(|c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_'),
        None if CALL_ID.starts_with(text) => return Named::Open,
        None => text,
    };
    let arguments = match rest.strip_prefix(ARGS) {
        Some(arguments) => arguments.trim_start(),
        None if ARGS.starts_with(rest) => return Named::Open,
        None if rest.len() == text.len() => rest,
        None => return Named::NoCall,
    };
    match arguments.chars().next() {
        None => Named::Open,
        Some('{') => Named::At(text.len() - arguments.len()),
        Some(_) => Named::NoCall,
    }
}
