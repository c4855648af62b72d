//! Replays requests through the KV cache with every eviction policy: `make bench NAME=eviction`.
//!
//! Standard input has a request on each line, with its blocks as numbers. Equal numbers mean an equal prefix up to
//! there. The arguments are capacities in blocks, and names of policies if not all should run. Standard output has
//! columns separated by tabs: capacity, policy, blocks that hit, blocks, seconds.
//!
//! A block has one token, so that the cache counts the same blocks as the trace. Blocks that a request computes are
//! added to the capacity until it ends, as in the bounds. The last policy is Belady's optimum (1966), which knows the
//! future.
#![allow(clippy::print_stdout, clippy::disallowed_types, clippy::disallowed_methods, missing_docs)]

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::error::Error;
use std::io::BufRead;
use std::time::Instant;

use trunkline_kv::{KvCache, PolicyKind, Salt};

/// Added to each prompt, because the cache never covers the last token.
const LAST_TOKEN: u32 = u32::MAX;

/// The name of the policy that knows the future.
const OPTIMUM: &str = "optimum";

fn main() -> Result<(), Box<dyn Error>> {
    let is_number = |text: &String| text.starts_with(|first: char| first.is_ascii_digit());
    let (numbers, names): (Vec<_>, Vec<_>) = std::env::args().skip(1).partition(is_number);
    let capacities = numbers.iter().map(|text| text.parse()).collect::<Result<Vec<u32>, _>>()?;
    let is_asked_for = |name: &str| names.is_empty() || names.iter().any(|asked| asked == name);
    let mut requests: Vec<Vec<u32>> = Vec::new();
    for line in std::io::stdin().lock().lines() {
        requests.push(line?.split_whitespace().map(str::parse).collect::<Result<_, _>>()?);
    }
    let total: usize = requests.iter().map(Vec::len).sum();
    for &capacity in &capacities {
        for kind in PolicyKind::ALL.into_iter().filter(|kind| is_asked_for(kind.name())) {
            let begin = Instant::now();
            let hits = replay(&requests, capacity, kind);
            println!("{capacity}\t{}\t{hits}\t{total}\t{:.3}", kind.name(), begin.elapsed().as_secs_f64());
        }
        if !is_asked_for(OPTIMUM) {
            continue;
        }
        let begin = Instant::now();
        let hits = optimum(&requests, capacity as usize);
        println!("{capacity}\t{OPTIMUM}\t{hits}\t{total}\t{:.3}", begin.elapsed().as_secs_f64());
    }
    Ok(())
}

fn replay(requests: &[Vec<u32>], capacity: u32, kind: PolicyKind) -> u64 {
    let salt = Salt::default();
    let longest = requests.iter().map(Vec::len).max().unwrap_or(0) as u32;
    let mut kv = KvCache::with_policy(1, capacity + longest, kind.build(capacity));
    let mut hits = 0;
    for request in requests {
        let mut prompt = request.clone();
        prompt.push(LAST_TOKEN);
        let hit = kv.lookup(&salt, &prompt);
        prompt.pop();
        let num_cached = hit.num_blocks() as u32;
        let num_new = prompt.len() as u32 - num_cached;
        hits += u64::from(num_cached);
        let mut table = kv.open(&salt, &hit);
        kv.device_mut().touch(&hit);
        assert!(
            kv.device_mut().grow(&mut table, num_new),
            "there is room for the longest request beside the cache"
        );
        kv.device_mut().begin_fill(&table, num_cached, num_new);
        kv.close(table, &prompt);
        kv.device_mut().shrink(capacity);
    }
    kv.check_invariants();
    hits
}

fn optimum(requests: &[Vec<u32>], capacity: usize) -> u64 {
    let mut uses: BTreeMap<u32, VecDeque<usize>> = BTreeMap::new();
    for (time, request) in requests.iter().enumerate() {
        for &block in request {
            uses.entry(block).or_default().push_back(time);
        }
    }
    // By next use and depth, so that the deepest of equally late blocks is evicted first.
    let mut cached: BTreeMap<u32, (usize, usize)> = BTreeMap::new();
    let mut order: BTreeSet<((usize, usize), u32)> = BTreeSet::new();
    let mut hits = 0;
    for request in requests {
        hits += request.iter().take_while(|block| cached.contains_key(block)).count() as u64;
        for (depth, &block) in request.iter().enumerate() {
            let later = uses.get_mut(&block).expect("every block is used");
            later.pop_front();
            let next = (later.front().copied().unwrap_or(usize::MAX), depth);
            if let Some(old) = cached.insert(block, next) {
                order.remove(&(old, block));
            }
            order.insert((next, block));
        }
        while cached.len() > capacity {
            let (_, block) = order.pop_last().expect("what is cached is ordered");
            cached.remove(&block);
        }
    }
    hits
}
