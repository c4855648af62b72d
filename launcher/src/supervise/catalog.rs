//! Adds models to the server while it runs, and removes them: those that requests name, those that are put into the
//! folder of `--models-folder` or taken out of it, and those that a reload finds in the configuration.

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::thread;

use trunkline_settings::Order;

use super::Supervisor;
use crate::args::resolved::{MAX_MODELS, ServeConfig};
use crate::error::LauncherError;
use crate::model::{Progress, ResolvedModel};
use crate::models_folder::Stamp;
use crate::pair::Pair;
use crate::plan::PlannedModel;
use crate::process::Event;
use crate::reload::reason;
use crate::resolve::{self, Allowed};
use crate::{models_folder, programs};

/// Most characters of a reason or of a resolver's error, so that an order is written at once.
pub(super) const MAX_REASON_CHARS: usize = 500;

/// The state of additions and of the folder of models.
#[derive(Debug, Default)]
pub(super) struct Catalog {
    /// The models that are to be added, one after another.
    wanted: VecDeque<Wanted>,
    /// The one that is resolved at present.
    search: Option<Search>,
    /// The models of the folder at the last look.
    in_folder: BTreeMap<String, Stamp>,
    /// The folder is watched as long as this exists.
    watched: Arc<()>,
}

/// A model that is to be added.
#[derive(Debug)]
pub(super) struct Wanted {
    pub(super) config: ServeConfig,
    pub(super) origin: Origin,
    pub(super) downloads: bool,
    /// The model whose place it takes.
    pub(super) replaces: Option<u32>,
}

/// The cause of an addition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Origin {
    /// A request named the model so.
    Request(String),
    Folder,
    Reload,
}

impl Catalog {
    /// Returns true while models are looked for.
    pub(super) fn searches(&self) -> bool {
        self.search.is_some() || !self.wanted.is_empty()
    }
}

#[derive(Debug)]
struct Search {
    wanted: Wanted,
    _resolver: resolve::Background,
}

impl Supervisor<'_> {
    /// Begins to watch the folder of models, if there is one.
    pub(super) fn watch_folder(&self) {
        let plan = &self.serving.plan;
        if let Some(folder) = &plan.config().residency.models_folder {
            let (events, watched) = (self.sender.clone(), Arc::downgrade(&self.catalog.watched));
            // If sending fails, the supervisor has ended.
            let own = folder.clone();
            let tell = move |models| {
                watched.upgrade().is_some() && events.send(Event::Folder(own.clone(), models)).is_ok()
            };
            models_folder::watch(folder.clone(), plan.base.pace.folder_pause, tell);
        }
    }

    /// Begins anew for a pair that has replaced this one, whose router looks for models no more.
    pub(super) fn replace_catalog(&mut self, old: &Pair) {
        let Catalog { wanted, search, .. } = std::mem::take(&mut self.catalog);
        for wanted in search.into_iter().map(|search| search.wanted).chain(wanted) {
            if let Origin::Request(model) = wanted.origin {
                let why = "the server was reloaded meanwhile; hint: send the request again".to_owned();
                old.order(&Order::NotFound { model, why }, &self.log);
            }
        }
        self.watch_folder();
    }

    /// Looks for the model that a request names.
    pub(super) fn find(&mut self, name: String, downloads: bool) {
        let is_it = |planned: &PlannedModel| planned.names().any(|known| known == name);
        let known = self.serving.plan.served().find(|(_, planned)| is_it(planned)).map(|(number, _)| number);
        if let Some(number) = known {
            return self.serving.tell_added(number, Some(&name), None, &self.log);
        }
        let config = self.serving.plan.later.of(&name, Some(name.clone()));
        self.want(Wanted { config, origin: Origin::Request(name), downloads, replaces: None });
    }

    /// Adds a model later, unless it is about to be added.
    pub(super) fn want(&mut self, wanted: Wanted) {
        let Catalog { wanted: queue, search, .. } = &mut self.catalog;
        let mut pending = search.iter().map(|search| &search.wanted).chain(&*queue);
        if !pending.any(|other| (&other.config, &other.origin) == (&wanted.config, &wanted.origin)) {
            queue.push_back(wanted);
        }
    }

    /// Begins to resolve the next model that is to be added.
    pub(super) fn go_on_with_search(&mut self) {
        if self.catalog.search.is_some() {
            return;
        }
        let Some(wanted) = self.catalog.wanted.pop_front() else { return };
        let (python, events) = (self.serving.plan.python.clone(), self.sender.clone());
        let generation = self.serving.plan.generation;
        let (model, settings) = (wanted.config.model.clone(), wanted.config.shard_settings());
        // A repository that a request names must not be taken for a folder below the launcher's working folder.
        let is_request = matches!(wanted.origin, Origin::Request(_));
        let is_absolute = model.name.as_deref().is_some_and(|name| Path::new(name).is_absolute());
        let allowed = Allowed { downloads: wanted.downloads, paths: is_absolute || !is_request };
        let resolver = resolve::Background::run(move |own_events, sender| {
            let progress = events.clone();
            // If sending fails, the supervisor has ended.
            let tell = move |told| drop(progress.send(Event::Downloading(told)));
            let found = resolve::find(&python, (&model, settings), allowed, tell, own_events, sender);
            let _ = events.send(Event::Found { generation, found });
        });
        self.catalog.search = Some(Search { wanted, _resolver: resolver });
    }

    /// Tells the router how far a download is.
    pub(super) fn downloading(&self, Progress { done_bytes, total_bytes }: Progress) {
        let origin = self.catalog.search.as_ref().map(|search| &search.wanted.origin);
        if let Some(Origin::Request(model)) = origin {
            let model = model.clone();
            self.serving.order(&Order::Downloading { model, done_bytes, total_bytes }, &self.log);
        }
    }

    /// Adds the model that was found, or says why there is none.
    pub(super) fn found(&mut self, found: Result<ResolvedModel, LauncherError>) {
        let Some(Search { wanted, .. }) = self.catalog.search.take() else { return };
        let Wanted { config, origin, replaces, .. } = wanted;
        let asked = if let Origin::Request(name) = &origin { Some(name.clone()) } else { None };
        let name = config.model.name.clone().unwrap_or_default();
        let added = found.and_then(|model| {
            let is_pulled = asked.is_some();
            let planned = PlannedModel { is_pulled, replaces, ..PlannedModel::new(config, model) };
            self.check_addition(&planned)?;
            if let Some(problem) = &planned.model.problem {
                let fields = [("model", &planned.name() as _), ("problem", problem as _)];
                self.log.warn("a model can probably not be loaded", &fields);
            }
            self.log.info("a model was added", &[("model", &planned.name())]);
            self.serving.add_model(planned, asked.as_deref(), &self.log)
        });
        if let Err(error) = added {
            let why: String = reason(&error).chars().take(MAX_REASON_CHARS).collect();
            self.log.warn("a model was not added", &[("model", &name), ("reason", &why)]);
            match origin {
                Origin::Request(model) => self.serving.order(&Order::NotFound { model, why }, &self.log),
                Origin::Reload => self.reload_goes_on(Some(format!("`{name}`: {why}"))),
                Origin::Folder => {}
            }
        } else if origin == Origin::Reload && replaces.is_none() {
            self.reload_goes_on(None);
        }
    }

    fn check_addition(&self, planned: &PlannedModel) -> Result<(), LauncherError> {
        let stays = |(number, other)| (planned.replaces != Some(number)).then_some(other);
        let served = || self.serving.plan.served().filter_map(stays);
        if served().count() >= MAX_MODELS {
            return Err(LauncherError::usage(format!(
                "the server has {MAX_MODELS} models, which is the limit"
            )));
        }
        match planned.names().find(|name| served().any(|other| other.names().any(|known| known == *name))) {
            Some(name) => Err(LauncherError::usage(format!("another model is called `{name}`"))),
            None => Ok(()),
        }
    }

    /// Lets a model go. Its shards end when the router has finished its requests.
    pub(super) fn remove(&mut self, number: u32) {
        let Some(planned) = self.serving.plan.served_as(number) else { return };
        let name = planned.name().to_owned();
        if number == 0 {
            self.log.warn("the first model stays; restart the server to change it", &[("model", &name)]);
            return;
        }
        self.log.info("a model was removed", &[("model", &name)]);
        self.serving.plan.remove(number);
        self.serving.order(&Order::Removed { model: number }, &self.log);
        self.serving.forget_removed();
    }

    /// Deletes the files of a model that a request has added, and removes it then.
    pub(super) fn delete(&mut self, number: u32) {
        let plan = &self.serving.plan;
        let Some(planned) = plan.served_as(number) else {
            return self.deleted(number, Err("it was removed meanwhile".to_owned()));
        };
        if !planned.is_pulled {
            let why = "the server was started with it; hint: start the server without it".to_owned();
            return self.deleted(number, Err(why));
        }
        let Some(own) = planned.repository().map(str::to_owned) else {
            // A file that somebody named by its path is not ours to delete.
            return self.deleted(number, Ok(()));
        };
        if let Some(other) = plan.other_of_repository(number, &own).map(PlannedModel::name) {
            let why = format!("model `{other}` is of the same repository");
            return self.deleted(number, Err(why));
        }
        let mut command = programs::library_command(&plan.python, &["rm".to_owned(), own]);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let events = self.sender.clone();
        thread::spawn(move || {
            let outcome = match command.output() {
                Ok(output) if output.status.success() => Ok(()),
                Ok(output) => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
                Err(error) => Err(error.to_string()),
            };
            // If this fails, the supervisor has ended.
            let _ = events.send(Event::Deleted { model: number, outcome });
        });
    }

    /// Removes a model whose files are deleted, or tells the router why they are not.
    pub(super) fn deleted(&mut self, model: u32, outcome: Result<(), String>) {
        match outcome {
            Ok(()) => self.remove(model),
            Err(why) => {
                let why = why.chars().take(MAX_REASON_CHARS).collect();
                self.serving.order(&Order::NotDeleted { model, why }, &self.log);
            }
        }
    }

    /// Adds the models that were put into the folder, and removes those that are gone. A model whose files have changed
    /// is another one.
    pub(super) fn folder_changed(&mut self, folder: &Path, now: BTreeMap<String, Stamp>) {
        let plan = &self.serving.plan;
        if plan.config().residency.models_folder.as_deref() != Some(folder) {
            return;
        }
        let of_folder = |planned: &PlannedModel| {
            let name = planned.config.model.name.clone().filter(|_| !planned.is_pulled)?;
            (Path::new(&name).parent() == Some(folder)).then_some(name)
        };
        let served: BTreeMap<String, u32> =
            plan.served().filter_map(|(number, planned)| Some((of_folder(planned)?, number))).collect();
        let last = std::mem::take(&mut self.catalog.in_folder);
        let has_changed = |path: &String| last.get(path).is_some_and(|last| now.get(path) != Some(last));
        for (path, number) in &served {
            if !now.contains_key(path) || has_changed(path) {
                self.remove(*number);
            }
        }
        let is_served = |path: &String| served.contains_key(path) && !has_changed(path);
        for path in now.keys().filter(|path| !is_served(path)) {
            let config = self.serving.plan.later.of(path, None);
            let origin = Origin::Folder;
            self.want(Wanted { config, origin, downloads: false, replaces: None });
        }
        self.catalog.in_folder = now;
    }
}
