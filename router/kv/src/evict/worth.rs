//! Eviction by the learned worth of keeping a block.

use super::history::{History, PathHash, PathUse};
use super::policy::EvictionPolicy;
use super::reuse_times::ReuseTimes;
use super::trail::Trail;
use super::worth_buckets::WorthBuckets;
use crate::index::NodeId;

/// The number of requests between two updates of the ages.
const ADVANCE_INTERVAL: u64 = 8;
/// The number of requests between two updates of the worth.
const WORTH_INTERVAL: u64 = 64;
/// The number of groups by how many requests had a block: 1, 2, 3, 4, 5 to 6, 7 to 8, 9 to 12, more.
const NUM_COUNTS: u8 = 8;
/// The group of blocks that only one request had, after it had branched off the middle of an earlier prompt.
#[doc(hidden)]
pub const BRANCH_GROUP: u8 = NUM_COUNTS;
/// The group of blocks that were used again within [`HOT_AGE`] requests. The blocks that nearly all requests begin with
/// are in it, and their reuse predicts nothing about other blocks.
#[doc(hidden)]
pub const HOT_GROUP: u8 = BRANCH_GROUP + 1;
const NUM_GROUPS: usize = HOT_GROUP as usize + 1;
/// The number of requests within which a constantly used block is used again.
#[doc(hidden)]
pub const HOT_AGE: u64 = 16;
/// The number of classes in a group: one for each octave of blocks from this one to the end of the prompt. The last one
/// has 8 blocks and more.
#[doc(hidden)]
pub const CLASSES_A_GROUP: usize = 5;
/// A block in this octave or a lower one is near the end of its prompt, so blocks after it continue that prompt.
const NEAR_END: u8 = 2;
pub(super) const NUM_CLASSES: usize = NUM_GROUPS * CLASSES_A_GROUP;
/// The number of paths remembered for each block of the cache. Half of them are evicted paths.
const HISTORY_FACTOR: usize = 2;
/// The least number of paths remembered. The time until reuse does not depend on the capacity of the cache.
const MIN_HISTORY: usize = 1 << 18;
/// The number of requests after which an observation counts half.
const HALF_LIFE: f64 = 8_192.0;
/// The weight of a block by its octave of blocks from the end of the prompt: n^-0.7 if `n` blocks are in that octave.
const WEIGHTS: [f64; 9] = [1.0, 1.0, 0.616, 0.379, 0.233, 0.144, 0.088, 0.054, 0.034];

/// Evicts the block that is least worth keeping, learned from the reuse of similar blocks.
///
/// A block's class is the number of requests that had it and its distance from the end of the prompt. `reuse_times.rs`
/// defines the worth. Every call costs O(log candidates). Every `ADVANCE_INTERVAL` requests it is O(classes · ages),
/// and every `WORTH_INTERVAL` requests O(classes · ages²).
#[derive(Debug)]
pub struct WorthPolicy {
    num_blocks: u32,
    now: u64,
    history: History,
    times: ReuseTimes,
    buckets: WorthBuckets,
}

/// The parts of the order that the beginning of a request updated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(hidden)]
pub enum Refresh {
    Nothing,
    Ages,
    AgesAndWorth,
}

fn octave(num_blocks: u32) -> u8 {
    (u32::BITS - num_blocks.leading_zeros()) as u8
}

/// Returns the group of a block that is used again after `age` requests, or is new.
fn group_of(num_requests: u8, age: Option<u64>, is_branch: bool) -> u8 {
    match age {
        Some(age) if age <= HOT_AGE => return HOT_GROUP,
        None if is_branch => return BRANCH_GROUP,
        _ => {}
    }
    match num_requests {
        0..=4 => num_requests.saturating_sub(1),
        5..=6 => 4,
        7..=8 => 5,
        9..=12 => 6,
        _ => NUM_COUNTS - 1,
    }
}

fn class_of(group: u8, octave: u8) -> u8 {
    group * CLASSES_A_GROUP as u8 + octave.min(CLASSES_A_GROUP as u8 - 1)
}

fn weight(octave: u8) -> f64 {
    WEIGHTS[usize::from(octave).min(WEIGHTS.len() - 1)]
}

impl WorthPolicy {
    pub fn new(num_blocks: u32) -> Self {
        let times = ReuseTimes::new(NUM_GROUPS, usize::from(HOT_GROUP), CLASSES_A_GROUP, HALF_LIFE);
        let mut buckets = WorthBuckets::new(NUM_CLASSES);
        buckets.reorder(&times);
        let history = History::new((HISTORY_FACTOR * num_blocks as usize).max(MIN_HISTORY));
        Self { num_blocks, now: 0, history, times, buckets }
    }

    pub(super) fn buckets(&self) -> &WorthBuckets {
        &self.buckets
    }

    /// Does what [`EvictionPolicy::begin`] does, and tells which parts of the order changed.
    #[doc(hidden)]
    pub fn begin_request(&mut self, num_prompt_blocks: u32) -> (Trail, Refresh) {
        self.now += 1;
        self.buckets.tick();
        let mut refresh = Refresh::Nothing;
        if self.now.is_multiple_of(ADVANCE_INTERVAL) {
            refresh = Refresh::Ages;
            self.times.advance(ADVANCE_INTERVAL);
            self.buckets.advance();
        }
        if self.now.is_multiple_of(WORTH_INTERVAL) {
            refresh = Refresh::AgesAndWorth;
            self.times.update_worth();
            self.buckets.reorder(&self.times);
        }
        (Trail { request: self.now, num_prompt_blocks, ..Trail::default() }, refresh)
    }

    /// Does what [`EvictionPolicy::visit`] does, and returns the class of the block.
    #[doc(hidden)]
    pub fn learn(&mut self, node: NodeId, path: PathHash, trail: &mut Trail) -> u8 {
        let request = trail.request as u32;
        trail.num_visited_blocks += 1;
        let octave = octave(trail.num_prompt_blocks.saturating_sub(trail.num_visited_blocks));
        let times = &mut self.times;
        let mut class = 0;
        self.history.update(path, request, |before| {
            let age = before.map(|before| u64::from(request.wrapping_sub(before.request)));
            if let (Some(before), Some(age)) = (before, age) {
                times.reused(before.class, age, weight(before.octave));
                trail.is_branch = age > HOT_AGE && before.octave > NEAR_END;
            }
            if before.is_some() || !trail.is_continuation {
                trail.unit = before.map_or((path >> u32::BITS) as u8, |before| before.unit);
            }
            trail.is_continuation = before.is_none_or(|before| before.octave <= NEAR_END);
            let num_requests = before.map_or(1, |before| before.num_requests.saturating_add(1));
            class = class_of(group_of(num_requests, age, trail.is_branch), octave);
            PathUse { request, num_requests, class, octave, unit: trail.unit }
        });
        self.times.used(class, weight(octave));
        self.buckets.set_class(node, class);
        class
    }
}

impl EvictionPolicy for WorthPolicy {
    fn begin(&mut self, num_prompt_blocks: u32) -> Trail {
        self.begin_request(num_prompt_blocks).0
    }

    fn visit(&mut self, node: NodeId, path: PathHash, trail: &mut Trail) {
        self.learn(node, path, trail);
    }

    fn set_last_block(&mut self, node: NodeId, path: PathHash) {
        // A forgotten block counts as the end of a prompt that came once.
        let class = self.history.get(path).map_or(0, |last_use| last_use.class);
        self.buckets.set_class(node, class);
    }

    fn touch(&mut self, node: NodeId) {
        self.buckets.touch(node);
    }

    fn split(&mut self, upper: NodeId, lower: NodeId) {
        self.buckets.split(upper, lower);
    }

    fn add_candidate(&mut self, node: NodeId) {
        self.buckets.add_candidate(node);
    }

    fn remove_candidate(&mut self, node: NodeId) {
        self.buckets.remove_candidate(node);
    }

    fn victim(&self) -> Option<NodeId> {
        self.buckets.victim()
    }

    fn new_empty(&self) -> Box<dyn EvictionPolicy> {
        Box::new(Self::new(self.num_blocks))
    }
}
