//! The numbers by which clients know nodes.
//!
//! The ids of the KV index count the nodes of all tenants. A permutation with a secret key, new in each process, hides
//! that: it is a Feistel network over the halves of the id.

use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;

use trunkline_scheduler::NodeId;

const NUM_ROUNDS: u32 = 4;
static KEY: LazyLock<RandomState> = LazyLock::new(RandomState::new);

fn mix(round: u32, half: u16) -> u16 {
    KEY.hash_one((round, half)) as u16
}

pub(super) fn number(id: NodeId) -> u32 {
    let (mut left, mut right) = ((id.0 >> 16) as u16, id.0 as u16);
    for round in 0..NUM_ROUNDS {
        (left, right) = (right, left ^ mix(round, right));
    }
    u32::from(left) << 16 | u32::from(right)
}

/// Returns the id that has this number. Every number has one, but a node with that id need not exist.
pub(super) fn node_id(number: u32) -> NodeId {
    let (mut left, mut right) = ((number >> 16) as u16, number as u16);
    for round in (0..NUM_ROUNDS).rev() {
        (left, right) = (right ^ mix(round, left), left);
    }
    NodeId(u32::from(left) << 16 | u32::from(right))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_is_that_of_one_id() {
        let ids = [0, 1, 2, 0xffff, 0x1_0000, u32::MAX].map(NodeId);
        assert!(ids.iter().all(|&id| node_id(number(id)) == id));
        let ascending = (0..100).map(|id| number(NodeId(id))).is_sorted();
        assert!(!ascending, "the order of the ids is hidden");
    }
}
