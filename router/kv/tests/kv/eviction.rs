//! Hits of the eviction policies on synthetic traffic.

use std::collections::BTreeMap;

use trunkline_kv::{CachePriority, KvCache, PolicyKind, Salt};

use crate::draw::Random;
use crate::support::compute;

/// Runs requests one after another. Returns the number of blocks that hit, for each request.
fn replay(requests: &[Vec<u32>], num_blocks: u32, kind: PolicyKind) -> Vec<u32> {
    let salt = Salt::default();
    let mut kv = KvCache::with_policy(1, num_blocks, kind.build(num_blocks));
    let hits = requests.iter().map(|prompt| compute(&mut kv, &salt, prompt, CachePriority::Normal) as u32);
    let hits = hits.collect();
    kv.check_invariants();
    hits
}

fn total(hits: &[u32]) -> u32 {
    hits.iter().sum()
}

/// Makes `num` conversations that continue after a pause of about `pause` requests, give or take a third.
///
/// Between any two of their requests are `flood` prompts that come only once.
fn chats(seed: u64, num: u64, turns: u64, pause: u64, flood: usize) -> Vec<Vec<u32>> {
    let (mut random, mut next_block) = (Random(seed), 0);
    let mut new = |count: u64| {
        next_block += count as u32;
        next_block - count as u32..next_block
    };
    let mut due: BTreeMap<(u64, u64), (u64, Vec<u32>)> = BTreeMap::new();
    for chat in 0..num {
        due.insert((chat * 2, chat), (turns, new(4).collect()));
    }
    let mut requests = Vec::new();
    while let Some(((time, chat), (turns, mut history))) = due.pop_first() {
        requests.push(history.clone());
        requests.extend((0..flood).map(|_| new(6).collect::<Vec<_>>()));
        if turns > 1 {
            history.extend(new(2));
            due.insert((time + pause * 2 / 3 + random.below(pause * 2 / 3), chat), (turns - 1, history));
        }
    }
    requests
}

#[test]
fn prompts_that_come_once_do_not_evict_conversations() {
    // Between two turns of a conversation are about 100 requests with 600 blocks. LRU, with room for 200, has evicted
    // it.
    let requests = chats(1, 800, 6, 40, 2);
    let lru = total(&replay(&requests, 200, PolicyKind::Lru));
    let worth = total(&replay(&requests, 200, PolicyKind::Worth));
    assert!(worth > 3 * lru.max(500), "worth hits {worth} blocks, lru {lru}");
}

#[test]
fn worth_is_no_worse_than_lru_where_recent_prompts_come_first() {
    let requests = chats(2, 800, 6, 20, 0);
    for num_blocks in [50, 100, 200, 400, 800, 1600] {
        let lru = total(&replay(&requests, num_blocks, PolicyKind::Lru));
        let worth = total(&replay(&requests, num_blocks, PolicyKind::Worth));
        assert!(f64::from(worth) >= 0.99 * f64::from(lru), "{num_blocks} blocks: worth {worth}, lru {lru}");
    }
}

/// Puts `num_shared` blocks that all requests share before `requests`.
fn behind(requests: &[Vec<u32>], num_shared: u32) -> Vec<Vec<u32>> {
    let shifted = |request: &Vec<u32>| request.iter().map(|block| block + num_shared).collect::<Vec<_>>();
    requests.iter().map(|request| (0..num_shared).chain(shifted(request)).collect()).collect()
}

#[test]
fn an_agent_that_calls_again_at_once_keeps_its_history() {
    // Two thirds of all prompts continue one of the last few. A policy that undervalues the latest blocks loses to LRU.
    let (mut random, mut next_block) = (Random(6), 0);
    let mut loops: Vec<Vec<u32>> = Vec::new();
    let mut requests = Vec::new();
    for _ in 0..4_000 {
        if loops.len() < 12 {
            next_block += 12;
            loops.push((next_block - 12..next_block).collect());
        }
        let place = random.below(loops.len() as u64) as usize;
        next_block += 3;
        loops[place].extend(next_block - 3..next_block - 1);
        // The last block of each prompt is unique.
        requests.push(loops[place].iter().copied().chain([next_block - 1]).collect::<Vec<_>>());
        if random.below(12) == 0 {
            loops.swap_remove(place);
        }
    }
    for num_blocks in [300, 500, 900] {
        let lru = total(&replay(&requests, num_blocks, PolicyKind::Lru));
        let worth = total(&replay(&requests, num_blocks, PolicyKind::Worth));
        assert!(f64::from(worth) >= 0.99 * f64::from(lru), "{num_blocks} blocks: worth {worth}, lru {lru}");
    }
}

#[test]
fn conversations_are_kept_though_all_begin_alike() {
    let requests = behind(&chats(7, 800, 6, 40, 2), 3);
    let lru = total(&replay(&requests, 200, PolicyKind::Lru));
    let worth = total(&replay(&requests, 200, PolicyKind::Worth));
    assert!(worth > lru + 1_500, "worth {worth}, lru {lru}");
}

#[test]
fn half_of_a_cycle_is_kept() {
    // 2,000 prompts of ten blocks repeat in the same order. LRU, with room for half of them, never hits.
    let cycle: Vec<Vec<u32>> = (0..2_000).map(|prompt| (prompt * 10..prompt * 10 + 10).collect()).collect();
    let requests: Vec<Vec<u32>> = behind(&cycle, 3).into_iter().cycle().take(8_000).collect();
    let worth = total(&replay(&requests, 10_000, PolicyKind::Worth));
    let lru = total(&replay(&requests, 10_000, PolicyKind::Lru));
    assert!(worth > lru + 15_000, "worth {worth}, lru {lru}");
}

#[test]
fn worth_learns_lru_where_lru_is_next_to_the_best() {
    // The chance that a prompt comes again depends only on its age and falls with it, so nothing else can be learned.
    let (mut random, mut num_prompts) = (Random(8), 0);
    let mut last_first: Vec<u32> = Vec::new();
    let mut requests: Vec<Vec<u32>> = Vec::new();
    for _ in 0..6_000 {
        let octave = random.below(10);
        let age = random.below(1 << octave) as usize + 1;
        let prompt = if age <= last_first.len() && random.below(3) > 0 {
            last_first.remove(last_first.len() - age)
        } else {
            num_prompts += 1;
            num_prompts - 1
        };
        last_first.push(prompt);
        requests.push((prompt * 8..prompt * 8 + 8).collect());
    }
    for num_blocks in [100, 400, 1_600, 3_200] {
        let lru = total(&replay(&requests, num_blocks, PolicyKind::Lru));
        let worth = total(&replay(&requests, num_blocks, PolicyKind::Worth));
        assert!(f64::from(worth) >= 0.98 * f64::from(lru), "{num_blocks} blocks: worth {worth}, lru {lru}");
    }
}

#[test]
fn the_same_requests_give_the_same_hits() {
    let requests = chats(3, 300, 5, 30, 1);
    for kind in PolicyKind::ALL {
        assert_eq!(replay(&requests, 150, kind), replay(&requests, 150, kind));
    }
}

#[test]
fn it_follows_traffic_that_changes() {
    // First no prompt comes again for long, and then every prompt comes again soon.
    let mut requests = chats(4, 1_500, 2, 2_000, 1);
    let num_before = requests.len();
    let offset = requests.iter().flatten().max().unwrap() + 1;
    let after = chats(5, 1_500, 8, 20, 0);
    requests.extend(after.iter().map(|request| request.iter().map(|block| block + offset).collect()));
    let of_second = |kind| total(&replay(&requests, 600, kind)[num_before..]);
    let (lru, worth) = (of_second(PolicyKind::Lru), of_second(PolicyKind::Worth));
    assert!(f64::from(worth) >= 0.95 * f64::from(lru), "worth {worth}, lru {lru}");
}
