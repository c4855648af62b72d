//! Evicts what is worth least by [`crate::reuse`].

use crate::evict::{EvictionPolicy, Trail};
use crate::history::{History, PathHash, Sight};
use crate::radix::NodeId;
use crate::reuse::ReuseTimes;
use crate::shelves::Shelves;

/// Requests between two updates of who has which age.
const ADVANCE_INTERVAL: u64 = 8;
/// Requests between two updates of what ages are worth.
const WEIGH_INTERVAL: u64 = 64;
/// Groups of classes: blocks that so many requests had: 1, 2, 3, 4, 5 to 6, 7 to 8, 9 to 12, more.
const NUM_COUNTS: u8 = 8;
/// The group of blocks that only one request had, which branched off another's path before its end.
#[doc(hidden)]
pub const BRANCH_GROUP: u8 = NUM_COUNTS;
/// The group of blocks that came again within [`HOT_AGE`] requests. What nearly all requests begin with is of these; it
/// says nothing of the others.
#[doc(hidden)]
pub const HOT_GROUP: u8 = BRANCH_GROUP + 1;
/// All of them.
const NUM_GROUPS: usize = HOT_GROUP as usize + 1;
/// Requests in which a block comes again that is asked for all the time.
#[doc(hidden)]
pub const HOT_AGE: u64 = 16;
/// Classes of a group: by the octave of blocks from this one to the prompt's end, 8 and more in one.
#[doc(hidden)]
pub const NUM_PLACES: usize = 5;
/// What comes after a block that was in this octave or a lower one goes on with its prompt.
const NEAR_END: u8 = 2;
/// All classes.
pub(crate) const NUM_CLASSES: usize = NUM_GROUPS * NUM_PLACES;
/// Paths remembered beside each block of the cache: as many again that are gone.
const HISTORY_FACTOR: usize = 2;
/// Paths remembered at least, where there are as many: reuse comes after times that have nothing to do with the
/// capacity.
const MIN_HISTORY: usize = 1 << 18;
/// Requests after which an observation counts half.
const HALF_LIFE: f64 = 8_192.0;
/// What a block in each octave of blocks from its prompt's end counts for: with `n` blocks there, n^-0.7.
const WEIGHTS: [f64; 9] = [1.0, 1.0, 0.616, 0.379, 0.233, 0.144, 0.088, 0.054, 0.034];

/// Least worth first, where a block's worth is learned from what became of those like it. See [`crate::reuse`].
///
/// Every call costs O(log offered), every [`ADVANCE_INTERVAL`] requests O(classes · ages), and every
/// [`WEIGH_INTERVAL`] O(classes · ages²).
#[derive(Debug)]
pub struct WorthPolicy {
    num_blocks: u32,
    now: u64,
    history: History,
    times: ReuseTimes,
    shelves: Shelves,
}

/// What a request's beginning changed of all nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(hidden)]
pub enum Beat {
    /// Nothing.
    Rest,
    /// Nodes grew older.
    Advance,
    /// That, and what ages are worth.
    Weigh,
}

/// The octave of a number of blocks.
fn octave(num_blocks: u32) -> u8 {
    (u32::BITS - num_blocks.leading_zeros()) as u8
}

/// The group of a block that came again after `age` requests, or is new.
fn group_of(num_seen: u8, age: Option<u64>, is_branch: bool) -> u8 {
    match age {
        Some(age) if age <= HOT_AGE => return HOT_GROUP,
        None if is_branch => return BRANCH_GROUP,
        _ => {}
    }
    match num_seen {
        0..=4 => num_seen.saturating_sub(1),
        5..=6 => 4,
        7..=8 => 5,
        9..=12 => 6,
        _ => NUM_COUNTS - 1,
    }
}

fn class_of(group: u8, octave: u8) -> u8 {
    group * NUM_PLACES as u8 + octave.min(NUM_PLACES as u8 - 1)
}

fn weight(octave: u8) -> f64 {
    WEIGHTS[usize::from(octave).min(WEIGHTS.len() - 1)]
}

impl WorthPolicy {
    /// For a cache of `num_blocks` blocks.
    pub fn new(num_blocks: u32) -> Self {
        let times = ReuseTimes::new(NUM_GROUPS, usize::from(HOT_GROUP), NUM_PLACES, HALF_LIFE);
        let mut shelves = Shelves::new(NUM_CLASSES);
        shelves.reorder(&times);
        let history = History::new((HISTORY_FACTOR * num_blocks as usize).max(MIN_HISTORY));
        Self { num_blocks, now: 0, history, times, shelves }
    }

    /// What has which worth.
    pub(crate) fn shelves(&self) -> &Shelves {
        &self.shelves
    }

    /// [`EvictionPolicy::begin`], and what it changed.
    #[doc(hidden)]
    pub fn start(&mut self, num_prompt_blocks: u32) -> (Trail, Beat) {
        self.now += 1;
        self.shelves.tick();
        let mut beat = Beat::Rest;
        if self.now.is_multiple_of(ADVANCE_INTERVAL) {
            beat = Beat::Advance;
            self.times.pass(ADVANCE_INTERVAL);
            self.shelves.advance();
        }
        if self.now.is_multiple_of(WEIGH_INTERVAL) {
            beat = Beat::Weigh;
            self.times.weigh();
            self.shelves.reorder(&self.times);
        }
        (Trail { request: self.now, num_prompt_blocks, ..Trail::default() }, beat)
    }

    /// [`EvictionPolicy::seen`]. Returns the block's class.
    #[doc(hidden)]
    pub fn learn(&mut self, node: NodeId, path: PathHash, trail: &mut Trail) -> u8 {
        let request = trail.request as u32;
        trail.num_seen_blocks += 1;
        let octave = octave(trail.num_prompt_blocks.saturating_sub(trail.num_seen_blocks));
        let times = &mut self.times;
        let mut class = 0;
        self.history.see(path, request, |before| {
            let age = before.map(|before| u64::from(request.wrapping_sub(before.request)));
            if let (Some(before), Some(age)) = (before, age) {
                times.reused(before.class, age, weight(before.octave));
                trail.is_branch = age > HOT_AGE && before.octave > NEAR_END;
            }
            if before.is_some() || !trail.goes_on {
                trail.unit = before.map_or((path >> u32::BITS) as u8, |before| before.unit);
            }
            trail.goes_on = before.is_none_or(|before| before.octave <= NEAR_END);
            let num_seen = before.map_or(1, |before| before.num_seen.saturating_add(1));
            class = class_of(group_of(num_seen, age, trail.is_branch), octave);
            Sight { request, num_seen, class, octave, unit: trail.unit }
        });
        self.times.used(class, weight(octave));
        self.shelves.classify(node, class);
        class
    }
}

impl EvictionPolicy for WorthPolicy {
    fn begin(&mut self, num_prompt_blocks: u32) -> Trail {
        self.start(num_prompt_blocks).0
    }

    fn seen(&mut self, node: NodeId, path: PathHash, trail: &mut Trail) {
        self.learn(node, path, trail);
    }

    fn exposed(&mut self, node: NodeId, path: PathHash) {
        // What is not remembered is like the end of a prompt that was seen once.
        let class = self.history.get(path).map_or(0, |sight| sight.class);
        self.shelves.classify(node, class);
    }

    fn used(&mut self, node: NodeId) {
        self.shelves.used(node);
    }

    fn inherit(&mut self, node: NodeId, from: NodeId) {
        self.shelves.inherit(node, from);
    }

    fn offer(&mut self, node: NodeId) {
        self.shelves.offer(node);
    }

    fn withdraw(&mut self, node: NodeId) {
        self.shelves.withdraw(node);
    }

    fn victim(&self) -> Option<NodeId> {
        self.shelves.victim()
    }

    fn fresh(&self) -> Box<dyn EvictionPolicy> {
        Box::new(Self::new(self.num_blocks))
    }
}
