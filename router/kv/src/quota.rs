//! Guaranteed shares of the device pool, and who goes beyond theirs.
//!
//! ```text
//! pool      [ a a a a a a a a | b b | . . ]     a's share is 6 blocks, b's 6: a borrows 2 as b does not need them
//! next      b computes more: the free blocks, then a's two, are b's; a's other 6 stay while b is beyond its own share
//! ```
//!
//! A tenant owns every block of its sequences and of its part of the KV index, from allocation until it is free. What
//! goes when room is needed is chosen by the policy of the tenant that is furthest beyond its share, relative to it,
//! with the new block counted as its owner's. So while anybody beyond its share has a block that can go, nobody within
//! theirs loses one. A single tenant costs nothing and gets what its policy says.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use trunkline_contract::BlockId;

use crate::cache::KvCache;
use crate::evict::{EvictionPolicy, Trail};
use crate::history::PathHash;
use crate::low::LowLeaves;
use crate::radix::NodeId;
use crate::salt::Salt;

/// No tenant has this name.
const NOBODY: &str = "";
/// Bits after the point of a relative usage.
const RATIO_BITS: u32 = 24;

/// A tenant's weight: its part of the pool is its weight's part of the sum.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TenantShare {
    /// [`Salt::tenant`].
    pub tenant: Box<str>,
    /// Its weight.
    pub weight: u32,
}

/// What a tenant has of the pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TenantUsage {
    /// Its name; none for requests without a tenant.
    pub tenant: Option<Arc<str>>,
    /// Blocks that it owns.
    pub num_blocks: u32,
    /// Those that only the KV index has.
    pub num_cached: u32,
    /// Those that its pins hold.
    pub num_pinned: u32,
    /// Blocks that are guaranteed to it.
    pub num_share_blocks: u32,
    /// Its blocks that went to make room, so far.
    pub num_evicted: u64,
}

/// A tenant by its number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TenantIdx(u32);

#[derive(Debug)]
struct TenantState {
    usage: TenantUsage,
    weight: u32,
    policy: Box<dyn EvictionPolicy>,
    /// Of what it offers, what goes first.
    low: LowLeaves,
}

impl TenantState {
    /// Blocks per weight, in fixed point. Who has no weight is beyond any share.
    fn ratio(&self) -> u64 {
        let scaled = u64::from(self.usage.num_blocks) << RATIO_BITS;
        scaled.checked_div(self.weight.into()).unwrap_or(u64::from(scaled > 0) * u64::MAX)
    }

    /// What goes next of its own.
    fn victim(&self) -> Option<NodeId> {
        self.low.first().or_else(|| self.policy.victim())
    }

    /// Cached blocks that others may take.
    fn num_spare(&self) -> u32 {
        self.usage.num_cached.min(self.usage.num_blocks.saturating_sub(self.usage.num_share_blocks))
    }
}

/// One policy per tenant, and who owns which block. Every call costs that of the policy and O(log tenants).
#[derive(Debug)]
pub(crate) struct Quotas {
    num_blocks: u32,
    /// What each tenant gets one of.
    prototype: Box<dyn EvictionPolicy>,
    /// Weights by name; empty: all weigh the same.
    shares: BTreeMap<Box<str>, u32>,
    tenants: Vec<TenantState>,
    /// [`NOBODY`] for requests without a tenant.
    by_name: BTreeMap<Arc<str>, TenantIdx>,
    /// By blocks per weight. Kept once there are two.
    order: BTreeSet<(u64, TenantIdx)>,
    /// Sum of [`TenantState::num_spare`].
    num_spare: u32,
    /// Meaningless for free blocks.
    owners: Vec<TenantIdx>,
    tenant_of_node: Vec<TenantIdx>,
}

impl Quotas {
    pub(crate) fn new(num_blocks: u32, prototype: Box<dyn EvictionPolicy>) -> Self {
        Self {
            num_blocks,
            prototype,
            shares: BTreeMap::new(),
            tenants: Vec::new(),
            by_name: BTreeMap::new(),
            order: BTreeSet::new(),
            num_spare: 0,
            owners: vec![TenantIdx::default(); num_blocks as usize],
            tenant_of_node: Vec::new(),
        }
    }

    /// Sets all weights; a tenant that is not named has none. No names: all weigh the same. O(tenants).
    pub(crate) fn set_shares(&mut self, shares: &[TenantShare]) {
        self.shares = shares.iter().map(|share| (share.tenant.clone(), share.weight)).collect();
        self.divide();
    }

    /// All weights.
    pub(crate) fn shares(&self) -> Vec<TenantShare> {
        let shares = self.shares.iter();
        shares.map(|(tenant, &weight)| TenantShare { tenant: tenant.clone(), weight }).collect()
    }

    /// The tenant of a salt, new if it was not seen yet.
    pub(crate) fn tenant(&mut self, salt: &Salt) -> TenantIdx {
        if let Some(&tenant) = self.by_name.get(salt.tenant().unwrap_or(NOBODY)) {
            return tenant;
        }
        let tenant = TenantIdx(self.tenants.len() as u32);
        let name: Option<Arc<str>> = salt.tenant().map(Arc::from);
        self.by_name.insert(name.clone().unwrap_or_else(|| NOBODY.into()), tenant);
        let usage = TenantUsage {
            tenant: name,
            num_blocks: 0,
            num_cached: 0,
            num_pinned: 0,
            num_share_blocks: 0,
            num_evicted: 0,
        };
        let (policy, low) = (self.prototype.fresh(), LowLeaves::default());
        self.tenants.push(TenantState { usage, weight: 0, policy, low });
        self.divide();
        tenant
    }

    /// What each tenant has, in the order in which they came.
    pub(crate) fn usages(&self) -> impl Iterator<Item = &TenantUsage> {
        self.tenants.iter().map(|tenant| &tenant.usage)
    }

    /// Cached blocks that this tenant may not take, as they are within the shares of others.
    pub(crate) fn num_guarded(&self, salt: &Salt, num_cached: u32) -> u32 {
        if self.tenants.len() < 2 && self.shares.len() < 2 {
            return 0;
        }
        let name = salt.tenant().unwrap_or(NOBODY);
        let (own, own_spare) = self.by_name.get(name).map_or((0, 0), |tenant| {
            let state = &self.tenants[tenant.0 as usize];
            (state.usage.num_cached, state.num_spare())
        });
        num_cached.saturating_sub(own + self.num_spare - own_spare)
    }

    /// The tenant is about to get a block.
    pub(crate) fn charge(&mut self, tenant: TenantIdx) {
        self.change(tenant, |usage| usage.num_blocks += 1);
    }

    /// This is the block.
    pub(crate) fn give(&mut self, block: BlockId, tenant: TenantIdx) {
        self.owners[block.index()] = tenant;
    }

    /// Only the KV index has the block now.
    pub(crate) fn cached(&mut self, block: BlockId) {
        self.change(self.owners[block.index()], |usage| usage.num_cached += 1);
    }

    /// A block that only the KV index had is held.
    pub(crate) fn uncached(&mut self, block: BlockId) {
        self.change(self.owners[block.index()], |usage| usage.num_cached -= 1);
    }

    /// A block that nobody holds is free.
    pub(crate) fn freed(&mut self, block: BlockId) {
        self.change(self.owners[block.index()], |usage| usage.num_blocks -= 1);
    }

    /// A cached block went to make room.
    pub(crate) fn evicted(&mut self, block: BlockId) {
        self.tenants[self.owners[block.index()].0 as usize].usage.num_evicted += 1;
    }

    /// Whether a tenant's share has room for so many pinned blocks more.
    pub(crate) fn may_pin(&self, tenant: TenantIdx, num_blocks: u32) -> bool {
        let usage = &self.tenants[tenant.0 as usize].usage;
        usage.num_pinned + num_blocks <= usage.num_share_blocks
    }

    /// So many of a tenant's blocks more (or less) are pinned.
    pub(crate) fn pinned(&mut self, tenant: TenantIdx, change: i32) {
        let usage = &mut self.tenants[tenant.0 as usize].usage;
        usage.num_pinned = usage.num_pinned.checked_add_signed(change).expect("what is unpinned was pinned");
    }

    /// A node belongs to a tenant from here on.
    pub(crate) fn place(&mut self, node: NodeId, tenant: TenantIdx) {
        let index = node.index();
        if index >= self.tenant_of_node.len() {
            self.tenant_of_node.resize(index + 1, TenantIdx::default());
        }
        self.tenant_of_node[index] = tenant;
    }

    pub(crate) fn begin(&mut self, tenant: TenantIdx, num_prompt_blocks: u32) -> Trail {
        self.tenants[tenant.0 as usize].policy.begin(num_prompt_blocks)
    }

    pub(crate) fn seen(&mut self, node: NodeId, path: PathHash, trail: &mut Trail) {
        self.policy(node).seen(node, path, trail);
    }

    pub(crate) fn exposed(&mut self, node: NodeId, path: PathHash) {
        self.policy(node).exposed(node, path);
    }

    pub(crate) fn used(&mut self, node: NodeId) {
        self.policy(node).used(node);
    }

    pub(crate) fn inherit(&mut self, node: NodeId, from: NodeId) {
        self.place(node, self.tenant_of_node[from.index()]);
        self.policy(from).inherit(node, from);
    }

    /// `is_low`: it goes before all else of its tenant.
    pub(crate) fn offer(&mut self, node: NodeId, is_low: bool) {
        let state = self.state(node);
        state.policy.offer(node);
        state.low.set(node, is_low);
    }

    pub(crate) fn withdraw(&mut self, node: NodeId) {
        let state = self.state(node);
        state.policy.withdraw(node);
        state.low.set(node, false);
    }

    /// What goes next: of who is furthest beyond its share and has something to give.
    pub(crate) fn victim(&self) -> Option<NodeId> {
        if let [only] = &self.tenants[..] {
            return only.victim();
        }
        let furthest_first = self.order.iter().rev();
        furthest_first.into_iter().find_map(|&(_, tenant)| self.tenants[tenant.0 as usize].victim())
    }

    /// Whether a leaf is among those that go before all else of their tenant.
    pub(crate) fn goes_first(&self, node: NodeId) -> bool {
        let tenant = self.tenant_of_node[node.index()];
        self.tenants[tenant.0 as usize].low.has(node)
    }

    fn state(&mut self, node: NodeId) -> &mut TenantState {
        let tenant = self.tenant_of_node[node.index()];
        &mut self.tenants[tenant.0 as usize]
    }

    fn policy(&mut self, node: NodeId) -> &mut Box<dyn EvictionPolicy> {
        &mut self.state(node).policy
    }

    fn change(&mut self, tenant: TenantIdx, change: impl FnOnce(&mut TenantUsage)) {
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

    /// Divides the pool anew.
    fn divide(&mut self) {
        for state in &mut self.tenants {
            state.weight = match &state.usage.tenant {
                _ if self.shares.is_empty() => 1,
                Some(name) => self.shares.get(&**name).copied().unwrap_or(0),
                None => 0,
            };
        }
        let sum: u64 = if self.shares.is_empty() {
            self.tenants.len() as u64
        } else {
            self.shares.values().map(|&weight| u64::from(weight)).sum()
        };
        let num_blocks = u64::from(self.num_blocks);
        for state in &mut self.tenants {
            let share = (num_blocks * u64::from(state.weight)).checked_div(sum).unwrap_or(0);
            state.usage.num_share_blocks = share as u32;
        }
        self.num_spare = self.tenants.iter().map(TenantState::num_spare).sum();
        let places = (0..).map(TenantIdx);
        self.order = self.tenants.iter().zip(places).map(|(state, tenant)| (state.ratio(), tenant)).collect();
    }

    /// Recounts everything; `is_free` and `is_cached` say it of a block. Panics where something is wrong.
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
            let places = (0..).map(TenantIdx);
            let order =
                self.tenants.iter().zip(places).map(|(state, tenant)| (state.ratio(), tenant)).collect();
            assert_eq!(self.order, order, "tenants by what they have of their share");
        }
    }
}

impl KvCache {
    /// [`KvCache::available`] without blocks that would have to be taken from others within their shares: for a
    /// sequence of this salt, as long as it can wait. O(log tenants).
    pub fn available_to(&self, salt: &Salt) -> u32 {
        let counts = self.counts();
        counts.free + counts.cached - self.policy.num_guarded(salt, counts.cached)
    }

    /// Sets the tenants' weights; a tenant that is not named has none. No names: all weigh the same.
    pub fn set_shares(&mut self, shares: &[TenantShare]) {
        self.policy.set_shares(shares);
        if let Some(store) = &mut self.store {
            store.set_shares(shares);
        }
    }

    /// What each tenant has.
    pub fn tenants(&self) -> impl Iterator<Item = &TenantUsage> {
        self.policy.usages()
    }
}
