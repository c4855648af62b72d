//! Asks for one reply and writes it while it comes.

use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use crate::client::Endpoint;
use crate::conversation::Conversation;
use crate::error::Error;
use crate::markdown::Renderer;
use crate::reply::{Piece, Reply};
use crate::sse::Event;
use crate::status::StatusLine;
use crate::style::Style;

/// How often a wait looks for Ctrl-C, and the status line is renewed.
const TICK: Duration = Duration::from_millis(100);
/// A wait for the first token that needs no explanation.
const SHORT_WAIT: Duration = Duration::from_secs(1);

/// How a reply ended.
#[derive(Debug)]
pub enum Ended {
    Whole,
    /// By Ctrl-C.
    Stopped,
    Failed(Error),
}

/// The form in which replies are written.
#[derive(Debug, Clone, Copy)]
pub enum Form {
    /// For a person: Markdown is rendered, and reasoning and calls are shown.
    Rendered { columns: usize, colours: bool },
    /// For a program: the text, as it comes.
    Raw,
}

/// Gets the reply to a conversation, and writes it to `out`. `stop` is set by Ctrl-C.
pub fn talk(
    endpoint: &Endpoint,
    conversation: &Conversation,
    form: Form,
    out: &mut impl Write,
    stop: &AtomicBool,
) -> Result<(Reply, Ended), Error> {
    let begin = Instant::now();
    let stream = endpoint.stream(conversation.request().to_string());
    let (mut reply, mut writer, mut status) = (Reply::default(), Writer::new(form), StatusLine::new());
    let mut explained = begin;
    let ended = loop {
        if stop.swap(false, Ordering::Relaxed) {
            break Ended::Stopped;
        }
        let pieces = match stream.events.recv_timeout(TICK) {
            Ok(Ok(Event::Data(data))) => match reply.add(&data, begin.elapsed()) {
                Ok(pieces) => pieces,
                Err(problem) => {
                    break Ended::Failed(Error::Foreign { url: endpoint.url.clone(), problem });
                }
            },
            Ok(Ok(Event::Comment(text))) => {
                if reply.is_empty() && !text.is_empty() {
                    explained = Instant::now();
                    status.set(&text);
                }
                continue;
            }
            Ok(Err(error)) => break Ended::Failed(with_progress(error, &reply)),
            Err(RecvTimeoutError::Timeout) => {
                // Comments come each second.
                if reply.is_empty() && explained.elapsed() > 2 * SHORT_WAIT {
                    status.set(&format!("waiting for the first token, for {} s", begin.elapsed().as_secs()));
                }
                continue;
            }
            Err(RecvTimeoutError::Disconnected) if reply.finish_reason.is_some() => break Ended::Whole,
            Err(RecvTimeoutError::Disconnected) => {
                let reason = "the stream ended too soon".to_owned();
                break Ended::Failed(with_progress(
                    Error::Lost { url: endpoint.url.clone(), received: 0, reason },
                    &reply,
                ));
            }
        };
        if !pieces.is_empty() {
            status.clear();
        }
        if let Some(ended) = writer.write(pieces, endpoint, out).map_err(Error::Output)? {
            break ended;
        }
    };
    status.clear();
    writer.finish(out).map_err(Error::Output)?;
    Ok((reply, ended))
}

/// Adds how much of the reply had come when the connection was lost.
fn with_progress(error: Error, reply: &Reply) -> Error {
    match error {
        Error::Lost { url, reason, .. } => Error::Lost { url, received: reply.text.chars().count(), reason },
        error => error,
    }
}

/// The part of a reply that is being written.
enum Part {
    Nothing,
    Reasoning(Renderer),
    Text(Renderer),
    Call,
}

struct Writer {
    form: Form,
    part: Part,
    /// True if the last raw text did not end with a newline.
    is_open: bool,
}

impl Writer {
    fn new(form: Form) -> Self {
        Self { form, part: Part::Nothing, is_open: false }
    }

    /// Writes what an event says; returns how the reply ended, if it did.
    fn write(
        &mut self,
        pieces: Vec<Piece>,
        endpoint: &Endpoint,
        out: &mut impl Write,
    ) -> std::io::Result<Option<Ended>> {
        for piece in pieces {
            match piece {
                Piece::Done => return Ok(Some(Ended::Whole)),
                Piece::Failed(message) => {
                    return Ok(Some(Ended::Failed(Error::Failed { url: endpoint.url.clone(), message })));
                }
                piece => self.write_piece(&piece, out)?,
            }
        }
        out.flush()?;
        Ok(None)
    }

    fn write_piece(&mut self, piece: &Piece, out: &mut impl Write) -> std::io::Result<()> {
        let Form::Rendered { columns, colours } = self.form else {
            if let Piece::Text(text) = piece {
                self.is_open = !text.ends_with('\n');
                out.write_all(text.as_bytes())?;
            }
            return Ok(());
        };
        let is_same = matches!(
            (&self.part, piece),
            (Part::Reasoning(_), Piece::Reasoning(_))
                | (Part::Text(_), Piece::Text(_))
                | (Part::Call, Piece::Arguments(_))
        );
        if !is_same {
            self.end_part(out)?;
            self.part = match piece {
                Piece::Reasoning(_) => Part::Reasoning(Renderer::dimmed(columns, colours)),
                Piece::Text(_) => Part::Text(Renderer::new(columns, colours)),
                _ => Part::Call,
            };
        }
        let paint = |style: Style, text: &str| {
            let text = crate::style::harmless(text);
            if colours { style.paint(&text) } else { text }
        };
        let text = match (&mut self.part, piece) {
            (
                Part::Reasoning(renderer) | Part::Text(renderer),
                Piece::Reasoning(text) | Piece::Text(text),
            ) => renderer.push(text),
            (_, Piece::Call(name)) => format!("{} ", paint(Style::BOLD, &format!("calls {name}"))),
            (_, Piece::Arguments(text)) => paint(Style::CODE, text),
            _ => String::new(),
        };
        out.write_all(text.as_bytes())
    }

    /// Ends what is being written with a newline.
    fn end_part(&mut self, out: &mut impl Write) -> std::io::Result<()> {
        match std::mem::replace(&mut self.part, Part::Nothing) {
            Part::Nothing => Ok(()),
            Part::Call => out.write_all(b"\n"),
            Part::Text(renderer) => out.write_all(renderer.finish().as_bytes()),
            Part::Reasoning(renderer) => {
                out.write_all(renderer.finish().as_bytes())?;
                out.write_all(b"\n")
            }
        }
    }

    fn finish(mut self, out: &mut impl Write) -> std::io::Result<()> {
        self.end_part(out)?;
        if self.is_open {
            out.write_all(b"\n")?;
        }
        out.flush()
    }
}
