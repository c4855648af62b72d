//! Whose slots of the store are, and whose go first.

use std::collections::{BTreeMap, BTreeSet};

use trunkline_contract::SlotId;

use crate::quota::TenantShare;
use crate::salt::Salt;

/// Bits after the point of a relative usage.
const RATIO_BITS: u32 = 24;

/// A group by its number. 0: blocks without a tenant, and those whose tenant did not ask for them since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct GroupIdx(u32);

#[derive(Debug, Default)]
struct Group {
    tenant: Option<Box<str>>,
    weight: u32,
    /// Slots in use.
    num_slots: u32,
    /// What may be evicted, by last use.
    leaves: BTreeSet<(u64, SlotId)>,
}

impl Group {
    /// Slots per weight, in fixed point. Who has no weight is beyond any share.
    fn ratio(&self) -> u64 {
        let scaled = u64::from(self.num_slots) << RATIO_BITS;
        scaled.checked_div(self.weight.into()).unwrap_or(u64::from(scaled > 0) * u64::MAX)
    }
}

/// The slots by tenant.
#[derive(Debug)]
pub(crate) struct StoreGroups {
    groups: Vec<Group>,
    by_name: BTreeMap<Box<str>, GroupIdx>,
    /// Weights by name; empty: all weigh the same.
    shares: BTreeMap<Box<str>, u32>,
}

impl Default for StoreGroups {
    fn default() -> Self {
        let mut groups =
            Self { groups: vec![Group::default()], by_name: BTreeMap::new(), shares: BTreeMap::new() };
        groups.weigh();
        groups
    }
}

impl StoreGroups {
    /// Sets all weights.
    pub(crate) fn set_shares(&mut self, shares: &[TenantShare]) {
        self.shares = shares.iter().map(|share| (share.tenant.clone(), share.weight)).collect();
        self.weigh();
    }

    /// The group of a salt, new if its tenant did not come yet.
    pub(crate) fn of(&mut self, salt: &Salt) -> GroupIdx {
        let Some(name) = salt.tenant() else { return GroupIdx::default() };
        if let Some(&group) = self.by_name.get(name) {
            return group;
        }
        let group = GroupIdx(self.groups.len() as u32);
        self.groups.push(Group { tenant: Some(name.into()), ..Group::default() });
        self.by_name.insert(name.into(), group);
        self.weigh();
        group
    }

    /// The tenant of a group.
    pub(crate) fn tenant(&self, group: GroupIdx) -> Option<&str> {
        self.groups[group.0 as usize].tenant.as_deref()
    }

    /// One slot more is in use by a group.
    pub(crate) fn take(&mut self, group: GroupIdx) {
        self.group(group).num_slots += 1;
    }

    /// One less is.
    pub(crate) fn give_back(&mut self, group: GroupIdx) {
        self.group(group).num_slots -= 1;
    }

    /// What may be evicted of a group.
    pub(crate) fn leaves(&mut self, group: GroupIdx) -> &mut BTreeSet<(u64, SlotId)> {
        &mut self.group(group).leaves
    }

    /// Whether a slot is offered.
    pub(crate) fn may_go(&self, group: GroupIdx, place: (u64, SlotId)) -> bool {
        self.groups[group.0 as usize].leaves.contains(&place)
    }

    /// What goes next: the least recently used of who is furthest beyond its share and has something to give.
    /// O(tenants), which is little beside the block that is written.
    pub(crate) fn victim(&self) -> Option<(u64, SlotId)> {
        let may_give = self.groups.iter().filter(|group| !group.leaves.is_empty());
        may_give.max_by_key(|group| group.ratio())?.leaves.first().copied()
    }

    /// Slots in use by tenant.
    pub(crate) fn num_slots_by_tenant(&self) -> impl Iterator<Item = (Option<&str>, u32)> {
        self.groups.iter().map(|group| (group.tenant.as_deref(), group.num_slots))
    }

    /// Slots of `num_slots` that are guaranteed to the tenant of a salt. O(tenants).
    pub(crate) fn share_of(&mut self, salt: &Salt, num_slots: u32) -> u32 {
        let group = self.of(salt);
        let sum: u64 = self.groups.iter().map(|group| u64::from(group.weight)).sum();
        let own = u64::from(num_slots) * u64::from(self.group(group).weight);
        own.checked_div(sum).unwrap_or(0) as u32
    }

    /// Slots that may be evicted, of all.
    pub(crate) fn num_leaves(&self) -> usize {
        self.groups.iter().map(|group| group.leaves.len()).sum()
    }

    /// Recounts; `used` has the group of each slot in use. Panics where a count is wrong.
    pub(crate) fn check_invariants(&self, used: impl Iterator<Item = GroupIdx>) {
        let mut counted = vec![0; self.groups.len()];
        used.for_each(|group| counted[group.0 as usize] += 1);
        let claimed: Vec<u32> = self.groups.iter().map(|group| group.num_slots).collect();
        assert_eq!(counted, claimed, "slots by tenant");
    }

    fn group(&mut self, group: GroupIdx) -> &mut Group {
        &mut self.groups[group.0 as usize]
    }

    fn weigh(&mut self) {
        for group in &mut self.groups {
            group.weight = match &group.tenant {
                _ if self.shares.is_empty() => 1,
                Some(name) => self.shares.get(name).copied().unwrap_or(0),
                None => 0,
            };
        }
        if !self.shares.is_empty() {
            // Who has not come yet can have nothing elsewhere.
            let absent = self.shares.iter().filter(|(name, _)| !self.by_name.contains_key(*name));
            self.groups[0].weight = absent.fold(0, |sum, (_, &weight)| sum.saturating_add(weight));
        }
    }
}
