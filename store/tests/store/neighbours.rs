//! Stores that share a limit of bytes with the stores beside them.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use trunkline_store::{RESTART_TIME, Store, records};

use crate::support::{Chain, GEOMETRY, block_bytes, geometry, open, read, write};

/// Bytes that one block takes on the disk.
const SLOT_BYTES: u64 = 8192;

/// Makes a store with this many blocks that nobody has used for some hours.
fn idle_store(parent: &Path, name: &str, num_blocks: u32, hours: u32) -> PathBuf {
    let folder = parent.join(name);
    let chain = Chain::new(name, num_blocks);
    let (store, _) = open(&folder);
    (0..num_blocks).for_each(|slot| write(&store, slot, &chain, slot as usize).expect("a write"));
    store.sync().expect("a sync");
    drop(store);
    used_before(&folder, hours);
    folder
}

fn used_before(folder: &Path, hours: u32) {
    for name in ["lock", "records"] {
        let file = OpenOptions::new().write(true).open(folder.join(name)).expect("a file");
        file.set_modified(SystemTime::now() - RESTART_TIME - hours * RESTART_TIME).expect("a time");
    }
}

/// Opens the store `name`, which shares room for this many blocks with the others.
fn open_within(parent: &Path, name: &str, num_blocks: u64) -> Store {
    let folder = parent.join(name);
    let (mut store, _) = open(&folder);
    store.share(&folder, num_blocks * SLOT_BYTES);
    store
}

fn num_blocks(folder: &Path) -> usize {
    records(folder).map_or(0, |records| records.blocks.len())
}

fn removed(store: &Store) -> Vec<(String, u64)> {
    let removed = store.take_removed().into_iter();
    let removed = removed.map(|removed| {
        assert!(removed.error.is_none(), "{removed:?}");
        let name = removed.folder.file_name().expect("a name").to_string_lossy().into_owned();
        (name, removed.num_bytes / SLOT_BYTES)
    });
    removed.collect()
}

#[test]
fn the_least_recently_used_store_gives_way_when_the_room_is_needed() {
    let parent = tempfile::tempdir().unwrap();
    let parent = parent.path();
    let older = idle_store(parent, "older", 3, 2);
    let newer = idle_store(parent, "newer", 4, 1);
    let store = open_within(parent, "own", 10);
    let chain = Chain::new("own", 8);
    for slot in 0..2 {
        assert_eq!((num_blocks(&older), num_blocks(&newer)), (3, 4), "there is room for block {slot}");
        write(&store, slot, &chain, slot as usize).unwrap();
    }
    // Some room stays free, so that it is never exceeded.
    write(&store, 2, &chain, 2).unwrap();
    assert_eq!(removed(&store), [("older".to_owned(), 3)]);
    for slot in 3..8 {
        write(&store, slot, &chain, slot as usize).unwrap();
        let blocks = |name: &str| {
            fs::metadata(parent.join(name).join("blocks")).map_or(0, |metadata| metadata.blocks() * 512)
        };
        assert!(blocks("own") + blocks("older") + blocks("newer") <= 10 * SLOT_BYTES);
    }
    assert_eq!(removed(&store), [("newer".to_owned(), 4)]);
    for slot in 0..8 {
        let key = chain.keys[slot as usize + 1];
        assert_eq!(read(&store, slot, key).unwrap(), block_bytes(key));
    }
    let (store, found) = open(&older);
    assert_eq!(found, Default::default(), "it begins anew, and nothing is lost that it must report");
    write(&store, 0, &Chain::new("older", 1), 0).unwrap();
}

#[test]
fn a_lower_limit_counts_at_the_next_start() {
    let parent = tempfile::tempdir().unwrap();
    let parent = parent.path();
    let other = idle_store(parent, "other", 8, 1);
    idle_store(parent, "own", 8, 9);
    let store = open_within(parent, "own", 17);
    assert_eq!((num_blocks(&other), removed(&store)), (8, vec![]));
    drop(store);
    let store = open_within(parent, "own", 16);
    assert_eq!((num_blocks(&other), removed(&store)), (0, vec![("other".to_owned(), 8)]));
    assert_eq!(store.contents(0..GEOMETRY.2).unwrap().len(), 8, "its own blocks stay");
}

#[test]
fn stores_in_use_and_what_is_no_store_stay() {
    let parent = tempfile::tempdir().unwrap();
    let parent = parent.path();
    let used = idle_store(parent, "used", 8, 3);
    let (in_use, _) = open(&used);
    used_before(&used, 3);
    let restarting = idle_store(parent, "restarting", 8, 1);
    // A clean end counts as a use, however long ago it wrote.
    let (ended, _) = open(&restarting);
    used_before(&restarting, 9);
    ended.sync().unwrap();
    drop(ended);
    let linked = tempfile::tempdir().unwrap();
    let linked = idle_store(linked.path(), "linked", 8, 4);
    std::os::unix::fs::symlink(&linked, parent.join("link")).unwrap();
    fs::create_dir(parent.join("foreign")).unwrap();
    for (name, text) in [("foreign/records", "of somebody else"), ("foreign/blocks", "as well"), ("file", "")]
    {
        fs::write(parent.join(name), text).unwrap();
    }
    let store = open_within(parent, "own", 8);
    let chain = Chain::new("own", 8);
    (0..8).for_each(|slot| write(&store, slot, &chain, slot as usize).unwrap());
    assert_eq!(removed(&store), []);
    assert_eq!([&used, &restarting, &linked].map(|folder| num_blocks(folder)), [8; 3]);
    assert_eq!(fs::read_to_string(parent.join("foreign/blocks")).unwrap(), "as well");

    drop(in_use);
    used_before(&used, 3);
    write(&store, 0, &chain, 0).unwrap();
    assert_eq!(removed(&store), [("used".to_owned(), 8)], "nobody uses it any more");
}

#[test]
fn a_store_that_cannot_be_removed_is_reported() {
    let parent = tempfile::tempdir().unwrap();
    let parent = parent.path();
    let stuck = idle_store(parent, "stuck", 8, 1);
    // A folder in the place of the lock's file cannot be opened as one, whoever runs this.
    fs::remove_file(stuck.join("lock")).unwrap();
    fs::create_dir(stuck.join("lock")).unwrap();
    let lock = fs::File::open(stuck.join("lock")).unwrap();
    lock.set_modified(SystemTime::now() - 2 * RESTART_TIME).unwrap();
    let store = open_within(parent, "own", 8);
    let report = store.take_removed();
    assert_eq!((report.len(), num_blocks(&stuck)), (1, 8));
    let error = report[0].error.as_ref().unwrap().to_string();
    assert!(error.starts_with(&format!("cannot open `{}`", stuck.join("lock").display())), "{error}");
    assert_eq!(geometry().slot_bytes(), SLOT_BYTES);
}
