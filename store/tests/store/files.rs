//! Tests of a store in a folder: which blocks survive a restart, which are discarded, and how that is reported.

use std::fs::{self, OpenOptions, Permissions};
use std::os::fd::{BorrowedFd, RawFd};
use std::os::unix::fs::{FileExt, PermissionsExt};

use crate::support::{Chain, GEOMETRY, block_bytes, geometry, open, read, write};
use trunkline_store::{Geometry, OpenError, ReadError, SlotPart, Store, StoreLock, records};

#[test]
fn blocks_are_found_again() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("made/with its parents");
    let chain = Chain::new("a", 5);
    {
        let (store, found) = open(&folder);
        assert_eq!(found, Default::default());
        for (depth, slot) in [4, 2, 0, 7].into_iter().enumerate() {
            write(&store, slot, &chain, depth).unwrap();
        }
        store.erase(0).unwrap();
        write(&store, 2, &chain, 4).unwrap();
    }
    let there = records(&folder).unwrap();
    assert_eq!((there.geometry, there.damaged_slots), (geometry(), vec![]));
    let summary: Vec<_> =
        there.blocks.iter().map(|b| (b.slot, b.depth, b.key, b.parent, b.sequence)).collect();
    let keys = &chain.keys;
    assert_eq!(
        summary,
        [(2, 4, keys[5], keys[4], 5), (4, 0, keys[1], keys[0], 1), (7, 3, keys[4], keys[3], 4)],
        "in the order of the slots, without the erased and the overwritten"
    );
    assert!(there.blocks.iter().all(|b| b.root == keys[0] && b.num_tokens == GEOMETRY.1 && b.written_at > 0));

    let (store, found) = open(&folder);
    assert_eq!((found.num_blocks, found.num_damaged, found.lost), (3, 0, None));
    let num_slots = GEOMETRY.2;
    for cut in 0..=num_slots {
        let pieces = [store.contents(0..cut).unwrap(), store.contents(cut..num_slots).unwrap()];
        assert_eq!(pieces.concat(), there.blocks, "the owner lists the same, cut before slot {cut}");
    }
    assert_eq!(read(&store, 2, keys[5]).unwrap(), block_bytes(keys[5]));
    assert_eq!(read(&store, 4, keys[1]).unwrap(), block_bytes(keys[1]));
    assert!(matches!(read(&store, 0, keys[3]), Err(ReadError::Empty { slot: 0 })));
    assert!(matches!(read(&store, 4, keys[2]), Err(ReadError::OtherBlock { slot: 4, .. })));
    assert_eq!(
        read(&store, 4, keys[1]).unwrap(),
        block_bytes(keys[1]),
        "who asks for another changes nothing"
    );
    write(&store, 0, &chain, 2).unwrap();
    assert_eq!(records(&folder).unwrap().blocks[0].sequence, 6, "sequence numbers grow over restarts");
}

#[test]
fn only_the_owner_may_read_the_files() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("store");
    let _store = open(&folder);
    let mode = |path: &std::path::Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&folder), 0o700);
    for name in ["lock", "records", "blocks"] {
        assert_eq!(mode(&folder.join(name)), 0o600, "{name}");
    }
}

#[test]
fn a_store_is_unlocked_even_while_a_forked_process_has_its_lock_file_open() {
    let folder = tempfile::tempdir().unwrap();
    let (store, _) = open(folder.path());
    let lock = folder.path().join("lock");
    let mut descriptors = fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap().path());
    let inherited = descriptors.find(|path| fs::read_link(path).is_ok_and(|target| target == lock)).unwrap();
    let inherited: RawFd = inherited.file_name().unwrap().to_str().unwrap().parse().unwrap();
    // SAFETY: the store keeps the descriptor open until it is dropped below.
    let inherited = unsafe { BorrowedFd::borrow_raw(inherited) }.try_clone_to_owned().unwrap();
    drop(store);
    open(folder.path());
    drop(inherited);
}

#[test]
fn a_second_process_is_told_which_folder_is_in_use() {
    let folder = tempfile::tempdir().unwrap();
    let (store, _) = open(folder.path());
    let error = Store::open(folder.path(), geometry()).unwrap_err();
    assert!(matches!(error, OpenError::InUse { .. }));
    let expected = format!("the store in `{}` is used by another process", folder.path().display());
    assert!(error.to_string().starts_with(&expected), "{error}");
    assert!(matches!(StoreLock::take(folder.path()).unwrap_err(), OpenError::InUse { .. }));
    drop(store);
    let lock = StoreLock::take(folder.path()).unwrap();
    assert!(matches!(Store::open(folder.path(), geometry()).unwrap_err(), OpenError::InUse { .. }));
    drop(lock);
    open(folder.path());
}

#[test]
fn a_store_that_is_given_up_belongs_to_the_next_process() {
    let folder = tempfile::tempdir().unwrap();
    let chain = Chain::new("a", 3);
    let bytes = |depth: usize| block_bytes(chain.keys[depth + 1]);
    let (old, _) = open(folder.path());
    old.write(6, &chain.block(0), &bytes(0)).unwrap();
    old.give_up();
    let (new, found) = open(folder.path());
    assert_eq!(found.num_blocks, 1);
    let mut read = vec![0; geometry().block_bytes as usize];

    let refused = old.write(7, &chain.block(1), &bytes(1)).unwrap_err().to_string();
    assert!(refused.contains("another process has taken the store over"), "{refused}");
    assert!(old.read(6, chain.keys[1], &mut read).is_err());
    assert!(old.erase(6).is_err());
    assert!(old.contents(0..8).is_err());

    new.write(7, &chain.block(1), &bytes(1)).unwrap();
    for (slot, depth) in [(6, 0), (7, 1)] {
        new.read(slot, chain.keys[depth + 1], &mut read).unwrap();
        assert_eq!(read, bytes(depth));
    }
    // Its end no longer concerns the lock.
    drop(old);
    assert!(matches!(Store::open(folder.path(), geometry()).unwrap_err(), OpenError::InUse { .. }));
}

#[test]
fn a_store_that_was_given_up_is_taken_back_once_the_other_process_has_ended() {
    let folder = tempfile::tempdir().unwrap();
    let chain = Chain::new("a", 3);
    let bytes = |depth: usize| block_bytes(chain.keys[depth + 1]);
    let (old, _) = open(folder.path());
    old.take_back().expect("it was never given up");
    old.write(6, &chain.block(0), &bytes(0)).unwrap();
    for num_slots in [GEOMETRY.2, 7, 20] {
        old.give_up();
        let (new, found) = Store::open(folder.path(), Geometry { num_slots, ..geometry() }).unwrap();
        assert_eq!(found.num_blocks, 1);
        assert!(matches!(old.take_back().unwrap_err(), OpenError::InUse { .. }));
        assert!(old.contents(0..8).is_err(), "it stays given up");
        drop(new);

        old.take_back().unwrap();
        assert!(matches!(Store::open(folder.path(), geometry()).unwrap_err(), OpenError::InUse { .. }));
        assert_eq!(read(&old, 6, chain.keys[1]).unwrap(), bytes(0));
        write(&old, 7, &chain, 1).unwrap();
        assert_eq!(read(&old, 7, chain.keys[2]).unwrap(), bytes(1));
        old.erase(7).unwrap();
        assert_eq!(records(folder.path()).unwrap().geometry, geometry());
    }
}

#[test]
fn a_store_that_was_replaced_is_not_taken_back() {
    let (chain, other) = (Chain::new("a", 3), Geometry { block_size: 32, ..geometry() });
    for (replaces, reason) in [(true, "was replaced by another file"), (false, "is of a store of")] {
        let folder = tempfile::tempdir().unwrap();
        let (old, _) = open(folder.path());
        write(&old, 6, &chain, 0).unwrap();
        old.give_up();
        if replaces {
            fs::remove_file(folder.path().join("blocks")).unwrap();
            open(folder.path());
        } else {
            Store::open(folder.path(), other.clone()).unwrap();
        }
        let error = old.take_back().unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
        assert!(old.contents(0..8).is_err());
        open(folder.path());
    }
}

#[test]
fn no_link_is_followed() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("target");
    fs::write(&target, "of great value").unwrap();
    for name in ["records", "blocks", "lock"] {
        let store = folder.path().join(name);
        fs::create_dir(&store).unwrap();
        fs::set_permissions(&store, Permissions::from_mode(0o700)).unwrap();
        std::os::unix::fs::symlink(&target, store.join(name)).unwrap();
        let error = Store::open(&store, geometry()).unwrap_err().to_string();
        let path = store.join(name);
        assert_eq!(error, format!("`{}` is a symbolic link, which is not followed", path.display()));
    }
    let (link, place) = (folder.path().join("link"), folder.path().join("place"));
    open(&place);
    std::os::unix::fs::symlink(&place, &link).unwrap();
    for error in [Store::open(&link, geometry()).unwrap_err(), StoreLock::take(&link).unwrap_err()] {
        assert!(error.to_string().ends_with("link` is a symbolic link, which is not followed"), "{error}");
    }
    assert_eq!(fs::read_to_string(&target).unwrap(), "of great value");
}

#[test]
fn no_file_of_another_name_and_no_pipe_is_opened() {
    let folder = tempfile::tempdir().unwrap();
    let (target, store) = (folder.path().join("target"), folder.path().join("store"));
    fs::write(&target, "of great value").unwrap();
    drop(open(&store));
    fs::remove_file(store.join("records")).unwrap();
    fs::hard_link(&target, store.join("records")).unwrap();
    let error = Store::open(&store, geometry()).unwrap_err().to_string();
    assert!(error.ends_with("records` has 2 names, so it may be another file, too"), "{error}");
    assert_eq!(fs::read_to_string(&target).unwrap(), "of great value");

    // To open a pipe for reading waits for a writer, unless it is avoided.
    fs::remove_file(store.join("records")).unwrap();
    let name = std::ffi::CString::new(store.join("records").to_str().unwrap()).unwrap();
    // SAFETY: the name ends with a NUL.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
    for outcome in [Store::open(&store, geometry()).map(drop), records(&store).map(drop)] {
        assert!(matches!(outcome, Err(OpenError::System { what: "open", .. })), "{outcome:?}");
    }
    let (mut beside, _) = open(&folder.path().join("beside"));
    beside.share(&folder.path().join("beside"), 1);
}

#[test]
fn a_store_that_others_can_change_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    for (mode, is_refused) in [(0o770, true), (0o707, true), (0o2770, true), (0o755, false), (0o2700, false)]
    {
        let store = folder.path().join(format!("{mode:o}"));
        fs::create_dir(&store).unwrap();
        fs::set_permissions(&store, Permissions::from_mode(mode)).unwrap();
        let outcome = Store::open(&store, geometry()).map(drop);
        let expected = format!(
            "`{}` can be changed by other users, because its mode is {mode:o}; only its owner may write to it",
            store.display()
        );
        assert_eq!(outcome.err().map(|error| error.to_string()), is_refused.then_some(expected));
    }
    let store = folder.path().join("store");
    drop(open(&store));
    fs::set_permissions(store.join("blocks"), Permissions::from_mode(0o666)).unwrap();
    for outcome in
        [Store::open(&store, geometry()), Store::attach(&store, geometry()).map(|s| (s, Default::default()))]
    {
        let error = outcome.map(drop).unwrap_err().to_string();
        assert!(error.contains("blocks` can be changed by other users, because its mode is 666"), "{error}");
    }
    // Only root can give a folder away.
    let foreign = folder.path().join("foreign");
    drop(open(&foreign));
    if std::os::unix::fs::chown(&foreign, Some(1), None).is_ok() {
        let error = Store::open(&foreign, geometry()).unwrap_err().to_string();
        assert!(error.ends_with("foreign` belongs to user 1, but this process runs as user 0"), "{error}");
    }
}

#[test]
fn a_store_of_another_model_is_discarded_with_a_reason() {
    let others = [
        Geometry { fingerprint: "other weights".to_owned(), ..geometry() },
        Geometry { block_bytes: 6000, ..geometry() },
        Geometry { block_size: 32, ..geometry() },
    ];
    for other in others {
        let folder = tempfile::tempdir().unwrap();
        let chain = Chain::new("a", 1);
        write(&open(folder.path()).0, 1, &chain, 0).unwrap();
        let (store, found) = Store::open(folder.path(), other.clone()).unwrap();
        let lost = found.lost.unwrap();
        assert!(lost.contains(&format!("is of a store of {}, expected {other}", geometry())), "{lost}");
        assert_eq!(found.num_blocks, 0);
        drop(store);
        let there = records(folder.path()).unwrap();
        assert_eq!((there.geometry, there.blocks), (other, vec![]));
    }
}

#[test]
fn another_number_of_slots_keeps_the_blocks_that_fit() {
    let folder = tempfile::tempdir().unwrap();
    let chain = Chain::new("a", 2);
    let (store, _) = open(folder.path());
    write(&store, 1, &chain, 0).unwrap();
    write(&store, 7, &chain, 1).unwrap();
    drop(store);
    for (num_slots, expected) in [(20, 2), (8, 2), (7, 1), (20, 1), (1, 0)] {
        let (_, found) = Store::open(folder.path(), Geometry { num_slots, ..geometry() }).unwrap();
        assert_eq!(
            (found.num_blocks, found.num_damaged, found.lost),
            (expected, 0, None),
            "{num_slots} slots"
        );
        assert_eq!(records(folder.path()).unwrap().blocks.len(), expected);
    }
}

#[test]
fn invalid_headers_discard_the_store() {
    let chain = Chain::new("a", 1);
    type Spoil = fn(&mut Vec<u8>);
    let garbage: [(&str, Spoil); 5] = [
        ("is no file of records of a store", |bytes| bytes.truncate(100)),
        ("is no file of records of a store", |bytes| bytes[0] ^= 1),
        ("has format version 2, expected 1", |bytes| bytes[8] = 2),
        ("has a damaged header", |bytes| bytes[40] ^= 4),
        ("is no file of records of a store", |bytes| bytes.fill(b'x')),
    ];
    for (message, spoil) in garbage {
        let folder = tempfile::tempdir().unwrap();
        write(&open(folder.path()).0, 1, &chain, 0).unwrap();
        let path = folder.path().join("records");
        let mut bytes = fs::read(&path).unwrap();
        spoil(&mut bytes);
        fs::write(&path, bytes).unwrap();
        let error = records(folder.path()).unwrap_err().to_string();
        assert_eq!(error, format!("`{}` {message}", path.display()));
        let (store, found) = open(folder.path());
        assert_eq!((found.num_blocks, found.lost), (0, Some(error)));
        write(&store, 1, &chain, 0).unwrap();
        drop(store);
        assert_eq!(open(folder.path()).1.num_blocks, 1);
    }
}

#[test]
fn flipped_and_missing_bytes_are_misses() {
    let folder = tempfile::tempdir().unwrap();
    let chain = Chain::new("a", 8);
    let (store, _) = open(folder.path());
    (0..8).for_each(|slot| write(&store, slot, &chain, slot as usize).unwrap());
    drop(store);
    let flip = |name: &str, offset: u64| {
        let file = OpenOptions::new().read(true).write(true).open(folder.path().join(name)).unwrap();
        let mut byte = [0];
        file.read_exact_at(&mut byte, offset).unwrap();
        file.write_all_at(&[byte[0] ^ 16], offset).unwrap();
    };
    flip("records", geometry().record_offset(3) + 60);
    flip("blocks", geometry().block_offset(5) + 4999);
    // The last block is cut off.
    let blocks = OpenOptions::new().write(true).open(folder.path().join("blocks")).unwrap();
    blocks.set_len(geometry().block_offset(7) + 4999).unwrap();

    assert_eq!(records(folder.path()).unwrap().damaged_slots, [3]);
    let before = ["records", "blocks"].map(|name| fs::read(folder.path().join(name)).unwrap());
    let reader = Store::attach_to_read(folder.path(), geometry()).unwrap();
    let mut bytes = vec![0; GEOMETRY.0 as usize];
    for (slot, damaged) in [(3, SlotPart::Record), (5, SlotPart::Block), (7, SlotPart::Block)] {
        for _ in 0..2 {
            let found = reader.look(slot, &mut bytes);
            assert!(matches!(found, Err(ReadError::Damaged { part, .. }) if part == damaged), "{found:?}");
        }
        assert!(read(&reader, slot, chain.keys[slot as usize + 1]).is_err());
    }
    assert_eq!(reader.look(2, &mut bytes).unwrap().key, chain.keys[3]);
    let after = ["records", "blocks"].map(|name| fs::read(folder.path().join(name)).unwrap());
    assert!(before == after, "a reader changes nothing");
    let (store, found) = open(folder.path());
    assert_eq!((found.num_blocks, found.num_damaged), (6, 2));
    let results: Vec<_> = (0..8).map(|slot| read(&store, slot, chain.keys[slot as usize + 1])).collect();
    for (slot, result) in results.iter().enumerate() {
        match (slot, result) {
            (3 | 7, Err(ReadError::Empty { .. })) => {}
            (5, Err(error @ ReadError::Damaged { .. })) => {
                assert_eq!(error.to_string(), "slot 5 is damaged: its bytes do not match their checksum");
            }
            (_, Ok(bytes)) => assert_eq!(*bytes, block_bytes(chain.keys[slot + 1])),
            other => panic!("{other:?}"),
        }
    }
    assert!(matches!(read(&store, 5, chain.keys[6]), Err(ReadError::Empty { .. })), "erased when found");
    drop(store);
    assert_eq!(open(folder.path()).1, trunkline_store::Found { num_blocks: 5, ..Default::default() });
}

#[test]
fn a_folder_that_cannot_be_written_is_an_error_of_the_system() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    fs::write(&path, "x").unwrap();
    let error = Store::open(&path.join("store"), geometry()).unwrap_err();
    assert!(error.to_string().starts_with("cannot make the folder `"), "{error}");
    // Root may write everywhere; the rest is for everybody else.
    let locked = folder.path().join("locked");
    fs::create_dir(&locked).unwrap();
    fs::set_permissions(&locked, Permissions::from_mode(0o500)).unwrap();
    match Store::open(&locked.join("store"), geometry()) {
        Err(OpenError::System { what: "make the folder", .. }) => {}
        Ok(_) if fs::create_dir(locked.join("probe")).is_ok() => {}
        other => panic!("{other:?}"),
    }
    fs::create_dir(folder.path().join("strange")).unwrap();
    fs::create_dir(folder.path().join("strange/blocks")).unwrap();
    assert!(matches!(
        Store::open(&folder.path().join("strange"), geometry()),
        Err(OpenError::System { what: "open", .. })
    ));
}

#[test]
fn an_attached_process_uses_the_slots_that_the_owner_leaves_to_it() {
    let folder = tempfile::tempdir().unwrap();
    let chain = Chain::new("tenant", 3);
    let missing = Store::attach(folder.path(), geometry()).unwrap_err();
    assert!(matches!(missing, OpenError::System { what: "open", .. }), "{missing}");
    let (owner, _) = open(folder.path());
    write(&owner, 0, &chain, 0).unwrap();
    let other = Geometry { num_slots: GEOMETRY.2 + 1, ..geometry() };
    assert!(matches!(Store::attach(folder.path(), other).unwrap_err(), OpenError::Unreadable { .. }));

    let attached = Store::attach(folder.path(), geometry()).unwrap();
    let mut bytes = vec![0; GEOMETRY.0 as usize];
    let (block, token_ids) = attached.read(0, chain.keys[1], &mut bytes).unwrap();
    assert_eq!(bytes, block_bytes(chain.keys[1]));
    assert_eq!(
        (block.key, block.parent, block.root, block.depth),
        (chain.keys[1], chain.keys[0], chain.keys[0], 0)
    );
    assert_eq!(token_ids, chain.token_ids[0]);

    write(&attached, 5, &chain, 1).unwrap();
    assert_eq!(read(&owner, 5, chain.keys[2]).unwrap(), block_bytes(chain.keys[2]));
    // The owner empties and reuses what it never wrote itself.
    owner.erase(5).unwrap();
    assert!(matches!(read(&attached, 5, chain.keys[2]), Err(ReadError::Empty { slot: 5 })));
    write(&attached, 5, &chain, 1).unwrap();
    write(&owner, 5, &chain, 2).unwrap();
    assert!(matches!(read(&attached, 5, chain.keys[2]), Err(ReadError::OtherBlock { .. })));
    drop((owner, attached));
    let (_, found) = open(folder.path());
    assert_eq!((found.num_blocks, found.num_damaged), (2, 0));
}
