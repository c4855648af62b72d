//! [`AdaptivePolicy`] against a plain model: two caches that evict by LRU and by worth
//! decide which of the two it follows.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use trunkline_kv::{AdaptivePolicy, EvictionPolicy, LeafLru, NodeId, PathHash, Trail, WorthPolicy};

use crate::draw::{self, Random};

/// The policy's half-life in requests.
const HALF_LIFE: f64 = 2_048.0;
/// The lead from which the policy follows worth, as a share of the visited blocks.
const MIN_LEAD: f64 = 0.0025;
/// The most sequences that run at the same time.
const MAX_HELD: usize = 3;

#[derive(Debug)]
struct Node {
    path: PathHash,
    parent: Option<NodeId>,
    num_children: u32,
    num_holds: u32,
}

/// A tree of paths with one block for each.
#[derive(Debug, Default)]
struct Tree {
    nodes: BTreeMap<u32, Node>,
    by_path: BTreeMap<PathHash, NodeId>,
}

impl Tree {
    /// Returns the node of a path, and whether it is new.
    fn enter(&mut self, path: PathHash, parent: Option<NodeId>) -> (NodeId, bool) {
        if let Some(&node) = self.by_path.get(&path) {
            return (node, false);
        }
        let node = NodeId((0..).find(|id| !self.nodes.contains_key(id)).expect("some id is free"));
        if let Some(parent) = parent {
            self.node(parent).num_children += 1;
        }
        self.nodes.insert(node.0, Node { path, parent, num_children: 0, num_holds: 0 });
        self.by_path.insert(path, node);
        (node, true)
    }

    fn node(&mut self, node: NodeId) -> &mut Node {
        self.nodes.get_mut(&node.0).expect("the node is there")
    }

    /// Returns true if the node may be evicted.
    fn is_spare(&self, node: NodeId) -> bool {
        let node = &self.nodes[&node.0];
        node.num_children == 0 && node.num_holds == 0
    }

    fn remove(&mut self, node: NodeId) -> Option<NodeId> {
        assert!(self.is_spare(node), "{node:?} is in use");
        let Node { path, parent, .. } = self.nodes.remove(&node.0).expect("the node is there");
        self.by_path.remove(&path);
        if let Some(parent) = parent {
            self.node(parent).num_children -= 1;
        }
        parent
    }
}

/// A cache whose sequences end at once, as in one of the policy's ghosts.
struct Plain<P> {
    tree: Tree,
    policy: P,
    capacity: usize,
    /// The nodes that the last request added.
    new: Vec<NodeId>,
    trail: Trail,
    before: Option<NodeId>,
    is_miss: bool,
}

impl<P: EvictionPolicy> Plain<P> {
    fn new(capacity: usize, policy: P) -> Self {
        let (tree, trail) = (Tree::default(), Trail::default());
        Self { tree, policy, capacity, new: Vec::new(), trail, before: None, is_miss: false }
    }

    fn begin(&mut self, num_prompt_blocks: u32) {
        for node in std::mem::take(&mut self.new) {
            if self.tree.is_spare(node) {
                self.policy.add_candidate(node);
            }
        }
        while self.tree.nodes.len() > self.capacity {
            let victim = self.policy.victim().expect("every leaf was offered");
            self.policy.remove_candidate(victim);
            if let Some(parent) = self.tree.remove(victim).filter(|&parent| self.tree.is_spare(parent)) {
                self.policy.add_candidate(parent);
            }
        }
        (self.trail, self.before, self.is_miss) = (self.policy.begin(num_prompt_blocks), None, false);
    }

    /// Returns true if the prompt hit up to this block.
    fn see(&mut self, path: PathHash) -> bool {
        let (node, is_new) = self.tree.enter(path, self.before);
        if is_new {
            self.new.push(node);
            self.before.into_iter().for_each(|parent| self.policy.remove_candidate(parent));
        }
        self.policy.touch(node);
        self.policy.visit(node, path, &mut self.trail);
        self.before = Some(node);
        self.is_miss |= is_new;
        !self.is_miss
    }
}

/// A cache under the policy, and the two policies it chooses from under the same calls.
struct Model {
    tree: Tree,
    capacity: usize,
    adaptive: AdaptivePolicy,
    lru: LeafLru,
    worth: WorthPolicy,
    plain_lru: Plain<LeafLru>,
    plain_worth: Plain<WorthPolicy>,
    lead: f64,
    num_seen: f64,
    follows_worth: bool,
    num_changes: u32,
    offered: BTreeSet<u32>,
    held: Vec<Vec<NodeId>>,
    /// The number of victims on which the two did not agree.
    num_disputed: [u32; 2],
    victims: Vec<NodeId>,
}

impl Model {
    fn new(num_blocks: u32) -> Self {
        let capacity = num_blocks as usize;
        Self {
            tree: Tree::default(),
            capacity,
            adaptive: AdaptivePolicy::new(num_blocks),
            lru: LeafLru::default(),
            worth: WorthPolicy::new(num_blocks),
            plain_lru: Plain::new(capacity, LeafLru::default()),
            plain_worth: Plain::new(capacity, WorthPolicy::new(num_blocks)),
            lead: 0.0,
            num_seen: 0.0,
            follows_worth: true,
            num_changes: 0,
            offered: BTreeSet::new(),
            held: Vec::new(),
            num_disputed: [0; 2],
            victims: Vec::new(),
        }
    }

    fn policies(&mut self) -> [&mut dyn EvictionPolicy; 3] {
        [&mut self.adaptive, &mut self.lru, &mut self.worth]
    }

    fn offer_if_spare(&mut self, node: NodeId) {
        if self.tree.is_spare(node) {
            self.policies().into_iter().for_each(|policy| policy.add_candidate(node));
            self.offered.insert(node.0);
        }
    }

    fn withdraw(&mut self, node: NodeId) {
        self.policies().into_iter().for_each(|policy| policy.remove_candidate(node));
        self.offered.remove(&node.0);
    }

    fn choose(&mut self) {
        let keep = (-1.0 / HALF_LIFE).exp2();
        (self.lead, self.num_seen) = (self.lead * keep, self.num_seen * keep);
        let before = self.follows_worth;
        if self.lead < 0.0 {
            self.follows_worth = false;
        } else if self.lead > MIN_LEAD * self.num_seen {
            self.follows_worth = true;
        }
        self.num_changes += u32::from(before != self.follows_worth);
    }

    fn request(&mut self, paths: &[PathHash]) {
        let num_blocks = paths.len() as u32;
        let mut trails = self.policies().map(|policy| policy.begin(num_blocks));
        self.plain_lru.begin(num_blocks);
        self.plain_worth.begin(num_blocks);
        self.choose();
        let mut nodes: Vec<NodeId> = Vec::new();
        for &path in paths {
            let (node, _) = self.tree.enter(path, nodes.last().copied());
            self.tree.node(node).num_holds += 1;
            self.withdraw(node);
            for (policy, trail) in self.policies().into_iter().zip(&mut trails) {
                policy.touch(node);
                policy.visit(node, path, trail);
            }
            nodes.push(node);
            let (by_worth, by_lru) = (self.plain_worth.see(path), self.plain_lru.see(path));
            self.lead += f64::from(u8::from(by_worth)) - f64::from(u8::from(by_lru));
            self.num_seen += 1.0;
        }
        self.held.push(nodes);
    }

    /// Ends a sequence, in any order.
    fn end(&mut self, place: usize) {
        for node in self.held.remove(place) {
            self.tree.node(node).num_holds -= 1;
            self.offer_if_spare(node);
        }
    }

    /// Evicts until `capacity` blocks are left, or only blocks in use.
    fn shrink(&mut self, capacity: usize) {
        while self.tree.nodes.len() > capacity {
            let [victim, lru, worth] = self.policies().map(|policy| policy.victim());
            assert_eq!(
                victim.is_some(),
                !self.offered.is_empty(),
                "there is a victim where a leaf is offered"
            );
            let Some(victim) = victim else { return };
            assert!(self.offered.contains(&victim.0), "{victim:?} was not offered");
            assert_eq!(Some(victim), if self.follows_worth { worth } else { lru });
            self.num_disputed[usize::from(self.follows_worth)] += u32::from(lru != worth);
            self.withdraw(victim);
            self.victims.push(victim);
            if let Some(parent) = self.tree.remove(victim) {
                let path = self.tree.nodes[&parent.0].path;
                self.policies().into_iter().for_each(|policy| policy.set_last_block(parent, path));
                self.offer_if_spare(parent);
            }
        }
    }
}

/// Returns the paths of a prompt.
fn paths(blocks: impl IntoIterator<Item = u64>) -> Vec<PathHash> {
    let mut path = 1_u64;
    let follow = |block: u64| {
        path = (path.rotate_left(23) ^ block).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        path ^ path >> 31 | 1
    };
    blocks.into_iter().map(follow).collect()
}

/// Makes phases of two kinds in turn. In one, forty prompts come again and again between others that come once, which
/// worth learns. In the other, each prompt comes again once and soon, so that worth is wrong for a while.
fn traffic(random: &mut Random, num_requests: usize) -> Vec<Vec<PathHash>> {
    let num_shared = random.below(3);
    let (mut requests, mut num_prompts) = (Vec::new(), 40);
    let mut due: VecDeque<u64> = VecDeque::new();
    while requests.len() < num_requests {
        let is_hot = random.below(2) == 0;
        for _ in 0..100 + random.below(if is_hot { 200 } else { 800 }) {
            let is_new = random.below(2) == 0 || !is_hot && due.len() < 4;
            let prompt = if !is_new && is_hot {
                random.below(40)
            } else if let (false, Some(prompt)) = (is_new, due.front().copied()) {
                due.pop_front();
                prompt
            } else {
                num_prompts += 1;
                num_prompts
            };
            if is_new && !is_hot {
                due.push_back(prompt);
            }
            let own = (0..2 + prompt % 7).map(|place| 100 + prompt * 16 + place);
            requests.push(paths((0..num_shared).chain(own)));
        }
    }
    requests
}

fn run(seed: u64, num_requests: usize) -> Model {
    let mut random = Random(seed);
    let mut model = Model::new(60 + random.below(120) as u32);
    let capacity = model.capacity;
    for prompt in traffic(&mut random, num_requests) {
        model.request(&prompt);
        while model.held.len() as u64 > random.below(MAX_HELD as u64 + 1) {
            let place = random.below(model.held.len() as u64) as usize;
            model.end(place);
        }
        model.shrink(capacity);
    }
    model
}

#[test]
fn it_evicts_as_the_leader_of_a_plain_model_does_and_nothing_in_use() {
    let (mut num_changes, mut num_disputed) = (0, [0; 2]);
    let num_seeds: u32 = if draw::is_test_all() { 4 } else { 1 };
    for seed in 1..=num_seeds.into() {
        let mut model = run(seed, 8_000);
        num_changes += model.num_changes;
        num_disputed.iter_mut().zip(model.num_disputed).for_each(|(sum, of_seed)| *sum += of_seed);
        // Every candidate is evicted once.
        while !model.held.is_empty() {
            model.end(0);
        }
        model.shrink(0);
        assert_eq!(model.tree.nodes.len(), 0);
    }
    println!("{num_changes} changes of leader, victims where they differ (lru, worth): {num_disputed:?}");
    assert!(num_changes > num_seeds, "{num_changes} changes: it went over to worth, but never back");
    assert!(
        num_disputed.iter().all(|&num| num > 125 * num_seeds),
        "hardly ever did they differ: {num_disputed:?}"
    );
}

#[test]
fn the_same_calls_give_the_same_victims() {
    let [one, two] = [(); 2].map(|()| run(9, 1_500).victims);
    assert!(!one.is_empty());
    assert_eq!(one, two);
}
