//! A tenant that floods the cache takes no block within another tenant's share. `TRUNKLINE_SEED` picks the histories,
//! and a failure prints it.

use trunkline_contract::SlotId;
use trunkline_kv::{
    BlockTable, KvCache, PolicyKind, Salt, StoreIndex, StoredBlock, TenantShare, TenantUsage,
};

use crate::draw::{self, Random};
use crate::support::{self, keys, write};

const NUM_OPS: u64 = 120;
const NUM_TENANTS: usize = 4;
const NAMES: [&str; NUM_TENANTS] = ["a", "b", "c", "d"];

fn salt(tenant: usize) -> Salt {
    Salt::of_tenant(NAMES[tenant])
}

fn share(tenant: usize, weight: u32) -> TenantShare {
    TenantShare { tenant: NAMES[tenant].into(), weight }
}

struct Sequence {
    tenant: usize,
    tokens: Vec<u32>,
    table: BlockTable,
}

fn usages(kv: &KvCache) -> Vec<TenantUsage> {
    kv.device().usages().cloned().collect()
}

/// Gets one block, and checks which tenant lost one for it.
fn grow_by_one(kv: &mut KvCache, sequence: &mut Sequence, seed: u64) -> bool {
    kv.device_mut().settle();
    let before = usages(kv);
    if !kv.device_mut().grow(&mut sequence.table, 1) {
        return false;
    }
    let own = Some(NAMES[sequence.tenant]);
    let is_own = |usage: &TenantUsage| usage.tenant.as_deref() == own;
    let has_beyond = before.iter().any(|usage| {
        let num_blocks = usage.num_blocks + u32::from(is_own(usage));
        num_blocks > usage.num_share_blocks && usage.num_cached > 0
    });
    for (before, after) in before.iter().zip(usages(kv)) {
        let has_lost = after.num_evicted > before.num_evicted;
        let was_within = before.num_blocks <= before.num_share_blocks;
        assert!(
            is_own(before) || !has_lost || !was_within || !has_beyond,
            "seed {seed}: {before:?} lost a block to {own:?}"
        );
    }
    true
}

fn run(seed: u64) {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let num_blocks = 1 + random.below(24) as u32;
    let kind = PolicyKind::ALL[random.below(PolicyKind::ALL.len() as u64) as usize];
    let mut kv = KvCache::with_policy(1 + random.below(3) as u32, num_blocks, kind.build(num_blocks));
    let mut shares: Vec<TenantShare> =
        (0..random.below(5) as usize).map(|tenant| share(tenant, 1 + random.below(4) as u32)).collect();
    kv.set_shares(&shares);
    let mut sequences: Vec<Sequence> = Vec::new();
    for _ in 0..NUM_OPS {
        match random.below(10) {
            0..4 => {
                let tenant = random.below(NUM_TENANTS as u64) as usize;
                let tokens: Vec<u32> = (0..=random.below(9)).map(|_| random.below(2) as u32).collect();
                let hit = kv.lookup(&salt(tenant), &tokens).without_partial();
                let table = kv.open(&salt(tenant), &hit);
                kv.device_mut().touch(&hit);
                let mut sequence = Sequence { tenant, tokens, table };
                let num_needed = sequence.tokens.len().div_ceil(kv.device().block_size() as usize);
                let missing = num_needed - sequence.table.blocks().len();
                if (0..missing).all(|_| grow_by_one(&mut kv, &mut sequence, seed)) {
                    let first = hit.num_tokens();
                    kv.device_mut().begin_fill(&sequence.table, first, sequence.tokens.len() as u32 - first);
                    sequences.push(sequence);
                } else {
                    kv.close(sequence.table, &[]);
                }
            }
            4..7 if !sequences.is_empty() => {
                let index = random.below(sequences.len() as u64) as usize;
                let Sequence { tokens, table, .. } = sequences.swap_remove(index);
                kv.close(table, &tokens);
            }
            7 if !sequences.is_empty() => {
                let index = random.below(sequences.len() as u64) as usize;
                let Sequence { tokens, table, .. } = &mut sequences[index];
                kv.index(table, tokens);
            }
            8 if !sequences.is_empty() => {
                let index = random.below(sequences.len() as u64) as usize;
                drop(sequences.swap_remove(index));
            }
            9 if random.below(8) == 0 && !shares.is_empty() => {
                shares.rotate_left(1);
                shares[0].weight = 1 + random.below(9) as u32;
                kv.set_shares(&shares);
            }
            _ => {}
        }
        kv.device_mut().settle();
        kv.check_invariants();
        for tenant in 0..NUM_TENANTS {
            let available = kv.device().available_to(&salt(tenant));
            assert!(available <= kv.device().available(), "seed {seed}");
        }
    }
}

#[test]
fn a_tenant_within_its_share_loses_nothing_while_another_exceeds_its_own() {
    // The generator needs a seed other than 0.
    let first = draw::first_seed() + 1;
    for seed in first..first + draw::count("TRUNKLINE_CASES", 100, 4_000) {
        run(seed);
    }
}

fn request(kv: &mut KvCache, tenant: usize, prompt: &[u32]) -> usize {
    support::request(kv, &salt(tenant), prompt)
}

#[test]
fn a_flood_leaves_the_histories_of_others_alone_and_borrows_what_is_idle() {
    for kind in PolicyKind::ALL {
        let mut kv = KvCache::with_policy(1, 100, kind.build(100));
        kv.set_shares(&[share(0, 3), share(1, 1)]);
        let history: Vec<u32> = (0..60).collect();
        assert_eq!(request(&mut kv, 0, &history), 0);
        // While a uses less than its share, b borrows the rest. Then b floods.
        for round in 0..50 {
            let noise: Vec<u32> = (0..20).map(|token| 1_000 + round * 20 + token).collect();
            request(&mut kv, 1, &noise);
        }
        let by_name = |kv: &KvCache| -> Vec<_> {
            kv.device().usages().map(|usage| (usage.num_blocks, usage.num_share_blocks)).collect()
        };
        assert_eq!(by_name(&kv), [(60, 75), (40, 25)], "b has what a leaves");
        assert_eq!(request(&mut kv, 0, &history), 60, "a's history is all there");
        // a needs the rest of its share, so b loses the blocks that it borrowed and no others.
        request(&mut kv, 0, &(500..515).collect::<Vec<_>>());
        assert_eq!(by_name(&kv), [(75, 75), (25, 25)]);
        request(&mut kv, 0, &(600..630).collect::<Vec<_>>());
        assert_eq!(by_name(&kv), [(75, 75), (25, 25)], "beyond its share a gives way to itself");
    }
}

#[test]
fn a_sequence_that_can_wait_takes_nothing_within_the_shares_of_others() {
    let mut kv = KvCache::new(1, 10);
    kv.set_shares(&[share(0, 1), share(1, 1)]);
    request(&mut kv, 0, &[1, 2, 3, 4]);
    assert_eq!((kv.device().available_to(&salt(0)), kv.device().available_to(&salt(1))), (10, 6));
    request(&mut kv, 0, &[5, 6, 7, 8]);
    assert_eq!(
        (kv.device().available_to(&salt(0)), kv.device().available_to(&salt(1))),
        (10, 5),
        "three of a's eight are borrowed"
    );
    assert_eq!(kv.device().available_to(&salt(2)), 5, "a tenant that nobody knows has no share");
}

#[test]
fn blocks_of_a_removed_tenant_are_evicted_first() {
    let mut kv = KvCache::new(1, 10);
    kv.set_shares(&[share(0, 1), share(1, 1)]);
    request(&mut kv, 0, &[1, 2, 3]);
    request(&mut kv, 1, &[1, 2, 3, 4, 5, 6, 7]);
    kv.set_shares(&[share(1, 1)]);
    request(&mut kv, 1, &[11, 12, 13]);
    let left: Vec<_> = kv.device().usages().map(|usage| usage.num_blocks).collect();
    assert_eq!(left, [0, 10]);
}

fn num_slots(index: &StoreIndex) -> Vec<(Option<&str>, u32)> {
    index.num_slots_by_tenant().filter(|&(_, num_slots)| num_slots > 0).collect()
}

#[test]
fn a_flood_of_the_store_leaves_the_histories_of_others_alone() {
    let mut index = StoreIndex::new(100, Vec::new());
    index.set_shares(&[share(0, 1), share(1, 1)]);
    let history: Vec<u32> = (0..50).collect();
    assert_eq!(write(&mut index, &salt(0), &history), 50);
    for round in 0..50 {
        assert_eq!(write(&mut index, &salt(1), &[round; 20]), 20);
    }
    assert_eq!(num_slots(&index), [(Some("a"), 50), (Some("b"), 50)]);
    assert!(keys(&salt(0), &history).iter().all(|&key| index.has(key)));
}

#[test]
fn after_a_restart_blocks_get_their_tenants_when_they_are_used() {
    let path: Vec<u32> = (0..40).collect();
    let keys = [0, 1].map(|tenant| keys(&salt(tenant), &path));
    let blocks = keys.iter().flatten().enumerate().map(|(index, &key)| {
        let (tenant, depth) = (index / 40, index % 40);
        let parent = depth.checked_sub(1).map(|before| keys[tenant][before]);
        StoredBlock { slot: SlotId(index as u32), key, parent, depth: depth as u32, sequence: index as u64 }
    });
    let mut index = StoreIndex::new(100, blocks.collect());
    assert!(index.take_discards().is_empty());
    index.set_shares(&[share(0, 1), share(1, 1), share(2, 2)]);
    assert_eq!(num_slots(&index), [(None, 80)]);
    index.touch(keys[1][39], &salt(1));
    index.check_invariants();
    assert_eq!(num_slots(&index), [(None, 40), (Some("b"), 40)]);
    // c floods. b exceeds its 25 slots and loses the surplus. Blocks whose tenant is not known yet weigh as much as a.
    for round in 0..20 {
        assert_eq!(write(&mut index, &salt(2), &[round; 10]), 10);
    }
    let left: Vec<u32> = num_slots(&index).iter().map(|&(_, num_slots)| num_slots).collect();
    assert_eq!(left, [25, 25, 50]);
}
