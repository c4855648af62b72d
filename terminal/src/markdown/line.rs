//! A line of text: emphasis and code in it, and where it breaks.

use unicode_width::UnicodeWidthChar;

use crate::style::Style;

/// A line while it is written. It has been broken where the next word would have ended beyond the width.
#[derive(Debug)]
pub(super) struct Line {
    width: usize,
    colours: bool,
    base: Style,
    /// What the line begins with, until it has been written.
    first: Option<String>,
    /// The beginning of each further row.
    next: String,
    /// Columns of both.
    indent: usize,
    column: usize,
    /// True if a blank precedes the word.
    blank: bool,
    word: Vec<(char, Style)>,
    word_width: usize,
    style: Style,
    /// The number of backticks that opened code.
    code: Option<usize>,
    /// A run of marks whose meaning the next character decides.
    marks: Option<(char, usize)>,
    /// The character before the run.
    before: Option<char>,
    /// True after a backslash.
    escaped: bool,
}

impl Line {
    /// Begins a line with `first`, which has this many columns.
    pub(super) fn new(width: usize, colours: bool, base: Style, first: &str, columns: usize) -> Self {
        Self {
            width,
            colours,
            base,
            first: Some(first.to_owned()),
            next: " ".repeat(columns),
            indent: columns,
            column: columns,
            blank: false,
            word: Vec::new(),
            word_width: 0,
            style: Style::PLAIN,
            code: None,
            marks: None,
            before: None,
            escaped: false,
        }
    }

    /// Lets each row begin as the first one does.
    pub(super) fn repeating(self) -> Self {
        Self { next: self.first.clone().unwrap_or_default(), ..self }
    }

    /// Takes a character. A newline is the last one.
    pub(super) fn take(&mut self, c: char, out: &mut String) {
        if let Some((mark, count)) = self.marks {
            if c == mark && !self.escaped {
                self.marks = Some((mark, count + 1));
                return;
            }
            self.marks = None;
            self.end_marks(mark, count, Some(c).filter(|c| *c != '\n'), out);
        }
        if std::mem::take(&mut self.escaped) {
            if !c.is_ascii_punctuation() {
                self.add('\\', self.style, out);
            } else {
                return self.add_text(c, out);
            }
        }
        match c {
            '\n' => {
                self.end_word(out);
                self.begin_row(out);
                out.push('\n');
            }
            '`' => self.marks = Some((c, 1)),
            '*' | '_' if self.code.is_none() => self.marks = Some((c, 1)),
            '\\' if self.code.is_none() => self.escaped = true,
            c if c.is_whitespace() => {
                self.end_word(out);
                self.blank = true;
                self.before = Some(' ');
            }
            c => self.add_text(c, out),
        }
    }

    fn add_text(&mut self, c: char, out: &mut String) {
        let style = if self.code.is_some() { self.style.and(Style::CODE) } else { self.style };
        self.add(c, style, out);
        self.before = Some(c);
    }

    /// Decides what a run of marks means, before this character or the line's end.
    fn end_marks(&mut self, mark: char, count: usize, next: Option<char>, out: &mut String) {
        let before = self.before;
        if mark == '`' {
            match self.code {
                None => self.code = Some(count),
                Some(open) if open == count => self.code = None,
                Some(_) => (0..count).for_each(|_| self.add(mark, self.style.and(Style::CODE), out)),
            }
            self.before = Some(mark);
            return;
        }
        let style = match count {
            1 => Style::ITALIC,
            2 => Style::BOLD,
            _ => Style::BOLD.and(Style::ITALIC),
        };
        let is_blank = |c: Option<char>| c.is_none_or(char::is_whitespace);
        let is_word = |c: Option<char>| c.is_some_and(char::is_alphanumeric);
        let is_inside = is_word(before) && is_word(next) && (mark == '_' || count == 1);
        if self.style.has(style) && !is_blank(before) && !is_inside {
            self.style = self.style.without(style);
        } else if count <= 3 && !is_blank(next) && !is_inside && (!is_word(before) || count == 2) {
            self.style = self.style.and(style);
        } else {
            (0..count).for_each(|_| self.add(mark, self.style, out));
        }
        self.before = Some(mark);
    }

    fn add(&mut self, c: char, style: Style, out: &mut String) {
        let columns = c.width().unwrap_or(0);
        // A character of two columns, such as those of Chinese, can stand in the next row by itself.
        if columns == 2 || self.indent + self.word_width + columns > self.width {
            self.end_word(out);
        }
        self.word.push((c, style));
        self.word_width += columns;
        if columns == 2 {
            self.end_word(out);
        }
    }

    fn end_word(&mut self, out: &mut String) {
        if self.word.is_empty() {
            return;
        }
        let blank = usize::from(std::mem::take(&mut self.blank) && self.column > self.indent);
        if self.column + blank + self.word_width > self.width && self.column > self.indent {
            self.begin_row(out);
            out.push('\n');
            *out += &self.next;
            self.column = self.indent;
        } else if blank > 0 {
            out.push(' ');
            self.column += 1;
        }
        self.begin_row(out);
        let word = std::mem::take(&mut self.word);
        for run in word.chunk_by(|(_, one), (_, other)| one == other) {
            let text: String = run.iter().map(|(c, _)| *c).collect();
            *out += &if self.colours { self.base.and(run[0].1).paint(&text) } else { text };
        }
        self.column += std::mem::take(&mut self.word_width);
    }

    /// Writes what the line begins with, if it has not been written.
    fn begin_row(&mut self, out: &mut String) {
        *out += &self.first.take().unwrap_or_default();
    }
}
