//! Server-sent events, as the WHATWG describes them, without ids, names and times to wait.

/// Longest line, far above any that a server sends.
const MAX_LINE_BYTES: usize = 16 << 20;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The data of an event; lines are separated by newlines.
    Data(String),
    /// A comment, without the space that may follow its colon.
    Comment(String),
}

/// A line is longer than 16 MiB.
#[derive(Debug, PartialEq, Eq)]
pub struct LineTooLong;

/// Reads a stream in pieces of any size. The events do not depend on how it is cut.
#[derive(Debug, Default)]
pub struct Parser {
    line: Vec<u8>,
    data: Option<String>,
    /// True if the last line ended with a carriage return, after which a newline is part of the same end.
    after_return: bool,
}

impl Parser {
    /// Takes the next bytes, and adds the events that they complete to `events`.
    pub fn push(&mut self, bytes: &[u8], events: &mut Vec<Event>) -> Result<(), LineTooLong> {
        for &byte in bytes {
            let after_return = std::mem::replace(&mut self.after_return, byte == b'\r');
            match byte {
                b'\n' if after_return => {}
                b'\n' | b'\r' => {
                    let line = std::mem::take(&mut self.line);
                    self.end_line(&String::from_utf8_lossy(&line), events);
                }
                _ if self.line.len() == MAX_LINE_BYTES => return Err(LineTooLong),
                byte => self.line.push(byte),
            }
        }
        Ok(())
    }

    fn end_line(&mut self, line: &str, events: &mut Vec<Event>) {
        if line.is_empty() {
            events.extend(self.data.take().map(Event::Data));
            return;
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "" => events.push(Event::Comment(value.to_owned())),
            "data" => match &mut self.data {
                Some(data) => {
                    data.push('\n');
                    data.push_str(value);
                }
                None => self.data = Some(value.to_owned()),
            },
            _ => {}
        }
    }
}
