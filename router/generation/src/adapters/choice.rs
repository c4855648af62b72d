//! The adapter that a request names.

use std::fmt;
use std::sync::Arc;

use serde::Deserialize;
use trunkline_scheduler::{AdapterUse, SequenceRequest};
use utoipa::ToSchema;

use super::{Adapter, Adapters};
use crate::model::{MAX_SHOWN_CHARS, Model};
use trunkline_base::error::ApiError;
use trunkline_base::tenants::Caller;
use trunkline_engine::shard::OpenedAdapter;

/// The largest factor of an adapter, in either direction.
const MAX_SCALE: f32 = 100.0;

/// An element of llama.cpp's field `lora`.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize, ToSchema)]
pub struct LoraScale {
    /// The adapter's place in `GET /lora-adapters`.
    pub id: i64,
    /// The factor of what the adapter adds to the model's weights; 0 leaves it out.
    pub scale: f64,
}

/// The fields of a request that name the model and its adapter.
#[derive(Debug, Clone, Copy, Default)]
pub struct Named<'a> {
    pub model: Option<&'a str>,
    /// TGI's field.
    pub adapter_id: Option<&'a str>,
    /// llama.cpp's field.
    pub lora: &'a [LoraScale],
}

impl<'a> Named<'a> {
    /// The fields of a dialect that has only the model's name.
    pub fn model(model: Option<&'a str>) -> Self {
        Self { model, ..Self::default() }
    }
}

/// The adapter of a request.
#[derive(Clone)]
pub struct Chosen {
    adapter: Arc<Adapter>,
    /// The name of the model in the answer, as the request gave it.
    pub shown: Arc<str>,
    scale: f32,
}

impl Chosen {
    /// Opens the adapter and adds it to a sequence.
    pub async fn add_to(
        &self,
        sequence: &mut SequenceRequest,
        adapters: &Arc<Adapters>,
    ) -> Result<(), ApiError> {
        let opened = adapters.open(&self.adapter).await.map_err(|not_open| not_open.error(&self.adapter))?;
        let OpenedAdapter { ref path, content_hash, num_bytes, .. } = *opened;
        let (name, path) = (self.adapter.name.clone(), path.clone());
        let adapter = AdapterUse { name, path, content_hash, num_bytes, scale: self.scale };
        sequence.salt.adapter = Some(adapter.in_salt());
        sequence.adapter = Some(Arc::new(adapter));
        Ok(())
    }

    pub fn adapter(&self) -> &Adapter {
        &self.adapter
    }

    /// Returns the error for a sequence whose adapter the shard could not load. The next request opens it again.
    pub fn failed(&self, detail: String) -> ApiError {
        self.adapter.forget();
        ApiError::AdapterFailed { detail }
    }
}

impl fmt::Debug for Chosen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} × {}", self.shown, self.scale)
    }
}

impl PartialEq for Chosen {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.adapter, &other.adapter) && self.shown == other.shown && self.scale == other.scale
    }
}

impl Adapters {
    /// Returns the adapter that a request names, or `None` for the model alone. [`Self::choose_scaled`] takes the field
    /// `lora` into account.
    pub fn choose(
        &self,
        model: &Model,
        caller: &Caller,
        named: Named<'_>,
    ) -> Result<Option<Chosen>, ApiError> {
        let by_model = self.by_name(model, caller, named.model)?;
        let by_id = self.by_name(model, caller, named.adapter_id)?;
        let chosen = joined(by_model, by_id, "adapter_id")?;
        if chosen.is_some() && !self.has_slots() {
            return Err(ApiError::NoAdapters);
        }
        Ok(chosen)
    }

    /// Returns the adapter that llama.cpp's field `lora` names, or else the one that was chosen by name.
    pub async fn choose_scaled(
        self: &Arc<Self>,
        caller: &Caller,
        scales: Vec<LoraScale>,
        by_name: Option<Chosen>,
    ) -> Result<Option<Chosen>, ApiError> {
        if scales.is_empty() {
            return Ok(by_name);
        }
        if !self.has_slots() {
            return Err(ApiError::NoAdapters);
        }
        let caller = caller.clone();
        let by_lora = self.look(move |adapters| adapters.by_scales(&caller, &scales)).await?;
        joined(by_name, by_lora, "lora")
    }

    /// Finds `NAME` or `MODEL:NAME`.
    fn by_name(
        &self,
        model: &Model,
        caller: &Caller,
        asked: Option<&str>,
    ) -> Result<Option<Chosen>, ApiError> {
        let Some(asked) = asked.filter(|asked| !model.is_named(asked)) else { return Ok(None) };
        let find = |name: &str| caller.may_use_adapter(name).then(|| self.find(name)).flatten();
        let behind_model = asked.rsplit_once(':').filter(|(base, _)| model.is_named(base));
        let adapter = find(asked).or_else(|| find(behind_model?.1));
        let adapter = adapter.ok_or_else(|| ApiError::UnknownModel {
            model: asked.chars().take(MAX_SHOWN_CHARS).collect(),
            served: model.served_name.clone(),
            adapters: self.hints(caller),
        })?;
        Ok(Some(Chosen { adapter, shown: asked.into(), scale: 1.0 }))
    }

    fn by_scales(&self, caller: &Caller, scales: &[LoraScale]) -> Result<Option<Chosen>, ApiError> {
        let listed = self.list(caller);
        let mut chosen: Option<Chosen> = None;
        for (idx, LoraScale { id, scale }) in scales.iter().enumerate() {
            let adapter = usize::try_from(*id).ok().and_then(|id| listed.get(id)).ok_or_else(|| {
                let problem = format!(
                    "is {id}, but there are {} adapters; hint: see `GET /lora-adapters`",
                    listed.len()
                );
                ApiError::value(format!("lora[{idx}].id"), problem)
            })?;
            let scale = *scale as f32;
            // JSON has no NaN.
            if scale.abs() > MAX_SCALE {
                let problem = format!("is {scale}, must be from -{MAX_SCALE} to {MAX_SCALE}");
                return Err(ApiError::value(format!("lora[{idx}].scale"), problem));
            }
            if scale == 0.0 {
                continue;
            }
            if let Some(other) = &chosen {
                let (a, b) = (&other.adapter.name, &adapter.name);
                let problem = format!("has scales for `{a}` and `{b}`, but a request can use one adapter");
                return Err(ApiError::value("lora", problem));
            }
            // One of the folder may not be registered yet.
            let adapter = self.find(&adapter.name).unwrap_or_else(|| adapter.clone());
            let shown = adapter.name.clone();
            chosen = Some(Chosen { adapter, shown, scale });
        }
        Ok(chosen)
    }
}

/// Joins what a request names with what its next field names. The answer has the name of the first field, and `lora`,
/// the last one, alone has a scale.
fn joined(
    chosen: Option<Chosen>,
    next: Option<Chosen>,
    field: &'static str,
) -> Result<Option<Chosen>, ApiError> {
    let Some(next) = next else { return Ok(chosen) };
    if chosen.as_ref().is_some_and(|chosen| !Arc::ptr_eq(&chosen.adapter, &next.adapter)) {
        let problem = "names another adapter than `model` or `adapter_id`; hint: name only one";
        return Err(ApiError::value(field, problem));
    }
    Ok(Some(Chosen { shown: chosen.map_or(next.shown, |chosen| chosen.shown), ..next }))
}
