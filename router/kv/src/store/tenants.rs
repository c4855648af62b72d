use std::collections::{BTreeMap, BTreeSet};

use trunkline_contract::SlotId;

use crate::salt::Salt;
use crate::tenants::{TenantShare, Weights, usage_ratio};

/// The number of a tenant of the store.
///
/// Number 0 has the blocks without a tenant, and those found at the start whose tenant has not asked for them yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct StoreTenantIdx(u32);

#[derive(Debug, Default)]
struct StoreTenant {
    name: Option<Box<str>>,
    weight: u32,
    num_slots: u32,
    /// The slots that may be evicted, by last use.
    candidates: BTreeSet<(u64, SlotId)>,
}

/// The slots of each tenant, and the order of eviction among tenants.
#[derive(Debug)]
pub(super) struct StoreTenants {
    tenants: Vec<StoreTenant>,
    by_name: BTreeMap<Box<str>, StoreTenantIdx>,
    weights: Weights,
}

impl Default for StoreTenants {
    fn default() -> Self {
        let tenants = vec![StoreTenant { weight: 1, ..StoreTenant::default() }];
        Self { tenants, by_name: BTreeMap::new(), weights: Weights::default() }
    }
}

impl StoreTenants {
    pub(super) fn set_shares(&mut self, shares: &[TenantShare]) {
        self.weights.set(shares);
        self.update_weights();
    }

    /// Returns the tenant of a salt, and adds it if it is new.
    pub(super) fn of(&mut self, salt: &Salt) -> StoreTenantIdx {
        let Some(name) = salt.tenant() else { return StoreTenantIdx::default() };
        if let Some(&tenant) = self.by_name.get(name) {
            return tenant;
        }
        let tenant = StoreTenantIdx(self.tenants.len() as u32);
        self.tenants.push(StoreTenant { name: Some(name.into()), ..StoreTenant::default() });
        self.by_name.insert(name.into(), tenant);
        self.update_weights();
        tenant
    }

    pub(super) fn name(&self, tenant: StoreTenantIdx) -> Option<&str> {
        self.tenants[tenant.0 as usize].name.as_deref()
    }

    pub(super) fn charge(&mut self, tenant: StoreTenantIdx) {
        self.tenant_mut(tenant).num_slots += 1;
    }

    pub(super) fn release(&mut self, tenant: StoreTenantIdx) {
        self.tenant_mut(tenant).num_slots -= 1;
    }

    /// Returns the slots of a tenant that may be evicted, by last use.
    pub(super) fn candidates(&mut self, tenant: StoreTenantIdx) -> &mut BTreeSet<(u64, SlotId)> {
        &mut self.tenant_mut(tenant).candidates
    }

    pub(super) fn is_candidate(&self, tenant: StoreTenantIdx, candidate: (u64, SlotId)) -> bool {
        self.tenants[tenant.0 as usize].candidates.contains(&candidate)
    }

    /// Returns the least recently used candidate of the tenant that exceeds its share the most.
    ///
    /// The cost is O(tenants), which is little beside that of writing a block.
    pub(super) fn victim(&self) -> Option<(u64, SlotId)> {
        let with_candidates = self.tenants.iter().filter(|tenant| !tenant.candidates.is_empty());
        let largest = with_candidates.max_by_key(|tenant| usage_ratio(tenant.num_slots, tenant.weight))?;
        largest.candidates.first().copied()
    }

    pub(super) fn num_slots(&self) -> impl Iterator<Item = (Option<&str>, u32)> {
        self.tenants.iter().map(|tenant| (tenant.name.as_deref(), tenant.num_slots))
    }

    /// Returns how many of `num_slots` slots are guaranteed to the tenant of a salt. The cost is O(tenants).
    pub(super) fn share_of(&mut self, salt: &Salt, num_slots: u32) -> u32 {
        let tenant = self.of(salt);
        let sum: u64 = self.tenants.iter().map(|tenant| u64::from(tenant.weight)).sum();
        let own = u64::from(num_slots) * u64::from(self.tenant_mut(tenant).weight);
        own.checked_div(sum).unwrap_or(0) as u32
    }

    pub(super) fn num_candidates(&self) -> usize {
        self.tenants.iter().map(|tenant| tenant.candidates.len()).sum()
    }

    /// Recounts the slots; `used` has the tenant of each slot in use. Panics if a count is wrong.
    pub(super) fn check_invariants(&self, used: impl Iterator<Item = StoreTenantIdx>) {
        let mut counted = vec![0; self.tenants.len()];
        used.for_each(|tenant| counted[tenant.0 as usize] += 1);
        let claimed: Vec<u32> = self.tenants.iter().map(|tenant| tenant.num_slots).collect();
        assert_eq!(counted, claimed, "slots by tenant");
    }

    fn tenant_mut(&mut self, tenant: StoreTenantIdx) -> &mut StoreTenant {
        &mut self.tenants[tenant.0 as usize]
    }

    fn update_weights(&mut self) {
        for tenant in &mut self.tenants {
            tenant.weight = self.weights.of(tenant.name.as_deref());
        }
        if !self.weights.are_equal() {
            // All blocks of a tenant that has not asked for any yet are counted under number 0.
            let absent = self.weights.iter().filter(|(name, _)| !self.by_name.contains_key(*name));
            self.tenants[0].weight = absent.fold(0, |sum, (_, weight)| sum.saturating_add(weight));
        }
    }
}
