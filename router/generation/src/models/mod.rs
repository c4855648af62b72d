//! The models of a server: their names, and the gate that a request passes before it uses one.

mod gate;
mod named;

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use futures::future::BoxFuture;
use tokio::sync::OnceCell;
use trunkline_base::error::ApiError;
use trunkline_base::tenants::Caller;

use crate::adapters::{MAX_HINTS, Named};
use crate::model::{LATEST, MAX_SHOWN_CHARS};
use crate::served::ServedModel;
pub use gate::{Gate, LOADED, Shown, Using};
pub use named::NamedModel;
pub use trunkline_residency::{Action, Event, KeepAlive, ModelId, ModelSettings, Residency, Settings, State};

/// Reads a model's tokenizer and templates and starts its scheduler. The error is a line for operators.
pub type Open = Box<dyn Fn() -> BoxFuture<'static, Result<Arc<ServedModel>, String>> + Send + Sync>;

/// All models of a server. The first one answers requests that name none.
#[derive(Debug)]
pub struct Models {
    entries: Vec<Entry>,
    /// Set where models are loaded when they are asked for. Without it the server has one model, whose shards always
    /// run.
    gate: Option<Arc<Gate>>,
}

/// A model that requests may name.
pub struct Entry {
    pub name: String,
    /// Other names of the model.
    aliases: Vec<String>,
    served: OnceCell<Arc<ServedModel>>,
    open: Open,
    /// Why the model could not be opened the last time.
    problem: Mutex<Option<String>>,
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entry")
            .field("name", &self.name)
            .field("is_open", &self.served.initialized())
            .finish()
    }
}

impl Entry {
    pub fn new(name: String, aliases: Vec<String>, open: Open) -> Self {
        Self { name, aliases, served: OnceCell::new(), open, problem: Mutex::default() }
    }

    /// Returns the entry of a model that is open already.
    pub fn opened_as(served: Arc<ServedModel>) -> Self {
        let (name, aliases) = (served.model.served_name.clone(), served.model.aliases.clone());
        let open: Open = Box::new(|| Box::pin(async { Err("it is open".to_owned()) }));
        Self { served: OnceCell::from(served), ..Self::new(name, aliases, open) }
    }

    /// Returns the model if its tokenizer was read.
    pub fn opened(&self) -> Option<&Arc<ServedModel>> {
        self.served.get()
    }

    /// Returns why the model could not be opened the last time.
    pub fn problem(&self) -> Option<String> {
        self.problem.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn is_named(&self, name: &str) -> bool {
        self.name == name || self.aliases.iter().any(|alias| alias == name)
    }
}

impl Models {
    /// The one model of a server, which is always in memory.
    pub fn one(served: Arc<ServedModel>) -> Self {
        Self { entries: vec![Entry::opened_as(served)], gate: None }
    }

    /// Models that are loaded when they are asked for. There is at least one, and their places are their ids.
    pub fn several(entries: Vec<Entry>, gate: Arc<Gate>) -> Self {
        Self { entries, gate: Some(gate) }
    }

    pub fn gate(&self) -> Option<&Arc<Gate>> {
        self.gate.as_ref()
    }

    /// Returns the models that the caller may use.
    pub fn listed(&self, caller: &Caller) -> impl Iterator<Item = (ModelId, &Entry)> {
        self.all().filter(|(_, entry)| caller.may_use_model(&entry.name))
    }

    pub fn all(&self) -> impl Iterator<Item = (ModelId, &Entry)> {
        (0..).map(ModelId).zip(&self.entries)
    }

    pub fn entry(&self, id: ModelId) -> &Entry {
        &self.entries[id.0 as usize]
    }

    /// Returns the time at which a model was opened, or else at which the server was started, in Unix seconds.
    pub fn created(&self, entry: &Entry) -> u64 {
        let opened = entry.opened().or_else(|| self.entries[0].opened());
        opened.map_or(0, |served| served.model.created_unix_s)
    }

    pub fn name(&self, id: ModelId) -> &str {
        &self.entry(id).name
    }

    /// Returns the model that a request names, alone or before the name of an adapter, or else the first one that the
    /// caller may use. Fails for other names, unless an adapter of that model has it.
    pub fn find(&self, caller: &Caller, asked: Option<&str>) -> Result<ModelId, ApiError> {
        if self.gate.is_none() && caller.may_use_model(self.name(ModelId(0))) {
            return Ok(ModelId(0));
        }
        let exactly = |name: &str| self.listed(caller).find(|(_, entry)| entry.is_named(name));
        let first = self.listed(caller).next();
        let found = match asked {
            None => first,
            Some(asked) => {
                let short = asked.strip_suffix(LATEST);
                let base = asked.rsplit_once(':').map(|(base, _)| base);
                let of_first = || {
                    first.filter(|(_, entry)| {
                        let chosen =
                            entry.opened().map(|served| served.choose(caller, Named::model(Some(asked))));
                        chosen.is_some_and(|chosen| !matches!(chosen, Err(ApiError::UnknownModel { .. })))
                    })
                };
                exactly(asked).or_else(|| exactly(short?)).or_else(|| exactly(base?)).or_else(of_first)
            }
        };
        found.map(|(id, _)| id).ok_or_else(|| {
            let mut names = self.listed(caller).map(|(_, entry)| Arc::from(&*entry.name));
            ApiError::UnknownModel {
                model: asked.unwrap_or_default().chars().take(MAX_SHOWN_CHARS).collect(),
                served: names.next().map(|name: Arc<str>| name.to_string()).unwrap_or_default(),
                adapters: names.take(MAX_HINTS).collect(),
            }
        })
    }

    /// Checks that requests would be served now: the server does not drain, and of the models in memory at least one is
    /// well. A server of several models is ready, too, if none is in memory after the first load.
    pub fn readiness(&self) -> Result<(), ApiError> {
        let Some(first) = self.entries[0].opened() else { return Err(ApiError::ModelLoading) };
        let Some(gate) = &self.gate else { return first.readiness() };
        first.not_draining()?;
        let held = self.all().filter(|(id, _)| gate.shown(*id).word == LOADED);
        let outcomes = held.filter_map(|(_, entry)| entry.opened()).map(|served| served.readiness());
        match outcomes.reduce(|known, next| known.or(next)) {
            Some(outcome) => outcome,
            None if gate.has_loaded() => Ok(()),
            None => Err(ApiError::ModelLoading),
        }
    }

    /// Prepares a model for the end of its shards, which is no loss then.
    pub async fn leave(&self, id: ModelId) {
        if let Some(served) = self.entry(id).opened() {
            served.set_drains(Some(0)).await;
        }
    }

    /// Checks that restarting the shards of any model helps.
    pub fn liveness(&self) -> Result<(), ApiError> {
        let opened = self.entries.iter().filter_map(Entry::opened);
        opened.map(|served| served.liveness()).reduce(|known, next| known.or(next)).unwrap_or(Ok(()))
    }

    /// Waits until a model is in memory. Its tokenizer is read before that, so that no other model makes room in vain
    /// for one that cannot be read.
    pub async fn enter(&self, id: ModelId) -> Result<(Arc<ServedModel>, Option<Using>), ApiError> {
        let Some(gate) = &self.gate else { return Ok((self.served(id).await?, None)) };
        if self.entry(id).problem().is_some() {
            gate.check_backoff(id, self.name(id))?;
        }
        let served = self.served(id).await?;
        Ok((served, Some(gate.enter(id, self.name(id)).await?)))
    }

    /// Returns a model, whose tokenizer is read now if it was never asked for. Its shards may not run.
    pub async fn served(&self, id: ModelId) -> Result<Arc<ServedModel>, ApiError> {
        let entry = self.entry(id);
        let opened = entry.served.get_or_try_init(&entry.open).await.cloned();
        let mut last = entry.problem.lock().unwrap_or_else(PoisonError::into_inner);
        *last = opened.as_ref().err().cloned();
        opened.map_err(|problem| {
            tracing::error!(model = entry.name, problem, "cannot open a model");
            let told = self.gate.as_ref().and_then(|gate| {
                gate.tell(Event::Unreadable { model: id, why: problem.clone() });
                gate.check_backoff(id, &entry.name).err()
            });
            told.unwrap_or(ApiError::ModelFailed { model: entry.name.clone(), problem, retry_after_s: None })
        })
    }
}
