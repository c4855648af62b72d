//! Random histories of the KV cache against a plain model: a map from every stored prefix to its block, and a device
//! that remembers which prefix was written in which slot. `TRUNKLINE_SEED` picks the histories, `TRUNKLINE_CASES` how
//! many. A failure prints the seed and a shrunk history.

use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed, TestCaseError, TestError, TestRunner};
use trunkline_contract::BlockId;
use trunkline_kv::{BlockTable, CachePriority, KvCache, PolicyKind, Salt};

use crate::draw;

const VOCABULARY: u32 = 2;
const OUTSIDE_VOCABULARY: u32 = 77;

#[derive(Clone, Debug)]
enum Op {
    Open {
        salt: u8,
        tokens: Vec<u32>,
        use_partial: bool,
    },
    /// Grows a sequence, plans a step over its next positions, and appends the sampled token.
    Fill {
        sequence: usize,
        num_tokens: u32,
        sampled: Option<u32>,
    },
    Acknowledge {
        sequence: usize,
    },
    Close {
        sequence: usize,
    },
    /// Ends a sequence without indexing any more of it.
    Drop {
        sequence: usize,
    },
    Shed {
        sequence: usize,
    },
    Lookup {
        salt: u8,
        tokens: Vec<u32>,
    },
}

#[derive(Clone, Debug)]
struct History {
    block_size: u32,
    num_blocks: u32,
    ops: Vec<Op>,
}

/// Often returns a piece of one text, so that prefixes are shared.
fn tokens() -> impl Strategy<Value = Vec<u32>> {
    prop_oneof![
        prop::collection::vec(0..VOCABULARY, 1..14),
        (1..14u32).prop_map(|count| (0..count).map(|position| position % 3 % VOCABULARY).collect()),
    ]
}

fn history() -> impl Strategy<Value = History> {
    let op = prop_oneof![
        4 => (0..2u8, tokens(), any::<bool>())
            .prop_map(|(salt, tokens, use_partial)| Op::Open { salt, tokens, use_partial }),
        8 => (0..6usize, 1..9u32, prop::option::of(0..VOCABULARY))
            .prop_map(|(sequence, num_tokens, sampled)| Op::Fill { sequence, num_tokens, sampled }),
        6 => (0..6usize).prop_map(|sequence| Op::Acknowledge { sequence }),
        2 => (0..6usize).prop_map(|sequence| Op::Close { sequence }),
        1 => (0..6usize).prop_map(|sequence| Op::Drop { sequence }),
        1 => (0..6usize).prop_map(|sequence| Op::Shed { sequence }),
        2 => (0..2u8, tokens()).prop_map(|(salt, tokens)| Op::Lookup { salt, tokens }),
    ];
    (1..6u32, 1..16u32, prop::collection::vec(op, 1..80)).prop_map(|(block_size, num_blocks, ops)| History {
        block_size,
        num_blocks,
        ops,
    })
}

type Prefix = (u8, Vec<u32>);

struct Sequence {
    salt: u8,
    tokens: Vec<u32>,
    filled: usize,
    acknowledged: usize,
    table: BlockTable,
}

struct World {
    block_size: usize,
    kv: KvCache,
    sequences: Vec<Sequence>,
    /// The plain model: for every stored prefix of whole blocks, with or without a tail, the block with its last
    /// tokens.
    stored: BTreeMap<Prefix, BlockId>,
    /// For each block and slot, the prefix whose last token's K and V are there.
    device: Vec<Vec<Option<Prefix>>>,
    num_evicted: u64,
}

fn salt(index: u8) -> Salt {
    Salt::of_tenant(if index == 0 { "a" } else { "b" })
}

impl World {
    fn new(history: &History, kind: PolicyKind) -> Self {
        Self {
            block_size: history.block_size as usize,
            kv: KvCache::with_policy(history.block_size, history.num_blocks, kind.build(history.num_blocks)),
            sequences: Vec::new(),
            stored: BTreeMap::new(),
            device: vec![vec![None; history.block_size as usize]; history.num_blocks as usize],
            num_evicted: 0,
        }
    }

    fn apply(&mut self, op: &Op) {
        match op {
            Op::Open { salt, tokens, use_partial } => self.open(*salt, tokens, *use_partial),
            Op::Lookup { salt, tokens } => self.check_lookup(*salt, tokens),
            Op::Fill { sequence, num_tokens, sampled } => {
                if let Some(sequence) = self.pick(*sequence) {
                    self.fill(sequence, *num_tokens as usize, *sampled);
                }
            }
            Op::Acknowledge { sequence } => {
                if let Some(index) = self.pick(*sequence) {
                    let sequence = &mut self.sequences[index];
                    sequence.acknowledged = sequence.filled;
                    self.kv.device_mut().release_copy_source(&mut sequence.table);
                    let (from, to) = (sequence.table.num_indexed_blocks(), sequence.filled / self.block_size);
                    self.store_blocks(index, from, to);
                    let sequence = &mut self.sequences[index];
                    self.kv.index(&mut sequence.table, &sequence.tokens[..sequence.filled]);
                }
            }
            Op::Close { sequence } => {
                if let Some(index) = self.pick(*sequence) {
                    self.close(index);
                }
            }
            Op::Drop { sequence } => {
                if let Some(index) = self.pick(*sequence) {
                    drop(self.sequences.swap_remove(index));
                }
            }
            Op::Shed { sequence } => {
                if let Some(index) = self.pick(*sequence) {
                    self.shed(index);
                }
            }
        }
    }

    fn pick(&self, index: usize) -> Option<usize> {
        if self.sequences.is_empty() { None } else { Some(index % self.sequences.len()) }
    }

    fn open(&mut self, salt_index: u8, tokens: &[u32], use_partial: bool) {
        self.check_lookup(salt_index, tokens);
        if self.sequences.len() >= 6 {
            return;
        }
        let mut hit = self.kv.lookup(&salt(salt_index), tokens);
        if !use_partial {
            hit = hit.without_partial();
        }
        // The priority decides the order of eviction only, not the contents of blocks.
        let worth = if tokens.len().is_multiple_of(3) { CachePriority::Low } else { CachePriority::Normal };
        let mut table = self.kv.open_with_priority(&salt(salt_index), &hit, worth);
        self.kv.device_mut().touch(&hit);
        let mut computed = hit.num_block_tokens() as usize;
        if let Some((source, num_tokens)) = hit.partial() {
            self.kv.device_mut().settle();
            if self.kv.device_mut().grow(&mut table, 1) {
                // The first step makes the copy, so these positions are filled until it is acknowledged.
                self.kv.device_mut().begin_fill(&table, computed as u32, num_tokens);
                let destination = table.blocks().last().expect("it just grew").id();
                for slot in 0..num_tokens as usize {
                    self.device[destination.0 as usize][slot] = self.device[source.0 as usize][slot].clone();
                }
                computed += num_tokens as usize;
            } else {
                self.kv.device_mut().release_copy_source(&mut table);
            }
        }
        let acknowledged = hit.num_block_tokens() as usize;
        self.sequences.push(Sequence {
            salt: salt_index,
            tokens: tokens.to_vec(),
            filled: computed,
            acknowledged,
            table,
        });
    }

    fn fill(&mut self, index: usize, num_tokens: usize, sampled: Option<u32>) {
        let sequence = &mut self.sequences[index];
        let end = (sequence.filled + num_tokens).min(sequence.tokens.len());
        let missing = end.div_ceil(self.block_size).saturating_sub(sequence.table.blocks().len());
        let available = self.kv.device().available() as usize;
        let grew = self.kv.device_mut().grow(&mut sequence.table, missing as u32);
        assert_eq!(grew, missing <= available, "grow gives what is available");
        if !grew {
            return;
        }
        let begin = sequence.filled;
        if begin < end {
            self.kv.device_mut().begin_fill(&sequence.table, begin as u32, (end - begin) as u32);
        }
        for position in begin..end {
            let block = sequence.table.blocks()[position / self.block_size].id();
            self.device[block.0 as usize][position % self.block_size] =
                Some((sequence.salt, sequence.tokens[..=position].to_vec()));
        }
        sequence.filled = end;
        if end == sequence.tokens.len() {
            sequence.tokens.extend(sampled);
        }
    }

    fn close(&mut self, index: usize) {
        let from = self.sequences[index].table.num_indexed_blocks();
        let acknowledged = self.sequences[index].acknowledged;
        let whole = acknowledged / self.block_size;
        self.store_blocks(index, from, whole);
        let sequence = &self.sequences[index];
        if !acknowledged.is_multiple_of(self.block_size) && from.max(whole) == whole {
            let prefix = (sequence.salt, sequence.tokens[..acknowledged].to_vec());
            let block = sequence.table.blocks()[whole].id();
            let is_covered = self.children(&prefix, whole).any(|(key, _)| key.1.starts_with(&prefix.1));
            if !is_covered {
                self.remove_tails(&prefix, whole);
                self.stored.insert(prefix, block);
            }
        }
        let sequence = self.sequences.swap_remove(index);
        self.kv.close(sequence.table, &sequence.tokens[..sequence.acknowledged]);
    }

    /// Does in the model what `KvCache::index` does after it.
    fn store_blocks(&mut self, index: usize, from: usize, to: usize) {
        for block_idx in from..to {
            let sequence = &self.sequences[index];
            let prefix = (sequence.salt, sequence.tokens[..(block_idx + 1) * self.block_size].to_vec());
            let block = sequence.table.blocks()[block_idx].id();
            match self.stored.get(&prefix) {
                Some(existing) if self.kv.device().is_held(*existing) => {}
                _ => {
                    self.remove_tails(&prefix, block_idx);
                    self.stored.insert(prefix, block);
                }
            }
        }
    }

    fn shed(&mut self, index: usize) {
        // Replaced blocks are visible from outside: a lookup finds the sequence's own block where another one was.
        let sequence = &mut self.sequences[index];
        let before = self.kv.device().counts();
        let num_shed = self.kv.device_mut().shed_shadows(&mut sequence.table);
        assert_eq!(self.kv.device().counts().free, before.free + num_shed, "each shadow frees a block");
        let indexed = sequence.table.num_indexed_blocks();
        let mut replaced = 0;
        for block_idx in 0..indexed {
            let prefix = (sequence.salt, sequence.tokens[..(block_idx + 1) * self.block_size].to_vec());
            let own = sequence.table.blocks()[block_idx].id();
            let mut probe = prefix.1.clone();
            probe.push(OUTSIDE_VOCABULARY);
            let found = self.kv.lookup(&salt(prefix.0), &probe).block_ids()[block_idx];
            let stored = self.stored.get_mut(&prefix).expect("what is indexed is stored");
            if found != *stored {
                assert_eq!(found, own, "only the own block takes the place");
                *stored = own;
                replaced += 1;
            }
        }
        assert_eq!(replaced, num_shed);
    }

    /// Returns the stored prefixes that end within block `block_idx` and share all blocks before it with `prefix`.
    fn children<'a>(
        &'a self,
        prefix: &'a Prefix,
        block_idx: usize,
    ) -> impl Iterator<Item = (&'a Prefix, &'a BlockId)> {
        let begin = block_idx * self.block_size;
        self.stored.iter().filter(move |(key, _)| {
            key.0 == prefix.0
                && key.1.len() > begin
                && key.1.len() <= begin + self.block_size
                && key.1.starts_with(&prefix.1[..begin])
        })
    }

    fn remove_tails(&mut self, prefix: &Prefix, block_idx: usize) {
        let tails: Vec<Prefix> = self
            .children(prefix, block_idx)
            .filter(|(key, _)| key.1.len() < prefix.1.len() && prefix.1.starts_with(&key.1))
            .map(|(key, _)| key.clone())
            .collect();
        for tail in tails {
            self.stored.remove(&tail);
        }
    }

    fn check_lookup(&self, salt_index: u8, tokens: &[u32]) {
        let hit = self.kv.lookup(&salt(salt_index), tokens);
        let usable = &tokens[..tokens.len() - 1];
        assert!((hit.num_tokens() as usize) < tokens.len(), "the last token is never covered");
        let expected: Vec<BlockId> = (1..=usable.len() / self.block_size)
            .map_while(|count| {
                self.stored.get(&(salt_index, usable[..count * self.block_size].to_vec())).copied()
            })
            .collect();
        assert_eq!(hit.block_ids(), expected, "the whole blocks of a hit");
        let begin = expected.len() * self.block_size;
        let rest = &usable[begin..];
        let best = self
            .children(&(salt_index, usable[..begin].to_vec()), expected.len())
            .map(|(key, _)| key.1[begin..].iter().zip(rest).take_while(|(a, b)| a == b).count())
            .max()
            .unwrap_or(0);
        assert_eq!(
            hit.partial().map_or(0, |(_, num_tokens)| num_tokens as usize),
            best,
            "the partly matching block"
        );
        for position in 0..hit.num_tokens() as usize {
            let block = match hit.block_ids().get(position / self.block_size) {
                Some(block) => *block,
                None => hit.partial().expect("it covers the rest").0,
            };
            let written = &self.device[block.0 as usize][position % self.block_size];
            assert_eq!(
                *written,
                Some((salt_index, usable[..=position].to_vec())),
                "position {position} of a hit is computed, and from these tokens"
            );
        }
    }

    /// Checks the invariants, and that the model and the index agree except for evicted blocks.
    fn check(&mut self) {
        self.kv.check_invariants();
        let mut gone = Vec::new();
        for (prefix, block) in &self.stored {
            let mut probe = prefix.1.clone();
            probe.push(OUTSIDE_VOCABULARY);
            let hit = self.kv.lookup(&salt(prefix.0), &probe);
            let whole = prefix.1.len() / self.block_size;
            let found = if prefix.1.len().is_multiple_of(self.block_size) {
                hit.block_ids().get(whole - 1).copied()
            } else {
                hit.partial()
                    .filter(|&(_, count)| {
                        hit.num_blocks() == whole && count as usize == prefix.1.len() % self.block_size
                    })
                    .map(|(block, _)| block)
            };
            match found {
                Some(found) if found == *block => {}
                _ => gone.push(prefix.clone()),
            }
        }
        let num_evicted = self.kv.device().num_evicted();
        assert_eq!(gone.len() as u64, num_evicted - self.num_evicted, "what is gone was evicted: {gone:?}");
        self.num_evicted = num_evicted;
        for prefix in gone {
            self.stored.remove(&prefix);
        }
        let counts = self.kv.device().counts();
        let indexed_held = self.stored.values().filter(|block| self.kv.device().is_held(**block)).count();
        assert_eq!(counts.cached as usize, self.stored.len() - indexed_held, "cached: stored and not held");
        for sequence in &self.sequences {
            for (position, block) in
                (0..sequence.filled).map(|p| (p, sequence.table.blocks()[p / self.block_size].id()))
            {
                assert_eq!(
                    self.device[block.0 as usize][position % self.block_size],
                    Some((sequence.salt, sequence.tokens[..=position].to_vec())),
                    "nobody else writes into a block that is held"
                );
            }
        }
    }
}

fn run(history: &History, kind: PolicyKind) {
    let mut world = World::new(history, kind);
    for op in &history.ops {
        world.apply(op);
        world.check();
    }
    world.sequences.clear();
    world.check();
    assert_eq!(world.kv.device().counts().held, 0, "all blocks return");
    assert_eq!(world.kv.device().available(), history.num_blocks, "and all can be had");
    let mut table = world.kv.open(&salt(0), &world.kv.lookup(&salt(0), &[0]));
    assert!(world.kv.device_mut().grow(&mut table, history.num_blocks), "every cached block can be evicted");
    drop(table);
    world.stored.clear();
    world.kv.check_invariants();
}

/// The number of cases under `make test`. `make test-all` runs 30 times as many.
pub fn drawn(few: u64) -> Config {
    Config {
        cases: draw::count("TRUNKLINE_CASES", few, 30 * few) as u32,
        rng_seed: RngSeed::Fixed(draw::first_seed()),
        failure_persistence: None,
        ..Config::default()
    }
}

#[test]
fn random_histories_agree_with_the_model() {
    let config = Config { max_shrink_iters: 20_000, ..drawn(600) };
    let seed = config.rng_seed;
    let outcome = TestRunner::new(config).run(&history(), |history| {
        std::panic::catch_unwind(|| PolicyKind::ALL.iter().for_each(|&kind| run(&history, kind))).map_err(
            |panic| {
                let text = panic.downcast_ref::<String>().cloned();
                let text = text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
                TestCaseError::fail(text.unwrap_or_default())
            },
        )
    });
    if let Err(TestError::Fail(reason, history)) = outcome {
        panic!("{seed:?}: {reason}\nshrunk to {history:#?}");
    }
    outcome.unwrap();
}
