use super::ghost::Ghost;
use super::history::PathHash;
use super::lru::LeafLru;
use super::policy::EvictionPolicy;
use super::trail::Trail;
use super::worth::{NUM_CLASSES, Refresh, WorthPolicy};
use super::worth_buckets::WorthBuckets;
use crate::index::NodeId;

/// The largest capacity of a ghost. Beyond it, ghosts sample a part of the conversations: more blocks would make the
/// comparison less noisy, but their cost must not grow with the cache.
const MAX_GHOST_BLOCKS: u32 = 8_192;
/// The number of units that conversations are divided into for sampling.
const NUM_UNITS: u32 = 256;
/// The number of requests after which a hit of a ghost counts half.
const HALF_LIFE: f64 = 2_048.0;
/// Once LRU was better, worth must lead by this share of the visited blocks to be followed again.
const MIN_LEAD: f64 = 0.0025;

/// Follows LRU or worth, whichever had more hits recently.
///
/// The policy keeps the orders of [`LeafLru`] and [`WorthPolicy`] and a [`Ghost`] of a cache under each. It begins with
/// worth, which orders like LRU until it has learned something. It changes to LRU when LRU has more hits on this
/// traffic at this capacity.
///
/// This is set dueling (Qureshi et al., ISCA 2007) with ghosts as in ARC (FAST 2003) and spatial sampling (SHARDS, FAST
/// 2015). The samples are conversations, because all requests may begin with the same blocks.
#[derive(Debug)]
pub struct AdaptivePolicy {
    num_blocks: u32,
    lru: LeafLru,
    worth: WorthPolicy,
    lru_ghost: Ghost<LeafLru>,
    worth_ghost: Ghost<WorthBuckets>,
    /// Conversations of the units below this number are sampled.
    num_sampled_units: u32,
    /// The hits under worth minus those under LRU, in blocks. Older hits count less.
    lead: f64,
    /// The number of sampled blocks. Older blocks count less.
    num_sampled_blocks: f64,
    leader: Leader,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leader {
    Lru,
    Worth,
}

impl AdaptivePolicy {
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
            worth_ghost: Ghost::new(capacity as usize, WorthBuckets::new(NUM_CLASSES)),
            num_sampled_units,
            lead: 0.0,
            num_sampled_blocks: 0.0,
            leader: Leader::Worth,
        }
    }

    /// Shows a block of `class` to both ghosts and compares their hits.
    fn sample(&mut self, path: PathHash, class: u8, trail: &mut Trail) {
        let ghosts = &mut trail.ghosts;
        let is_lru_hit = self.lru_ghost.follow(path, &mut ghosts.lru);
        let is_worth_hit = self.worth_ghost.follow(path, &mut ghosts.worth);
        if let Some(node) = ghosts.worth.step.and_then(|step| step.node) {
            self.worth_ghost.policy.set_class(node, class);
        }
        self.lead += f64::from(u8::from(is_worth_hit)) - f64::from(u8::from(is_lru_hit));
        self.num_sampled_blocks += 1.0;
    }

    fn choose_leader(&mut self) {
        let keep = (-1.0 / HALF_LIFE).exp2();
        self.lead *= keep;
        self.num_sampled_blocks *= keep;
        if self.lead < 0.0 {
            self.leader = Leader::Lru;
        } else if self.lead > MIN_LEAD * self.num_sampled_blocks {
            self.leader = Leader::Worth;
        }
    }
}

impl EvictionPolicy for AdaptivePolicy {
    fn begin(&mut self, num_prompt_blocks: u32) -> Trail {
        self.lru_ghost.begin();
        self.worth_ghost.begin();
        let (trail, refresh) = self.worth.begin_request(num_prompt_blocks);
        self.worth_ghost.policy.tick();
        if refresh != Refresh::Nothing {
            self.worth_ghost.policy.advance();
        }
        if refresh == Refresh::AgesAndWorth {
            self.worth_ghost.policy.copy_order(self.worth.buckets());
        }
        self.choose_leader();
        trail
    }

    fn visit(&mut self, node: NodeId, path: PathHash, trail: &mut Trail) {
        let class = self.worth.learn(node, path, trail);
        if u32::from(trail.unit) < self.num_sampled_units {
            self.sample(path, class, trail);
        }
    }

    fn set_last_block(&mut self, node: NodeId, path: PathHash) {
        self.worth.set_last_block(node, path);
    }

    fn touch(&mut self, node: NodeId) {
        self.lru.touch(node);
        self.worth.touch(node);
    }

    fn split(&mut self, upper: NodeId, lower: NodeId) {
        self.lru.split(upper, lower);
        self.worth.split(upper, lower);
    }

    fn add_candidate(&mut self, node: NodeId) {
        self.lru.add_candidate(node);
        self.worth.add_candidate(node);
    }

    fn remove_candidate(&mut self, node: NodeId) {
        self.lru.remove_candidate(node);
        self.worth.remove_candidate(node);
    }

    fn victim(&self) -> Option<NodeId> {
        match self.leader {
            Leader::Lru => self.lru.victim(),
            Leader::Worth => self.worth.victim(),
        }
    }

    fn new_empty(&self) -> Box<dyn EvictionPolicy> {
        Box::new(Self::new(self.num_blocks))
    }
}
