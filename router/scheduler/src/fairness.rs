//! The seam for fairness between tenants: which of them goes next within a priority class.

use std::fmt;

use trunkline_kv::Salt;

/// Ranks tenants within a class. A tenant is what a salt names.
///
/// A weighted policy (virtual token counters: Sheng et al., OSDI 2024, algorithm 2) answers `rank` with the tenant's
/// counter and raises it in `charge`; a sequence's rank is asked for when it enters the queue.
pub(crate) trait Fairness: fmt::Debug + Send {
    /// The lower goes first.
    fn rank(&self, tenant: &Salt) -> u64;
    /// Tokens were planned for the tenant.
    fn charge(&mut self, tenant: &Salt, num_tokens: u32);
}

/// First come, first served: all tenants are equal.
#[derive(Debug, Default)]
pub(crate) struct Fifo;

impl Fairness for Fifo {
    fn rank(&self, _tenant: &Salt) -> u64 {
        0
    }

    fn charge(&mut self, _tenant: &Salt, _num_tokens: u32) {}
}
