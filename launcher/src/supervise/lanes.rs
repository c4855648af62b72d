//! Drains lanes and adds them again, as `trunkline lanes` asks.

use std::path::Path;

use super::Supervisor;
use crate::caller::{Caller, LaneState, LaneWord};
use crate::child::ShardId;
use crate::lanes::{Goal, LaneError};
use crate::pair::Pair;
use crate::plan::PlannedModel;
use crate::retired::Retired;
use crate::supervised::Supervised;

impl Supervisor<'_> {
    /// Begins to drain or to add a lane of the model with this name, or of the first one; the caller then waits for the
    /// end.
    pub(super) fn ask_lane(&mut self, word: LaneWord, lane: u32, model: Option<&str>, caller: Caller) {
        match self.check_lane(word, lane, model) {
            Ok(goal) => {
                match goal {
                    Goal::Drained(lane) => self.serving.drain(lane, &self.log),
                    Goal::Serving(lane) => self.serving.add(lane, &self.log),
                }
                self.callers.push((goal, caller));
            }
            Err(error) => caller.answer(Err(&error.to_string())),
        }
    }

    fn check_lane(&self, word: LaneWord, lane: u32, model: Option<&str>) -> Result<Goal, LaneError> {
        let plan = &self.serving.plan;
        let is_it = |planned: &PlannedModel| model.is_none_or(|name| planned.names().any(|own| own == name));
        let Some((number, _)) = plan.served().find(|(_, planned)| is_it(planned)) else {
            let names: Vec<String> = plan.served().map(|(_, known)| format!("`{}`", known.name())).collect();
            return Err(LaneError::UnknownModel { names: names.join(", ") });
        };
        let place = ShardId::of_lane(number, lane);
        let goal = match word {
            LaneWord::Drain => Goal::Drained(place),
            LaneWord::Add => Goal::Serving(place),
        };
        let lanes = self.serving.lanes(number);
        let state = lanes.get(lane as usize).ok_or(LaneError::Unknown { last: lanes.len() - 1 })?.state;
        let is_drained = |state| matches!(state, LaneState::Drains | LaneState::Drained);
        let mut others = (0..).zip(&lanes).filter(|(other, _)| *other != lane);
        match goal {
            _ if !self.was_ready => Err(LaneError::NotReady),
            _ if self.reloads() => Err(LaneError::Reloads),
            Goal::Drained(_) if is_drained(state) => Ok(goal),
            Goal::Drained(_) if state == LaneState::Unloaded => Err(LaneError::Unloaded),
            Goal::Drained(_)
                if others.all(|(_, lane)| is_drained(lane.state) || lane.state == LaneState::GivenUp) =>
            {
                Err(LaneError::Last)
            }
            Goal::Serving(_) if matches!(state, LaneState::Serves | LaneState::Elsewhere) => {
                Err(LaneError::Serves)
            }
            Goal::Drained(_) | Goal::Serving(_) => Ok(goal),
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
        let outcome =
            |goal: Goal| match self.serving.lanes(goal.shard().model).get(goal.shard().lane as usize) {
                Some(lane) => goal.outcome(lane.state),
                // A reload has reduced the number of lanes, or removed the model.
                None => Some(Err(LaneError::Gone)),
            };
        for (goal, caller) in self.callers.extract_if(.., |(goal, _)| outcome(*goal).is_some()) {
            if let Some(outcome) = outcome(goal) {
                let reason = outcome.map_err(|error| error.to_string());
                caller.answer(reason.as_ref().copied().map_err(String::as_str));
            }
        }
    }
}
