//! Server-sent events, cut out of the bytes of a stream.

/// Most bytes of an event. A longer one ends its stream.
pub const MAX_EVENT_BYTES: usize = 16 << 20;

/// An event is longer than [`MAX_EVENT_BYTES`].
#[derive(Debug, PartialEq, Eq)]
pub struct TooLong;

/// Splits a stream, in whatever pieces it comes, into the data of its events. Comments and other fields are left out.
///
/// Each line with data is an event of its own: servers of the OpenAI API send no event of several lines.
#[derive(Debug, Default)]
pub struct Splitter {
    /// The beginning of a line that has not ended.
    rest: Vec<u8>,
}

impl Splitter {
    /// Calls `on_data` with the data of each event that ends in `bytes`.
    pub fn push(&mut self, bytes: &[u8], mut on_data: impl FnMut(&[u8])) -> Result<(), TooLong> {
        let mut bytes = bytes;
        while let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
            let (line, after) = (&bytes[..end], &bytes[end + 1..]);
            if self.rest.is_empty() {
                data(line, &mut on_data);
            } else {
                self.rest.extend_from_slice(line);
                data(&self.rest, &mut on_data);
                self.rest.clear();
            }
            bytes = after;
        }
        if self.rest.len() + bytes.len() > MAX_EVENT_BYTES {
            return Err(TooLong);
        }
        self.rest.extend_from_slice(bytes);
        Ok(())
    }
}

fn data(line: &[u8], on_data: &mut impl FnMut(&[u8])) {
    if let Some(data) = line.strip_prefix(b"data:") {
        on_data(data.trim_ascii());
    }
}
