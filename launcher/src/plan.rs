//! What a pair needs to start: the configuration, the models and the programs, and the commands of its children.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use trunkline_settings::{Backend, KEY_VARIABLE, ServeSettings};

use crate::args::resolved::{ServeConfig, ServerConfig};
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
    pub config: Box<ServerConfig>,
    /// The interpreter with the server package.
    pub python: PathBuf,
    /// Path of the router binary.
    pub router: PathBuf,
    /// The models, of which there is at least one, in the order of their configurations.
    pub models: Vec<ResolvedModel>,
    /// Number of reloads before this pair; it keeps the files of two pairs apart.
    pub generation: u32,
    pub base: Arc<Base>,
}

impl Plan {
    /// Returns the configuration of the server and its first model.
    pub(crate) fn config(&self) -> &ServeConfig {
        &self.config.first
    }

    /// Returns the first model.
    pub(crate) fn model(&self) -> &ResolvedModel {
        &self.models[0]
    }

    /// Returns the name of the first model.
    pub(crate) fn served_model_name(&self) -> &str {
        name(self.config(), self.model())
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

    /// Returns the sockets of all lanes' shards of the first model, in order.
    fn sockets(&self) -> impl Iterator<Item = PathBuf> {
        self.sockets_of(0, self.config())
    }

    fn sockets_of<'a>(
        &self,
        model: u32,
        config: &'a ServeConfig,
    ) -> impl Iterator<Item = PathBuf> + use<'a, '_> {
        let own_shards = config.shards(model).into_iter().map(|shard| self.socket(shard));
        config.foreign_shards.iter().cloned().chain(own_shards)
    }

    pub(crate) fn num_lanes(&self) -> usize {
        self.sockets().count()
    }

    /// Returns the socket of the shard of a lane, or an empty path if there is no such lane.
    pub(crate) fn lane_socket(&self, lane: u32) -> PathBuf {
        self.sockets().nth(lane as usize).unwrap_or_default()
    }

    /// Returns the lane whose shard has this socket.
    pub(crate) fn lane_at(&self, socket: &Path) -> Option<u32> {
        (0..).zip(self.sockets()).find(|(_, own)| own == socket).map(|(lane, _)| lane)
    }

    /// Returns the settings of router and shards of each model, with the port on which the launcher listens.
    pub fn settings(&self) -> impl Iterator<Item = ServeSettings> {
        (0..).zip(self.config.models()).zip(&self.models).map(|((number, config), model)| {
            let mut server = config.server.clone();
            server.hostname.clone_from(&self.base.listener.hostname);
            server.port = self.base.listener.port;
            ServeSettings {
                shard_sockets: self.sockets_of(number, config).collect(),
                model_path: model.path.clone(),
                served_model_name: name(config, model).to_owned(),
                model_bytes: model.memory_bytes,
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
        (0..).zip(self.config.models()).flat_map(|(model, config)| config.shards(model))
    }

    /// Returns the children to keep running, in the order in which they are started.
    pub(crate) fn children(&self) -> impl Iterator<Item = ChildId> {
        self.shards().map(ChildId::Shard).chain([ChildId::Router])
    }

    /// Returns the arguments of a shard.
    pub(crate) fn shard_arguments(&self, shard: ShardId) -> Vec<OsString> {
        let settings = self.base.runtime_dir.settings(shard.model, self.generation);
        programs::shard_arguments(&settings, &self.socket(shard), shard.lane)
    }

    /// Returns true if a process that has made its imports before may become this shard: its model is loaded when it is
    /// asked for, on the backend for which such a process exists.
    pub(crate) fn takes_spare(&self, shard: ShardId) -> bool {
        let config = self.config.models().nth(shard.model as usize);
        self.config.is_on_demand() && config.is_some_and(|config| config.compute.backend == Backend::Cpu)
    }

    /// Returns the command that starts a child beside those of `other`, if another pair serves until this one can.
    pub fn command(&self, child: ChildId, other: Other) -> Command {
        let settings = |model: u32| self.base.runtime_dir.settings(model, self.generation);
        match child {
            ChildId::Spare => programs::spare_command(&self.python),
            ChildId::Resolver => programs::resolver_command(&self.python, &self.config().model),
            ChildId::Shard(shard) => {
                let config = self.config.models().nth(shard.model as usize).unwrap_or(self.config());
                let arguments = self.shard_arguments(shard);
                let mut command = programs::shard_command(&self.python, &arguments);
                if config.compute.backend == Backend::Cuda && config.compute.replicas > 1 {
                    command.envs(devices::variable(shard.lane));
                }
                if other == Other::Serves && config.shard_cache.kv_disk_path.is_some() {
                    command.arg("--await-store");
                }
                command
            }
            ChildId::Router => {
                let files = (0..).zip(&self.models).map(|(model, _)| settings(model));
                let mut command = programs::router_command(&self.router, files);
                if self.config.is_on_demand() {
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

/// Returns the name of a model in answers.
fn name<'a>(config: &'a ServeConfig, model: &'a ResolvedModel) -> &'a str {
    config.served_model_name.as_deref().unwrap_or(&model.model_id)
}
