//! Drains lanes and adds them again, as `trunkline lanes` asks.

use std::path::Path;

use super::Supervisor;
use crate::caller::{Caller, LaneState};
use crate::lanes::{Goal, LaneError};
use crate::pair::Pair;
use crate::retired::Retired;
use crate::supervised::Supervised;

impl Supervisor<'_> {
    /// Begins to drain or to add a lane; the caller then waits for the end.
    pub(super) fn ask_lane(&mut self, goal: Goal, caller: Caller) {
        let lane = goal.lane();
        match self.check_lane(goal) {
            Ok(()) => {
                match goal {
                    Goal::Drained(_) => self.serving.drain(lane, &self.log),
                    Goal::Serving(_) => self.serving.add(lane, &self.log),
                }
                self.callers.push((goal, caller));
            }
            Err(error) => caller.answer(Err(&error.to_string())),
        }
    }

    fn check_lane(&self, goal: Goal) -> Result<(), LaneError> {
        let lanes = self.serving.lanes();
        let state =
            lanes.get(goal.lane() as usize).ok_or(LaneError::Unknown { last: lanes.len() - 1 })?.state;
        let is_drained = |state| matches!(state, LaneState::Drains | LaneState::Drained);
        let mut others = (0..).zip(&lanes).filter(|(lane, _)| *lane != goal.lane());
        match goal {
            _ if !self.was_ready => Err(LaneError::NotReady),
            _ if self.reloads() => Err(LaneError::Reloads),
            Goal::Drained(_) if is_drained(state) => Ok(()),
            Goal::Drained(_)
                if others.all(|(_, lane)| is_drained(lane.state) || lane.state == LaneState::GivenUp) =>
            {
                Err(LaneError::Last)
            }
            Goal::Serving(_) if matches!(state, LaneState::Serves | LaneState::Elsewhere) => {
                Err(LaneError::Serves)
            }
            Goal::Drained(_) | Goal::Serving(_) => Ok(()),
        }
    }

    /// Notes that the router with this process id has nothing left on the shard with this socket.
    pub(super) fn lane_is_empty(&mut self, pid: u32, socket: &Path) {
        if self.serving.id_of(pid).is_some() {
            if let Some(lane) = self.serving.plan.lane_at(socket) {
                self.serving.drains.emptied(lane);
            }
        } else if let Some(retired) = self.retired.iter_mut().find(|retired| retired.has(pid)) {
            retired.emptied(socket);
        }
    }

    /// Stops the shards of the serving pair whose lanes are empty.
    pub(super) fn stop_drained(&mut self) {
        let Pair { drains, plan, children, .. } = &mut self.serving;
        let patience = plan.base.pace.shard_timeout;
        drains.stop(children.iter().filter_map(Supervised::process), patience, &self.log);
    }

    /// Returns the lanes that shards of other pairs than the serving one have.
    pub(super) fn lanes_in_use(&self) -> Vec<u32> {
        let new = self.reload.as_ref().and_then(|reload| reload.pair());
        let new = new.into_iter().flat_map(Pair::shards).filter(|shard| shard.process().is_some());
        self.retired.iter().flat_map(Retired::lanes).chain(new.filter_map(Supervised::lane)).collect()
    }

    /// Answers the callers whose lanes are as they want them, or will not be.
    pub(super) fn answer_callers(&mut self) {
        if self.callers.is_empty() {
            return;
        }
        let lanes = self.serving.lanes();
        let outcome = |goal: Goal| match lanes.get(goal.lane() as usize) {
            Some(lane) => goal.outcome(lane.state),
            // A reload has reduced the number of lanes.
            None => Some(Err(LaneError::Unknown { last: lanes.len() - 1 })),
        };
        for (goal, caller) in self.callers.extract_if(.., |(goal, _)| outcome(*goal).is_some()) {
            if let Some(outcome) = outcome(goal) {
                let reason = outcome.map_err(|error| error.to_string());
                caller.answer(reason.as_ref().copied().map_err(String::as_str));
            }
        }
    }
}
