//! The spellings of bytes in vocabularies.

use trunkline_text::parts::{byte_of_char, byte_token, char_of_byte};

#[test]
fn alphabet_is_a_bijection_that_agrees_with_the_library() {
    let ours: std::collections::BTreeSet<char> = (0..=255).map(char_of_byte).collect();
    let theirs = tokenizers::pre_tokenizers::byte_level::ByteLevel::alphabet().into_iter().collect();
    assert_eq!(ours, theirs);
    for byte in 0..=255 {
        assert_eq!(byte_of_char(char_of_byte(byte)), Some(byte));
    }
}

#[test]
fn byte_tokens_are_exactly_two_hex_digits() {
    assert_eq!(byte_token("<0x0A>"), Some(10));
    assert_eq!(byte_token("<0xff>"), Some(255));
    for other in ["<0x+1>", "<0x1>", "<0x100>", "<0xZZ>", "0x0A", "<0x>", ""] {
        assert_eq!(byte_token(other), None, "{other}");
    }
}
