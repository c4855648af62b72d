//! Guaranteed shares of the device's pool, and the order of eviction among tenants.
//!
//! ```text
//! pool      [ a a a a a a a a | b b | . . ]     a and b have shares of 6 blocks; a borrows 2 that b does not need
//! next      b computes more: it takes the free blocks, then a's two borrowed ones. While b exceeds its own share, it
//!           takes no more of a's blocks
//! ```
//!
//! A tenant owns every block of its sequences and of its part of the index, from allocation until the block is free.
//! The victim is chosen by the policy of the tenant that exceeds its share the most, relative to the share. The new
//! block is counted first, so the tenant that needs it may lose a block itself. Therefore no tenant within its share
//! loses a block while another one exceeds its share and has a block that can be evicted. With a single tenant this
//! costs nothing.

mod policies;

use std::collections::BTreeMap;
use std::sync::Arc;

pub(crate) use policies::{TenantIdx, TenantPolicies};

/// The weight of a tenant. Its share of the pool is its part of the sum of all weights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TenantShare {
    /// The name, as in [`crate::Salt::tenant`].
    pub tenant: Box<str>,
    pub weight: u32,
}

/// The blocks of the pool that a tenant uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TenantUsage {
    /// The name; absent for requests without a tenant.
    pub tenant: Option<Arc<str>>,
    pub num_blocks: u32,
    /// Owned blocks that only the index has.
    pub num_cached: u32,
    /// Owned blocks that pins hold.
    pub num_pinned: u32,
    /// Blocks that are guaranteed to the tenant.
    pub num_share_blocks: u32,
    pub num_evicted: u64,
}

impl TenantUsage {
    /// Adds the tenant's use of another pool.
    pub fn add(&mut self, other: &Self) {
        self.num_blocks += other.num_blocks;
        self.num_cached += other.num_cached;
        self.num_pinned += other.num_pinned;
        self.num_share_blocks += other.num_share_blocks;
        self.num_evicted += other.num_evicted;
    }
}

/// The weights of all tenants, and the arithmetic that device and store share.
#[derive(Debug, Default)]
pub(crate) struct Weights {
    /// The weights by name. Without any, all tenants weigh the same.
    by_name: BTreeMap<Box<str>, u32>,
}

impl Weights {
    /// Replaces the weights of all tenants.
    pub(crate) fn set(&mut self, shares: &[TenantShare]) {
        self.by_name = shares.iter().map(|share| (share.tenant.clone(), share.weight)).collect();
    }

    /// Returns the weights as they were set.
    pub(crate) fn shares(&self) -> Vec<TenantShare> {
        let shares = self.by_name.iter();
        shares.map(|(tenant, &weight)| TenantShare { tenant: tenant.clone(), weight }).collect()
    }

    /// Returns true if no weights are set.
    pub(crate) fn are_equal(&self) -> bool {
        self.by_name.is_empty()
    }

    /// Returns the number of tenants with a weight of their own.
    pub(crate) fn num_named(&self) -> usize {
        self.by_name.len()
    }

    /// Returns the weight of a tenant. Requests without a tenant and tenants that are not named have none.
    pub(crate) fn of(&self, tenant: Option<&str>) -> u32 {
        match tenant {
            _ if self.are_equal() => 1,
            Some(name) => self.by_name.get(name).copied().unwrap_or(0),
            None => 0,
        }
    }

    /// Returns every weight and its tenant.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, u32)> {
        self.by_name.iter().map(|(name, &weight)| (&**name, weight))
    }
}

/// Returns the usage per weight in fixed point. Any usage without a weight exceeds every share.
pub(crate) fn usage_ratio(num_used: u32, weight: u32) -> u64 {
    const FRACTION_BITS: u32 = 24;
    let scaled = u64::from(num_used) << FRACTION_BITS;
    scaled.checked_div(weight.into()).unwrap_or(u64::from(scaled > 0) * u64::MAX)
}
