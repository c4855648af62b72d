//! `trunkline cache` on a store that a server has left behind.

use std::path::{Path, PathBuf};

use crate::support::Bench;
use trunkline_store::{BlockKey, Geometry, NewBlock, Store, records};

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

/// Runs a command with this folder in the variable of `--kv-disk-path`.
fn cache_at(dir: &Path, args: &[&str]) -> (i32, String, String) {
    Bench::new().with("TRUNKLINE_KV_DISK_PATH", dir).run(&[&["cache"], args].concat())
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
    assert!(lines[1].starts_with(&format!("└─ {}  128 tokens  2 blocks, 8.0 KiB  ", one[1])), "{out}");
    assert!(lines[2..].iter().any(|line| line.contains(&format!("─ {}  128 tokens", one[3]))), "{out}");
    assert!(
        lines[2..].iter().any(|line| line.contains(&format!("─ {}  64 tokens  1 block,", two[2]))),
        "{out}"
    );
    let (code, out, _) = cache(&["show", text(dir.path()), &one[3].to_string()[..8]]);
    assert_eq!((code, out.lines().next().unwrap()), (0, "256 tokens, 4 blocks, 16.0 KiB"));
    assert!(out.lines().nth(4).unwrap().contains("tokens 192 to 255  slot 3"));
}

fn flip(file: &Path, offset: u64) {
    let mut bytes = std::fs::read(file).unwrap();
    bytes[offset as usize] ^= 1;
    std::fs::write(file, bytes).unwrap();
}

fn contents(folder: &Path) -> [Vec<u8>; 2] {
    ["records", "blocks"].map(|name| std::fs::read(folder.join(name)).unwrap())
}

#[test]
fn what_is_damaged_is_named_and_stays_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let (folder, one, _) = made(dir.path());
    let (code, out, _) = cache(&["verify", text(dir.path())]);
    assert_eq!(code, 0, "{out}");
    assert!(out.contains("5 blocks, 20.0 KiB: 0 damaged, 0 unreachable"), "{out}");

    flip(&folder.join("blocks"), 3 * BLOCK_BYTES as u64 + 7);
    let before = contents(&folder);
    let block = format!("  slot 3  block {}  `{}/blocks` at byte 12288\n", one[3], folder.display());
    // A server may have the store open.
    let server = Store::open(&folder, geometry()).unwrap().0;
    for _ in 0..2 {
        let (code, out, error) = cache(&["verify", text(dir.path())]);
        assert_eq!(code, 1);
        assert!(
            out.contains("5 blocks, 20.0 KiB: 1 damaged, 0 unreachable") && out.contains(&block),
            "{out}"
        );
        let wanted = "1 of 5 blocks is damaged; hint: `trunkline cache repair` empties";
        assert!(error.contains(wanted), "{error}");
        assert!(contents(&folder) == before, "it only reads");
    }
    drop(server);

    let offset = geometry().record_offset(1);
    flip(&folder.join("records"), offset + 60);
    let before = contents(&folder);
    let (code, out, error) = cache(&["verify", text(dir.path())]);
    let record = format!("  slot 1  record  `{}/records` at byte {offset}\n", folder.display());
    assert!(code == 1 && out.contains(&record) && out.contains(&block), "{out}");
    assert!(out.contains("5 blocks, 20.0 KiB: 2 damaged, 3 unreachable"), "{out}");
    assert!(error.contains("2 of 5 blocks are damaged"), "{error}");
    assert!(contents(&folder) == before, "it only reads");
}

#[test]
fn damaged_slots_are_emptied_on_request_only() {
    let dir = tempfile::tempdir().unwrap();
    let (folder, one, _) = made(dir.path());
    let (code, out, _) = cache(&["repair", text(dir.path())]);
    assert!(code == 0 && out.ends_with("nothing is damaged\n"), "{out}");
    flip(&folder.join("blocks"), 3 * BLOCK_BYTES as u64 + 7);
    flip(&folder.join("records"), geometry().record_offset(6) + 60);
    let before = contents(&folder);
    let lock = std::fs::File::open(folder.join("lock")).unwrap();
    lock.lock().unwrap();
    let (code, out, error) = cache(&["repair", text(dir.path())]);
    assert!(code == 1 && out.is_empty() && error.contains("used by another process"), "{out}{error}");
    assert!(contents(&folder) == before, "a server uses it");
    drop(lock);

    let (code, out, error) = cache(&["repair", text(dir.path())]);
    assert_eq!(code, 0, "{error}");
    assert!(out.contains("emptied 2 damaged slots, kept 3 blocks, 12.0 KiB\n"), "{out}");
    assert!(
        out.contains(&format!("  slot 3  block {}  `", one[3])) && out.contains("  slot 6  record  `"),
        "{out}"
    );
    assert_eq!(cache(&["verify", text(dir.path())]).0, 0);
    let (_, out, _) = cache(&["ls", text(dir.path())]);
    assert!(out.contains("3 blocks"), "{out}");
}

#[test]
fn a_store_with_a_damaged_header_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let (folder, ..) = made(dir.path());
    flip(&folder.join("records"), 40);
    let before = contents(&folder);
    for command in ["ls", "verify", "repair"] {
        let (code, _, error) = cache(&[command, text(dir.path())]);
        assert!(code == 1 && error.contains("/records` has a damaged header; hint: "), "{command}: {error}");
    }
    assert!(contents(&folder) == before);
    // Another store beside it is still shown.
    drop(Store::open(&dir.path().join("b"), geometry()).unwrap());
    assert_eq!(cache(&["ls", text(dir.path())]).0, 0);
    let (code, out, error) = cache(&["verify", text(dir.path())]);
    assert!(code == 1 && out.contains("0 blocks") && error.contains("has a damaged header"), "{out}{error}");
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

/// Empties a slot, as a server does with a damaged block that it meets.
fn empty(folder: &Path, slot: u32) {
    Store::open(folder, geometry()).unwrap().0.erase(slot).unwrap();
}

fn slots(folder: &Path) -> Vec<u32> {
    records(folder).unwrap().blocks.iter().map(|block| block.slot).collect()
}

#[test]
fn a_conversation_with_a_damaged_block_is_forgotten_whole() {
    // Its bytes are damaged: the path is known.
    let dir = tempfile::tempdir().unwrap();
    let (folder, one, _) = made(dir.path());
    flip(&folder.join("blocks"), 2 * BLOCK_BYTES as u64);
    let (code, out, error) = cache(&["rm", text(dir.path()), &one[3].to_string()]);
    assert_eq!((code, out.as_str()), (0, "removed 2 blocks, 8.0 KiB\n"), "{error}");
    assert_eq!(slots(&folder), [0, 1, 6]);

    // Its record is damaged: the blocks after it have lost their path.
    let dir = tempfile::tempdir().unwrap();
    let (folder, one, _) = made(dir.path());
    flip(&folder.join("records"), geometry().record_offset(2) + 60);
    let (code, out, error) = cache(&["rm", text(dir.path()), &one[1].to_string()]);
    assert_eq!(code, 0, "{error}");
    let lost = "removed 1 block, 4.0 KiB, which no path reaches any more and which may belong to it\n";
    assert_eq!(out, format!("removed 3 blocks, 12.0 KiB\n{lost}emptied 1 damaged slot\n"));
    assert_eq!(slots(&folder), [0; 0]);

    // A block of the middle is gone, and the id is that of the end: the beginning is only a guess.
    let dir = tempfile::tempdir().unwrap();
    let (folder, one, two) = made(dir.path());
    empty(&folder, 6);
    empty(&folder, 2);
    let (code, out, error) = cache(&["rm", text(dir.path()), &one[3].to_string()]);
    assert_eq!((code, out.as_str()), (1, "removed 1 block, 4.0 KiB\n"));
    let wanted = format!("its beginning may remain, at the end of `{}`; hint: remove that", one[1]);
    assert!(error.contains(&wanted) && !error.contains(&two[0].to_string()), "{error}");
    assert_eq!(slots(&folder), [0, 1]);
}

#[test]
fn a_block_that_is_stored_twice_is_forgotten_twice() {
    let dir = tempfile::tempdir().unwrap();
    let (folder, one, _) = made(dir.path());
    let store = Store::open(&folder, geometry()).unwrap().0;
    write(&store, 8, &[1, 2, 3, 4], 3);
    drop(store);
    assert_eq!(slots(&folder), [0, 1, 2, 3, 6, 11]);
    assert_eq!(cache(&["rm", text(dir.path()), &one[3].to_string()]).0, 0);
    assert_eq!(slots(&folder), [0, 1, 6]);
}

#[test]
fn the_folder_of_the_server_is_the_default() {
    let dir = tempfile::tempdir().unwrap();
    let (folder, one, _) = made(dir.path());
    let (id, file) = (one[3].to_string(), dir.path().join("one.kv"));
    for args in [&["ls"][..], &["verify"], &["repair"], &["show", &id], &["export", &id, text(&file)]] {
        let (code, out, error) = cache_at(dir.path(), args);
        assert!(code == 0 && !out.is_empty(), "{args:?}: {error}");
    }
    assert!(cache_at(dir.path(), &["rm", &id]).1.starts_with("removed 2 blocks"));
    assert!(cache_at(dir.path(), &["import", text(&file)]).1.starts_with("imported 2 blocks"));
    assert!(cache_at(dir.path(), &["rm", "--all"]).1.starts_with("removed 5 blocks"));
    assert!(!folder.exists());

    // A folder on the command line takes precedence; without either there is nothing to look at.
    let other = tempfile::tempdir().unwrap();
    made(other.path());
    assert_eq!(cache_at(dir.path(), &["ls", text(other.path())]).0, 0);
    for args in [&["ls"][..], &["verify"], &["repair"], &["show", &id], &["rm", &id], &["import", "x"]] {
        let (code, _, error) = cache_at(Path::new(""), args);
        assert!(code == 2 && error.contains("nor is `TRUNKLINE_KV_DISK_PATH` set"), "{args:?}: {error}");
    }
}

#[test]
fn ids_of_a_server_are_taken_for_a_folder() {
    let dir = tempfile::tempdir().unwrap();
    let (_, one, _) = made(dir.path());
    for id in [one[3].to_string(), format!("10-{}", one[3]), format!("10-{}", &one[3].to_string()[..8])] {
        let (code, out, error) = cache(&["show", text(dir.path()), &id]);
        assert!(code == 0 && out.contains(&format!("\n{}  tokens 192", one[3])), "{id}: {error}");
    }
    for id in [format!("-{}", one[3]), format!("x-{}", one[3]), format!("{}-10", one[3])] {
        let (code, _, error) = cache(&["show", text(dir.path()), "--", &id]);
        assert!(code == 2 && error.contains("no path has the id"), "{id}: {error}");
    }
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
