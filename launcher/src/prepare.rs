//! Resolves the models of a server's configuration, and checks and completes it by what they are.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender};

use crate::args::resolved::{Prepared, ServeConfig, ServerConfig};
use crate::error::LauncherError;
use crate::log::Field;
use crate::model::ResolvedModel;
use crate::process::Event;
use crate::resolve;

/// The part of the available memory that models get unless `--models-memory` says otherwise.
const MEMORY_PERCENT: u64 = 90;

/// Resolves the models of a configuration.
pub(crate) fn prepare(
    mut config: Box<ServerConfig>,
    python: &Path,
    events: &Receiver<Event>,
    sender: &SyncSender<Event>,
) -> Result<Prepared, LauncherError> {
    let mut models = if config.is_on_demand() {
        let asked: Vec<_> = config.models().map(|config| (&config.model, config.shard_settings())).collect();
        resolve::run_all(python, &asked, events, sender)?
    } else {
        vec![resolve::run(python, &config.first.model, events, sender)?]
    };
    check_names(&config, &models)?;
    for model in &models {
        if let Some(problem) = &model.problem {
            let fields: &[Field<'_>] = &[("model", &model.model_id), ("problem", problem)];
            config.first.log().warn("a model can probably not be loaded", fields);
        }
    }
    config.choose_first(&mut models);
    let available_bytes = models[0].available_bytes;
    if available_bytes > 0 {
        config.first.residency.models_memory.get_or_insert(available_bytes / 100 * MEMORY_PERCENT);
    }
    check_memory(&config)?;
    Ok((config, models))
}

/// Refuses a model that may take more than all models together, and pinned ones that do so together.
fn check_memory(config: &ServerConfig) -> Result<(), LauncherError> {
    let Some(limit) = config.first.residency.models_memory else { return Ok(()) };
    let own = |config: &ServeConfig| config.step_limits.model_memory.unwrap_or(0);
    let largest = config.models().map(own).max().unwrap_or(0);
    let pinned = config.models().filter(|config| config.residency.pin).map(own).fold(0, u64::saturating_add);
    for (what, bytes) in [("of a model", largest), ("of all pinned models together", pinned)] {
        if bytes > limit {
            return Err(LauncherError::usage(format!(
                "`--model-memory` {what} is {bytes} bytes, but `--models-memory` is {limit}; hint: lower the former, or raise \
                 the latter"
            )));
        }
    }
    Ok(())
}

/// Refuses two models with one name, since requests choose by it.
fn check_names(config: &ServerConfig, models: &[ResolvedModel]) -> Result<(), LauncherError> {
    let mut seen = BTreeSet::new();
    for (config, model) in config.models().zip(models) {
        let name = config.served_model_name.as_ref().unwrap_or(&model.model_id);
        for name in [name].into_iter().chain(&config.residency.model_alias) {
            if !seen.insert(name) {
                return Err(LauncherError::usage(format!(
                    "two models are called `{name}`; hint: give one of them another `served-model-name` or \
                     `model-alias` in a `[[model]]` table of `--config`"
                )));
            }
        }
    }
    Ok(())
}
