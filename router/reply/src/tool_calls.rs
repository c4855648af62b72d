//! Finds calls in the content of a reply, in any of the formats.

use crate::call_start::CallStart;
use crate::formats::ToolFormat;
use crate::json_call::{CallReader, CallScan};
use crate::json_scanner::{Scan, Scanner};
use crate::lenient_json::LenientScanner;
use crate::marks::{first_mark, held_len};
use crate::piece::{Piece, push_nonempty};
use crate::python_calls::{self, ListScan, ListScanner};
use crate::signature::{self, Signature};
use crate::tagged_arguments::TaggedReader;

/// The way in which a reply ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplyEnd {
    /// The model ended it, so what is incomplete is broken.
    Stopped,
    /// A limit ended it, or the reason is unknown.
    Cut,
}

#[derive(Debug, Clone)]
enum State {
    Text,
    /// The buffer begins with an opening mark.
    Opened,
    /// The buffer begins with a JSON object that may be a call, or with white space or a comma before it.
    Object {
        reader: CallReader,
        in_list: bool,
    },
    /// The buffer begins with a Python list that may hold calls.
    PythonList(ListScanner),
    /// In the arguments of a call whose name preceded them.
    Arguments(ArgumentsReader),
    AfterCall {
        in_list: bool,
    },
    /// After a closing mark, which others may follow.
    Closed,
    /// In an item of a list of calls that is not a call. The item is text, and the list continues after it.
    TextItem(Scanner),
}

/// Reads the arguments of a call whose name preceded them.
#[derive(Debug, Clone)]
enum ArgumentsReader {
    Json(LenientScanner),
    Tagged(Box<TaggedReader>),
}

impl ArgumentsReader {
    /// Continues with `text`, which is the text of the last call with more appended, and appends JSON to `out`.
    fn read(&mut self, text: &str, out: &mut String) -> Scan {
        match self {
            Self::Json(scanner) => scanner.read(text, out),
            Self::Tagged(reader) => reader.read(text, out),
        }
    }
}

/// Separates calls from the text around them.
#[derive(Debug, Clone)]
pub struct ToolCallParser {
    format: ToolFormat,
    /// The marks that begin calls.
    marks: &'static [&'static str],
    tools: Vec<Signature>,
    state: State,
    /// Text held back. It begins with the possible call while one is being read.
    buffer: String,
    /// White space at the end of the text so far. It is dropped before a call, and at the end of a reply with calls.
    trailing_space: String,
    /// Set until anything but white space is read.
    at_start: bool,
    has_calls: bool,
    /// True if an opening mark preceded the possible call.
    is_marked: bool,
    /// The end of the reply, if the buffer holds all of it.
    complete: Option<ReplyEnd>,
}

impl ToolCallParser {
    /// Creates a parser of calls of `tools` in the content of a reply.
    pub fn new(format: ToolFormat, tools: Vec<Signature>) -> Self {
        Self {
            format,
            marks: format.opening_marks(),
            tools,
            state: State::Text,
            buffer: String::new(),
            trailing_space: String::new(),
            at_start: true,
            has_calls: false,
            is_marked: false,
            complete: None,
        }
    }

    /// Creates a parser of calls in reasoning, where each has a mark. Returns `None` if the format has no such calls.
    pub fn in_reasoning(format: ToolFormat, tools: Vec<Signature>) -> Option<Self> {
        let marks = format.syntax.marks_in_reasoning;
        (!marks.is_empty()).then(|| Self { marks, at_start: false, ..Self::new(format, tools) })
    }

    /// Announces that the next text is the complete reply. A call whose arguments are not valid JSON is then text.
    pub fn expect_complete_reply(&mut self, end: ReplyEnd) {
        self.complete = Some(end);
    }

    /// Parses the next chunk of text and appends the pieces that are certain.
    pub fn push(&mut self, text: &str, out: &mut Vec<Piece>) {
        self.buffer.push_str(text);
        while self.advance(out) {}
    }

    /// Ends the reply and appends the pieces of the text that was held back.
    pub fn finish(&mut self, out: &mut Vec<Piece>) {
        loop {
            match &self.state {
                State::Text => break,
                State::Arguments(_) => self.end_cut_call(out),
                State::Object { reader, .. } if reader.has_begun() => self.end_cut_call(out),
                State::AfterCall { .. } | State::Closed => {
                    let rest = self.without_extra_brackets(self.buffer.trim());
                    if self.format.syntax.closing_marks.iter().any(|mark| mark.starts_with(rest)) {
                        self.buffer.clear();
                    }
                    self.state = State::Text;
                }
                State::TextItem(_) => self.state = State::Text,
                State::Opened | State::Object { .. } | State::PythonList(_) => {
                    self.reject_call(out);
                    while self.advance(out) {}
                }
            }
        }
        let rest = std::mem::take(&mut self.buffer);
        self.push_text(&rest, out);
        if !self.has_calls {
            push_nonempty(&self.trailing_space, Piece::Text, out);
        }
        self.trailing_space.clear();
    }

    /// Takes one step, and returns whether another is possible without more text.
    fn advance(&mut self, out: &mut Vec<Piece>) -> bool {
        match &mut self.state {
            State::Text => self.find_start(out),
            State::Opened => self.open(out),
            State::PythonList(scanner) => match scanner.read(&self.buffer) {
                ListScan::Incomplete if python_calls::may_be_calls(self.unmarked(), &self.tools) => false,
                ListScan::Incomplete | ListScan::NotAList => self.reject_call(out),
                ListScan::Complete(end) => self.read_python_list(end, out),
            },
            State::Object { .. } => self.read_object(out),
            State::Arguments(reader) => {
                let mut arguments = String::new();
                let scan = reader.read(&self.buffer, &mut arguments);
                push_nonempty(&arguments, Piece::Arguments, out);
                let (Scan::Complete(end) | Scan::Invalid(end)) = scan else { return false };
                out.push(Piece::CallEnd);
                self.leave_call(end, false)
            }
            State::TextItem(scanner) => match scanner.feed(self.buffer.as_bytes()) {
                Scan::Incomplete => {
                    self.take_text(self.buffer.len(), out);
                    false
                }
                Scan::Complete(len) => {
                    self.take_text(len, out);
                    self.state = State::AfterCall { in_list: true };
                    true
                }
                Scan::Invalid(len) => {
                    self.take_text(len, out);
                    self.state = State::Text;
                    true
                }
            },
            State::AfterCall { in_list } => {
                let in_list = *in_list;
                self.read_after_call(in_list)
            }
            State::Closed => self.read_closing_mark(),
        }
    }

    /// Looks for the start of a call, and releases the text before it.
    fn find_start(&mut self, out: &mut Vec<Piece>) -> bool {
        self.is_marked = false;
        if self.at_start && self.format.syntax.allows_unmarked_calls {
            let text = self.buffer.trim_start();
            if text.is_empty() {
                return false;
            }
            let offset = self.buffer.len() - text.len();
            match (self.format.syntax.read_start)(text, &self.tools) {
                CallStart::NotACall => self.at_start = false,
                start => return self.begin(offset, start, out),
            }
        }
        let marks = self.marks;
        if let Some((at, _)) = first_mark(&self.buffer, marks) {
            self.take_text(at, out);
            self.state = State::Opened;
            return true;
        }
        self.take_text(self.buffer.len() - held_len(&self.buffer, marks), out);
        false
    }

    /// Decides what follows an opening mark.
    fn open(&mut self, out: &mut Vec<Piece>) -> bool {
        self.is_marked = true;
        let text = self.unmarked().trim_start();
        if text.is_empty() {
            return false;
        }
        let offset = self.buffer.len() - text.len();
        let start = (self.format.syntax.read_start)(text, &self.tools);
        self.begin(offset, start, out)
    }

    /// Enters what begins at the byte `offset` of the buffer.
    fn begin(&mut self, offset: usize, start: CallStart, out: &mut Vec<Piece>) -> bool {
        match start {
            CallStart::Undecided => false,
            CallStart::NotACall => self.reject_call(out),
            CallStart::Object => self.enter_object(offset, false),
            CallStart::ObjectList => self.enter_object(offset + 1, true),
            CallStart::PythonList => {
                self.state = State::PythonList(ListScanner::new(offset));
                true
            }
            CallStart::PythonLines => {
                self.state = State::PythonList(ListScanner::new_lines(offset, b'<'));
                true
            }
            CallStart::Named { name, arguments_at } => {
                let scanner = LenientScanner::new(offset + arguments_at);
                self.begin_named(name, ArgumentsReader::Json(scanner), out)
            }
            CallStart::Tagged { name, arguments_at, tags } => {
                let Some(tool) = self.tools.iter().find(|tool| tool.name() == name) else { return false };
                let reader = TaggedReader::new(tags, tool.clone(), offset + arguments_at);
                self.begin_named(name, ArgumentsReader::Tagged(Box::new(reader)), out)
            }
        }
    }

    fn begin_named(&mut self, name: String, reader: ArgumentsReader, out: &mut Vec<Piece>) -> bool {
        if let Some(end) = self.complete {
            let is_broken = match reader.clone().read(&self.buffer, &mut String::new()) {
                Scan::Invalid(_) => true,
                Scan::Incomplete => end == ReplyEnd::Stopped,
                Scan::Complete(_) => false,
            };
            if is_broken {
                return self.reject_call(out);
            }
        }
        out.push(Piece::CallBegin { name });
        self.note_call();
        self.state = State::Arguments(reader);
        true
    }

    fn enter_object(&mut self, at: usize, in_list: bool) -> bool {
        self.state = State::Object { reader: CallReader::new(at, self.is_marked), in_list };
        true
    }

    fn read_object(&mut self, out: &mut Vec<Piece>) -> bool {
        let State::Object { reader, in_list } = &mut self.state else { return false };
        let in_list = *in_list;
        let tools = &self.tools;
        let mut pieces = Vec::new();
        let scan = reader.read(&self.buffer, &|name| signature::is_known(tools, name), &mut pieces);
        let is_rejected = match scan {
            CallScan::NotACall => true,
            CallScan::Invalid(_) => self.complete.is_some(),
            CallScan::Incomplete => self.complete == Some(ReplyEnd::Stopped) && reader.is_in_arguments(),
            CallScan::Complete(_) => false,
        };
        if is_rejected {
            return self.reject_call(out);
        }
        if reader.has_begun() {
            self.note_call();
        }
        out.append(&mut pieces);
        match scan {
            CallScan::Complete(end) | CallScan::Invalid(end) => self.leave_call(end, in_list),
            CallScan::Incomplete | CallScan::NotACall => false,
        }
    }

    fn read_python_list(&mut self, end: usize, out: &mut Vec<Piece>) -> bool {
        let list = self.buffer[..end].trim_start_matches(self.format.opening_marks()[0]);
        let calls = python_calls::parse(list).filter(|calls| {
            !calls.is_empty() && calls.iter().all(|(name, _)| signature::is_known(&self.tools, name))
        });
        let Some(calls) = calls else { return self.reject_call(out) };
        for (name, arguments) in calls {
            out.push(Piece::CallBegin { name });
            out.push(Piece::Arguments(arguments));
            out.push(Piece::CallEnd);
        }
        self.note_call();
        self.leave_call(end, false)
    }

    fn read_after_call(&mut self, in_list: bool) -> bool {
        let rest = self.buffer.trim_start();
        let offset = self.buffer.len() - rest.len();
        let Some(first) = rest.chars().next() else { return false };
        match (first, in_list) {
            (',', true) => return self.enter_object(offset + 1, true),
            (']', true) => {
                self.buffer.drain(..=offset);
                self.state = State::AfterCall { in_list: false };
                return true;
            }
            ('{', false) => return self.enter_object(offset, false),
            (separator, false) if self.format.syntax.separators.contains(&separator) => {
                return self.enter_object(offset + 1, false);
            }
            _ => {}
        }
        self.read_closing_mark()
    }

    /// Drops the closing mark that the buffer begins with, after white space and surplus brackets. What follows the
    /// last mark is text.
    fn read_closing_mark(&mut self) -> bool {
        let marks = self.format.syntax.closing_marks;
        let rest = self.without_extra_brackets(self.buffer.trim_start());
        if let Some(mark) = marks.iter().find(|mark| rest.starts_with(**mark)) {
            self.buffer.drain(..self.buffer.len() - rest.len() + mark.len());
            self.state = State::Closed;
        } else if marks.iter().any(|mark| mark.starts_with(rest)) {
            return false;
        } else {
            self.state = State::Text;
        }
        true
    }

    /// Records that the reply has a call. The white space before the call is dropped.
    fn note_call(&mut self) {
        self.at_start = false;
        self.has_calls = true;
        self.trailing_space.clear();
    }

    fn leave_call(&mut self, end: usize, in_list: bool) -> bool {
        self.buffer.drain(..end);
        self.state = State::AfterCall { in_list };
        true
    }

    /// Ends a call at the end of the reply. Its arguments were sent as they came.
    fn end_cut_call(&mut self, out: &mut Vec<Piece>) {
        out.push(Piece::CallEnd);
        self.buffer.clear();
        self.state = State::Text;
    }

    /// Removes surplus closing brackets after a call, if a closing mark is to follow.
    fn without_extra_brackets<'a>(&self, rest: &'a str) -> &'a str {
        if self.is_marked {
            rest.trim_start_matches(|c: char| matches!(c, '}' | ']') || c.is_whitespace())
        } else {
            rest
        }
    }

    /// If the buffer begins with `,` and an object, drops the comma, treats the object as text and returns true.
    fn enter_text_item(&mut self) -> bool {
        let after_comma = self.buffer.trim_start().strip_prefix(',');
        // Only what `CallReader` skips: other white space ends the list before the `{` may have come.
        let item = after_comma.map(|text| text.trim_start_matches(|c: char| c.is_ascii_whitespace()));
        let Some(item) = item.filter(|item| item.starts_with('{')) else { return false };
        self.buffer.drain(..self.buffer.len() - item.len());
        self.state = State::TextItem(Scanner::default());
        true
    }

    /// Treats the first mark or character of the buffer as text, because no call begins there.
    fn reject_call(&mut self, out: &mut Vec<Piece>) -> bool {
        if matches!(self.state, State::Object { in_list: true, .. }) && self.enter_text_item() {
            return true;
        }
        self.at_start = false;
        self.state = State::Text;
        let mark_len = self.buffer.len() - self.unmarked().len();
        let num_spaces = self.buffer.len() - self.buffer.trim_start().len();
        let first = self.buffer[num_spaces..].chars().next().map_or(0, char::len_utf8);
        self.take_text(if mark_len > 0 { mark_len } else { num_spaces + first }, out);
        true
    }

    /// Returns the buffer without the opening mark that it may begin with.
    fn unmarked(&self) -> &str {
        let mut marks = self.marks.iter();
        marks.find_map(|mark| self.buffer.strip_prefix(mark)).unwrap_or(&self.buffer)
    }

    fn take_text(&mut self, len: usize, out: &mut Vec<Piece>) {
        let text: String = self.buffer.drain(..len).collect();
        self.push_text(&text, out);
    }

    fn push_text(&mut self, text: &str, out: &mut Vec<Piece>) {
        let trimmed = text.trim_end();
        if trimmed.is_empty() {
            self.trailing_space.push_str(text);
            return;
        }
        let spaces = std::mem::replace(&mut self.trailing_space, text[trimmed.len()..].to_owned());
        push_nonempty(&(spaces + trimmed), Piece::Text, out);
    }
}
