//! The names of the launcher's children, for events, errors, logs and files.

use std::fmt;

/// The name of a child.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChildId {
    /// `python -m trunkline_server resolve`
    Resolver,
    /// `python -m trunkline_server serve`
    Shard(ShardId),
    /// `python -m trunkline_server spare`
    Spare,
    /// `trunkline-router`
    Router,
}

/// The place of a shard: its model, the lane (replica) of that model, and the rank within the lane, counted from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct ShardId {
    pub model: u32,
    pub lane: u32,
    pub rank: u32,
}

impl ShardId {
    /// Returns the place of the first shard of a lane.
    pub(crate) fn of_lane(model: u32, lane: u32) -> Self {
        Self { model, lane, rank: 0 }
    }
}

impl ChildId {
    pub(crate) fn is_shard(self) -> bool {
        self.shard().is_some()
    }

    /// Returns the place of a shard.
    pub(crate) fn shard(self) -> Option<ShardId> {
        match self {
            Self::Shard(shard) => Some(shard),
            Self::Resolver | Self::Spare | Self::Router => None,
        }
    }
}

impl fmt::Display for ChildId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Resolver => f.write_str("resolver"),
            Self::Shard(shard) => shard.fmt(f),
            Self::Spare => f.write_str("spare shard"),
            Self::Router => f.write_str("router"),
        }
    }
}

/// Writes `shard`, followed by the numbers that are not 0, such as `shard-l1-r3`.
impl fmt::Display for ShardId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("shard")?;
        for (letter, number) in [('m', self.model), ('l', self.lane), ('r', self.rank)] {
            if number > 0 {
                write!(f, "-{letter}{number}")?;
            }
        }
        Ok(())
    }
}
