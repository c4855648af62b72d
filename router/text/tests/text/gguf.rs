use proptest::prelude::*;

use trunkline_text::{GgufArray, GgufMetadata, GgufValue};

const MAGIC: &[u8; 4] = b"GGUF";

/// Writes GGUF headers for tests.
struct Writer(Vec<u8>);

impl Writer {
    fn header(num_tensors: u64, num_keys: u64) -> Self {
        let mut out = Vec::from(*MAGIC);
        out.extend(3u32.to_le_bytes());
        out.extend(num_tensors.to_le_bytes());
        out.extend(num_keys.to_le_bytes());
        Self(out)
    }

    fn string(mut self, text: &str) -> Self {
        self.0.extend((text.len() as u64).to_le_bytes());
        self.0.extend(text.as_bytes());
        self
    }

    fn u32(mut self, value: u32) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    fn u64(mut self, value: u64) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend(bytes);
        self
    }
}

fn sample() -> Vec<u8> {
    Writer::header(0, 7)
        .string("general.architecture")
        .u32(8)
        .string("llama")
        .string("count")
        .u32(4)
        .u32(7)
        .string("negative")
        .u32(11)
        .bytes(&(-5i64).to_le_bytes())
        .string("eps")
        .u32(12)
        .bytes(&1.5f64.to_le_bytes())
        .string("flag")
        .u32(7)
        .bytes(&[1])
        .string("tokens")
        .u32(9)
        .u32(8)
        .u64(2)
        .string("a")
        .string("é")
        .string("nested")
        .u32(9)
        .u32(9)
        .u64(1)
        .u32(3)
        .u64(2)
        .bytes(&[1, 0, 0xff, 0xff])
        .0
}

fn problem(bytes: &[u8]) -> String {
    GgufMetadata::parse(bytes).unwrap_err().to_string()
}

#[test]
fn reads_every_kind_of_value() {
    let metadata = GgufMetadata::parse(&sample()).unwrap();
    assert_eq!(metadata.get("general.architecture"), Some(&GgufValue::String("llama".into())));
    assert_eq!(metadata.get("count"), Some(&GgufValue::Unsigned(7)));
    assert_eq!(metadata.get("negative"), Some(&GgufValue::Signed(-5)));
    assert_eq!(metadata.get("eps"), Some(&GgufValue::Float(1.5)));
    assert_eq!(metadata.get("flag"), Some(&GgufValue::Bool(true)));
    let tokens = GgufArray::Strings(vec!["a".into(), "é".into()]);
    assert_eq!(metadata.get("tokens"), Some(&GgufValue::Array(tokens)));
    let nested = GgufArray::Arrays(vec![GgufArray::Integers(vec![1, -1])]);
    assert_eq!(metadata.get("nested"), Some(&GgufValue::Array(nested)));
    assert_eq!(metadata.get("absent"), None);
}

#[test]
fn every_truncation_is_a_clear_error() {
    let whole = sample();
    for end in 0..whole.len() {
        let message = problem(&whole[..end]);
        assert!(message.contains("at byte"), "cut at {end}: {message}");
    }
}

#[test]
fn absurd_counts_are_refused_before_allocation() {
    let absurd = 1u64 << 60;
    assert!(problem(&Writer::header(absurd, 0).0).contains("claims 1152921504606846976 tensors"));
    assert!(problem(&Writer::header(0, absurd).0).contains("the limit is 65536"));
    let long_key = Writer::header(0, 1).u64(absurd).bytes(&[0; 32]).0;
    assert!(problem(&long_key).contains("the limit is 65535"));
    let long_text = Writer::header(0, 1).string("k").u32(8).u64(absurd).0;
    assert!(problem(&long_text).contains("the limit is 16777216"));
    let long_text = Writer::header(0, 1).string("k").u32(8).u64(1000).bytes(b"short").0;
    assert!(problem(&long_text).contains("only 5 bytes follow"));
    for element_type in [0, 4, 6, 7, 8, 9, 12] {
        let long_list = Writer::header(0, 1).string("k").u32(9).u32(element_type).u64(absurd).0;
        assert!(problem(&long_list).contains(" array elements, but the limit"));
        let long_list =
            Writer::header(0, 1).string("k").u32(9).u32(element_type).u64(1 << 20).bytes(&[0; 9]).0;
        assert!(problem(&long_list).contains("only 9 bytes follow"));
    }
}

#[test]
fn other_files_are_recognised() {
    assert!(problem(b"PK\x03\x04 and more than that").contains("does not begin with `GGUF`"));
    assert!(problem(b"").contains("the file ends"));
    let mut big_endian = Vec::from(*MAGIC);
    big_endian.extend(3u32.to_be_bytes());
    big_endian.extend([0; 32]);
    assert!(problem(&big_endian).contains("big-endian"));
    let unknown_type = Writer::header(0, 1).string("k").u32(13).u32(0).0;
    assert!(problem(&unknown_type).contains("value type 13 is unknown"));
    let twice = Writer::header(0, 2).string("k").u32(4).u32(1).string("k").u32(4).u32(1).0;
    assert!(problem(&twice).contains("occurs twice"));
    let not_a_bool = Writer::header(0, 1).string("k").u32(7).bytes(&[2]).0;
    assert!(problem(&not_a_bool).contains("a bool is 2"));
    let not_utf8 = Writer::header(0, 1).string("k").u32(8).u64(2).bytes(&[b'a', 0xff]).0;
    assert_eq!(GgufMetadata::parse(&not_utf8).unwrap_err().offset, not_utf8.len() - 1);
}

#[test]
fn deep_nesting_ends() {
    let mut writer = Writer::header(0, 1).string("k").u32(9);
    for _ in 0..10_000 {
        writer = writer.u32(9).u64(1);
    }
    assert!(problem(&writer.0).contains("nested deeper than 4"));
}

proptest! {
    #![proptest_config(crate::support::drawn(2_000))]

    #[test]
    fn damaged_files_never_panic(flips in prop::collection::vec((any::<prop::sample::Index>(), 0u8..8), 1..8)) {
        let mut bytes = sample();
        for (index, bit) in flips {
            let at = index.index(bytes.len());
            bytes[at] ^= 1 << bit;
        }
        let _ = GgufMetadata::parse(&bytes);
    }

    #[test]
    fn arbitrary_metadata_never_panics(num_keys in 0u64..4, rest in prop::collection::vec(any::<u8>(), 0..200)) {
        let bytes = Writer::header(0, num_keys).bytes(&rest).0;
        let _ = GgufMetadata::parse(&bytes);
    }
}
