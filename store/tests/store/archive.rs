//! A path goes to a file and into another store, whole or not at all.

use std::path::Path;

use crate::support::{Chain, GEOMETRY, block_bytes};
use trunkline_store::{ArchiveError, Geometry, Imported, Store, StoredBlock, export, import, records};

fn filled(folder: &Path, name: &str, slots: &[u32]) -> (Store, Chain) {
    let store = Store::open(folder, crate::support::geometry()).expect("a new folder").0;
    let chain = Chain::new(name, GEOMETRY.2);
    for (depth, slot) in slots.iter().enumerate() {
        store
            .write(*slot, &chain.block(depth), &block_bytes(chain.keys[depth + 1]))
            .expect("a disk with room");
    }
    (store, chain)
}

fn path_of(folder: &Path) -> Vec<StoredBlock> {
    let mut blocks = records(folder).expect("a store").blocks;
    blocks.sort_by_key(|block| block.depth);
    blocks
}

#[test]
fn a_path_moves_to_another_store() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let file = there.path().join("path.kv");
    let (store, chain) = filled(here.path(), "a", &[3, 0, 2]);
    let num_bytes = export(&store, &path_of(here.path()), &file).unwrap();
    assert_eq!(std::fs::metadata(&file).unwrap().len(), num_bytes);
    assert!(
        matches!(export(&store, &path_of(here.path()), &file), Err(ArchiveError::System { .. })),
        "it is there"
    );

    let folder = there.path().join("store");
    let (other, _) = filled(&folder, "b", &[1]);
    let done = import(&other, &records(&folder).unwrap().blocks, &file).unwrap();
    assert_eq!(done, Imported { num_new: 3, num_known: 0 });
    let found = records(&folder).unwrap().blocks;
    assert_eq!(found.len(), 4);
    let mut bytes = vec![0; GEOMETRY.0 as usize];
    for (depth, key) in chain.keys[1..4].iter().enumerate() {
        let block = found.iter().find(|block| block.key == *key).expect("imported");
        assert_eq!((block.depth as usize, block.parent), (depth, chain.keys[depth]));
        other.read(block.slot, *key, &mut bytes).unwrap();
        assert_eq!(bytes, block_bytes(*key));
    }
    let again = import(&other, &found, &file).unwrap();
    assert_eq!(again, Imported { num_new: 0, num_known: 3 });
}

#[test]
fn an_export_that_fails_leaves_no_file() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let file = there.path().join("path.kv");
    let (store, _) = filled(here.path(), "a", &[3, 0, 2]);
    let path = path_of(here.path());
    store.erase(2).unwrap();
    let error = export(&store, &path, &file).unwrap_err();
    assert!(matches!(error, ArchiveError::Block(_)), "{error}");
    assert_eq!(std::fs::read_dir(there.path()).unwrap().count(), 0);

    let nowhere = there.path().join("no/path.kv");
    assert!(matches!(export(&store, &path[..2], &nowhere), Err(ArchiveError::System { what: "make", .. })));
    export(&store, &path[..2], &file).unwrap();
    let names: Vec<_> =
        std::fs::read_dir(there.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["path.kv"]);
}

/// A link whose target does not exist must not be written through either.
#[test]
fn an_export_follows_no_link() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (store, _) = filled(here.path(), "a", &[3]);
    let (file, target) = (there.path().join("path.kv"), there.path().join("target"));
    std::os::unix::fs::symlink(&target, &file).unwrap();
    let error = export(&store, &path_of(here.path()), &file).unwrap_err();
    assert!(matches!(error, ArchiveError::System { what: "make", .. }), "{error}");
    assert!(!target.exists());
}

#[test]
fn damaged_foreign_and_too_large_archives_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (store, _) = filled(&folder.path().join("a"), "a", &[0, 1]);
    let file = folder.path().join("path.kv");
    export(&store, &path_of(&folder.path().join("a")), &file).unwrap();

    let foreign = Geometry { fingerprint: "another".to_owned(), ..crate::support::geometry() };
    let (other, _) = Store::open(&folder.path().join("b"), foreign).unwrap();
    assert!(matches!(import(&other, &[], &file), Err(ArchiveError::Foreign { .. })));

    let small = Geometry { num_slots: 1, ..crate::support::geometry() };
    let (other, _) = Store::open(&folder.path().join("c"), small).unwrap();
    let error = import(&other, &[], &file).unwrap_err();
    assert!(matches!(error, ArchiveError::Full { free: 1, needed: 2 }), "{error}");

    let (other, _) = Store::open(&folder.path().join("d"), crate::support::geometry()).unwrap();
    let whole = std::fs::read(&file).unwrap();
    for at in (0..whole.len()).step_by(97) {
        let mut bytes = whole.clone();
        bytes[at] ^= 16;
        std::fs::write(&file, &bytes).unwrap();
        // Padding is of no meaning; a block that was not read yet is not there, and none is ever wrong.
        let outcome = import(&other, &[], &file);
        assert!(
            matches!(
                outcome,
                Ok(_)
                    | Err(ArchiveError::NoArchive { .. }
                        | ArchiveError::Damaged { .. }
                        | ArchiveError::Foreign { .. }
                        | ArchiveError::System { .. })
            ),
            "a flipped bit at {at}: {outcome:?}"
        );
        let mut bytes = vec![0; GEOMETRY.0 as usize];
        for block in records(&folder.path().join("d")).unwrap().blocks {
            other.read(block.slot, block.key, &mut bytes).unwrap();
            assert_eq!(bytes, block_bytes(block.key));
            other.erase(block.slot).unwrap();
        }
        std::fs::write(&file, &whole[..at]).unwrap();
        let error = import(&other, &[], &file).unwrap_err().to_string();
        let wanted =
            if at < 8 { "is not an export of `trunkline cache export`" } else { "ends before its last" };
        assert!(error.contains(wanted) && error.contains("; hint: "), "cut at {at}: {error}");
        for block in records(&folder.path().join("d")).unwrap().blocks {
            other.erase(block.slot).unwrap();
        }
    }
}
