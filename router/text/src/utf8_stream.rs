//! Decodes UTF-8 that arrives in pieces.

/// Most bytes of an incomplete character.
pub const MAX_INCOMPLETE_BYTES: usize = 3;

/// Turns bytes into text as they arrive.
///
/// The concatenated text equals `String::from_utf8_lossy` of all bytes: each maximal prefix of a character that cannot
/// be completed becomes one U+FFFD (Unicode 16, section 3.9).
#[derive(Debug, Clone, Default)]
pub struct Utf8Stream {
    /// The beginning of a character that later bytes may complete. At most `MAX_INCOMPLETE_BYTES` long.
    pub incomplete: Vec<u8>,
}

impl Utf8Stream {
    /// Decodes the next bytes, and appends the text that no later byte can change.
    pub fn push(&mut self, bytes: &[u8], out: &mut String) {
        if self.incomplete.is_empty() {
            self.decode(bytes, out);
        } else {
            let mut joined = std::mem::take(&mut self.incomplete);
            joined.extend_from_slice(bytes);
            self.decode(&joined, out);
        }
    }

    /// Ends the stream, and appends U+FFFD if a character is incomplete.
    pub fn finish(&mut self, out: &mut String) {
        if !self.incomplete.is_empty() {
            self.incomplete.clear();
            out.push(char::REPLACEMENT_CHARACTER);
        }
    }

    fn decode(&mut self, mut bytes: &[u8], out: &mut String) {
        loop {
            let error = match std::str::from_utf8(bytes) {
                Ok(text) => return out.push_str(text),
                Err(error) => error,
            };
            let (valid, rest) = bytes.split_at(error.valid_up_to());
            // These bytes are valid, so nothing is replaced and the text is borrowed.
            out.push_str(&String::from_utf8_lossy(valid));
            match error.error_len() {
                Some(num_invalid) => {
                    out.push(char::REPLACEMENT_CHARACTER);
                    bytes = &rest[num_invalid..];
                }
                None => {
                    debug_assert!(rest.len() <= MAX_INCOMPLETE_BYTES);
                    self.incomplete.extend_from_slice(rest);
                    return;
                }
            }
        }
    }
}
