//! Evicts what is worth least by [`crate::reuse`].

use std::collections::BTreeSet;

use crate::evict::{EvictionPolicy, Trail};
use crate::history::{History, PathHash, Sight};
use crate::radix::NodeId;
use crate::reuse::{NUM_AGES, ReuseTimes};

/// Requests between two updates of what ages are worth, and of who has which age.
const UPDATE_INTERVAL: u64 = 8;
/// Groups of classes: blocks that so many requests had: 1, 2, 3, 4, 5 to 6, 7 to 8, 9 to 12, more.
const NUM_COUNTS: usize = 8;
/// Classes of a group: by the octave of blocks from this one to the prompt's end, 128 and more in one.
const NUM_PLACES: usize = 9;
/// Paths remembered beside each block of the cache: as many again that are gone.
const HISTORY_FACTOR: usize = 2;
/// Paths remembered at least: reuse comes after times that have nothing to do with the capacity.
const MIN_HISTORY: usize = 1 << 16;
/// Requests after which an observation counts half.
const HALF_LIFE: f64 = 4_096.0;

#[derive(Clone, Copy, Debug, Default)]
struct NodeState {
    last_used: u64,
    class: u8,
    /// The cell that the node is offered in.
    cell: Option<u16>,
}

/// Least worth first, where a block's worth is learned from what became of those like it. See [`crate::reuse`].
///
/// Time is the number of requests begun. An offered node stands in the cell of its class and age, oldest first; cells
/// are ordered by worth. Every call costs O(log offered), and every [`UPDATE_INTERVAL`] requests O(classes · ages²)
/// plus O(log offered) for each node that grew an age older, which it does at most [`NUM_AGES`] times a use.
#[derive(Debug)]
pub struct WorthPolicy {
    num_blocks: u32,
    now: u64,
    updated: u64,
    history: History,
    times: ReuseTimes,
    nodes: Vec<NodeState>,
    /// `[class * NUM_AGES + age]`.
    cells: Vec<BTreeSet<(u64, NodeId)>>,
    /// Cells, the least worth first.
    order: Vec<u16>,
    /// Place of a cell in `order`.
    rank: Vec<u16>,
    /// Ranks of cells that have nodes.
    occupied: BTreeSet<u16>,
}

fn class_of(num_seen: u8, num_after: u32) -> u8 {
    let count = match num_seen {
        0..=4 => num_seen.saturating_sub(1),
        5..=6 => 4,
        7..=8 => 5,
        9..=12 => 6,
        _ => 7,
    };
    let place = (u32::BITS - num_after.leading_zeros()).min(NUM_PLACES as u32 - 1);
    count * NUM_PLACES as u8 + place as u8
}

impl WorthPolicy {
    /// For a cache of `num_blocks` blocks.
    pub fn new(num_blocks: u32) -> Self {
        let num_cells = NUM_COUNTS * NUM_PLACES * NUM_AGES;
        let mut policy = Self {
            num_blocks,
            now: 0,
            updated: 0,
            history: History::new((HISTORY_FACTOR * num_blocks as usize).max(MIN_HISTORY)),
            times: ReuseTimes::new(NUM_COUNTS, NUM_PLACES, HALF_LIFE),
            nodes: Vec::new(),
            cells: vec![BTreeSet::new(); num_cells],
            order: Vec::new(),
            rank: vec![0; num_cells],
            occupied: BTreeSet::new(),
        };
        policy.sort_cells();
        policy
    }

    fn node(&mut self, node: NodeId) -> &mut NodeState {
        let index = node.index();
        if index >= self.nodes.len() {
            self.nodes.resize(index + 1, NodeState::default());
        }
        &mut self.nodes[index]
    }

    /// Moves an offered node to the cell where it belongs now.
    fn change(&mut self, node: NodeId, change: impl FnOnce(&mut NodeState)) {
        let is_offered = self.node(node).cell.is_some();
        self.withdraw(node);
        change(self.node(node));
        if is_offered {
            self.offer(node);
        }
    }

    /// Nodes that grew older move on, and cells are ordered by what they are worth now.
    fn update(&mut self) {
        self.times.pass(self.now - self.updated);
        self.updated = self.now;
        for cell in 0..self.cells.len() {
            let Some(end) = self.times.age_after(cell % NUM_AGES) else { continue };
            while let Some(&(last_used, node)) = self.cells[cell].first()
                && (self.now - last_used) as f64 >= end
            {
                self.withdraw(node);
                self.offer(node);
            }
        }
        self.sort_cells();
    }

    fn sort_cells(&mut self) {
        let worth = |cell: u16| self.times.worth(usize::from(cell) / NUM_AGES, usize::from(cell) % NUM_AGES);
        let mut order: Vec<u16> = (0..self.cells.len() as u16).collect();
        // The older first where both are worth the same: that is LRU.
        order.sort_by(|&a, &b| {
            let age = |cell: u16| usize::from(cell) % NUM_AGES;
            worth(a).total_cmp(&worth(b)).then(age(b).cmp(&age(a)))
        });
        for (rank, &cell) in order.iter().enumerate() {
            self.rank[usize::from(cell)] = rank as u16;
        }
        self.order = order;
        let cells = self.cells.iter().zip(&self.rank).filter(|(cell, _)| !cell.is_empty());
        self.occupied = cells.map(|(_, &rank)| rank).collect();
    }
}

impl EvictionPolicy for WorthPolicy {
    fn begin(&mut self, num_prompt_blocks: u32) -> Trail {
        self.now += 1;
        if self.now - self.updated >= UPDATE_INTERVAL {
            self.update();
        }
        Trail { request: self.now, num_prompt_blocks, num_seen_blocks: 0 }
    }

    fn seen(&mut self, node: NodeId, path: PathHash, trail: &mut Trail) {
        let request = trail.request as u32;
        let before = self.history.get(path);
        if let Some(before) = before {
            self.times.reused(before.class, u64::from(request.wrapping_sub(before.request)));
        }
        let num_seen = before.map_or(1, |before| before.num_seen.saturating_add(1));
        trail.num_seen_blocks += 1;
        let class = class_of(num_seen, trail.num_prompt_blocks.saturating_sub(trail.num_seen_blocks));
        self.history.put(path, Sight { request, num_seen, class });
        self.times.used(class);
        self.change(node, |state| state.class = class);
    }

    fn exposed(&mut self, node: NodeId, path: PathHash) {
        if let Some(sight) = self.history.get(path) {
            self.change(node, |state| state.class = sight.class);
        }
    }

    fn used(&mut self, node: NodeId) {
        let now = self.now;
        self.change(node, |state| state.last_used = now);
    }

    fn inherit(&mut self, node: NodeId, from: NodeId) {
        let NodeState { last_used, class, .. } = *self.node(from);
        self.change(node, |state| (state.last_used, state.class) = (last_used, class));
    }

    fn offer(&mut self, node: NodeId) {
        let NodeState { last_used, class, cell } = *self.node(node);
        if cell.is_some() {
            return;
        }
        let cell = usize::from(class) * NUM_AGES + self.times.age_index(self.now - last_used);
        self.node(node).cell = Some(cell as u16);
        self.cells[cell].insert((last_used, node));
        self.occupied.insert(self.rank[cell]);
    }

    fn withdraw(&mut self, node: NodeId) {
        let state = self.node(node);
        let last_used = state.last_used;
        let Some(cell) = state.cell.take().map(usize::from) else { return };
        self.cells[cell].remove(&(last_used, node));
        if self.cells[cell].is_empty() {
            self.occupied.remove(&self.rank[cell]);
        }
    }

    fn victim(&self) -> Option<NodeId> {
        let cell = self.order[usize::from(*self.occupied.first()?)];
        self.cells[usize::from(cell)].first().map(|&(_, node)| node)
    }

    fn fresh(&self) -> Box<dyn EvictionPolicy> {
        Box::new(Self::new(self.num_blocks))
    }
}
