//! Loads and unloads models as the router decides.

use std::time::Instant;

use rustix::process::Signal;
use trunkline_settings::Order;

use super::Supervisor;
use super::catalog::MAX_REASON_CHARS;
use crate::child::ChildId;
use crate::restart::RestartPolicy;
use crate::supervised::{State, Supervised};

impl Supervisor<'_> {
    /// Starts the shards of a model. Those that run go on.
    pub(super) fn load(&mut self, model: u32) {
        if self.serving.plan.served_as(model).is_none() {
            let why = "it was removed".to_owned();
            return self.serving.order(&Order::Failed { model, why }, &self.log);
        }
        let base_pause = self.serving.plan.base.pace.base_pause;
        for shard in self.shards_of(model).filter(|shard| matches!(shard.state, State::Unloaded)) {
            shard.state = State::Waiting;
            (shard.is_ready, shard.has_served) = (false, false);
            shard.restarts = RestartPolicy::new(base_pause);
        }
    }

    /// Stops the shards of a model.
    pub(super) fn unload(&mut self, model: u32) {
        let kill_at = Instant::now() + self.serving.plan.base.pace.shard_timeout;
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
        self.report_unloaded(model, None);
    }

    /// Gives a model up whose shard cannot be started or crashes too often, until the router asks for it again. Returns
    /// false if the server cannot go on without this shard.
    pub(super) fn give_up_model(&mut self, id: ChildId, why: &str) -> bool {
        let ChildId::Shard(shard) = id else { return false };
        // A server whose first model cannot be loaded has never served anything.
        if !self.serving.plan.is_on_demand || (shard.model == 0 && !self.was_ready) {
            return false;
        }
        self.log.warn("cannot load a model", &[("process", &id), ("reason", &why)]);
        self.failed.insert(shard.model, why.chars().take(MAX_REASON_CHARS).collect());
        self.unload(shard.model);
        true
    }

    /// Handles the end of a shard that was told to stop because its model leaves the memory. Returns false if it was
    /// not.
    pub(super) fn has_unloaded(&mut self, id: ChildId) -> bool {
        let ChildId::Shard(shard) = id else { return false };
        let Some(child) = self.serving.children.iter_mut().find(|child| child.id == id) else { return false };
        if child.kill_at.take().is_none() {
            return false;
        }
        child.state = State::Unloaded;
        self.report_unloaded(shard.model, Some(id));
        true
    }

    /// Tells the router that a model has left the memory, if no shard of it is left.
    pub(super) fn report_unloaded(&mut self, model: u32, last: Option<ChildId>) {
        if self.shards_of(model).any(|shard| shard.is_held()) {
            return;
        }
        if let Some(id) = last {
            self.log.info("stopped", &[("process", &id)]);
        }
        let order = match self.failed.remove(&model) {
            Some(why) => Order::Failed { model, why },
            None => Order::Unloaded { model },
        };
        self.serving.order(&order, &self.log);
        self.serving.forget_removed();
        self.plan_spare();
    }

    /// Kills the shards that have not stopped in time.
    pub(super) fn kill_late_shards(&mut self) {
        let now = Instant::now();
        for shard in self.serving.children.iter().filter(|shard| shard.kill_at.is_some_and(|at| at <= now)) {
            if let State::Running(process) = &shard.state {
                let (id, pid) = (process.id(), process.pid());
                self.log.warn("did not stop in time and is killed", &[("process", &id), ("pid", &pid)]);
                process.signal(Signal::KILL);
            }
        }
        let patience = self.serving.plan.base.pace.shard_timeout;
        for shard in &mut self.serving.children {
            shard.kill_at = shard.kill_at.map(|at| if at <= now { now + patience } else { at });
        }
    }

    fn shards_of(&mut self, model: u32) -> impl Iterator<Item = &mut Supervised> {
        self.serving.children.iter_mut().filter(move |child| child.model() == Some(model))
    }
}
