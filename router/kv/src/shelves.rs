//! Nodes on shelves by class and age, in the order of what keeping them is worth.

use std::cmp::Ordering;
use std::collections::BTreeSet;

use crate::evict::EvictionPolicy;
use crate::ghost::GhostPolicy;
use crate::radix::NodeId;
use crate::reuse::{NUM_AGES, ReuseTimes, age_index};

const WORD_BITS: usize = u64::BITS as usize;

#[derive(Clone, Copy, Debug, Default)]
struct NodeState {
    last_used: u64,
    class: u8,
    /// The shelf that the node is offered on.
    shelf: Option<u16>,
}

/// An offered node stands on the shelf of its class and age, the one used longest ago first; shelves are ordered by
/// worth. Time is the number of requests begun. Every call costs O(log offered); see [`Shelves::advance`].
#[derive(Debug)]
pub struct Shelves {
    now: u64,
    nodes: Vec<NodeState>,
    /// `[class * NUM_AGES + age]`.
    shelves: Vec<BTreeSet<(u64, NodeId)>>,
    /// Shelves, the least worth first.
    order: Vec<u16>,
    /// Place of a shelf in `order`.
    rank: Vec<u16>,
    /// Ranks of shelves that have nodes: a bit each.
    occupied: Vec<u64>,
}

impl Shelves {
    /// For so many classes, in no order of worth yet: the older goes first.
    pub fn new(num_classes: usize) -> Self {
        let num_shelves = num_classes * NUM_AGES;
        let mut shelves = Self {
            now: 0,
            nodes: Vec::new(),
            shelves: vec![BTreeSet::new(); num_shelves],
            order: Vec::new(),
            rank: vec![0; num_shelves],
            occupied: vec![0; num_shelves.div_ceil(WORD_BITS)],
        };
        shelves.sort(|_| 0.0);
        shelves
    }

    /// A request begins.
    pub fn tick(&mut self) {
        self.now += 1;
    }

    /// Nodes that grew older move on. Cost: O(shelves that have nodes), and O(log offered) for each node that moves,
    /// which it does at most [`NUM_AGES`] times a use.
    pub fn advance(&mut self) {
        for word in 0..self.occupied.len() {
            // Where one moves to in the meantime, it is in the right place already.
            let mut bits = self.occupied[word];
            while bits != 0 {
                let shelf = self.order[word * WORD_BITS + bits.trailing_zeros() as usize];
                self.advance_shelf(usize::from(shelf));
                bits &= bits - 1;
            }
        }
    }

    fn advance_shelf(&mut self, shelf: usize) {
        while let Some(&(last_used, node)) = self.shelves[shelf].first()
            && self.age_index(last_used) > shelf % NUM_AGES
        {
            self.withdraw(node);
            self.offer(node);
        }
    }

    /// Orders shelves by what they are worth now. Cost: O(shelves · log shelves).
    pub fn reorder(&mut self, times: &ReuseTimes) {
        self.sort(|shelf| times.worth(usize::from(shelf) / NUM_AGES, usize::from(shelf) % NUM_AGES));
    }

    fn sort(&mut self, worth: impl Fn(u16) -> f64) {
        // The older first where both are worth the same: that is LRU.
        let key = |shelf: u16| (worth(shelf), NUM_AGES - usize::from(shelf) % NUM_AGES, shelf);
        let mut keys: Vec<_> = (0..self.shelves.len() as u16).map(key).collect();
        keys.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then((a.1, a.2).cmp(&(b.1, b.2))));
        let order: Vec<u16> = keys.into_iter().map(|(.., shelf)| shelf).collect();
        for (rank, &shelf) in order.iter().enumerate() {
            self.rank[usize::from(shelf)] = rank as u16;
        }
        self.order = order;
        self.occupy();
    }

    /// Orders shelves as others of as many classes are. Cost: O(shelves).
    pub fn reorder_as(&mut self, other: &Self) {
        self.order.clone_from(&other.order);
        self.rank.clone_from(&other.rank);
        self.occupy();
    }

    fn occupy(&mut self) {
        self.occupied.fill(0);
        for shelf in 0..self.shelves.len() {
            if !self.shelves[shelf].is_empty() {
                self.set_occupied(shelf, true);
            }
        }
    }

    fn set_occupied(&mut self, shelf: usize, is_occupied: bool) {
        let rank = usize::from(self.rank[shelf]);
        let (word, bit) = (&mut self.occupied[rank / WORD_BITS], 1 << (rank % WORD_BITS));
        *word = if is_occupied { *word | bit } else { *word & !bit };
    }

    /// The rank of the occupied shelf that is worth least. Cost: O(shelves / 64).
    fn first_occupied(&self) -> Option<usize> {
        let word = self.occupied.iter().position(|&word| word != 0)?;
        Some(word * WORD_BITS + self.occupied[word].trailing_zeros() as usize)
    }

    /// Where a node belongs that is offered now.
    fn shelf_of(&self, state: NodeState) -> usize {
        usize::from(state.class) * NUM_AGES + self.age_index(state.last_used)
    }

    /// The node's last block is of this class.
    pub fn classify(&mut self, node: NodeId, class: u8) {
        if self.node(node).class != class {
            self.change(node, |state| state.class = class);
        }
    }

    /// The age at which a node may be asked for next: the request that runs has it or has not.
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

    /// Moves an offered node to the shelf where it belongs now.
    fn change(&mut self, node: NodeId, change: impl FnOnce(&mut NodeState)) {
        let is_offered = self.node(node).shelf.is_some();
        self.withdraw(node);
        change(self.node(node));
        if is_offered {
            self.offer(node);
        }
    }
}

impl EvictionPolicy for Shelves {
    fn used(&mut self, node: NodeId) {
        let now = self.now;
        self.change(node, |state| state.last_used = now);
    }

    fn inherit(&mut self, node: NodeId, from: NodeId) {
        let NodeState { last_used, class, .. } = *self.node(from);
        self.change(node, |state| (state.last_used, state.class) = (last_used, class));
    }

    fn offer(&mut self, node: NodeId) {
        let state = *self.node(node);
        if state.shelf.is_some() {
            return;
        }
        let shelf = self.shelf_of(state);
        self.node(node).shelf = Some(shelf as u16);
        self.shelves[shelf].insert((state.last_used, node));
        self.set_occupied(shelf, true);
    }

    fn withdraw(&mut self, node: NodeId) {
        let state = self.node(node);
        let last_used = state.last_used;
        let Some(shelf) = state.shelf.take().map(usize::from) else { return };
        self.shelves[shelf].remove(&(last_used, node));
        if self.shelves[shelf].is_empty() {
            self.set_occupied(shelf, false);
        }
    }

    fn victim(&self) -> Option<NodeId> {
        let shelf = self.order[self.first_occupied()?];
        self.shelves[usize::from(shelf)].first().map(|&(_, node)| node)
    }

    fn fresh(&self) -> Box<dyn EvictionPolicy> {
        Box::new(Self::new(self.shelves.len() / NUM_AGES))
    }
}

impl GhostPolicy for Shelves {
    fn would_go_next(&self, node: NodeId) -> bool {
        let state = self.nodes[node.index()];
        let shelf = self.shelf_of(state);
        let Some(first) = self.first_occupied() else { return true };
        match usize::from(self.rank[shelf]).cmp(&first) {
            Ordering::Equal => {
                self.shelves[shelf].first().is_some_and(|&first| (state.last_used, node) < first)
            }
            order => order == Ordering::Less,
        }
    }
}
