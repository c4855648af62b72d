//! The configuration that the arguments describe: every value valid by itself and consistent with the others.

use std::cmp::Ordering;
use std::path::{Path, PathBuf};

use trunkline_bench::BenchArgs;
use trunkline_settings::{
    AdapterAliases, AdapterSlots, Adapters, Aliases, Backend, Compute, DEFAULT_ADAPTER_SLOTS, ForeignShards,
    Group, Limits, LogFormat, Logging, Model, Pull, Replies, Residency, RouterCache, Server, ShardCache,
    StepLimits, parse_adapter,
};

use super::parsed::{
    Given, LanesCommand, ModelsCommand, ParsedDownload, ParsedQuantize, ParsedSettings, ParsedShow,
};
use super::talk::{ChatArgs, RunArgs, TopArgs};
use crate::cache::{CacheCommand, ServerArgs};
use crate::child::ShardId;
use crate::devices;
use crate::error::LauncherError;
use crate::log::Log;
use crate::model::ResolvedModel;
use crate::models_folder;

/// TGI's variable for adapters, in the form of `--lora`.
const TGI_ADAPTERS: &str = "LORA_ADAPTERS";
/// Most models of a server.
pub const MAX_MODELS: usize = 256;
/// Size of the KV cache on disk unless the user gives another.
const DEFAULT_DISK_SIZE: u64 = 10 << 30;

/// The command to run, with its checked arguments.
#[derive(Debug)]
pub enum Request {
    Serve(Box<ServerConfig>),
    Chat(Box<ChatArgs>),
    Run(Box<RunArgs>),
    Top(Box<TopArgs>),
    Download(ModelRef),
    /// Run a command of the server package on the models of this machine.
    Library(Vec<String>),
    Cache(CacheCommand),
    /// Print this table of settings.
    CheckConfig(String),
    /// Reload the server of the launcher with this process id, or the only one.
    Reload(Option<i32>),
    /// Ask the launcher with this process id, or the only one, about its lanes.
    Lanes(Option<i32>, LanesCommand),
    /// List the adapters of the launcher with this process id, of the only one, or of the server that the arguments
    /// name.
    Adapters(Option<i32>, ServerArgs),
    /// Ask the launcher with this process id, the only one, or the server that the arguments name, about its models.
    Models(Option<i32>, ModelsCommand, ServerArgs),
    /// Show the servers on this machine, or the one that the arguments name.
    Status(ServerArgs),
    /// Measure a server.
    Bench(Box<BenchArgs>),
    /// Print this script for a shell.
    Completions(Vec<u8>),
    /// Write the manual pages into this folder.
    Man(PathBuf),
    Env,
}

/// A model as the user names it; it may not exist.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelRef {
    /// Hub id, folder or `.gguf` file; the embedded model if absent.
    pub name: Option<String>,
    pub revision: Option<String>,
}

/// Configuration of `trunkline serve`: that of each model. The first one's is also that of the server.
#[derive(Debug)]
pub struct ServerConfig {
    pub first: ServeConfig,
    pub others: Vec<ServeConfig>,
    /// The configuration of models that are added while the server runs. Each gets a name of its own.
    pub later: ServeConfig,
    /// True if the server stops when its standard input ends.
    pub has_lifeline: bool,
    /// True if the user has named no model, so that any one of a folder may be the first.
    is_any_first: bool,
}

/// Configuration of a model and its server. All paths are absolute.
#[derive(Debug, Clone, PartialEq)]
pub struct ServeConfig {
    pub model: ModelRef,
    /// Name of the model in answers, unless it is the model's own.
    pub served_model_name: Option<String>,
    pub residency: Residency,
    pub server: Server,
    pub limits: Limits,
    pub step_limits: StepLimits,
    pub replies: Replies,
    pub compute: Compute,
    /// Sockets of shards that others start. If there are any, the launcher starts none.
    pub foreign_shards: Vec<PathBuf>,
    pub shard_cache: ShardCache,
    pub router_cache: RouterCache,
    pub adapters: Adapters,
    pub adapter_slots: AdapterSlots,
    pub logging: Logging,
}

/// A configuration with its models, in the order of [`ServerConfig::models`].
pub(crate) type Prepared = (Box<ServerConfig>, Vec<ResolvedModel>);

impl ServerConfig {
    /// Checks the settings of each model, then those that several models must share or cannot have.
    pub(crate) fn new(models: &[String], parsed: &ParsedSettings) -> Result<Self, LauncherError> {
        let folder = parsed.group::<Residency>()?.models_folder;
        let in_folder = folder.as_deref().map(models_folder::read).transpose()?.unwrap_or_default();
        let is_any_first = folder.is_some() && models.is_empty();
        if let Some(folder) = folder.filter(|_| is_any_first && in_folder.is_empty()) {
            return Err(models_folder::empty(&folder));
        }
        let models = [models, &in_folder].concat();
        let first = ServeConfig::new(models.first(), parsed)?;
        let others = models.iter().skip(1).map(|model| ServeConfig::new(Some(model), parsed));
        let others = others.collect::<Result<_, _>>()?;
        let later = ServeConfig::new(None, parsed)?.of_later();
        Self { first, others, later, has_lifeline: false, is_any_first }.checked()
    }

    /// Does the same for the models of a configuration file, of which there is at least one.
    pub(crate) fn of_tables(
        mut models: Vec<ServeConfig>,
        parsed: &ParsedSettings,
    ) -> Result<Self, LauncherError> {
        let others = models.split_off(1);
        let later = ServeConfig::new(None, parsed)?.of_later();
        match models.pop() {
            Some(first) => Self { first, others, later, has_lifeline: false, is_any_first: false }.checked(),
            None => Err(LauncherError::usage("the file of `--config` names no model")),
        }
    }

    fn checked(mut self) -> Result<Self, LauncherError> {
        self.check_several()?;
        self.divide_stores();
        Ok(self)
    }

    /// Returns the configuration of each model.
    pub fn models(&self) -> impl Iterator<Item = &ServeConfig> {
        [&self.first].into_iter().chain(&self.others)
    }

    /// Makes the first model that has no problem the first of all, if the user leaves the choice.
    pub(crate) fn choose_first(&mut self, models: &mut [ResolvedModel]) {
        let good = models.iter().position(|model| model.problem.is_none()).filter(|_| self.is_any_first);
        if let Some(good) = good.filter(|good| *good > 0) {
            std::mem::swap(&mut self.first, &mut self.others[good - 1]);
            models.swap(0, good);
        }
    }

    /// Returns true if models are loaded when they are asked for.
    pub fn is_on_demand(&self) -> bool {
        let residency = &self.first.residency;
        !self.others.is_empty()
            || !residency.idle_unload.is_zero()
            || residency.models_folder.is_some()
            || residency.pull != Pull::Never
    }

    fn check_several(&self) -> Result<(), LauncherError> {
        let first = &self.first;
        if self.others.len() >= MAX_MODELS {
            let problem = format!("there are {} models, the limit is {MAX_MODELS}", 1 + self.others.len());
            return Err(LauncherError::usage(problem));
        }
        let cache = &first.router_cache;
        let has_several = !self.others.is_empty()
            || first.residency.models_folder.is_some()
            || first.residency.pull != Pull::Never;
        let refused = [
            ("--shard-socket", !first.foreign_shards.is_empty(), self.is_on_demand()),
            ("--kv-object-store", cache.kv_object_store.is_some(), has_several),
            ("--kv-events-endpoint", cache.kv_events_endpoint.is_some(), has_several),
        ];
        match refused.into_iter().find(|(_, is_set, is_refused)| *is_set && *is_refused) {
            Some((flag, ..)) => Err(LauncherError::usage(format!(
                "`{flag}` is for a server of one model that stays in memory; hint: leave it out"
            ))),
            None => Ok(()),
        }
    }

    /// Gives models with the same `--kv-disk-path` a folder of their own in it, and an equal part of its size.
    fn divide_stores(&mut self) {
        let paths: Vec<Option<PathBuf>> =
            self.models().map(|config| config.shard_cache.kv_disk_path.clone()).collect();
        for config in [&mut self.first].into_iter().chain(&mut self.others) {
            let cache = &mut config.shard_cache;
            let num_sharing = paths.iter().filter(|path| **path == cache.kv_disk_path).count();
            if let Some(folder) = cache.kv_disk_path.take_if(|_| num_sharing > 1) {
                cache.kv_disk_path = Some(folder.join(store_name(&config.model)));
                cache.kv_disk_size = cache.kv_disk_size.map(|size| size / num_sharing as u64);
            }
        }
    }
}

/// Returns the name of a model's folder in that of `--kv-disk-path`, which does not depend on the other models.
fn store_name(model: &ModelRef) -> String {
    let name = model.name.as_deref().unwrap_or("embedded");
    let last = name.trim_end_matches('/').rsplit('/').next().unwrap_or(name);
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || ".-_".contains(letter);
    let plain: String = last.chars().map(|letter| if is_plain(letter) { letter } else { '_' }).collect();
    // Two models may be called the same in different places. This is FNV-1a.
    let hash =
        name.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    format!("{plain}-{hash:08x}")
}

impl ServeConfig {
    /// Checks each value, then the values against each other.
    pub(crate) fn new(model: Option<&String>, parsed: &ParsedSettings) -> Result<Self, LauncherError> {
        let group: Model = parsed.group()?;
        let mut config = Self {
            model: model_ref(model, &group, parsed)?,
            served_model_name: group.served_model_name,
            residency: parsed.group()?,
            server: parsed.group()?,
            limits: parsed.group()?,
            step_limits: parsed.group()?,
            replies: parsed.group()?,
            compute: parsed.group()?,
            foreign_shards: parsed.group::<ForeignShards>()?.shard_socket,
            shard_cache: parsed.group()?,
            router_cache: parsed.group()?,
            adapters: adapters(parsed)?,
            adapter_slots: parsed.group()?,
            logging: parsed.group()?,
        };
        config.logging.log_format = log_format(config.logging.log_format, parsed)?;
        config.check_tls()?;
        config.check_replicas()?;
        config.check_tokens()?;
        config.check_cache()?;
        config.set_adapter_slots(parsed)?;
        if config.shard_cache.kv_disk_path.is_some() {
            config.shard_cache.kv_disk_size.get_or_insert(DEFAULT_DISK_SIZE);
        }
        Ok(config)
    }

    /// Leaves out the flags that are for a single model. A model that is added later has no store on disk, because the
    /// others have divided its size among them.
    fn of_later(self) -> Self {
        Self {
            residency: Residency { pin: false, model_alias: Vec::new(), ..self.residency },
            shard_cache: ShardCache { kv_disk_path: None, kv_disk_size: None, ..self.shard_cache },
            adapters: Adapters::default(),
            ..self
        }
    }

    /// Returns the same configuration for another model.
    pub(crate) fn of(&self, model: &str, served_model_name: Option<String>) -> Self {
        let model = ModelRef { name: Some(model.to_owned()), revision: None };
        Self { model, served_model_name, ..self.clone() }
    }

    /// Returns the settings on which the memory of the shards depends, as JSON that the server package reads.
    pub(crate) fn shard_settings(&self) -> String {
        let settings = serde_json::json!({
            "shard_sockets": [],
            "model_path": "",
            "served_model_name": "",
            "compute": self.compute,
            "step_limits": self.step_limits,
            "shard_cache": self.shard_cache,
            "adapter_slots": self.adapter_slots,
        });
        settings.to_string()
    }

    /// Returns the shards that the launcher starts for the model with this number.
    pub fn shards(&self, model: u32) -> Vec<ShardId> {
        let num_lanes = if self.foreign_shards.is_empty() { self.compute.replicas } else { 0 };
        (0..num_lanes).map(|lane| ShardId::of_lane(model, lane)).collect()
    }

    /// Returns the launcher's own log.
    pub fn log(&self) -> Log {
        Log::new(self.logging.format(), self.logging.log_level)
    }

    fn check_tls(&self) -> Result<(), LauncherError> {
        match (&self.server.tls_cert, &self.server.tls_key) {
            (Some(_), None) => Err(LauncherError::usage("`--tls-cert` needs `--tls-key`")),
            (None, Some(_)) => Err(LauncherError::usage("`--tls-key` needs `--tls-cert`")),
            _ => Ok(()),
        }
    }

    fn check_replicas(&self) -> Result<(), LauncherError> {
        let (replicas, sockets) = (self.compute.replicas, &self.foreign_shards);
        if replicas > 1 && !sockets.is_empty() {
            return Err(LauncherError::usage(format!(
                "`--replicas` is {replicas}, but `--shard-socket` names shards that others start; hint: give only one \
                 of them"
            )));
        }
        if let Some((_, twice)) = sockets.iter().enumerate().find(|(at, path)| sockets[..*at].contains(path))
        {
            return Err(LauncherError::usage(format!("`--shard-socket` names `{}` twice", twice.display())));
        }
        if self.compute.backend == Backend::Cuda { devices::check(replicas) } else { Ok(()) }
    }

    fn check_tokens(&self) -> Result<(), LauncherError> {
        let (input, total) = (self.limits.max_input_tokens, self.limits.max_total_tokens);
        let steps = &self.step_limits;
        if let (Some(input), Some(total)) = (input, total)
            && input >= total
        {
            return Err(LauncherError::usage(format!(
                "`--max-input-tokens` is {input}, but must be less than `--max-total-tokens` ({total}), which \
                 includes the output"
            )));
        }
        let replicas = if self.compute.backend == Backend::Cuda { 1 } else { self.compute.replicas };
        let pool = steps.max_batch_total_tokens.map(|tokens| tokens / replicas);
        let pool = match replicas {
            1 => ("--max-batch-total-tokens", pool),
            _ => ("--max-batch-total-tokens` divided by `--replicas", pool),
        };
        at_most(("--max-input-tokens", input), pool, "no prompt of that length could run")?;
        at_most(("--max-total-tokens", total), pool, "no request of that length could run")?;
        at_most(
            ("--max-step-sequences", steps.max_step_sequences),
            ("--max-batch-prefill-tokens", steps.max_batch_prefill_tokens),
            "each sequence in a step computes at least one token",
        )
    }

    /// Turns adapters on if the user names any, or says so.
    fn set_adapter_slots(&mut self, parsed: &ParsedSettings) -> Result<(), LauncherError> {
        let aliases: AdapterAliases = parsed.group()?;
        let flag = match &self.adapters {
            Adapters { lora, .. } if !lora.is_empty() => Some("--lora"),
            Adapters { lora_folder: Some(_), .. } => Some("--lora-folder"),
            _ if aliases.enable_lora => Some("--enable-lora"),
            _ => None,
        };
        let default = if flag.is_some() { DEFAULT_ADAPTER_SLOTS } else { 0 };
        match (self.adapter_slots.max_loras.get_or_insert(default), flag) {
            (0, Some(flag)) => {
                Err(LauncherError::usage(format!("`{flag}` needs `--max-loras` of at least 1")))
            }
            _ => Ok(()),
        }
    }

    fn check_cache(&self) -> Result<(), LauncherError> {
        if self.shard_cache.kv_disk_path.is_some() {
            return Ok(());
        }
        let cache = &self.shard_cache;
        let flag = match (&self.router_cache.kv_object_store, cache.kv_disk_size, cache.kv_disk_optional) {
            (Some(_), _, _) => "--kv-object-store",
            (None, Some(_), _) => "--kv-disk-size",
            (None, None, true) => "--kv-disk-optional",
            (None, None, false) => return Ok(()),
        };
        Err(LauncherError::usage(format!("`{flag}` needs `--kv-disk-path`")))
    }
}

/// Returns the adapters of the flags, or else those of TGI's variable. Paths become absolute.
fn adapters(parsed: &ParsedSettings) -> Result<Adapters, LauncherError> {
    let mut adapters: Adapters = parsed.group()?;
    let by_tgi = std::env::var(TGI_ADAPTERS).unwrap_or_default();
    if adapters.lora.is_empty() && !by_tgi.is_empty() {
        let read = Adapters::read(|setting| (setting.name == "lora").then(|| by_tgi.clone()));
        let read = read.map_err(|error| LauncherError::usage(error.at(&format!("`{TGI_ADAPTERS}`"))))?;
        adapters.lora = read.lora;
    }
    for adapter in &mut adapters.lora {
        let Some((name, source)) = parse_adapter(adapter) else { continue };
        let is_path = source.starts_with(['.', '/']) || Path::new(source).exists();
        if is_path && let Ok(path) = std::path::absolute(source) {
            *adapter = format!("{name}={}", path.display());
        }
    }
    Ok(adapters)
}

/// Returns the arguments of the server package's `show`.
pub(crate) fn show(parsed: ParsedShow) -> Vec<String> {
    let mut arguments = vec!["show".to_owned()];
    arguments.extend(
        parsed.revision.filter(|_| parsed.model.is_some()).map(|revision| format!("--revision={revision}")),
    );
    arguments.extend(parsed.model);
    arguments
}

/// Returns the arguments of the server package's `quantize`.
pub(crate) fn quantize(parsed: ParsedQuantize) -> Vec<String> {
    let mut arguments = vec!["quantize".to_owned(), format!("--type={}", parsed.format)];
    arguments.extend(parsed.revision.map(|revision| format!("--revision={revision}")));
    arguments.extend([parsed.model, parsed.out]);
    arguments
}

/// Checks the arguments of `trunkline download`.
pub(crate) fn download(parsed: ParsedDownload) -> Result<ModelRef, LauncherError> {
    check_model(&parsed.model)?;
    let revision = parsed.revision.clone();
    let group = Model::read(|setting| if setting.name == "revision" { revision.clone() } else { None });
    group.map_err(|error| LauncherError::usage(error.to_string()))?;
    Ok(ModelRef { name: Some(parsed.model), revision })
}

/// Chooses between the positional MODEL and `--model-id`: the former wins over a variable or a file.
fn model_ref(
    model: Option<&String>,
    group: &Model,
    parsed: &ParsedSettings,
) -> Result<ModelRef, LauncherError> {
    model.map_or(Ok(()), |model| check_model(model))?;
    if let (Some(model), Some(model_id)) = (model, &group.model_id)
        && parsed.given("model_id") == Given::Flag
        && model != model_id
    {
        return Err(LauncherError::usage(format!(
            "MODEL is `{model}`, but `--model-id` is `{model_id}`; hint: give only one of them"
        )));
    }
    let name = model.or(group.model_id.as_ref()).cloned();
    Ok(ModelRef { name, revision: group.revision.clone() })
}

/// Resolves the alias `--json-output`: a flag wins over a variable, which wins over a file.
fn log_format(given: Option<LogFormat>, parsed: &ParsedSettings) -> Result<Option<LogFormat>, LauncherError> {
    let aliases: Aliases = parsed.group()?;
    match given {
        _ if !aliases.json_output => Ok(given),
        None | Some(LogFormat::Json) => Ok(Some(LogFormat::Json)),
        Some(format) => match parsed.given("log_format").cmp(&parsed.given("json_output")) {
            Ordering::Less => Ok(given),
            Ordering::Greater => Ok(Some(LogFormat::Json)),
            Ordering::Equal => Err(LauncherError::usage(format!(
                "`--json-output` means `--log-format json`, but `--log-format` is `{format}`; hint: give only one of \
                 them"
            ))),
        },
    }
}

/// The positional MODEL has the form of `--model-id`, but its errors name it by its own name.
pub(super) fn check_model(text: &str) -> Result<(), LauncherError> {
    let group = Model::read(|setting| (setting.name == "model_id").then(|| text.to_owned()));
    group.map(drop).map_err(|error| LauncherError::usage(error.at("MODEL")))
}

/// Checks that a value, if both are given, is not larger than another flag's.
fn at_most(
    (flag, value): (&str, Option<u32>),
    (other, limit): (&str, Option<u32>),
    why: &str,
) -> Result<(), LauncherError> {
    match (value, limit) {
        (Some(value), Some(limit)) if value > limit => {
            Err(LauncherError::usage(format!("`{flag}` is {value}, but `{other}` is {limit}: {why}")))
        }
        _ => Ok(()),
    }
}
