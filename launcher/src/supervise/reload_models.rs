//! Reloads the models of a server that loads them when they are asked for: a model is added, gets the name of the one
//! that it replaces once it is loaded, and the other one is removed.

use std::path::Path;

use super::Supervisor;
use super::catalog::{Origin, Wanted};
use crate::args::resolved::{ServeConfig, ServerConfig};
use crate::caller::Caller;

/// Models to be added, and the numbers of those to be removed.
pub(super) type Changed = (Vec<Wanted>, Vec<u32>);

/// A reload of the models that are loaded when they are asked for.
#[derive(Debug)]
pub(super) struct ModelsReload {
    /// `None` if a signal asked.
    caller: Option<Caller>,
    /// Number of models that are still to be added.
    num_pending: usize,
    /// The reasons why some models were not added.
    problems: Vec<String>,
}

impl Supervisor<'_> {
    /// Adds the models that are new in the configuration, removes those that are gone, and replaces those whose
    /// settings have changed.
    pub(super) fn reload_models(&mut self, (wanted, gone): Changed, caller: Option<Caller>) {
        self.log.info("reloading", &[("added", &wanted.len()), ("removed", &gone.len())]);
        self.models_reload =
            Some(ModelsReload { caller, num_pending: wanted.len() + 1, problems: Vec::new() });
        gone.into_iter().for_each(|number| self.remove(number));
        wanted.into_iter().for_each(|wanted| self.want(wanted));
        self.reload_goes_on(None);
    }

    /// Returns the models to be added and those to be removed for this configuration. Returns `None` if that is not all
    /// that has changed: if this server does not load models when they are asked for, or if the first model has other
    /// settings, which are also those of the server.
    pub(super) fn changed_models(&self, config: &ServerConfig) -> Option<Changed> {
        let plan = &self.serving.plan;
        if !plan.is_on_demand {
            return None;
        }
        // The start fills in some values, and others depend on the number of models.
        let comparable = |config: &ServeConfig| {
            let mut config = config.clone();
            config.residency.models_memory = None;
            (config.shard_cache.kv_disk_size, config.shard_cache.kv_disk_optional) = (None, true);
            config
        };
        let folder = plan.config().residency.models_folder.as_deref();
        let in_folder = |config: &ServeConfig| {
            let name = config.model.name.as_deref().map(Path::new);
            folder.is_some() && name.and_then(Path::parent) == folder
        };
        let first = comparable(plan.config());
        let now: Vec<&ServeConfig> = config.models().collect();
        if !now.iter().any(|config| comparable(config) == first) {
            return None;
        }
        let served: Vec<(u32, ServeConfig)> = plan
            .served()
            .filter(|(_, planned)| !planned.is_pulled && !in_folder(&planned.config))
            .map(|(number, planned)| (number, comparable(&planned.config)))
            .collect();
        let is_it = |a: &ServeConfig, b: &ServeConfig| {
            (&a.model.name, &a.served_model_name) == (&b.model.name, &b.served_model_name)
        };
        let new = now.iter().filter(|config| !in_folder(config)).filter(|config| {
            let config = comparable(config);
            config != first && served.iter().all(|(_, known)| *known != config)
        });
        let wanted = new.map(|config| Wanted {
            config: (*config).clone(),
            origin: Origin::Reload,
            downloads: true,
            replaces: served
                .iter()
                .find(|(number, known)| *number != 0 && is_it(known, config))
                .map(|(number, _)| *number),
        });
        let is_gone = |known: &ServeConfig| !now.iter().any(|config| is_it(config, known));
        let gone = served.iter().filter(|(number, known)| *number != 0 && is_gone(known));
        Some((wanted.collect(), gone.map(|(number, _)| *number).collect()))
    }

    /// Notes that a model of a reload was added, or why not, and answers the caller after the last one.
    pub(super) fn reload_goes_on(&mut self, problem: Option<String>) {
        let Some(reload) = &mut self.models_reload else { return };
        reload.problems.extend(problem);
        reload.num_pending -= 1;
        if reload.num_pending > 0 {
            return;
        }
        let Some(ModelsReload { caller, problems, .. }) = self.models_reload.take() else { return };
        let problems = problems.join("; ");
        if problems.is_empty() {
            self.log.info("reloaded", &[]);
        } else {
            self.log.warn("some models were not reloaded", &[("problems", &problems)]);
        }
        if let Some(caller) = caller {
            caller.answer(if problems.is_empty() { Ok(()) } else { Err(&problems) });
        }
    }

    /// Forgets the model whose place another one has taken, or the one that could not take it.
    pub(super) fn replaced(&mut self, number: u32, problem: Option<String>) {
        let Some(planned) = self.serving.plan.served_mut(number) else { return };
        let Some(old) = planned.replaces.take() else { return };
        let name = planned.name().to_owned();
        // The router has removed it already.
        self.serving.plan.remove(if problem.is_some() { number } else { old });
        self.serving.forget_removed();
        self.reload_goes_on(problem.map(|problem| format!("`{name}` stays as it was: {problem}")));
    }

    /// Ends what a router that has crashed was about to do: a model that was to take another one's place is removed,
    /// and the shards of removed models stop.
    pub(super) fn router_crashed(&mut self) {
        let replacing = self.serving.plan.served().filter(|(_, planned)| planned.replaces.is_some());
        let replacing: Vec<u32> = replacing.map(|(number, _)| number).collect();
        for number in replacing {
            self.replaced(number, Some("the router ended meanwhile".to_owned()));
        }
        let removed: Vec<u32> = self.serving.plan.removed().collect();
        removed.into_iter().for_each(|number| self.serving.unload(number, &self.log));
        self.plan_spare();
    }
}
