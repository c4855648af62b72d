//! The spellings of bytes in vocabularies.

/// Returns the character that stands for a byte in a byte-level vocabulary.
///
/// This is GPT-2's alphabet (`bytes_to_unicode` in <https://github.com/openai/gpt-2/blob/master/src/encoder.py>).
/// Printable Latin-1 characters stand for themselves, and the other 68 bytes are numbered from U+0100 on.
pub fn char_of_byte(byte: u8) -> char {
    match byte {
        b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff => char::from(byte),
        0..=0x20 => char_at(0x100 + u32::from(byte)),
        0x7f..=0xa0 => char_at(0x121 + u32::from(byte) - 0x7f),
        0xad => char_at(0x143),
    }
}

/// Returns the byte that a character stands for. This is the inverse of `char_of_byte`.
pub fn byte_of_char(char: char) -> Option<u8> {
    let code = u32::from(char);
    let byte = match code {
        0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff => code,
        0x100..=0x120 => code - 0x100,
        0x121..=0x142 => code - 0x121 + 0x7f,
        0x143 => 0xad,
        _ => return None,
    };
    u8::try_from(byte).ok()
}

fn char_at(code: u32) -> char {
    char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER)
}

/// Returns the bytes of a byte-level vocabulary's token. A token outside the alphabet stands for itself.
pub fn byte_level_bytes(token: &str) -> Vec<u8> {
    token.chars().map(byte_of_char).collect::<Option<Vec<u8>>>().unwrap_or_else(|| token.as_bytes().to_vec())
}

/// Spells a token of a byte-level vocabulary in the alphabet. The file may spell it as plain text.
pub fn byte_level_spelling(token: &str) -> String {
    if token.chars().all(|c| byte_of_char(c).is_some()) {
        token.to_owned()
    } else {
        token.bytes().map(char_of_byte).collect()
    }
}

/// Parses a SentencePiece byte token such as `<0x0A>`.
pub fn byte_token(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    if digits.len() != 2 || !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    u8::from_str_radix(digits, 16).ok()
}

pub fn sentence_piece_bytes(token: &str) -> Vec<u8> {
    match byte_token(token) {
        Some(byte) => vec![byte],
        None => token.replace('▁', " ").into_bytes(),
    }
}
