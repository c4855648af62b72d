//! The recent outputs of each salt, for drafts. Sequences of other salts never see them.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use trunkline_draft::RecentOutputs;
use trunkline_kv::Salt;

/// The most salts whose outputs are kept. One takes at most 1 MiB.
const MAX_SALTS: usize = 64;

/// Recent outputs by salt. The salt that had none for the longest time is dropped first, among those of the tenant that
/// has the most salts, so that nobody drops the outputs of others by sending many.
#[derive(Debug, Default)]
pub(crate) struct Recents {
    by_salt: BTreeMap<Salt, (RecentOutputs, u64)>,
    /// The number of outputs.
    count: u64,
}

impl Recents {
    pub(crate) fn get(&self, salt: &Salt) -> Option<&RecentOutputs> {
        self.by_salt.get(salt).map(|(outputs, _)| outputs)
    }

    pub(crate) fn push(&mut self, salt: &Salt, output: &[u32]) {
        self.count += 1;
        if let Some((outputs, last)) = self.by_salt.get_mut(salt) {
            outputs.push(output);
            *last = self.count;
            return;
        }
        if self.by_salt.len() == MAX_SALTS {
            let mut num_salts: BTreeMap<Option<&str>, usize> = BTreeMap::new();
            self.by_salt.keys().for_each(|salt| *num_salts.entry(salt.tenant()).or_default() += 1);
            let excess = |(salt, (_, last)): &(&Salt, &(_, _))| (num_salts[&salt.tenant()], Reverse(*last));
            let dropped = self.by_salt.iter().max_by_key(excess).map(|(salt, _)| salt.clone());
            dropped.and_then(|dropped| self.by_salt.remove(&dropped));
        }
        let mut outputs = RecentOutputs::default();
        outputs.push(output);
        self.by_salt.insert(salt.clone(), (outputs, self.count));
    }
}
