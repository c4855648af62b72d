//! Separates the messages of a reply in the harmony format, which GPT-OSS writes.
//!
//! ```text
//! <|channel|>analysis<|message|>reasoning<|end|>
//! <|start|>assistant<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{...}<|call|>
//! <|start|>assistant<|channel|>final<|message|>text<|return|>
//! ```
//!
//! The prompt has the `<|start|>assistant` of the first message. A message with a recipient (`to=`) is content together
//! with its header, in which the tool format finds the name.

use crate::marks::{Section, first_mark, held_len};

pub(crate) const START: &str = "<|start|>";
pub(crate) const CHANNEL: &str = "<|channel|>";
pub(crate) const MESSAGE: &str = "<|message|>";
pub(crate) const END: &str = "<|end|>";
/// Precedes a recipient, at the beginning of a header or behind its role or channel.
pub(crate) const RECIPIENT: &str = " to=functions.";
/// The longest header, also in other formats. Names of tools and parameters are much shorter.
pub(crate) const MAX_HEADER_BYTES: usize = 512;

const HEADER_STARTS: [&str; 3] = [START, CHANNEL, RECIPIENT];
/// The marks at which the text of a message ends. A header's marks end it too, and begin the next message.
const BODY_ENDS: [&str; 5] = [END, "<|call|>", "<|return|>", START, CHANNEL];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Channels {
    /// Before the header of a message.
    Header,
    /// In the text of a message that belongs to this section.
    Body(Section),
}

/// The header at the beginning of a text, if there is one.
enum Header {
    Undecided,
    /// No header; this many bytes of the text look like the start of one.
    Missing(usize),
    /// A header of this many bytes, whose message belongs to the section.
    Complete(usize, Section),
}

impl Channels {
    /// Emits the parts of `text` that are certain, and returns the rest. If `content_is_last`, it stops at the text of
    /// the first message that is content, where it emits and holds nothing.
    pub(crate) fn advance<'a>(
        &mut self,
        text: &'a str,
        content_is_last: bool,
        emit: &mut impl FnMut(Section, &str),
    ) -> &'a str {
        let mut rest = text;
        loop {
            match *self {
                Self::Header => match read_header(rest) {
                    Header::Undecided => return rest,
                    Header::Missing(len) => {
                        emit(Section::Content, &rest[..len]);
                        rest = &rest[len..];
                        *self = Self::Body(Section::Content);
                    }
                    Header::Complete(len, section) => {
                        let header = &rest[..len];
                        emit(if header.contains(RECIPIENT) { section } else { Section::Mark }, header);
                        rest = &rest[len..];
                        *self = Self::Body(section);
                    }
                },
                Self::Body(Section::Content) if content_is_last => return rest,
                Self::Body(section) => {
                    let Some((at, mark)) = first_mark(rest, &BODY_ENDS) else {
                        let (certain, held) = rest.split_at(rest.len() - held_len(rest, &BODY_ENDS));
                        emit(section, certain);
                        return held;
                    };
                    emit(section, &rest[..at]);
                    rest = &rest[at..];
                    if !HEADER_STARTS.contains(&mark) {
                        emit(Section::Mark, mark);
                        rest = &rest[mark.len()..];
                    }
                    *self = Self::Header;
                }
            }
        }
    }

    /// Returns the section of text that is held back when the reply ends.
    pub(crate) fn held_section(self) -> Section {
        match self {
            Self::Header => Section::Content,
            Self::Body(section) => section,
        }
    }
}

fn read_header(text: &str) -> Header {
    let Some(start) = HEADER_STARTS.into_iter().find(|start| text.starts_with(start)) else {
        let may_start = HEADER_STARTS.into_iter().any(|start| start.starts_with(text));
        return if may_start { Header::Undecided } else { Header::Missing(0) };
    };
    match text.find(MESSAGE) {
        Some(at) if at <= MAX_HEADER_BYTES => {
            let header = &text[..at];
            let is_reasoning = header.contains("<|channel|>analysis") && !header.contains(RECIPIENT);
            let section = if is_reasoning { Section::Reasoning } else { Section::Content };
            Header::Complete(at + MESSAGE.len(), section)
        }
        None if text.len() <= MAX_HEADER_BYTES + MESSAGE.len() => Header::Undecided,
        _ => Header::Missing(start.len()),
    }
}
