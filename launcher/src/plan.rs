//! What a pair needs to start: the configuration, the models and the programs, and the commands of its children.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::SystemTime;

use trunkline_settings::{Backend, KEY_VARIABLE, Pull, ServeSettings};

use crate::args::resolved::{ServeConfig, ServerConfig};
use crate::caller::{Lane, Served};
use crate::child::{ChildId, ShardId};
use crate::devices;
use crate::listen::Listener;
use crate::model::ResolvedModel;
use crate::pace::Pace;
use crate::programs;
use crate::ready::Reach;
use crate::runtime_dir::RuntimeDir;

/// The parts that all pairs of a launcher share.
#[derive(Debug)]
pub struct Base {
    pub listener: Listener,
    pub metrics_listener: Option<Listener>,
    pub runtime_dir: RuntimeDir,
    pub pace: Pace,
}

/// Everything needed to start a pair.
#[derive(Debug)]
pub struct Plan {
    /// The models by their numbers. The first one has the number 0 and is always there.
    models: BTreeMap<u32, PlannedModel>,
    /// The number of the next model. No number is used twice.
    next_number: u32,
    /// The configuration of models that are added while the server runs. Each gets a name of its own.
    pub later: Box<ServeConfig>,
    /// True if models are loaded when they are asked for.
    pub is_on_demand: bool,
    /// The interpreter with the server package.
    pub python: PathBuf,
    /// Path of the router binary.
    pub router: PathBuf,
    /// Number of reloads before this pair; it keeps the files of two pairs apart.
    pub generation: u32,
    /// When the launcher began to resolve the models, and when it was done; `None` if it did so beside another pair.
    pub resolved: Option<(SystemTime, SystemTime)>,
    pub base: Arc<Base>,
}

/// A model of the server.
#[derive(Debug)]
pub struct PlannedModel {
    pub config: ServeConfig,
    pub model: ResolvedModel,
    /// True if a request has added it.
    pub is_pulled: bool,
    /// The model whose place it takes once it is loaded.
    pub replaces: Option<u32>,
    /// True if it is no longer served and only waits for its shards to end.
    pub is_removed: bool,
}

impl PlannedModel {
    pub(crate) fn new(config: ServeConfig, model: ResolvedModel) -> Self {
        Self { config, model, is_pulled: false, replaces: None, is_removed: false }
    }

    /// Returns the name of the model in answers.
    pub fn name(&self) -> &str {
        self.config.served_model_name.as_deref().unwrap_or(&self.model.model_id)
    }

    /// Returns the Hub repository of the model, if it came from one.
    pub(crate) fn repository(&self) -> Option<&str> {
        let name = self.config.model.name.as_deref().filter(|_| self.model.revision.is_some())?;
        name.split(':').next()
    }

    /// Returns all names by which requests may call the model.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        [self.name()].into_iter().chain(self.config.residency.model_alias.iter().map(String::as_str))
    }

    /// Returns the model with these lanes in the answer to `trunkline status`.
    pub(crate) fn served(&self, lanes: Vec<Lane>) -> Served {
        let ResolvedModel { model_id, path, .. } = &self.model;
        Served { name: self.name().to_owned(), model_id: model_id.clone(), path: path.clone(), lanes }
    }
}

impl Plan {
    /// Plans a server of the resolved models, in the order of their configurations.
    pub fn new(
        config: ServerConfig,
        models: Vec<ResolvedModel>,
        (python, router): (PathBuf, PathBuf),
        generation: u32,
        base: Arc<Base>,
    ) -> Self {
        let is_on_demand = config.is_on_demand();
        let planned = [config.first].into_iter().chain(config.others).zip(models);
        let planned = planned.map(|(config, model)| PlannedModel::new(config, model));
        let models: BTreeMap<u32, PlannedModel> = (0..).zip(planned).collect();
        let (next_number, later) = (models.len() as u32, Box::new(config.later));
        let resolved = None;
        Self { models, next_number, later, is_on_demand, python, router, generation, resolved, base }
    }

    /// Returns the first model.
    fn first(&self) -> &PlannedModel {
        &self.models[&0]
    }

    /// Returns the configuration of the server and its first model.
    pub(crate) fn config(&self) -> &ServeConfig {
        &self.first().config
    }

    /// Returns the first model's files.
    pub(crate) fn model(&self) -> &ResolvedModel {
        &self.first().model
    }

    /// Returns the name of the first model.
    pub(crate) fn served_model_name(&self) -> &str {
        self.first().name()
    }

    /// Returns the models that are served.
    pub(crate) fn served(&self) -> impl Iterator<Item = (u32, &PlannedModel)> {
        self.models
            .iter()
            .filter(|(_, planned)| !planned.is_removed)
            .map(|(number, planned)| (*number, planned))
    }

    /// Returns a model that is served.
    pub(crate) fn served_as(&self, number: u32) -> Option<&PlannedModel> {
        self.models.get(&number).filter(|planned| !planned.is_removed)
    }

    /// Returns another model of this Hub repository.
    pub(crate) fn other_of_repository(&self, number: u32, repository: &str) -> Option<&PlannedModel> {
        let mut others = self.served().filter(|(other, _)| *other != number).map(|(_, planned)| planned);
        others.find(|other| other.repository() == Some(repository))
    }

    /// Adds a model and returns its number.
    pub(crate) fn add(&mut self, planned: PlannedModel) -> u32 {
        let number = self.next_number;
        self.next_number += 1;
        self.models.insert(number, planned);
        number
    }

    /// Adds the models that requests have added to another plan, if they could add them to this one.
    pub(crate) fn take_pulled(&mut self, other: &Self) {
        if self.config().residency.pull == Pull::Never {
            return;
        }
        for (_, pulled) in other.served().filter(|(_, planned)| planned.is_pulled) {
            let name = pulled.config.model.name.clone().unwrap_or_default();
            let config = self.later.of(&name, pulled.config.served_model_name.clone());
            let planned = PlannedModel { is_pulled: true, ..PlannedModel::new(config, pulled.model.clone()) };
            if !planned.names().any(|name| self.served().any(|(_, own)| own.names().any(|own| own == name))) {
                self.add(planned);
            }
        }
    }

    /// Returns a model that is served, to be changed.
    pub(crate) fn served_mut(&mut self, number: u32) -> Option<&mut PlannedModel> {
        self.models.get_mut(&number).filter(|planned| !planned.is_removed)
    }

    /// Notes that a model is no longer served.
    pub(crate) fn remove(&mut self, number: u32) {
        if let Some(planned) = self.models.get_mut(&number) {
            planned.is_removed = true;
        }
    }

    /// Returns the models that are no longer served.
    pub(crate) fn removed(&self) -> impl Iterator<Item = u32> {
        self.models.iter().filter(|(_, planned)| planned.is_removed).map(|(number, _)| *number)
    }

    /// Forgets a model that is no longer served.
    pub(crate) fn forget(&mut self, number: u32) {
        self.models.remove(&number);
    }

    /// Lets shards start without their stores.
    pub(crate) fn allow_no_store(&mut self) {
        for planned in self.models.values_mut() {
            planned.config.shard_cache.kv_disk_optional = true;
        }
    }

    /// Returns what a client needs to reach the server.
    pub(crate) fn reach(&self) -> Reach<'_> {
        let server = &self.config().server;
        let key = if std::env::var_os(KEY_VARIABLE).is_some_and(|key| !key.is_empty()) {
            Some("$TRUNKLINE_API_KEY")
        } else {
            server.api_keys.as_ref().map(|_| "YOUR_KEY")
        };
        Reach { listener: &self.base.listener, tls_cert: server.tls_cert.as_deref(), key }
    }

    /// Returns the path of a shard's socket.
    pub fn socket(&self, shard: ShardId) -> PathBuf {
        self.base.runtime_dir.socket(shard, self.generation)
    }

    fn sockets_of<'a>(
        &self,
        model: u32,
        config: &'a ServeConfig,
    ) -> impl Iterator<Item = PathBuf> + use<'a, '_> {
        let own_shards = config.shards(model).into_iter().map(|shard| self.socket(shard));
        config.foreign_shards.iter().cloned().chain(own_shards)
    }

    /// Returns the places of all lanes of a model, in order, and the sockets of their shards.
    pub(crate) fn lanes_of(&self, model: u32) -> impl Iterator<Item = (ShardId, PathBuf)> + use<'_> {
        let sockets = self.models.get(&model).map(|planned| self.sockets_of(model, &planned.config));
        (0..).map(move |lane| ShardId::of_lane(model, lane)).zip(sockets.into_iter().flatten())
    }

    /// Returns the socket of the shard of a lane, or an empty path if there is no such lane.
    pub(crate) fn lane_socket(&self, lane: ShardId) -> PathBuf {
        let own = self.lanes_of(lane.model).find(|(own, _)| *own == lane);
        own.map(|(_, socket)| socket).unwrap_or_default()
    }

    /// Returns the lane whose shard has this socket.
    pub(crate) fn lane_at(&self, socket: &Path) -> Option<ShardId> {
        let lanes = self.models.keys().flat_map(|model| self.lanes_of(*model));
        lanes.filter(|(_, own)| own == socket).map(|(lane, _)| lane).next()
    }

    /// Returns the settings of router and shards of each model that is served, with the port on which the launcher
    /// listens.
    pub fn settings(&self) -> impl Iterator<Item = ServeSettings> {
        self.served().map(|(number, planned)| {
            let PlannedModel { config, model, .. } = planned;
            let mut server = config.server.clone();
            server.hostname.clone_from(&self.base.listener.hostname);
            server.port = self.base.listener.port;
            ServeSettings {
                model_number: number,
                shard_sockets: self.sockets_of(number, config).collect(),
                model_path: model.path.clone(),
                served_model_name: planned.name().to_owned(),
                // A model may take all of its own memory.
                model_bytes: config.step_limits.model_memory.unwrap_or(model.memory_bytes),
                residency: config.residency.clone(),
                server,
                limits: config.limits.clone(),
                replies: config.replies.clone(),
                cache: config.router_cache.clone(),
                compute: config.compute.clone(),
                step_limits: config.step_limits.clone(),
                shard_cache: config.shard_cache.clone(),
                adapters: config.adapters.clone(),
                adapter_slots: config.adapter_slots.clone(),
                logging: config.logging.clone(),
            }
        })
    }

    /// Returns the shards of all models.
    pub(crate) fn shards(&self) -> impl Iterator<Item = ShardId> {
        self.models.iter().flat_map(|(number, planned)| planned.config.shards(*number))
    }

    /// Returns the children to keep running, in the order in which they are started.
    pub(crate) fn children(&self) -> impl Iterator<Item = ChildId> {
        self.shards().map(ChildId::Shard).chain([ChildId::Router])
    }

    /// Returns the arguments of a shard that starts beside those of `other`.
    pub(crate) fn shard_arguments(&self, shard: ShardId, other: Other) -> Vec<OsString> {
        let settings = self.base.runtime_dir.settings(shard.model, self.generation);
        let mut arguments = programs::shard_arguments(&settings, &self.socket(shard), shard.lane);
        if other == Other::Serves && self.store_of(shard).is_some() {
            arguments.push("--await-store".into());
        }
        arguments
    }

    /// Returns the folder of `--kv-disk-path` of a shard's model.
    pub(crate) fn store_of(&self, shard: ShardId) -> Option<&Path> {
        self.models.get(&shard.model)?.config.shard_cache.kv_disk_path.as_deref()
    }

    /// Returns true if a process that has made its imports before may become this shard: its model is loaded when it is
    /// asked for, on the backend for which such a process exists.
    pub(crate) fn takes_spare(&self, shard: ShardId) -> bool {
        let planned = self.models.get(&shard.model);
        self.is_on_demand && planned.is_some_and(|planned| planned.config.compute.backend == Backend::Cpu)
    }

    /// Returns the command that starts a child beside those of `other`, if another pair serves until this one can.
    pub fn command(&self, child: ChildId, other: Other) -> Command {
        let settings = |model: u32| self.base.runtime_dir.settings(model, self.generation);
        match child {
            ChildId::Spare => programs::spare_command(&self.python),
            ChildId::Resolver => programs::resolver_command(&self.python, &self.config().model),
            ChildId::Shard(shard) => {
                let config = self.models.get(&shard.model).map_or(self.config(), |planned| &planned.config);
                let arguments = self.shard_arguments(shard, other);
                let mut command = programs::shard_command(&self.python, &arguments);
                if config.compute.backend == Backend::Cuda && config.compute.replicas > 1 {
                    command.envs(devices::variable(shard.lane));
                }
                command
            }
            ChildId::Router => {
                let files = self.served().map(|(number, _)| settings(number));
                let mut command = programs::router_command(&self.router, files);
                if self.is_on_demand {
                    command.arg("--on-demand");
                }
                self.base.listener.pass_to(&mut command);
                if let Some(metrics) = &self.base.metrics_listener {
                    metrics.pass_to(&mut command);
                }
                if other == Other::Serves {
                    command.arg("--accept-when-ready");
                }
                command
            }
        }
    }
}

/// The state of the other pair while a child starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Other {
    None,
    Serves,
}
