//! Loads and unloads models as the router decides.

use trunkline_settings::{Order, Report};

use super::Supervisor;
use super::catalog::MAX_REASON_CHARS;
use crate::child::ChildId;
use crate::pair::Pair;

impl Supervisor<'_> {
    /// Gives a model up whose shard cannot be started or crashes too often, until the router asks for it again. Returns
    /// false if the server cannot go on without this shard.
    pub(super) fn give_up_model(&mut self, id: ChildId, why: &str) -> bool {
        let Some(shard) = id.shard() else { return false };
        // A server whose first model cannot be loaded has never served anything.
        if !self.serving.plan.is_on_demand || (shard.model == 0 && !self.was_ready) {
            return false;
        }
        self.log.warn("cannot load a model", &[("process", &id), ("reason", &why)]);
        let why = why.chars().take(MAX_REASON_CHARS).collect();
        self.serving.fail_model(shard.model, why, &self.log);
        self.plan_spare();
        true
    }

    /// Starts the shards of a model for the router with this process id.
    pub(super) fn load(&mut self, pid: u32, model: u32) {
        let (log, events) = (self.log, self.sender.clone());
        if let Some(retired) = self.retired.iter_mut().find(|retired| retired.has(pid)) {
            retired.load(model, &log, &events);
        } else if let Some(pair) = self.pair_of(pid) {
            pair.load(model, &log);
        }
    }

    /// Stops the shards of a model for the router with this process id.
    pub(super) fn unload(&mut self, pid: u32, model: u32) {
        let log = self.log;
        if let Some(retired) = self.retired.iter().find(|retired| retired.has(pid)) {
            retired.unload(model, &log);
        } else if let Some(pair) = self.pair_of(pid) {
            pair.unload(model, &log);
        }
        self.plan_spare();
    }

    /// Returns the pair with this process, unless it was replaced.
    fn pair_of(&mut self, pid: u32) -> Option<&mut Pair> {
        if self.serving.id_of(pid).is_some() { Some(&mut self.serving) } else { self.starting() }
    }

    /// Answers what a router that was replaced asks for beside the models that it has.
    pub(super) fn refuse_replaced(&self, pid: u32, report: &Report) {
        let Some(retired) = self.retired.iter().find(|retired| retired.has(pid)) else { return };
        let why = "the server was reloaded meanwhile; hint: send the request again".to_owned();
        match report {
            Report::Find { model, .. } => {
                retired.order(&Order::NotFound { model: model.clone(), why }, &self.log);
            }
            Report::Delete { model } => retired.order(&Order::NotDeleted { model: *model, why }, &self.log),
            _ => {}
        }
    }
}
