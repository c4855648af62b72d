use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use trunkline_contract::BlockId;

use super::{TenantShare, TenantUsage, Weights, usage_ratio};
use crate::evict::{EvictionPolicy, LowPriorityLeaves, PathHash, Trail};
use crate::index::NodeId;
use crate::salt::Salt;

/// The key of requests without a tenant. No tenant has this name.
const NO_TENANT: &str = "";

/// The number of a tenant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TenantIdx(u32);

#[derive(Debug)]
struct TenantState {
    usage: TenantUsage,
    weight: u32,
    policy: Box<dyn EvictionPolicy>,
    /// The candidates that are evicted before those of the policy.
    low_priority: LowPriorityLeaves,
}

impl TenantState {
    fn ratio(&self) -> u64 {
        usage_ratio(self.usage.num_blocks, self.weight)
    }

    fn victim(&self) -> Option<NodeId> {
        self.low_priority.first().or_else(|| self.policy.victim())
    }

    /// Returns the number of cached blocks that other tenants may take.
    fn num_spare(&self) -> u32 {
        self.usage.num_cached.min(self.usage.num_blocks.saturating_sub(self.usage.num_share_blocks))
    }
}

/// A policy for each tenant, and the owner of each block. Every call costs that of the policy and O(log tenants).
#[derive(Debug)]
pub(crate) struct TenantPolicies {
    num_blocks: u32,
    /// Each tenant gets an empty policy of this kind.
    prototype: Box<dyn EvictionPolicy>,
    weights: Weights,
    tenants: Vec<TenantState>,
    by_name: BTreeMap<Arc<str>, TenantIdx>,
    /// The tenants by blocks per weight. It is kept only once there are two.
    order: BTreeSet<(u64, TenantIdx)>,
    /// The sum of [`TenantState::num_spare`].
    num_spare: u32,
    /// The owner of each block. The entries of free blocks are meaningless.
    owners: Vec<TenantIdx>,
    tenant_of_node: Vec<TenantIdx>,
}

impl TenantPolicies {
    pub(crate) fn new(num_blocks: u32, prototype: Box<dyn EvictionPolicy>) -> Self {
        Self {
            num_blocks,
            prototype,
            weights: Weights::default(),
            tenants: Vec::new(),
            by_name: BTreeMap::new(),
            order: BTreeSet::new(),
            num_spare: 0,
            owners: vec![TenantIdx::default(); num_blocks as usize],
            tenant_of_node: Vec::new(),
        }
    }

    /// Sets all weights. A tenant that is not named has none. Without any names, all weigh the same. O(tenants).
    pub(crate) fn set_shares(&mut self, shares: &[TenantShare]) {
        self.weights.set(shares);
        self.update_shares();
    }

    /// Returns the weights of all tenants.
    pub(crate) fn shares(&self) -> Vec<TenantShare> {
        self.weights.shares()
    }

    /// Returns the tenant of a salt, and adds it if it is new.
    pub(crate) fn tenant(&mut self, salt: &Salt) -> TenantIdx {
        if let Some(&tenant) = self.by_name.get(salt.tenant().unwrap_or(NO_TENANT)) {
            return tenant;
        }
        let tenant = TenantIdx(self.tenants.len() as u32);
        let name = salt.tenant.clone();
        self.by_name.insert(name.clone().unwrap_or_else(|| NO_TENANT.into()), tenant);
        let usage = TenantUsage {
            tenant: name,
            num_blocks: 0,
            num_cached: 0,
            num_pinned: 0,
            num_share_blocks: 0,
            num_evicted: 0,
        };
        let (policy, low_priority) = (self.prototype.new_empty(), LowPriorityLeaves::default());
        self.tenants.push(TenantState { usage, weight: 0, policy, low_priority });
        self.update_shares();
        tenant
    }

    /// Returns the usage of each tenant, in the order of their first requests.
    pub(crate) fn usages(&self) -> impl Iterator<Item = &TenantUsage> {
        self.tenants.iter().map(|tenant| &tenant.usage)
    }

    /// Returns how many of the `num_cached` cached blocks this salt's tenant may not take, because they are within the
    /// shares of others.
    pub(crate) fn num_guarded(&self, salt: &Salt, num_cached: u32) -> u32 {
        if self.tenants.len() < 2 && self.weights.num_named() < 2 {
            return 0;
        }
        let name = salt.tenant().unwrap_or(NO_TENANT);
        let (own, own_spare) = self.by_name.get(name).map_or((0, 0), |tenant| {
            let state = &self.tenants[tenant.0 as usize];
            (state.usage.num_cached, state.num_spare())
        });
        num_cached.saturating_sub(own + self.num_spare - own_spare)
    }

    /// Counts a block that the tenant is about to get. [`TenantPolicies::set_owner`] tells which one it got.
    pub(crate) fn charge(&mut self, tenant: TenantIdx) {
        self.change_usage(tenant, |usage| usage.num_blocks += 1);
    }

    /// Sets the owner of a block that was charged before.
    pub(crate) fn set_owner(&mut self, block: BlockId, tenant: TenantIdx) {
        self.owners[block.index()] = tenant;
    }

    /// Records that only the index has the block now.
    pub(crate) fn record_cached(&mut self, block: BlockId) {
        self.change_usage(self.owners[block.index()], |usage| usage.num_cached += 1);
    }

    /// Records that a cached block is held or leaves the index.
    pub(crate) fn record_uncached(&mut self, block: BlockId) {
        self.change_usage(self.owners[block.index()], |usage| usage.num_cached -= 1);
    }

    /// Records that a block is free.
    pub(crate) fn record_freed(&mut self, block: BlockId) {
        self.change_usage(self.owners[block.index()], |usage| usage.num_blocks -= 1);
    }

    /// Counts an eviction of a cached block.
    pub(crate) fn record_evicted(&mut self, block: BlockId) {
        self.tenants[self.owners[block.index()].0 as usize].usage.num_evicted += 1;
    }

    /// Returns true if a tenant's share has room for `num_blocks` more pinned blocks.
    pub(crate) fn may_pin(&self, tenant: TenantIdx, num_blocks: u32) -> bool {
        let usage = &self.tenants[tenant.0 as usize].usage;
        usage.num_pinned + num_blocks <= usage.num_share_blocks
    }

    /// Changes the number of a tenant's pinned blocks.
    pub(crate) fn change_pinned(&mut self, tenant: TenantIdx, change: i32) {
        let usage = &mut self.tenants[tenant.0 as usize].usage;
        usage.num_pinned = usage.num_pinned.checked_add_signed(change).expect("an unpinned block was pinned");
    }

    /// Sets the tenant of a node.
    pub(crate) fn set_tenant(&mut self, node: NodeId, tenant: TenantIdx) {
        let index = node.index();
        if index >= self.tenant_of_node.len() {
            self.tenant_of_node.resize(index + 1, TenantIdx::default());
        }
        self.tenant_of_node[index] = tenant;
    }

    pub(crate) fn begin(&mut self, tenant: TenantIdx, num_prompt_blocks: u32) -> Trail {
        self.tenants[tenant.0 as usize].policy.begin(num_prompt_blocks)
    }

    pub(crate) fn visit(&mut self, node: NodeId, path: PathHash, trail: &mut Trail) {
        self.policy(node).visit(node, path, trail);
    }

    pub(crate) fn set_last_block(&mut self, node: NodeId, path: PathHash) {
        self.policy(node).set_last_block(node, path);
    }

    pub(crate) fn touch(&mut self, node: NodeId) {
        self.policy(node).touch(node);
    }

    pub(crate) fn split(&mut self, upper: NodeId, lower: NodeId) {
        self.set_tenant(upper, self.tenant_of_node[lower.index()]);
        self.policy(lower).split(upper, lower);
    }

    /// Makes a node a candidate for eviction. With `is_low_priority` it is evicted before its tenant's other nodes.
    pub(crate) fn add_candidate(&mut self, node: NodeId, is_low_priority: bool) {
        let state = self.state(node);
        state.policy.add_candidate(node);
        state.low_priority.set(node, is_low_priority);
    }

    pub(crate) fn remove_candidate(&mut self, node: NodeId) {
        let state = self.state(node);
        state.policy.remove_candidate(node);
        state.low_priority.set(node, false);
    }

    /// Returns the victim of the tenant that exceeds its share the most, among those that have candidates.
    pub(crate) fn victim(&self) -> Option<NodeId> {
        if let [only] = &self.tenants[..] {
            return only.victim();
        }
        let largest_first = self.order.iter().rev();
        largest_first.into_iter().find_map(|&(_, tenant)| self.tenants[tenant.0 as usize].victim())
    }

    /// Returns true if a node is a low-priority candidate.
    pub(crate) fn is_low_priority(&self, node: NodeId) -> bool {
        let tenant = self.tenant_of_node[node.index()];
        self.tenants[tenant.0 as usize].low_priority.has(node)
    }

    fn state(&mut self, node: NodeId) -> &mut TenantState {
        let tenant = self.tenant_of_node[node.index()];
        &mut self.tenants[tenant.0 as usize]
    }

    fn policy(&mut self, node: NodeId) -> &mut Box<dyn EvictionPolicy> {
        &mut self.state(node).policy
    }

    fn change_usage(&mut self, tenant: TenantIdx, change: impl FnOnce(&mut TenantUsage)) {
        if let [only] = &mut self.tenants[..] {
            change(&mut only.usage);
            self.num_spare = only.num_spare();
            return;
        }
        let state = &mut self.tenants[tenant.0 as usize];
        let (ratio, num_spare) = (state.ratio(), state.num_spare());
        change(&mut state.usage);
        self.num_spare = self.num_spare - num_spare + state.num_spare();
        let now = state.ratio();
        if now != ratio {
            self.order.remove(&(ratio, tenant));
            self.order.insert((now, tenant));
        }
    }

    fn update_shares(&mut self) {
        for state in &mut self.tenants {
            state.weight = self.weights.of(state.usage.tenant.as_deref());
        }
        let sum: u64 = if self.weights.are_equal() {
            self.tenants.len() as u64
        } else {
            self.weights.iter().map(|(_, weight)| u64::from(weight)).sum()
        };
        let num_blocks = u64::from(self.num_blocks);
        for state in &mut self.tenants {
            let share = (num_blocks * u64::from(state.weight)).checked_div(sum).unwrap_or(0);
            state.usage.num_share_blocks = share as u32;
        }
        self.num_spare = self.tenants.iter().map(TenantState::num_spare).sum();
        self.order = self.ordered();
    }

    fn ordered(&self) -> BTreeSet<(u64, TenantIdx)> {
        let ids = (0..).map(TenantIdx);
        self.tenants.iter().zip(ids).map(|(state, tenant)| (state.ratio(), tenant)).collect()
    }

    /// Recounts everything. Panics if a count is wrong.
    pub(crate) fn check_invariants(
        &self,
        is_free: impl Fn(BlockId) -> bool,
        is_cached: impl Fn(BlockId) -> bool,
    ) {
        let mut counted = vec![(0, 0); self.tenants.len()];
        for block in (0..self.num_blocks).map(BlockId).filter(|&block| !is_free(block)) {
            let (owned, cached) = &mut counted[self.owners[block.index()].0 as usize];
            *owned += 1;
            *cached += u32::from(is_cached(block));
        }
        let claimed: Vec<_> = self.usages().map(|usage| (usage.num_blocks, usage.num_cached)).collect();
        assert_eq!(counted, claimed, "blocks owned and cached, by tenant");
        let num_spare: u32 = self.tenants.iter().map(TenantState::num_spare).sum();
        assert_eq!(num_spare, self.num_spare, "blocks that others may take");
        if self.tenants.len() > 1 {
            assert_eq!(self.order, self.ordered(), "tenants by usage per weight");
        }
    }
}
