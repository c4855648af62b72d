//! A child that should be running, and its current state.

use std::time::{Duration, Instant};

use crate::caller::LaneState;
use crate::child::ChildId;
use crate::process::Process;
use crate::restart::RestartPolicy;

#[derive(Debug)]
pub(crate) struct Supervised {
    pub(crate) id: ChildId,
    pub(crate) state: State,
    pub(crate) restarts: RestartPolicy,
    /// True if the router has reported that this shard computes since it was started.
    pub(crate) is_ready: bool,
    /// True if it has computed since its model was loaded.
    pub(crate) has_served: bool,
    /// Set when the running process is killed because it has hung for this long.
    pub(crate) hung: Option<Duration>,
    /// The time at which the process is killed, if it was told to stop because its model leaves the memory.
    pub(crate) kill_at: Option<Instant>,
}

#[derive(Debug)]
pub(crate) enum State {
    Running(Process),
    /// The child is started again at this time.
    Crashed {
        restart_at: Instant,
    },
    /// The shard is started once no shard of another pair has its lane's place.
    Waiting,
    /// The shard's model is not in memory.
    Unloaded,
    /// The child has ended, or is somebody else's to stop, and is not started again.
    Gone,
}

impl Supervised {
    /// Returns the number of the model of a shard.
    pub(crate) fn model(&self) -> Option<u32> {
        self.id.shard().map(|shard| shard.model)
    }

    /// Returns the lane of a shard.
    pub(crate) fn lane(&self) -> Option<u32> {
        self.id.shard().map(|shard| shard.lane)
    }

    pub(crate) fn process(&self) -> Option<&Process> {
        if let State::Running(process) = &self.state { Some(process) } else { None }
    }

    /// Returns the lane of a shard that waits.
    pub(crate) fn waits(&self) -> Option<u32> {
        self.lane().filter(|_| matches!(self.state, State::Waiting))
    }

    /// Returns true if the child runs or will.
    pub(crate) fn is_held(&self) -> bool {
        !matches!(self.state, State::Unloaded | State::Gone)
    }

    /// Returns true if the child was started and is not given up.
    pub(crate) fn is_expected(&self) -> bool {
        !matches!(self.state, State::Waiting | State::Unloaded | State::Gone)
    }

    /// Returns the state of the lane of a shard, which does not drain.
    pub(crate) fn lane_state(&self) -> LaneState {
        match self.state {
            State::Running(_) if self.is_ready => LaneState::Serves,
            State::Running(_) => LaneState::Starts,
            State::Crashed { .. } => LaneState::Restarts,
            State::Waiting => LaneState::Waits,
            State::Unloaded => LaneState::Unloaded,
            State::Gone => LaneState::GivenUp,
        }
    }
}
