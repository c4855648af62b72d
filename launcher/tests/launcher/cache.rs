//! `trunkline cache` on a store that a server has left behind.

use std::path::{Path, PathBuf};

use crate::support::Bench;
use trunkline_store::{BlockKey, Geometry, NewBlock, Store};

const BLOCK_BYTES: usize = 4096;

fn geometry() -> Geometry {
    Geometry {
        fingerprint: "fa4e".to_owned(),
        block_bytes: BLOCK_BYTES as u64,
        block_size: 64,
        num_slots: 16,
    }
}

/// Writes a path of numbered blocks and returns their keys.
fn write(store: &Store, first_slot: u32, path: &[u32], num_known: usize) -> Vec<BlockKey> {
    let root = BlockKey::root(std::iter::empty());
    let mut keys = vec![root];
    for (depth, number) in path.iter().enumerate() {
        let tokens = [*number; 64];
        let key = keys[depth].extend(&tokens);
        if depth >= num_known {
            let block = NewBlock { key, parent: keys[depth], root, depth: depth as u32, token_ids: &tokens };
            store.write(first_slot + depth as u32, &block, &[*number as u8; BLOCK_BYTES]).unwrap();
        }
        keys.push(key);
    }
    keys.remove(0);
    keys
}

/// Two conversations with a common beginning.
fn made(dir: &Path) -> (PathBuf, Vec<BlockKey>, Vec<BlockKey>) {
    let folder = dir.join("fa4e");
    let store = Store::open(&folder, geometry()).unwrap().0;
    let one = write(&store, 0, &[1, 2, 3, 4], 0);
    let two = write(&store, 4, &[1, 2, 5], 2);
    (folder, one, two)
}

fn cache(args: &[&str]) -> (i32, String, String) {
    Bench::new().run(&[&["cache"], args].concat())
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn what_is_kept_is_a_tree() {
    let dir = tempfile::tempdir().unwrap();
    let (folder, one, two) = made(dir.path());
    let (code, out, _) = cache(&["ls", text(dir.path())]);
    assert_eq!(code, 0);
    let lines: Vec<&str> = out.lines().collect();
    let head = format!("{}  5 blocks, 20.0 KiB of 64.0 KiB, blocks of 64 tokens", folder.display());
    assert_eq!(lines[0], head);
    let id = |key: BlockKey| key.to_string()[..12].to_owned();
    assert!(lines[1].starts_with(&format!("└─ {}  128 tokens  2 blocks, 8.0 KiB  ", id(one[1]))), "{out}");
    assert!(lines[2..].iter().any(|line| line.contains(&format!("─ {}  128 tokens", id(one[3])))), "{out}");
    assert!(
        lines[2..].iter().any(|line| line.contains(&format!("─ {}  64 tokens  1 block,", id(two[2])))),
        "{out}"
    );
    let (code, out, _) = cache(&["show", text(dir.path()), &one[3].to_string()[..8]]);
    assert_eq!((code, out.lines().next().unwrap()), (0, "256 tokens, 4 blocks, 16.0 KiB"));
    assert!(out.lines().nth(4).unwrap().contains("tokens 192 to 255  slot 3"));
}

#[test]
fn what_is_damaged_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let (folder, ..) = made(dir.path());
    let (code, out, _) = cache(&["verify", text(dir.path())]);
    assert_eq!(code, 0, "{out}");
    assert!(out.contains("5 blocks, 20.0 KiB: 0 damaged"));
    let blocks = folder.join("blocks");
    let mut bytes = std::fs::read(&blocks).unwrap();
    bytes[2 * BLOCK_BYTES + 7] ^= 1;
    std::fs::write(&blocks, bytes).unwrap();
    let (code, _, error) = cache(&["verify", text(dir.path())]);
    assert_eq!(code, 1);
    assert!(error.contains("1 of 5 blocks are damaged"), "{error}");
}

#[test]
fn a_path_is_moved_and_forgotten() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (_, one, _) = made(here.path());
    let id = one[3].to_string();
    let file = there.path().join("one.kv");
    let (code, out, error) = cache(&["export", text(here.path()), &id, text(&file)]);
    assert_eq!(code, 0, "{error}");
    assert!(out.starts_with("wrote 4 blocks, 16.0 KiB to "));
    drop(Store::open(&there.path().join("kv/fa4e"), geometry()).unwrap());
    let kv = there.path().join("kv");
    let (code, out, error) = cache(&["import", text(&kv), text(&file)]);
    assert_eq!((code, out.as_str()), (0, "imported 4 blocks, 16.0 KiB; 0 already present\n"), "{error}");

    let (code, out, _) = cache(&["rm", text(here.path()), &id]);
    assert_eq!(
        (code, out.as_str()),
        (0, "removed 2 blocks, 8.0 KiB\n"),
        "the other conversation keeps the beginning"
    );
    let (_, out, _) = cache(&["ls", text(here.path())]);
    assert!(out.contains("3 blocks") && out.lines().count() == 2, "{out}");
    let (code, out, _) = cache(&["rm", text(&kv), "--all"]);
    assert!(code == 0 && out.starts_with("removed 4 blocks"));
    assert_eq!(cache(&["ls", text(&kv)]).0, 2);
}

#[test]
fn a_file_that_is_no_export_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    made(dir.path());
    let file = dir.path().join("notes.txt");
    for content in ["", "short", &"long ".repeat(4096)] {
        std::fs::write(&file, content).unwrap();
        let (code, _, error) = cache(&["import", text(dir.path()), text(&file)]);
        let wanted = format!("`{}` is not an export of `trunkline cache export`; hint: ", file.display());
        assert!(code == 2 && error.contains(&wanted), "{code}: {error}");
    }
}

#[test]
fn mistakes_are_said() {
    let dir = tempfile::tempdir().unwrap();
    let missing = dir.path().join("missing");
    let (code, _, error) = cache(&["ls", text(&missing)]);
    assert!(code == 2 && error.contains("cannot read the folder") && error.contains("hint: "), "{error}");
    let (code, _, error) = cache(&["ls", text(dir.path())]);
    assert!(code == 2 && error.contains("contains no KV cache"), "{error}");
    let (folder, one, _) = made(dir.path());
    for id in ["zz", "", "0000000000"] {
        let (code, _, error) = cache(&["show", text(dir.path()), id]);
        assert!(code == 2 && error.contains("no path has the id"), "{id}: {error}");
    }
    let (code, _, error) = cache(&["show", text(dir.path()), &one[0].to_string()[..2]]);
    assert!(code == 2 && error.contains("is too short; hint: give at least 4 digits of the id"), "{error}");
    // A server has the store open.
    let open = Store::open(&folder, geometry()).unwrap();
    let (code, _, error) = cache(&["rm", text(dir.path()), &one[3].to_string()]);
    assert!(code == 1 && error.contains("used by another process"), "{error}");
    assert_eq!(cache(&["verify", text(dir.path())]).0, 0, "reading goes on beside it");
    drop(open);
}
