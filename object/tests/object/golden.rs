//! The bytes of an object, written down from the description in `format.rs`.

use bytes::Bytes;
use trunkline_contract::BlockKey;
use trunkline_object::format::FORMAT_VERSION;
use trunkline_object::{Block, BlockShape};

/// The block's bytes follow it.
const HEADER: &str = "54524e4b4f424a0a01000000040000000100000004000000640000000000000004000000616231320000000000000000000000000000\
    00000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000cbf06f62e3d5936d\
    17f722db26f70520993b49c2260469ce0590bcff7dcda6eee0b63c9954c066b808337758b40405791ec03ef0a50bb229f36695fd16ef\
    95da010000000200000003000000701101007650891a1949ae62";

#[test]
fn objects_of_format_version_1_are_read_and_written_byte_for_byte() {
    let hint = "hint: objects of older servers are not read any more; raise `format::FORMAT_VERSION`, and record the \
                bytes here again";
    assert_eq!(FORMAT_VERSION, 1, "record the bytes here again");
    let shape = BlockShape { fingerprint: "ab12".to_owned(), block_size: 4, block_bytes: 100 };
    let root = BlockKey::root(["tenant"].into_iter());
    let parent = root.extend(&[9, 9, 9, 9]);
    let token_ids = vec![1, 2, 3, 70_000];
    let key = parent.extend(&token_ids);
    let block = Block { key, parent, root, depth: 1, token_ids, bytes: (0..100).collect::<Vec<u8>>().into() };

    let header: String = shape.header(&block).iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(header, HEADER, "{hint}");
    let byte = |index: usize| u8::from_str_radix(&HEADER[index..index + 2], 16).unwrap();
    let object: Vec<u8> = (0..HEADER.len()).step_by(2).map(byte).chain(0..100).collect();
    let read = shape.read(&Bytes::from(object), key, root).unwrap_or_else(|error| panic!("{error}; {hint}"));
    assert_eq!(read, block, "{hint}");
}
