//! LRU or worth, whichever hits more of late.

use crate::evict::{EvictionPolicy, LeafLru, Trail};
use crate::ghost::{Found, Ghost};
use crate::history::PathHash;
use crate::radix::NodeId;
use crate::reuse_policy::{Beat, NUM_CLASSES, WorthPolicy};
use crate::shelves::Shelves;

/// Ghosts have the cache's capacity up to here, beyond it a part of the conversations. Their noise is the smaller the
/// more there are, their cost does not grow with the cache.
const MAX_GHOST_BLOCKS: u32 = 8_192;
/// Units that a conversation may be in.
const NUM_UNITS: u32 = 256;
/// Requests after which a hit of a ghost counts half.
const HALF_LIFE: f64 = 2_048.0;
/// Worth is followed until its ghost is behind, and again once it is ahead by this share of the blocks seen.
const MIN_LEAD: f64 = 0.0025;

/// Keeps the orders of [`LeafLru`] and of [`WorthPolicy`], and a [`Ghost`] of a cache under each; evicts by the one
/// whose ghost hit more blocks of late. It begins with worth, which orders as LRU until it has learned something, and
/// follows LRU from when that was better on this traffic at this capacity. Set dueling (Qureshi et al., ISCA 2007) with
/// ghosts (as in ARC, FAST 2003) and spatial sampling (SHARDS, FAST 2015) by conversation: all requests may begin with
/// the same blocks.
#[derive(Debug)]
pub struct AdaptivePolicy {
    num_blocks: u32,
    lru: LeafLru,
    worth: WorthPolicy,
    lru_ghost: Ghost<LeafLru>,
    worth_ghost: Ghost<Shelves>,
    /// Conversations in the first so many units are sampled.
    num_sampled_units: u32,
    /// Blocks that the ghost under worth hit beyond those that the other did, older ones weighing less.
    lead: f64,
    /// Sampled blocks, older ones weighing less.
    num_seen: f64,
    leader: Leader,
}

/// Who says what goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leader {
    Lru,
    Worth,
}

impl AdaptivePolicy {
    /// For a cache of `num_blocks` blocks.
    pub fn new(num_blocks: u32) -> Self {
        let ghost_blocks = u64::from(num_blocks.min(MAX_GHOST_BLOCKS));
        let num_sampled_units =
            (ghost_blocks * u64::from(NUM_UNITS)).div_ceil(u64::from(num_blocks.max(1))) as u32;
        let capacity = (u64::from(num_blocks) * u64::from(num_sampled_units)).div_ceil(u64::from(NUM_UNITS));
        Self {
            num_blocks,
            lru: LeafLru::default(),
            worth: WorthPolicy::new(num_blocks),
            lru_ghost: Ghost::new(capacity as usize, LeafLru::default()),
            worth_ghost: Ghost::new(capacity as usize, Shelves::new(NUM_CLASSES)),
            num_sampled_units,
            lead: 0.0,
            num_seen: 0.0,
            leader: Leader::Worth,
        }
    }

    /// The ghosts see a block of `class`.
    fn duel(&mut self, path: PathHash, class: u8, trail: &mut Trail) {
        let ghosts = &mut trail.ghosts;
        let (in_lru, found_lru) = self.lru_ghost.see(path, ghosts.in_lru);
        let (in_worth, found_worth) = self.worth_ghost.see(path, ghosts.in_worth);
        if let Some(node) = in_worth.node {
            self.worth_ghost.policy.classify(node, class);
        }
        (ghosts.in_lru, ghosts.in_worth) = (Some(in_lru), Some(in_worth));
        ghosts.is_miss_lru |= found_lru == Found::No;
        ghosts.is_miss_worth |= found_worth == Found::No;
        self.lead += f64::from(u8::from(!ghosts.is_miss_worth)) - f64::from(u8::from(!ghosts.is_miss_lru));
        self.num_seen += 1.0;
    }

    fn choose(&mut self) {
        let keep = (-1.0 / HALF_LIFE).exp2();
        self.lead *= keep;
        self.num_seen *= keep;
        if self.lead < 0.0 {
            self.leader = Leader::Lru;
        } else if self.lead > MIN_LEAD * self.num_seen {
            self.leader = Leader::Worth;
        }
    }
}

impl EvictionPolicy for AdaptivePolicy {
    fn begin(&mut self, num_prompt_blocks: u32) -> Trail {
        self.lru_ghost.begin();
        self.worth_ghost.begin();
        let (trail, beat) = self.worth.start(num_prompt_blocks);
        self.worth_ghost.policy.tick();
        if beat != Beat::Rest {
            self.worth_ghost.policy.advance();
        }
        if beat == Beat::Weigh {
            self.worth_ghost.policy.reorder_as(self.worth.shelves());
        }
        self.choose();
        trail
    }

    fn seen(&mut self, node: NodeId, path: PathHash, trail: &mut Trail) {
        let class = self.worth.learn(node, path, trail);
        if u32::from(trail.unit) < self.num_sampled_units {
            self.duel(path, class, trail);
        }
    }

    fn exposed(&mut self, node: NodeId, path: PathHash) {
        self.worth.exposed(node, path);
    }

    fn used(&mut self, node: NodeId) {
        self.lru.used(node);
        self.worth.used(node);
    }

    fn inherit(&mut self, node: NodeId, from: NodeId) {
        self.lru.inherit(node, from);
        self.worth.inherit(node, from);
    }

    fn offer(&mut self, node: NodeId) {
        self.lru.offer(node);
        self.worth.offer(node);
    }

    fn withdraw(&mut self, node: NodeId) {
        self.lru.withdraw(node);
        self.worth.withdraw(node);
    }

    fn victim(&self) -> Option<NodeId> {
        match self.leader {
            Leader::Lru => self.lru.victim(),
            Leader::Worth => self.worth.victim(),
        }
    }

    fn fresh(&self) -> Box<dyn EvictionPolicy> {
        Box::new(Self::new(self.num_blocks))
    }
}
