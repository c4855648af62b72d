//! Candidates in buckets by class and age, in the order of how much they are worth keeping.

use std::cmp::Ordering;
use std::collections::BTreeSet;

use super::ghost::GhostPolicy;
use super::policy::EvictionPolicy;
use super::reuse_times::{NUM_AGES, ReuseTimes, age_index};
use crate::index::NodeId;

const WORD_BITS: usize = u64::BITS as usize;

#[derive(Clone, Copy, Debug, Default)]
struct NodeState {
    last_used: u64,
    class: u8,
    /// Set while the node is a candidate.
    bucket: Option<u16>,
}

/// A bucket of candidates for each class and age.
///
/// Buckets are ordered by worth, and the nodes of a bucket by their last use. Time is the number of requests begun.
/// Every call costs O(log candidates), except [`WorthBuckets::advance`].
#[derive(Debug)]
pub struct WorthBuckets {
    now: u64,
    nodes: Vec<NodeState>,
    /// The bucket of a class and an age is at `class * NUM_AGES + age`.
    buckets: Vec<BTreeSet<(u64, NodeId)>>,
    /// The buckets, the least worth first.
    order: Vec<u16>,
    /// The position of each bucket in `order`.
    rank: Vec<u16>,
    /// A bit for each rank, set if the bucket has nodes.
    occupied: Vec<u64>,
}

impl WorthBuckets {
    /// Makes empty buckets for `num_classes` classes. Until the worth is known, the older bucket is first.
    pub fn new(num_classes: usize) -> Self {
        let num_buckets = num_classes * NUM_AGES;
        let mut buckets = Self {
            now: 0,
            nodes: Vec::new(),
            buckets: vec![BTreeSet::new(); num_buckets],
            order: Vec::new(),
            rank: vec![0; num_buckets],
            occupied: vec![0; num_buckets.div_ceil(WORD_BITS)],
        };
        buckets.sort(|_| 0.0);
        buckets
    }

    /// Advances the clock, because a request begins.
    pub fn tick(&mut self) {
        self.now += 1;
    }

    /// Moves nodes to the buckets of their present ages.
    ///
    /// The cost is O(occupied buckets) and O(log candidates) for each node that moves. A node moves at most
    /// [`NUM_AGES`] times between two uses.
    pub fn advance(&mut self) {
        for word in 0..self.occupied.len() {
            // A copy of the word is enough: nodes that move while the loop runs are in the right bucket already.
            let mut bits = self.occupied[word];
            while bits != 0 {
                let bucket = self.order[word * WORD_BITS + bits.trailing_zeros() as usize];
                self.advance_bucket(usize::from(bucket));
                bits &= bits - 1;
            }
        }
    }

    fn advance_bucket(&mut self, bucket: usize) {
        while let Some(&(last_used, node)) = self.buckets[bucket].first()
            && self.age_index(last_used) > bucket % NUM_AGES
        {
            self.remove_candidate(node);
            self.add_candidate(node);
        }
    }

    /// Orders the buckets by their present worth. The cost is O(buckets · log buckets).
    pub fn reorder(&mut self, times: &ReuseTimes) {
        self.sort(|bucket| times.worth(usize::from(bucket) / NUM_AGES, usize::from(bucket) % NUM_AGES));
    }

    fn sort(&mut self, worth: impl Fn(u16) -> f64) {
        // Of two buckets with the same worth, the older is first, as in LRU.
        let key = |bucket: u16| (worth(bucket), NUM_AGES - usize::from(bucket) % NUM_AGES, bucket);
        let mut keys: Vec<_> = (0..self.buckets.len() as u16).map(key).collect();
        keys.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then((a.1, a.2).cmp(&(b.1, b.2))));
        let order: Vec<u16> = keys.into_iter().map(|(.., bucket)| bucket).collect();
        for (rank, &bucket) in order.iter().enumerate() {
            self.rank[usize::from(bucket)] = rank as u16;
        }
        self.order = order;
        self.update_occupied();
    }

    /// Takes over the order of other buckets with the same number of classes. The cost is O(buckets).
    pub fn copy_order(&mut self, other: &Self) {
        self.order.clone_from(&other.order);
        self.rank.clone_from(&other.rank);
        self.update_occupied();
    }

    fn update_occupied(&mut self) {
        self.occupied.fill(0);
        for bucket in 0..self.buckets.len() {
            if !self.buckets[bucket].is_empty() {
                self.set_occupied(bucket, true);
            }
        }
    }

    fn set_occupied(&mut self, bucket: usize, is_occupied: bool) {
        let rank = usize::from(self.rank[bucket]);
        let (word, bit) = (&mut self.occupied[rank / WORD_BITS], 1 << (rank % WORD_BITS));
        *word = if is_occupied { *word | bit } else { *word & !bit };
    }

    /// Returns the rank of the occupied bucket that is worth least. The cost is O(buckets / 64).
    fn first_occupied(&self) -> Option<usize> {
        let word = self.occupied.iter().position(|&word| word != 0)?;
        Some(word * WORD_BITS + self.occupied[word].trailing_zeros() as usize)
    }

    fn bucket_of(&self, state: NodeState) -> usize {
        usize::from(state.class) * NUM_AGES + self.age_index(state.last_used)
    }

    /// Sets the class of a node's last block.
    pub fn set_class(&mut self, node: NodeId, class: u8) {
        if self.node(node).class != class {
            self.change(node, |state| state.class = class);
        }
    }

    /// Returns the age at which the next request could use a node again.
    fn age_index(&self, last_used: u64) -> usize {
        age_index(self.now - last_used + 1)
    }

    fn node(&mut self, node: NodeId) -> &mut NodeState {
        let index = node.index();
        if index >= self.nodes.len() {
            self.nodes.resize(index + 1, NodeState::default());
        }
        &mut self.nodes[index]
    }

    /// Changes a node's state. A candidate moves to the bucket of its new state.
    fn change(&mut self, node: NodeId, change: impl FnOnce(&mut NodeState)) {
        let is_candidate = self.node(node).bucket.is_some();
        self.remove_candidate(node);
        change(self.node(node));
        if is_candidate {
            self.add_candidate(node);
        }
    }
}

impl EvictionPolicy for WorthBuckets {
    fn touch(&mut self, node: NodeId) {
        let now = self.now;
        self.change(node, |state| state.last_used = now);
    }

    fn split(&mut self, upper: NodeId, lower: NodeId) {
        let NodeState { last_used, class, .. } = *self.node(lower);
        self.change(upper, |state| (state.last_used, state.class) = (last_used, class));
    }

    fn add_candidate(&mut self, node: NodeId) {
        let state = *self.node(node);
        if state.bucket.is_some() {
            return;
        }
        let bucket = self.bucket_of(state);
        self.node(node).bucket = Some(bucket as u16);
        self.buckets[bucket].insert((state.last_used, node));
        self.set_occupied(bucket, true);
    }

    fn remove_candidate(&mut self, node: NodeId) {
        let state = self.node(node);
        let last_used = state.last_used;
        let Some(bucket) = state.bucket.take().map(usize::from) else { return };
        self.buckets[bucket].remove(&(last_used, node));
        if self.buckets[bucket].is_empty() {
            self.set_occupied(bucket, false);
        }
    }

    fn victim(&self) -> Option<NodeId> {
        let bucket = self.order[self.first_occupied()?];
        self.buckets[usize::from(bucket)].first().map(|&(_, node)| node)
    }

    fn new_empty(&self) -> Box<dyn EvictionPolicy> {
        Box::new(Self::new(self.buckets.len() / NUM_AGES))
    }
}

impl GhostPolicy for WorthBuckets {
    fn would_be_victim(&self, node: NodeId) -> bool {
        let state = self.nodes[node.index()];
        let bucket = self.bucket_of(state);
        let Some(first) = self.first_occupied() else { return true };
        match usize::from(self.rank[bucket]).cmp(&first) {
            Ordering::Equal => {
                self.buckets[bucket].first().is_some_and(|&first| (state.last_used, node) < first)
            }
            order => order == Ordering::Less,
        }
    }
}
