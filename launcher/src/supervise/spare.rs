//! Keeps a process ready that can become the next shard.

use std::time::Instant;

use super::Supervisor;
use crate::child::ChildId;
use crate::supervised::{State, Supervised};

impl Supervisor<'_> {
    /// Plans a spare process for the next shard, for which the machine has time once the last one answers.
    pub(super) fn plan_spare(&mut self) {
        let takes_spare = |shard: &Supervised| match shard.id {
            ChildId::Shard(id) => matches!(shard.state, State::Unloaded) && self.serving.plan.takes_spare(id),
            _ => false,
        };
        if self.serving.spare.is_none() && self.serving.shards().any(takes_spare) {
            self.spare_at = Some(Instant::now() + self.serving.plan.base.pace.spare_delay);
        }
    }

    /// Starts the spare process whose time has come.
    pub(super) fn start_spare(&mut self) {
        if self.spare_at.take_if(|at| *at <= Instant::now()).is_some() {
            self.serving.start_spare(&self.log, &self.sender);
        }
    }
}
