//! Reads the settings and the tokenizers of models.

use std::collections::BTreeSet;
use std::path::PathBuf;

use tokio::sync::mpsc;
use trunkline_base::limits::ServerLimits;
use trunkline_generation::model::Model;
use trunkline_generation::models::{
    Action, Event, Finder, Gate, KeepAlive, ModelId, ModelSettings, Residency, Settings, State,
};
use trunkline_settings::{Report, ServeSettings, parse_adapter};

use crate::args::{read_settings, reasoning_format, tool_format};
use crate::server::{LaterModel, ModelParts, Others};

/// The time that a model stays in memory before it must leave for another one, so that two models that do not fit
/// together are not swapped at each request.
const MIN_STAY_MS: u64 = 5_000;
/// The time without a request after which it may leave earlier.
const MIN_IDLE_MS: u64 = 200;
/// The time after which a model is loaded again that failed, which doubles with each further failure.
const BACKOFF_MS: u64 = 1_000;
const MAX_BACKOFF_MS: u64 = 60_000;

/// The orders of the router to its launcher.
pub struct Asked {
    pub actions: mpsc::UnboundedReceiver<Action>,
    pub reports: mpsc::UnboundedReceiver<Report>,
}

/// Reads what the router needs of a model, but no object store. `watermark_key` is the server's.
pub fn load(settings: &ServeSettings, watermark_key: u64) -> anyhow::Result<ModelParts> {
    check_shards(settings)?;
    let mut limits = ServerLimits::from(settings);
    limits.watermark.key = watermark_key;
    let replies = &settings.replies;
    let mut model = Model::load_with(
        &settings.model_path,
        settings.served_model_name.clone(),
        replies.chat_template.as_deref(),
        tool_format(replies.tool_call_parser),
        reasoning_format(replies.reasoning_parser),
    )?;
    model.aliases.clone_from(&settings.residency.model_alias);
    check_adapters(&settings.adapters.lora, &model)?;
    Ok(ModelParts { model, limits, shard_sockets: settings.shard_sockets.clone(), remote: None })
}

/// Reads the settings of all models beside the first one, which may be the only one.
pub fn others(
    first: &ServeSettings,
    files: &[PathBuf],
    watermark_key: u64,
) -> anyhow::Result<(Others, Asked)> {
    let settings = files.iter().map(|file| read_settings(file)).collect::<Result<Vec<_>, _>>()?;
    let mut residency = Residency::new(Settings {
        limit_bytes: first.residency.models_memory.unwrap_or(u64::MAX),
        min_stay_ms: MIN_STAY_MS,
        min_idle_ms: MIN_IDLE_MS,
        backoff_ms: BACKOFF_MS,
        max_backoff_ms: MAX_BACKOFF_MS,
    });
    for settings in [first].into_iter().chain(&settings) {
        let model = ModelId(settings.model_number);
        residency.handle(Event::Added { model, settings: of_model(settings) }, 0);
    }
    if let Some(State::TooLarge(sizes)) = residency.state(ModelId(0)) {
        anyhow::bail!(
            "the first model does not fit into `--models-memory`: {sizes}; hint: raise it, or lower \
             `--max-batch-total-tokens`"
        );
    }
    let later = settings.into_iter().map(|settings| later(settings, watermark_key)).collect();
    let ((gate, actions), (finder, reports)) = (Gate::new(residency), Finder::new(first.residency.pull));
    Ok((Others { later, gate, finder }, Asked { actions, reports }))
}

/// Returns a model that is opened when it is first asked for.
pub fn later(settings: ServeSettings, watermark_key: u64) -> LaterModel {
    LaterModel {
        id: ModelId(settings.model_number),
        name: settings.served_model_name.clone(),
        aliases: settings.residency.model_alias.clone(),
        load: Box::new(move || load(&settings, watermark_key).map_err(|error| error.to_string())),
    }
}

pub fn of_model(settings: &ServeSettings) -> ModelSettings {
    let residency = &settings.residency;
    ModelSettings {
        bytes: settings.model_bytes,
        is_pinned: residency.pin,
        priority: residency.model_priority.cast_signed(),
        keep_alive: match residency.idle_unload.as_millis() {
            0 => KeepAlive::Forever,
            ms => KeepAlive::For(u64::try_from(ms).unwrap_or(u64::MAX)),
        },
    }
}

/// Checks that the router can serve with the shards that the settings name.
fn check_shards(settings: &ServeSettings) -> anyhow::Result<()> {
    match settings.shard_sockets.len() {
        0 => anyhow::bail!("the settings name no socket in `shard_sockets`"),
        num_shards if settings.limits.prefill_replicas as usize >= num_shards => anyhow::bail!(
            "`--prefill-replicas` is {}, but the number of shards is {num_shards}; hint: leave at least one for the \
             streams",
            settings.limits.prefill_replicas
        ),
        _ if settings.limits.prefill_replicas > 0 && settings.shard_cache.kv_disk_path.is_none() => {
            anyhow::bail!(
                "`--prefill-replicas` needs `--kv-disk-path`, through which replicas exchange what they computed; hint: a \
             folder in /dev/shm keeps it in memory"
            )
        }
        _ => Ok(()),
    }
}

/// Checks that each adapter has a name of its own.
fn check_adapters(lora: &[String], model: &Model) -> anyhow::Result<()> {
    let names: Vec<&str> = lora.iter().filter_map(|text| parse_adapter(text)).map(|(name, _)| name).collect();
    let mut seen = BTreeSet::new();
    for name in names {
        anyhow::ensure!(seen.insert(name), "`--lora` names `{name}` twice; hint: give each adapter a name");
        anyhow::ensure!(
            !model.is_named(name),
            "`--lora` names an adapter `{name}`, which is a name of the model; hint: give it another with `NAME=`"
        );
    }
    Ok(())
}
