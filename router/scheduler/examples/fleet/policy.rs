//! Policies that choose a shard for a request when it arrives, as balancers in front of several servers do.

use std::collections::HashSet;

use crate::trace::Traced;

/// The policies in the order in which they are compared.
pub const POLICIES: [Policy; 6] = [
    Policy::RoundRobin,
    Policy::LeastLoaded,
    Policy::PrefixHash,
    Policy::Sglang,
    Policy::InferenceExtension,
    Policy::Lanes,
];

/// The policies that are compared for several numbers of lanes.
pub const SWEPT: [Policy; 3] = [Policy::RoundRobin, Policy::Sglang, Policy::Lanes];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    RoundRobin,
    /// The shard with the fewest open requests.
    LeastLoaded,
    /// The shard that the first two blocks of the prompt hash to.
    PrefixHash,
    /// SGLang's cache-aware policy with its published defaults: the longest match in what was sent to each shard, if it
    /// is at least half of the prompt, else the shard to which the least was sent; the shortest queue, if the queues
    /// differ by more than 32 and by half.
    Sglang,
    /// The scorers of the Gateway API Inference Extension with their published weights: queue 2, use of the KV cache 2,
    /// prefix 3.
    InferenceExtension,
    /// One scheduler with a lane for each shard.
    Lanes,
}

impl Policy {
    pub fn name(self) -> &'static str {
        match self {
            Self::RoundRobin => "round robin",
            Self::LeastLoaded => "least loaded",
            Self::PrefixHash => "prefix hash",
            Self::Sglang => "SGLang's policy",
            Self::InferenceExtension => "Inference Extension",
            Self::Lanes => "lanes",
        }
    }
}

/// A shard as a balancer knows it.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// False while it is away. A balancer knows that at once.
    pub is_up: bool,
    pub num_open: usize,
    /// The used part of the KV cache, from 0 to 1.
    pub kv_use: f64,
    /// The blocks of the requests that were sent to it.
    blocks: HashSet<u32>,
}

impl Seen {
    /// An empty shard that takes requests, or is away.
    pub fn empty(is_up: bool) -> Self {
        Self { is_up, ..Self::default() }
    }

    /// Returns the number of leading blocks of a request that were sent to it before.
    fn matched(&self, request: &Traced) -> usize {
        request.blocks.iter().take_while(|block| self.blocks.contains(block)).count()
    }
}

/// Chooses shards and keeps what a balancer knows of them.
pub struct Balancer {
    pub policy: Policy,
    pub shards: Vec<Seen>,
    next: usize,
}

impl Balancer {
    pub fn new(policy: Policy, num_shards: usize) -> Self {
        Self { policy, shards: vec![Seen::empty(true); num_shards], next: 0 }
    }

    /// Chooses the shard of a request, and notes that it goes there.
    pub fn choose(&mut self, request: &Traced) -> usize {
        let chosen = match self.policy {
            Policy::RoundRobin => self.least(|_| 0.0),
            Policy::LeastLoaded => self.least(|shard| shard.num_open as f64),
            Policy::PrefixHash => {
                let key = request.blocks.iter().take(2).fold(0_u64, |hash, &block| {
                    (hash ^ u64::from(block)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
                });
                let up: Vec<usize> = self.up().collect();
                up[(key % up.len() as u64) as usize]
            }
            Policy::Sglang => self.sglang(request),
            Policy::InferenceExtension => self.scored(request),
            Policy::Lanes => 0,
        };
        self.next += 1;
        self.shards[chosen].blocks.extend(&request.blocks);
        self.shards[chosen].num_open += 1;
        chosen
    }

    /// Returns the shards that are not away.
    fn up(&self) -> impl Iterator<Item = usize> {
        (0..self.shards.len()).filter(|&index| self.shards[index].is_up)
    }

    /// Returns the shard for which `cost` is least. Equal ones take turns.
    fn least(&self, cost: impl Fn(&Seen) -> f64) -> usize {
        let up: Vec<usize> = self.up().collect();
        let places = (0..up.len()).map(|index| up[(index + self.next) % up.len()]);
        places.min_by(|a, b| cost(&self.shards[*a]).total_cmp(&cost(&self.shards[*b]))).unwrap_or(0)
    }

    fn sglang(&self, request: &Traced) -> usize {
        let open = || self.up().map(|index| self.shards[index].num_open);
        let (most, fewest) = (open().max().unwrap_or(0), open().min().unwrap_or(0));
        if most - fewest > 32 && most as f64 > 1.5 * fewest as f64 {
            return self.least(|shard| shard.num_open as f64);
        }
        let best = self.least(|shard| -(shard.matched(request) as f64));
        if 2 * self.shards[best].matched(request) >= request.blocks.len() {
            return best;
        }
        self.least(|shard| shard.blocks.len() as f64)
    }

    fn scored(&self, request: &Traced) -> usize {
        let open = || self.up().map(|index| self.shards[index].num_open as f64);
        let (most, fewest) = (open().fold(0.0, f64::max), open().fold(f64::MAX, f64::min));
        let num_blocks = request.blocks.len().max(1) as f64;
        self.least(|shard| {
            let queue = if most > fewest { (most - shard.num_open as f64) / (most - fewest) } else { 1.0 };
            let prefix = shard.matched(request) as f64 / num_blocks;
            -(2.0 * queue + 2.0 * (1.0 - shard.kv_use) + 3.0 * prefix)
        })
    }
}
