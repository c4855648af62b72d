//! The bytes of a store's files and of an archive, written down from the description in `layout.rs`.

use std::fs;

use trunkline_contract::BlockKey;
use trunkline_store::layout::FORMAT_VERSION;
use trunkline_store::{Geometry, Store, StoredBlock, export};

const BLOCK: &[u8; 24] = b"K and V of four tokens..";
const HEADER_BYTES: usize = 4096;
const RECORD_BYTES: usize = 512;
const SLOT_BYTES: usize = 4096;

/// The header of a store with two slots.
const STORE_HEADER: &str = "54524e4b4b56530a01000000040000000200000000000000180000000000000010000000303132333435363738396162636465660000\
    00000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000732838d304835eb6";
/// The record of the block in slot 1.
const STORE_RECORD: &str = "54524e4b424c4b0a0100000001000000030000000000000000d2496b000000002900000000000000dd780f98f585a2b51e4279be0847\
    4132993b49c2260469ce0590bcff7dcda6eee0b63c9954c066b808337758b4040579822c83657759754aba95c6e756fd286e01000000\
    020000007011010000000000733acee3395c8277";
/// The header of an archive with one block.
const ARCHIVE_HEADER: &str = "54524e4b4b56530a01000000040000000100000000000000180000000000000010000000303132333435363738396162636465660000\
    00000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000a3842aa69b6aa607";
const ARCHIVE_RECORD: &str = "54524e4b424c4b0a0000000001000000030000000000000000d2496b000000002900000000000000dd780f98f585a2b51e4279be0847\
    4132993b49c2260469ce0590bcff7dcda6eee0b63c9954c066b808337758b4040579822c83657759754aba95c6e756fd286e01000000\
    0200000070110100000000007e5a0fca8eb223a6";

fn geometry() -> Geometry {
    Geometry { fingerprint: "0123456789abcdef".to_owned(), block_bytes: 24, block_size: 4, num_slots: 2 }
}

fn block() -> StoredBlock {
    let root = BlockKey::root(["tenant"].into_iter());
    let parent = root.extend(&[9, 9, 9, 9]);
    let key = parent.extend(&[1, 2, 70_000]);
    let (written_at, sequence) = (1_800_000_000, 41);
    StoredBlock { slot: 1, key, parent, root, depth: 1, num_tokens: 3, written_at, sequence }
}

fn from_hex(digits: &str, len: usize) -> Vec<u8> {
    let byte = |index: usize| u8::from_str_radix(&digits[index..index + 2], 16).expect("hex digits");
    let mut bytes: Vec<u8> = (0..digits.len()).step_by(2).map(byte).collect();
    bytes.resize(len, 0);
    bytes
}

/// Without the zeros at the end.
fn to_hex(bytes: &[u8]) -> String {
    let len = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    bytes[..len].iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn files_of_format_version_1_are_read_and_written_byte_for_byte() {
    let hint = "hint: an older server's files are not read any more; raise `layout::FORMAT_VERSION`, and record the \
                bytes here again";
    assert_eq!(FORMAT_VERSION, 1, "record the bytes here again");
    let folder = tempfile::tempdir().unwrap();
    let (records, blocks) = (folder.path().join("records"), folder.path().join("blocks"));
    let empty = vec![0; RECORD_BYTES];
    let golden = [from_hex(STORE_HEADER, HEADER_BYTES), empty, from_hex(STORE_RECORD, RECORD_BYTES)].concat();
    fs::write(&records, &golden).unwrap();
    fs::write(&blocks, [&[0; SLOT_BYTES][..], BLOCK].concat()).unwrap();
    let (store, found) = Store::open(folder.path(), geometry()).unwrap();
    assert_eq!((found.num_blocks, found.num_damaged, found.lost), (1, 0, None), "{hint}");
    let mut bytes = vec![0; BLOCK.len()];
    let read = store.read(1, block().key, &mut bytes).unwrap_or_else(|error| panic!("{error}; {hint}"));
    assert_eq!((read, &bytes[..]), ((block(), vec![1, 2, 70_000]), &BLOCK[..]), "{hint}");
    assert_eq!(fs::read(&records).unwrap(), golden, "{hint}");
    assert_eq!(to_hex(&geometry().header()), STORE_HEADER, "{hint}");

    let archive = folder.path().join("archive");
    export(&store, &[block()], &archive).unwrap();
    let written = fs::read(&archive).unwrap();
    let (header, rest) = written.split_at(HEADER_BYTES);
    let (record, block) = rest.split_at(RECORD_BYTES);
    assert_eq!(to_hex(header), ARCHIVE_HEADER, "{hint}");
    assert_eq!(to_hex(record), ARCHIVE_RECORD, "{hint}");
    assert_eq!(block, BLOCK, "{hint}");
}
