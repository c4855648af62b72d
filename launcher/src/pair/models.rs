//! Starts and stops the shards of single models as the pair's router decides.

use std::time::Instant;

use rustix::process::Signal;
use trunkline_settings::Order;

use super::Pair;
use crate::child::ChildId;
use crate::log::Log;
use crate::restart::RestartPolicy;
use crate::supervised::{State, Supervised};

impl Pair {
    /// Starts the shards of a model. Those that run go on.
    pub(crate) fn load(&mut self, model: u32, log: &Log) {
        if self.plan.served_as(model).is_none() {
            let why = "it was removed".to_owned();
            return self.order(&Order::Failed { model, why }, log);
        }
        let base_pause = self.plan.base.pace.base_pause;
        for shard in self.shards_of(model).filter(|shard| matches!(shard.state, State::Unloaded)) {
            shard.state = State::Waiting;
            (shard.is_ready, shard.has_served) = (false, false);
            shard.restarts = RestartPolicy::new(base_pause);
        }
    }

    /// Stops the shards of a model.
    pub(crate) fn unload(&mut self, model: u32, log: &Log) {
        let kill_at = Instant::now() + self.plan.base.pace.shard_timeout;
        for shard in self.shards_of(model) {
            match &shard.state {
                State::Running(process) => {
                    process.signal(Signal::TERM);
                    shard.kill_at = Some(kill_at);
                }
                // A lane that was drained stays so.
                State::Gone => {}
                _ => shard.state = State::Unloaded,
            }
        }
        self.report_unloaded(model, log);
    }

    /// Stops the shards of a model that has failed, and tells the router why.
    pub(crate) fn fail_model(&mut self, model: u32, why: String, log: &Log) {
        self.failed.insert(model, why);
        self.unload(model, log);
    }

    /// Handles the end of a shard that was told to stop because its model leaves the memory. Returns false if it was
    /// not.
    pub(crate) fn has_unloaded(&mut self, id: ChildId, log: &Log) -> bool {
        let Some(child) = self.children.iter_mut().find(|child| child.id == id) else { return false };
        let (true, Some(shard)) = (child.kill_at.take().is_some(), id.shard()) else { return false };
        log.info("stopped", &[("process", &id)]);
        if self.drains.has(shard) {
            self.stopped(shard, log);
        } else {
            child.state = State::Unloaded;
        }
        self.report_unloaded(shard.model, log);
        true
    }

    /// Tells the router that a model has left the memory, if no shard of it is left.
    fn report_unloaded(&mut self, model: u32, log: &Log) {
        if self.shards_of(model).any(|shard| shard.is_held()) {
            return;
        }
        let order = match self.failed.remove(&model) {
            Some(why) => Order::Failed { model, why },
            None => Order::Unloaded { model },
        };
        self.order(&order, log);
        self.forget_removed();
    }

    /// Kills the shards that have not stopped in time.
    pub(crate) fn kill_late_shards(&mut self, log: &Log) {
        let now = Instant::now();
        let patience = self.plan.base.pace.shard_timeout;
        for shard in self.children.iter_mut().filter(|shard| shard.kill_at.is_some_and(|at| at <= now)) {
            if let State::Running(process) = &shard.state {
                let (id, pid) = (process.id(), process.pid());
                log.warn("did not stop in time and is killed", &[("process", &id), ("pid", &pid)]);
                process.signal(Signal::KILL);
            }
            shard.kill_at = Some(now + patience);
        }
    }

    fn shards_of(&mut self, model: u32) -> impl Iterator<Item = &mut Supervised> {
        self.children.iter_mut().filter(move |child| child.model() == Some(model))
    }
}
