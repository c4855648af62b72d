//! The file format, which other versions of this program must be able to read.

use trunkline_kernels::pack::LAYOUT_VERSION;
use xxhash_rust::xxh3::xxh3_64;

use super::header::{Entry, FIXED_BYTES, Header};
use super::*;

const REMEDY: &str = "files that older versions wrote now hold something else: raise `LAYOUT_VERSION` in \
                      `core/src/pack.rs`, by which they are not found any more, and record the numbers here again";
/// [`LAYOUT_VERSION`] and the XXH3-64 of the file of the test's program.
const FILE: (u32, u64) = (6, 0xc74bb83bebe528f8);

/// The entries: format; rows and columns; offset in the image and bytes; parts.
type Row<'a> = (&'a str, [u64; 2], [u64; 2], &'a [u32]);

const ENTRIES: [Row<'_>; 4] = [
    ("Q8_0", [70, 64], [0, 5440], &[0]),
    ("Q8_0", [64, 64], [5440, 4352], &[1]),
    ("Q8_0", [64, 64], [9792, 4352], &[2, 3]),
    ("F32", [1, 64], [14144, 256], &[4]),
];

#[test]
fn a_file_has_the_documented_layout() {
    let folder = tempfile::tempdir().unwrap();
    let file = good_file(folder.path());
    let header = Header::read(&file);
    assert_eq!(header.layout_version, LAYOUT_VERSION);
    assert_eq!((header.image_offset, header.key, &header.note[..]), (4096, [7; KEY_BYTES], NOTE));
    let seen: Vec<Row<'_>> = header
        .entries
        .iter()
        .map(|e| (&e.format[..], [e.rows, e.columns], [e.offset, e.num_bytes], &e.parts[..]))
        .collect();
    assert_eq!(seen, ENTRIES, "{REMEDY}");
    for entry in &header.entries {
        let at = (header.image_offset + entry.offset) as usize;
        assert_eq!(xxh3_64(&file[at..at + entry.num_bytes as usize]), entry.checksum);
        assert_eq!(entry.kind == 1, entry.format == "F32");
    }
    assert_eq!((LAYOUT_VERSION, xxh3_64(&file)), FILE, "{REMEDY}");
    assert_eq!(file.len() as u64, header.image_offset + header.image_bytes);
    // Check the offsets of magic, lengths and numbers as well as their order.
    assert_eq!(FIXED_BYTES, 8 + 4 + 4 + 8 + 8 + 32 + 4 + 64 + 4);
    assert_eq!(file[FIXED_BYTES - 4..FIXED_BYTES], 4u32.to_le_bytes());
}

#[test]
fn a_file_written_independently_is_accepted() {
    let folder = tempfile::tempdir().unwrap();
    let file = good_file(folder.path());
    let header = Header::read(&file);
    let (image, path) = (&file[header.image_offset as usize..], cache(folder.path()).path());
    let state_of = |header: &Header| {
        fs::write(&path, header.write(image)).unwrap();
        let (executor, state) = build(cache(folder.path()));
        assert_eq!(scores(executor), expected_scores());
        state
    };
    assert_eq!(header.write(image), file);
    let noted = Header { note: "by hand".to_owned(), ..header.clone() };
    assert!(matches!(state_of(&noted), CacheState::Mapped(note) if note == "by hand"));
    // A file with any other difference is refused, even if its checksums are correct.
    let change = |change: &dyn Fn(&mut Header)| {
        let mut other = header.clone();
        change(&mut other);
        other
    };
    let in_entry = |edit: &dyn Fn(&mut Entry)| change(&|header| edit(&mut header.entries[2]));
    for (what, other) in [
        ("version", change(&|header| header.layout_version += 1)),
        ("key", change(&|header| header.key[31] ^= 1)),
        ("offset", change(&|header| header.image_offset += 4096)),
        ("kind", in_entry(&|entry| entry.kind = 1)),
        ("format", in_entry(&|entry| entry.format = "Q5_0".to_owned())),
        ("rows", in_entry(&|entry| entry.rows -= 1)),
        ("columns", in_entry(&|entry| entry.columns += 32)),
        ("place", in_entry(&|entry| entry.offset += 64)),
        ("bytes", in_entry(&|entry| entry.num_bytes -= 64)),
        ("checksum", in_entry(&|entry| entry.checksum ^= 1)),
        ("parts", in_entry(&|entry| entry.parts.reverse())),
        ("an entry", change(&|header| header.entries.truncate(3))),
        ("an entry more", change(&|header| header.entries.push(header.entries[0].clone()))),
    ] {
        assert!(matches!(state_of(&other), CacheState::Missed(Miss::Unusable { .. }, _)), "another {what}");
        assert!(!path.exists(), "another {what}");
    }
}
