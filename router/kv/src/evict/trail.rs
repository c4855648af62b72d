use super::history::PathHash;
use crate::index::NodeId;

/// The state that a policy keeps for one sequence while it follows the sequence's path down the tree.
///
/// The cache only carries it from one call of the policy to the next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Trail {
    /// The number of the request, counted from the first one.
    pub(super) request: u64,
    pub(super) num_prompt_blocks: u32,
    pub(super) num_visited_blocks: u32,
    /// Selects the conversations that the ghosts sample: the low bits of the hash of the path where this one began.
    pub(super) unit: u8,
    /// True if the last visited block was new or near the end of the prompt that had it before. The next block then
    /// belongs to the same conversation.
    pub(super) is_continuation: bool,
    /// True if the last known block was in the middle of an earlier prompt and is not used by nearly all requests. New
    /// blocks after it branch off that prompt.
    pub(super) is_branch: bool,
    pub(super) ghosts: GhostTrail,
}

/// The position of a sequence's last sampled path in a ghost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GhostStep {
    pub path: PathHash,
    /// Absent if the ghost did not take the path, because the one before it was evicted.
    pub node: Option<NodeId>,
}

/// The progress of one sequence in the ghosts of [`super::AdaptivePolicy`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct GhostTrail {
    pub(super) lru: GhostProgress,
    pub(super) worth: GhostProgress,
}

/// The progress of one sequence in one ghost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct GhostProgress {
    /// Absent until a block of the sequence was sampled.
    pub(super) step: Option<GhostStep>,
    /// True once a block was missing. A prefix hit ends there.
    pub(super) has_missed: bool,
}
