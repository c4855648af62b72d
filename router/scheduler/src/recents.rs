//! The recent outputs of each salt, for drafts. Sequences of other salts never see them.

use std::collections::BTreeMap;

use trunkline_draft::RecentOutputs;
use trunkline_kv::Salt;

/// The most salts whose outputs are kept. One takes at most 1 MiB.
const MAX_SALTS: usize = 64;

/// Recent outputs by salt. The salt that had none for the longest time is dropped first.
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
            let oldest = self.by_salt.iter().min_by_key(|(_, (_, last))| *last).map(|(salt, _)| salt.clone());
            oldest.and_then(|oldest| self.by_salt.remove(&oldest));
        }
        let mut outputs = RecentOutputs::default();
        outputs.push(output);
        self.by_salt.insert(salt.clone(), (outputs, self.count));
    }
}
