//! A process that writes is killed at random points, again and again: what it acknowledged is there, and right.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::draw::{self, Random};
use crate::support::{Chain, GEOMETRY, block_bytes, open, read, write};
use trunkline_store::records;

/// The folder that the child writes to; then it is the child.
const FOLDER: &str = "TRUNKLINE_TEST_STORE";
const SEED: &str = "TRUNKLINE_TEST_SEED";
const NUM_BLOCKS: u32 = 32;
/// Longest time from the acknowledgement that was waited for to the kill: some writes.
const MAX_DELAY_US: u64 = 200;

/// Not a test: what the child does until it is killed.
#[test]
#[ignore = "the child of the other test"]
fn child() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let mut random = Random(std::env::var(SEED).unwrap().parse().unwrap());
    let (store, _) = open(Path::new(&folder));
    let chain = Chain::new("a", NUM_BLOCKS);
    // A line is one write to the pipe, and stays there when the process is gone. The test harness catches what goes
    // through `print`.
    let mut out = std::fs::OpenOptions::new().write(true).open("/dev/fd/1").unwrap();
    loop {
        let (slot, depth) = (random.below(GEOMETRY.2), random.below(NUM_BLOCKS) as usize);
        out.write_all(format!("begin {slot} {depth}\n").as_bytes()).unwrap();
        write(&store, slot, &chain, depth).unwrap();
        out.write_all(format!("done {slot} {depth}\n").as_bytes()).unwrap();
    }
}

/// Lets a child write until some time after its n-th acknowledgement; returns all that it said.
fn run_and_kill(folder: &Path, seed: u64, random: &mut Random) -> Vec<(bool, u32, usize)> {
    let mut child = Command::new(std::env::current_exe().expect("a path"))
        .args(["--exact", "kills::child", "--ignored", "--nocapture", "--test-threads=1"])
        .envs([(FOLDER, folder.as_os_str()), (SEED, seed.to_string().as_ref())])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("the child starts");
    let mut lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
    let mut said = Vec::new();
    let parse = |line: &str| {
        let mut words = line.split(' ');
        // The harness says something first.
        let is_done = words.next().filter(|word| matches!(*word, "begin" | "done"))? == "done";
        Some((is_done, words.next()?.parse().ok()?, words.next()?.parse().ok()?))
    };
    let mut num_wanted = 1 + random.below(20);
    while num_wanted > 0 {
        let line = lines.next().expect("the child lives until it is killed").expect("text");
        let event = parse(&line);
        num_wanted -= u64::from(event.is_some_and(|(is_done, ..)| is_done));
        said.extend(event);
    }
    let end = Instant::now() + Duration::from_micros(random.below(MAX_DELAY_US));
    while Instant::now() < end {
        std::hint::spin_loop();
    }
    child.kill().expect("it runs");
    child.wait().expect("it was killed");
    said.extend(lines.map_while(Result::ok).filter_map(|line| parse(&line)));
    said
}

#[test]
fn acknowledged_blocks_survive_kills() {
    let folder = tempfile::tempdir().unwrap();
    let chain = Chain::new("a", NUM_BLOCKS);
    let mut random = Random(2026);
    // What each slot must hold; and the slot whose write was cut off, with what it may hold.
    let mut expected: HashMap<u32, usize> = HashMap::new();
    let mut num_cut = 0;
    let first = draw::first_seed();
    for seed in first..first + draw::count("TRUNKLINE_KILLS", 60, 1_000) {
        let mut begun = None;
        for (is_done, slot, depth) in run_and_kill(folder.path(), seed, &mut random) {
            if is_done {
                begun = None;
                expected.insert(slot, depth);
            } else {
                begun = Some((slot, depth));
                expected.remove(&slot);
            }
        }
        num_cut += usize::from(begun.is_some());
        let there = records(folder.path()).unwrap();
        assert_eq!(there.damaged_slots, [], "seed {seed}: a kill tears no record");
        let (store, found) = open(folder.path());
        assert_eq!((found.num_blocks, found.lost), (there.blocks.len(), None));
        for block in &there.blocks {
            let bytes = read(&store, block.slot, block.key).expect("a record stands for a whole block");
            assert_eq!(bytes, block_bytes(block.key), "seed {seed}: slot {}", block.slot);
        }
        for (slot, depth) in &expected {
            read(&store, *slot, chain.keys[depth + 1]).expect("what was acknowledged is there");
        }
        let num_unsure = there.blocks.len() - expected.len();
        assert!(
            num_unsure <= usize::from(begun.is_some()),
            "seed {seed}: only the write that was cut off is open"
        );
        // If it is there, nobody has said so.
        if let Some((slot, _)) = begun {
            store.erase(slot).unwrap();
        }
    }
    assert!(num_cut > 0, "no kill fell into a write");
}
