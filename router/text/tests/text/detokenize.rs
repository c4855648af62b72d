//! Streaming bytes gives the same text as lossy decoding of the whole.

use proptest::prelude::*;

use trunkline_text::parts::{MAX_INCOMPLETE_BYTES, Utf8Stream};

/// Generates bytes that are often, but not always, parts of valid characters.
fn bytes() -> impl Strategy<Value = Vec<u8>> {
    let character =
        prop::sample::select(vec!["a", "é", "€", "🙂", "\u{10ffff}"]).prop_map(|c| c.as_bytes().to_vec());
    let broken = (prop::sample::select(vec!["é", "€", "🙂"]), 1usize..3)
        .prop_map(|(c, len)| c.as_bytes()[..len.min(c.len() - 1)].to_vec());
    let any = prop::collection::vec(any::<u8>(), 1..3);
    prop::collection::vec(prop_oneof![4 => character, 1 => broken, 1 => any], 0..12)
        .prop_map(|parts| parts.concat())
}

proptest! {
    #![proptest_config(crate::support::drawn(3_000))]

    #[test]
    fn joined_pieces_equal_lossy_decoding(bytes in bytes(), cuts in prop::collection::vec(any::<bool>(), 64)) {
        let mut stream = Utf8Stream::default();
        let mut out = String::new();
        let mut start = 0;
        for end in 1..=bytes.len() {
            if end == bytes.len() || cuts[end % cuts.len()] {
                stream.push(&bytes[start..end], &mut out);
                prop_assert!(stream.incomplete.len() <= MAX_INCOMPLETE_BYTES);
                start = end;
            }
        }
        stream.finish(&mut out);
        prop_assert_eq!(out, String::from_utf8_lossy(&bytes));
    }
}
