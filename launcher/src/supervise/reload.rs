//! Replaces the serving pair by a new one, lane by lane: no more shards run at a time than one of both pairs has,
//! unless there is only one lane.
//!
//! The old router empties a lane, the old shard stops, and the new one starts in its place. Once half of the new shards
//! are ready, new connections get to the new router. The lanes of the old one follow, except the last, which it keeps
//! as long as its connections are open.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use rustix::process::Signal;

use super::Supervisor;
use crate::args::resolved::{Prepared, ServerConfig};
use crate::caller::Caller;
use crate::child::ShardId;
use crate::error::LauncherError;
use crate::log::Log;
use crate::pair::Pair;
use crate::plan::{Other, Plan};
use crate::process::Process;
use crate::reload::{Reload, ReloadError, Stage};
use crate::retired::Retired;
use crate::supervised::Supervised;

/// The next step of a reload.
enum Next {
    /// New connections get to the new pair.
    Switch,
    /// A lane of the serving pair is emptied for a shard of the new one.
    Drain(u32),
    /// All new shards start beside the old ones.
    StartAll,
    Wait,
}

impl Supervisor<'_> {
    /// Returns true until all shards of the last reload have been started, or it has failed.
    pub(super) fn reloads(&self) -> bool {
        self.reload.is_some() || self.serving.shards().any(|shard| shard.waits().is_some())
    }

    /// Begins a reload: of single models if that is enough, or else of all, by another pair.
    pub(super) fn begin_reload(&mut self, caller: Option<Caller>) {
        let config = match self.read_again() {
            Ok(config) => config,
            Err(error) => return self.refuse_reload(caller, &error),
        };
        if let Some(changed) = self.changed_models(&config) {
            return self.reload_models(changed, caller);
        }
        if self.catalog.searches() {
            return self.refuse_reload(caller, &ReloadError::Searching);
        }
        self.generation += 1;
        match Reload::begin(config, &self.serving.plan, self.generation, &self.sender) {
            Ok(reload) => {
                self.log.info("reloading", &[]);
                self.reload = Some(Reload { caller, ..reload });
            }
            Err(error) => self.refuse_reload(caller, &error),
        }
    }

    fn read_again(&self) -> Result<Box<ServerConfig>, ReloadError> {
        match (self.reloads() || self.models_reload.is_some(), self.was_ready) {
            (true, _) => return Err(ReloadError::UnderWay),
            (false, false) => return Err(ReloadError::NotReady),
            (false, true) => {}
        }
        let config = (self.reread)().map_err(ReloadError::Failed)?;
        ReloadError::check_listeners(&config, &self.serving.plan)?;
        Ok(config)
    }

    /// Starts the new router beside the serving pair.
    pub(super) fn resolved(&mut self, generation: u32, prepared: Result<Prepared, LauncherError>) {
        // A reload that has failed meanwhile wants no model any more.
        let is_wanted = |reload: &mut Reload| matches!(&reload.stage, Stage::Resolving(resolving) if resolving.generation == generation);
        let Some(reload) = self.reload.take_if(is_wanted) else { return };
        let Reload { stage: Stage::Resolving(resolving), caller, .. } = reload else { return };
        let old = &self.serving.plan;
        let started = prepared.and_then(|(config, models)| {
            let programs = (resolving.python, resolving.router);
            let base = Arc::clone(&old.base);
            let mut plan = Plan::new(*config, models, programs, resolving.generation, base);
            plan.take_pulled(old);
            Pair::start(plan, Other::Serves, &self.log, &self.sender)
        });
        match started {
            Ok(pair) => {
                self.reload = Some(Reload { stage: Stage::Starting(Box::new(pair)), caller, ..reload })
            }
            Err(error) => self.refuse_reload(caller, &ReloadError::Failed(error)),
        }
    }

    /// Notes that the shard of the new pair at this socket is ready.
    pub(super) fn new_shard_is_ready(&mut self, socket: &Path) {
        if let Some(pair) = self.starting() {
            pair.shard_is_ready(socket);
        }
        if let Some(reload) = &mut self.reload {
            reload.deadline = Instant::now() + reload.timeout;
        }
    }

    /// Starts new shards in the places that are free, and makes others free.
    pub(super) fn go_on_with_reload(&mut self) {
        let mut in_use: Vec<u32> = self.retired.iter().flat_map(Retired::lanes).collect();
        in_use.extend(
            self.serving.shards().filter(|shard| shard.process().is_some()).filter_map(Supervised::lane),
        );
        if !self.has_models_on_demand() {
            self.start_new(|lane| !in_use.contains(&lane), Other::None);
        }
        match self.next() {
            Next::Switch => self.switch(),
            Next::Drain(lane) => {
                self.serving.drain(ShardId::of_lane(0, lane), &self.log);
                if let Some(reload) = &mut self.reload {
                    reload.drained.push(lane);
                }
            }
            Next::StartAll => self.start_new(|_| true, Other::Serves),
            Next::Wait => {}
        }
        if self.serving.is_ready() && !self.has_models_on_demand() {
            let waiting: Vec<u32> = self.serving.shards().filter_map(Supervised::waits).collect();
            self.retired.iter_mut().for_each(|retired| retired.drain_one_of(&waiting, &self.log));
        }
    }

    /// Returns true if one of both pairs loads models when they are asked for. Lanes are not replaced one by one then.
    fn has_models_on_demand(&self) -> bool {
        let new = self.reload.as_ref().and_then(Reload::pair);
        self.serving.plan.is_on_demand || new.is_some_and(|new| new.plan.is_on_demand)
    }

    fn start_new(&mut self, may_start: impl Fn(u32) -> bool, other: Other) {
        let Some(Reload { stage: Stage::Starting(pair), .. }) = &mut self.reload else { return };
        if let Err(error) = pair.start_waiting(may_start, other, &self.log, &self.sender) {
            self.fail_reload(&ReloadError::Failed(error));
        }
    }

    fn next(&self) -> Next {
        let Some(new) = self.reload.as_ref().and_then(Reload::pair) else { return Next::Wait };
        let waiting: Vec<u32> = new.shards().filter_map(Supervised::waits).collect();
        let (num_shards, num_started) = (new.shards().count(), new.shards().count() - waiting.len());
        if self.has_models_on_demand() && !waiting.is_empty() {
            return Next::StartAll;
        }
        if num_started > 0 && !new.is_ready() {
            return Next::Wait;
        }
        let old = &self.serving;
        let runs = |shard: &&Supervised| shard.process().is_some();
        let (drained, kept): (Vec<u32>, Vec<u32>) = old
            .shards()
            .filter(runs)
            .filter_map(Supervised::lane)
            .partition(|lane| old.drains.has(ShardId::of_lane(0, *lane)));
        let is_wanted = |lane: &&u32| waiting.contains(lane);
        let place = kept.iter().find(is_wanted).filter(|_| kept.len() > 1);
        match place {
            _ if num_shards == 0 => {
                if new.is_ready() {
                    Next::Switch
                } else {
                    Next::Wait
                }
            }
            _ if 2 * num_started >= num_shards => Next::Switch,
            _ if drained.iter().any(|lane| waiting.contains(lane)) => Next::Wait,
            Some(lane) => Next::Drain(*lane),
            None if num_started > 0 => Next::Switch,
            None => Next::StartAll,
        }
    }

    /// Tells the old shard to give its store up, which the new one has found locked.
    pub(super) fn hand_over_store(&mut self, shard: ShardId) {
        let Some(Reload { stage: Stage::Starting(new), gave_store, .. }) = &mut self.reload else { return };
        let old = &self.serving;
        // A model may have another number than before, but its store is the same.
        let has_it =
            |other: ShardId| other.lane == shard.lane && old.plan.store_of(other) == new.plan.store_of(shard);
        if let Some(old) = old.running().find(|process| process.id().shard().is_some_and(has_it)) {
            give_store_up(old, &self.log);
            gave_store.push(old.pid());
        }
    }

    /// Does the same for a model that the new pair loads after it has taken over.
    pub(super) fn ask_replaced_for_store(&self, shard: ShardId) {
        let Some(store) = self.serving.plan.store_of(shard) else { return };
        if let Some(old) = self.retired.iter().find_map(|retired| retired.holder_of(shard.lane, store)) {
            give_store_up(old, &self.log);
        }
    }

    /// Lets the new pair take the old one's place.
    fn switch(&mut self) {
        let Some(Reload { stage: Stage::Starting(pair), caller, .. }) = self.reload.take() else { return };
        self.log = pair.plan.config().log();
        let old = std::mem::replace(&mut self.serving, *pair);
        self.replace_catalog(&old);
        self.spare_at = None;
        self.plan_spare();
        self.log.info(
            "reloaded; the old router finishes its open connections",
            &[("model", &self.serving.plan.model().path.display())],
        );
        self.retired.push(Retired::replaced(old, caller));
        self.forget_ended();
    }

    /// Ends the new pair; the old one serves on, with the lanes that were drained.
    pub(super) fn fail_reload(&mut self, error: &ReloadError) {
        let Some(Reload { stage, caller, gave_store, drained, .. }) = self.reload.take() else { return };
        if let Stage::Starting(pair) = stage {
            self.retired.push(Retired::failed(*pair, gave_store));
            self.forget_ended();
        }
        drained.into_iter().for_each(|lane| self.serving.add(ShardId::of_lane(0, lane), &self.log));
        self.refuse_reload(caller, error);
    }

    pub(super) fn refuse_reload(&self, caller: Option<Caller>, error: &ReloadError) {
        let reason = error.to_string();
        self.log.warn("cannot reload; the server goes on as before", &[("reason", &reason)]);
        if let Some(caller) = caller {
            caller.answer(Err(&reason));
        }
    }
}

fn give_store_up(shard: &Process, log: &Log) {
    log.info("hands over its store on disk", &[("process", &shard.id()), ("pid", &shard.pid())]);
    shard.signal(Signal::USR2);
}
