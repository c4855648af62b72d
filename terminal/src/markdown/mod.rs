//! Markdown for a terminal, while it streams.
//!
//! ```text
//! mod      lines: headings, lists, quotes, rules, blocks of code, tables
//! line     a line's words: emphasis, code, and where it breaks
//! table    the columns of a table
//! ```
//!
//! What has been written depends only on the text so far, never on how it was cut. A newline stays a newline, since
//! models write poems and addresses so. What commands a terminal is left out.

mod line;
mod table;

use self::line::Line;
use crate::style::{self, Style};

/// Lists and quotes are indented by at most this part of the width.
const MAX_INDENT: usize = 4;
/// Length of a horizontal rule and of the frame of code.
const MAX_RULE: usize = 60;
/// Longest number of an item, so that a narrow terminal has room beside it.
const MAX_DIGITS: usize = 4;
const BULLET: &str = "• ";
const QUOTE: &str = "│ ";

/// Turns Markdown into lines of at most `width` columns. Lines of code stay as they are, so that they can be copied.
#[derive(Debug)]
pub struct Renderer {
    width: usize,
    colours: bool,
    /// What all text looks like.
    base: Style,
    state: State,
}

#[derive(Debug)]
enum State {
    /// At the beginning of a line, which begins so and may still become anything.
    Undecided(String),
    /// In a line whose kind is known.
    Text(Line),
    Code(Code),
    /// Inside a table, with its lines so far and the one that has begun.
    Table(Vec<String>, String),
}

/// A block of code.
#[derive(Debug)]
struct Code {
    fence: char,
    fence_len: usize,
    /// Blanks before the fence, which the lines of the block have as well.
    indent: usize,
    /// The language, while the first line lasts.
    info: Option<String>,
    /// The beginning of a line that may be the closing fence, or that is left out.
    head: Option<String>,
}

/// What a line is, by its beginning.
#[derive(Debug, PartialEq, Eq)]
enum Kind {
    Blank,
    Heading,
    /// A line of text with this many columns before it.
    Text(usize),
    Item {
        indent: usize,
        /// `None` for a bullet.
        number: Option<String>,
    },
    Quote,
    Rule,
    Fence(char),
    Table,
}

impl Renderer {
    /// Creates a renderer for a terminal with this many columns, of which it uses at least twenty.
    pub fn new(width: usize, colours: bool) -> Self {
        Self { width: width.max(20), colours, base: Style::PLAIN, state: State::Undecided(String::new()) }
    }

    /// Creates one whose text is dimmed.
    pub fn dimmed(width: usize, colours: bool) -> Self {
        Self { base: Style::DIM, ..Self::new(width, colours) }
    }

    /// Takes the next piece of the text and returns what can be written of it.
    pub fn push(&mut self, text: &str) -> String {
        let mut out = String::new();
        for c in text.chars().filter(|c| !style::is_command(*c)) {
            self.take(c, &mut out);
        }
        out
    }

    /// Returns what is left at the end of the text, so that everything written ends with a newline, unless nothing is.
    pub fn finish(mut self) -> String {
        let mut out = String::new();
        let is_open = match &self.state {
            State::Undecided(head) => !head.is_empty(),
            State::Text(_) => true,
            State::Table(_, line) => !line.is_empty(),
            State::Code(code) => {
                code.info.is_some() || code.head.as_ref().is_none_or(|head| !head.is_empty())
            }
        };
        if is_open {
            self.take('\n', &mut out);
        }
        match std::mem::replace(&mut self.state, State::Undecided(String::new())) {
            State::Table(lines, _) => out += &self.table(&lines),
            State::Code(_) => out += &self.frame(""),
            _ => {}
        }
        out
    }

    fn take(&mut self, c: char, out: &mut String) {
        match &mut self.state {
            State::Undecided(head) => {
                if c != '\n' {
                    head.push(c);
                }
                let head = head.clone();
                if let Some(kind) = kind(&head, c == '\n') {
                    self.begin(kind, &head, c == '\n', out);
                }
            }
            State::Text(line) => {
                line.take(c, out);
                if c == '\n' {
                    self.state = State::Undecided(String::new());
                }
            }
            State::Code(code) => {
                if code.take(c, out) {
                    return;
                }
                let info = code.info.take();
                match info {
                    Some(info) => *out += &self.frame(info.trim()),
                    None => {
                        *out += &self.frame("");
                        self.state = State::Undecided(String::new());
                    }
                }
            }
            State::Table(lines, line) if c == '\n' => {
                let line = std::mem::take(line);
                if line.trim_start().starts_with('|') {
                    lines.push(line);
                } else {
                    let lines = std::mem::take(lines);
                    *out += &self.table(&lines);
                    self.state = State::Undecided(String::new());
                    line.chars().chain(['\n']).for_each(|c| self.take(c, out));
                }
            }
            State::Table(_, line) => line.push(c),
        }
    }

    /// Begins a line of which `head` has been read, all of it if `is_whole`.
    fn begin(&mut self, kind: Kind, head: &str, is_whole: bool, out: &mut String) {
        let text = head.trim_start();
        let largest = self.width / MAX_INDENT;
        let line = |first: &str, columns: usize, style: Style| {
            Line::new(self.width, self.colours, self.base.and(style), first, columns)
        };
        let (mut line, rest) = match &kind {
            Kind::Blank => {
                out.push('\n');
                self.state = State::Undecided(String::new());
                return;
            }
            Kind::Rule => {
                *out += &(self.paint(&"─".repeat(self.width.min(MAX_RULE))) + "\n");
                self.state = State::Undecided(String::new());
                return;
            }
            Kind::Table => {
                self.state = State::Table(Vec::new(), head.to_owned());
                if is_whole {
                    self.take('\n', out);
                }
                return;
            }
            Kind::Fence(fence) => {
                let info = text.trim_start_matches(*fence);
                let code = Code {
                    fence: *fence,
                    fence_len: text.len() - info.len(),
                    indent: head.len() - text.len(),
                    info: Some(info.to_owned()),
                    head: Some(String::new()),
                };
                self.state = State::Code(code);
                if is_whole {
                    self.take('\n', out);
                }
                return;
            }
            Kind::Heading => (line("", 0, Style::HEADING), text.trim_start_matches('#').trim_start()),
            Kind::Text(indent) => {
                let indent = *indent.min(&largest);
                (line(&" ".repeat(indent), indent, Style::PLAIN), text)
            }
            Kind::Quote => (line(&self.paint(QUOTE), 2, Style::PLAIN).repeating(), text[1..].trim_start()),
            Kind::Item { indent, number } => {
                let (blanks, mark) = (*indent.min(&largest), number.as_deref().map(|n| format!("{n} ")));
                let mark = mark.unwrap_or(BULLET.to_owned());
                let columns = blanks + mark.chars().count();
                let rest = text.trim_start_matches(|c: char| !c.is_whitespace()).trim_start();
                (line(&(" ".repeat(blanks) + &self.paint(&mark)), columns, Style::PLAIN), rest)
            }
        };
        rest.chars().for_each(|c| line.take(c, out));
        self.state = State::Text(line);
        if is_whole {
            self.take('\n', out);
        }
    }

    fn table(&self, lines: &[String]) -> String {
        match table::render(lines, self.width, |text| self.paint(text)) {
            Some(text) => text,
            None => {
                let mut out = String::new();
                for text in lines {
                    let mut line = Line::new(self.width, self.colours, self.base, "", 0);
                    text.chars().chain(['\n']).for_each(|c| line.take(c, &mut out));
                }
                out
            }
        }
    }

    /// Returns the line above or below code.
    fn frame(&self, info: &str) -> String {
        let width = self.width.min(MAX_RULE);
        let info: String = info.chars().take(width.saturating_sub(8)).collect();
        let line = if info.is_empty() { "─".repeat(width) } else { format!("── {info} ") };
        let used = unicode_width::UnicodeWidthStr::width(line.as_str());
        self.paint(&(line + &"─".repeat(width.saturating_sub(used)))) + "\n"
    }

    fn paint(&self, text: &str) -> String {
        if self.colours { Style::DIM.paint(text) } else { text.to_owned() }
    }
}

impl Code {
    /// Takes a character of the block; returns false at the end of its first line, and of its last one.
    fn take(&mut self, c: char, out: &mut String) -> bool {
        if let Some(info) = &mut self.info {
            if c != '\n' {
                info.push(c);
            }
            return c != '\n';
        }
        let Some(head) = &mut self.head else {
            out.push(c);
            if c == '\n' {
                self.head = Some(String::new());
            }
            return true;
        };
        if c == '\n' {
            let mark = head.trim();
            if mark.len() >= self.fence_len && mark.chars().all(|c| c == self.fence) {
                return false;
            }
        }
        head.push(c);
        // Still blanks and marks: this may become the closing fence.
        if c != '\n' && head.trim_start().chars().all(|c| c == self.fence || c == ' ') {
            return true;
        }
        let blanks = head.len() - head.trim_start_matches(' ').len();
        *out += &head[blanks.min(self.indent)..];
        self.head = (c == '\n').then(String::new);
        true
    }
}

/// Returns what a line is that begins with `head`, or is all of it if `is_whole`; `None` if that is still open.
fn kind(head: &str, is_whole: bool) -> Option<Kind> {
    let text = head.trim_start();
    let indent = head.len() - text.len();
    let Some(first) = text.chars().next() else {
        return is_whole.then_some(Kind::Blank);
    };
    let run = text.chars().take_while(|c| *c == first).count();
    let after = text.chars().nth(run);
    let (is_blank, is_end) = (after.is_some_and(char::is_whitespace), after.is_none());
    let open = is_end && !is_whole;
    let plain = Some(Kind::Text(indent));
    match first {
        '`' | '~' if open => None,
        '`' | '~' if run >= 3 => Some(Kind::Fence(first)),
        '#' if run <= 6 && (is_blank || is_end) => (!open).then_some(Kind::Heading),
        '-' | '*' | '_' if open => None,
        '-' | '*' | '_' if is_whole && is_rule(text, first) => Some(Kind::Rule),
        '-' | '*' | '+' if run == 1 && is_blank => Some(Kind::Item { indent, number: None }),
        '+' if open && run == 1 => None,
        '>' => Some(Kind::Quote),
        '|' => Some(Kind::Table),
        '0'..='9' => {
            let digits: String = text.chars().take_while(char::is_ascii_digit).collect();
            let mut rest = text[digits.len()..].chars();
            match (rest.next(), rest.next()) {
                (None, _) if !is_whole && digits.len() <= MAX_DIGITS => None,
                (Some('.' | ')'), None) if !is_whole && digits.len() <= MAX_DIGITS => None,
                (Some(mark @ ('.' | ')')), Some(' ')) if digits.len() <= MAX_DIGITS => {
                    Some(Kind::Item { indent, number: Some(format!("{digits}{mark}")) })
                }
                _ => plain,
            }
        }
        _ => plain,
    }
}

/// Returns true if the line consists of at least three of these marks.
fn is_rule(text: &str, mark: char) -> bool {
    let text = text.trim_end();
    text.chars().count() >= 3 && text.chars().all(|c| c == mark)
}
