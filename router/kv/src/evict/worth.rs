use super::history::{History, PathHash, PathUse};
use super::policy::{EvictionPolicy, Trail};
use super::reuse_times::{ReuseTimes, age_index};
use crate::index::NodeId;

/// The number of requests between two updates of the learned reuse.
const ADVANCE_INTERVAL: u64 = 4;
/// The number of requests between two updates of the worth.
const WORTH_INTERVAL: u64 = 64;
/// The number of groups by how many requests had a block: 1, 2, 3, 4, 5 to 6, 7 to 8, 9 to 12, more.
const NUM_COUNTS: u8 = 8;
/// The group of blocks that only one request had, after it had branched off the middle of an earlier prompt.
pub const BRANCH_GROUP: u8 = NUM_COUNTS;
/// The group of blocks that were used again within [`HOT_AGE`] requests. The blocks that nearly all requests begin with
/// are in it, and their reuse predicts nothing about other blocks.
pub const HOT_GROUP: u8 = BRANCH_GROUP + 1;
/// The number of requests within which a constantly used block is used again.
pub const HOT_AGE: u64 = 16;
/// The number of classes in a group: one for each octave of blocks from this one to the end of the prompt. The last one
/// has 8 blocks and more.
pub const CLASSES_A_GROUP: u8 = 5;
/// The octaves of a number of blocks.
const NUM_OCTAVES: usize = u32::BITS as usize + 1;
/// A block in a higher octave is in the middle of its prompt.
const NEAR_END: u8 = 2;
/// The number of paths remembered for each block of the cache. Half of them are evicted paths.
const HISTORY_FACTOR: usize = 2;
/// The least number of paths remembered. The time until reuse does not depend on the capacity of the cache.
const MIN_HISTORY: usize = 1 << 18;
/// The number of candidates that are compared for a victim, as in LHD (Beckmann et al., NSDI 2018).
pub const NUM_COMPARED: usize = 64;
/// 2^64 divided by the golden ratio. Its multiples spread evenly (Knuth, TAOCP 3, 6.4).
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// Evicts the block that is least worth keeping, learned from the reuse of similar blocks.
///
/// A block's class is the number of requests that had it and its distance from the end of the prompt. `reuse_times.rs`
/// defines the worth. Of many candidates, the victim is the least worth of a sample that depends only on the calls
/// before. Every call costs O(1). Every [`ADVANCE_INTERVAL`] requests it is O(classes · ages), and every
/// [`WORTH_INTERVAL`] requests O(classes · ages²).
#[derive(Debug)]
pub struct WorthPolicy {
    num_blocks: u32,
    /// The number of requests begun.
    now: u64,
    history: History,
    times: ReuseTimes,
    /// The weight of a block by the octave of its age. It is kept because it is needed for each block of each prompt.
    weights: [f64; NUM_OCTAVES],
    nodes: Vec<NodeState>,
    candidates: Vec<NodeId>,
    num_removed: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct NodeState {
    last_used: u64,
    class: u8,
    /// The position in the candidates, set while the node is one.
    place: Option<u32>,
}

/// Returns the group of a block that is used again after `age` requests, or is new.
fn group_of(num_requests: u8, age: Option<u64>, is_branch: bool) -> u8 {
    match (age, num_requests) {
        (Some(age), _) if age <= HOT_AGE => HOT_GROUP,
        (None, _) if is_branch => BRANCH_GROUP,
        (_, 0..=4) => num_requests.saturating_sub(1),
        (_, 5..=6) => 4,
        (_, 7..=8) => 5,
        (_, 9..=12) => 6,
        _ => NUM_COUNTS - 1,
    }
}

/// Returns how much a block of each octave counts: n^-0.7 if `n` blocks are in its octave of blocks from the end of the
/// prompt.
///
/// The blocks of one prompt are used again together or not at all, so a long prompt tells little more than a short one.
fn weights() -> [f64; NUM_OCTAVES] {
    std::array::from_fn(|octave| (-0.7 * octave.saturating_sub(1) as f64).exp2())
}

impl WorthPolicy {
    pub fn new(num_blocks: u32) -> Self {
        Self {
            num_blocks,
            now: 0,
            history: History::new((HISTORY_FACTOR * num_blocks as usize).max(MIN_HISTORY)),
            times: ReuseTimes::new(
                usize::from((HOT_GROUP + 1) * CLASSES_A_GROUP),
                usize::from(HOT_GROUP * CLASSES_A_GROUP),
            ),
            weights: weights(),
            nodes: Vec::new(),
            candidates: Vec::new(),
            num_removed: 0,
        }
    }

    /// Does what [`EvictionPolicy::visit`] does, and returns the class of the block.
    pub fn learn(&mut self, node: NodeId, path: PathHash, trail: &mut Trail) -> u8 {
        let request = trail.request as u32;
        trail.num_visited_blocks += 1;
        let num_left = trail.num_prompt_blocks.saturating_sub(trail.num_visited_blocks);
        let octave = (u32::BITS - num_left.leading_zeros()) as u8;
        let before = self.history.get(path);
        let age = before.map(|before| u64::from(request.wrapping_sub(before.request)));
        if let (Some(before), Some(age)) = (before, age) {
            self.times.reused(before.class, age, self.weights[usize::from(before.octave)]);
            trail.is_branch = age > HOT_AGE && before.octave > NEAR_END;
        }
        let num_requests = before.map_or(1, |before| before.num_requests.saturating_add(1));
        let group = group_of(num_requests, age, trail.is_branch);
        let class = group * CLASSES_A_GROUP + octave.min(CLASSES_A_GROUP - 1);
        self.history.insert(path, PathUse { request, num_requests, class, octave });
        self.times.used(class, self.weights[usize::from(octave)]);
        self.node(node).class = class;
        class
    }

    fn node(&mut self, node: NodeId) -> &mut NodeState {
        let index = node.index();
        if index >= self.nodes.len() {
            self.nodes.resize(index + 1, NodeState::default());
        }
        &mut self.nodes[index]
    }
}

impl EvictionPolicy for WorthPolicy {
    fn begin(&mut self, num_prompt_blocks: u32) -> Trail {
        self.now += 1;
        if self.now.is_multiple_of(ADVANCE_INTERVAL) {
            self.times.advance(ADVANCE_INTERVAL);
        }
        if self.now.is_multiple_of(WORTH_INTERVAL) {
            self.times.update_worth();
        }
        Trail { request: self.now, num_prompt_blocks, ..Trail::default() }
    }

    fn visit(&mut self, node: NodeId, path: PathHash, trail: &mut Trail) {
        self.learn(node, path, trail);
    }

    fn set_last_block(&mut self, node: NodeId, path: PathHash) {
        // A forgotten block counts as the end of a prompt that came once.
        self.node(node).class = self.history.get(path).map_or(0, |last_use| last_use.class);
    }

    fn touch(&mut self, node: NodeId) {
        self.node(node).last_used = self.now;
    }

    fn split(&mut self, upper: NodeId, lower: NodeId) {
        let NodeState { last_used, class, .. } = *self.node(lower);
        let upper = self.node(upper);
        (upper.last_used, upper.class) = (last_used, class);
    }

    fn add_candidate(&mut self, node: NodeId) {
        let place = self.candidates.len() as u32;
        let state = self.node(node);
        if state.place.is_none() {
            state.place = Some(place);
            self.candidates.push(node);
        }
    }

    fn remove_candidate(&mut self, node: NodeId) {
        let Some(place) = self.node(node).place.take() else { return };
        self.candidates.swap_remove(place as usize);
        if let Some(&moved) = self.candidates.get(place as usize) {
            self.node(moved).place = Some(place);
        }
        self.num_removed += 1;
    }

    fn victim(&self) -> Option<NodeId> {
        let num_candidates = self.candidates.len();
        let place = |draw: u64| {
            if num_candidates <= NUM_COMPARED {
                return draw as usize;
            }
            let number = self.num_removed.wrapping_mul(NUM_COMPARED as u64).wrapping_add(draw);
            ((u128::from(number.wrapping_mul(SPREAD)) * num_candidates as u128) >> u64::BITS) as usize
        };
        let worth = |node: NodeId| {
            let state = &self.nodes[node.index()];
            // The next request is the first that could use the block.
            (self.times.worth(state.class, age_index(self.now - state.last_used + 1)), state.last_used)
        };
        let draws = 0..num_candidates.min(NUM_COMPARED) as u64;
        let compared = draws.map(|draw| self.candidates[place(draw)]).map(|node| (worth(node), node));
        let victim = compared.min_by(|(a, _), (b, _)| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        victim.map(|(_, node)| node)
    }

    fn new_empty(&self) -> Box<dyn EvictionPolicy> {
        Box::new(Self::new(self.num_blocks))
    }
}
