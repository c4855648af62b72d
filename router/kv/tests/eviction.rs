//! What policies of eviction keep, on traffic made here from a seed.

use std::collections::BTreeMap;

use trunkline_kv::{KvCache, PolicyKind, Salt};

const LAST_TOKEN: u32 = u32::MAX;

/// xorshift64* (Vigna 2016).
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % end
    }
}

/// Runs requests one after another. Returns how many of each one's blocks hit.
fn replay(requests: &[Vec<u32>], num_blocks: u32, kind: PolicyKind) -> Vec<u32> {
    let salt = Salt::default();
    let mut kv = KvCache::with_policy(1, num_blocks, kind.build(num_blocks));
    let mut hits = Vec::new();
    for request in requests {
        let mut prompt = request.clone();
        prompt.push(LAST_TOKEN);
        let hit = kv.lookup(&salt, &prompt);
        prompt.pop();
        let mut table = kv.open(&salt, &hit);
        kv.touch(&hit);
        let num_cached = hit.num_blocks() as u32;
        let num_new = prompt.len() as u32 - num_cached;
        assert!(kv.grow(&mut table, num_new));
        kv.begin_fill(&table, num_cached, num_new);
        kv.close(table, &prompt);
        hits.push(num_cached);
    }
    kv.check_invariants();
    hits
}

fn total(hits: &[u32]) -> u32 {
    hits.iter().sum()
}

/// Conversations that go on after a pause of `pause` requests (give or take a third), one begun with each of `num`
/// requests; between any two requests `flood` prompts that nobody sends twice.
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
fn prompts_that_nobody_sends_twice_do_not_push_out_conversations() {
    // Between two turns of a conversation come about 100 requests with 600 blocks: LRU, with room for 200, has lost it.
    let requests = chats(1, 800, 6, 40, 2);
    let lru = total(&replay(&requests, 200, PolicyKind::Lru));
    let worth = total(&replay(&requests, 200, PolicyKind::Worth));
    assert!(worth > 3 * lru.max(500), "worth hits {worth} blocks, lru {lru}");
}

#[test]
fn where_the_last_used_comes_first_it_is_no_worse_than_lru() {
    let requests = chats(2, 800, 6, 20, 0);
    for num_blocks in [50, 100, 200, 400, 800, 1600] {
        let lru = total(&replay(&requests, num_blocks, PolicyKind::Lru));
        let worth = total(&replay(&requests, num_blocks, PolicyKind::Worth));
        assert!(f64::from(worth) >= 0.99 * f64::from(lru), "{num_blocks} blocks: worth {worth}, lru {lru}");
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
    // First nothing comes twice in a while, then everything does soon.
    let mut requests = chats(4, 1_500, 2, 2_000, 1);
    let num_before = requests.len();
    let offset = requests.iter().flatten().max().unwrap() + 1;
    let after = chats(5, 1_500, 8, 20, 0);
    requests.extend(after.iter().map(|request| request.iter().map(|block| block + offset).collect()));
    let of_second = |kind| total(&replay(&requests, 600, kind)[num_before..]);
    let (lru, worth) = (of_second(PolicyKind::Lru), of_second(PolicyKind::Worth));
    assert!(f64::from(worth) >= 0.95 * f64::from(lru), "worth {worth}, lru {lru}");
}
