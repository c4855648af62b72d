//! The models of a server: their names, and the gate that a request passes before it uses one.

mod finder;
mod gate;
mod named;

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use futures::future::BoxFuture;
use tokio::sync::OnceCell;
use trunkline_base::error::ApiError;
use trunkline_base::metrics::usage::UsageLedger;
use trunkline_base::tenants::Caller;

use crate::adapters::{MAX_HINTS, Named};
use crate::model::{MAX_SHOWN_CHARS, plain_name};
use crate::served::ServedModel;
pub use finder::{Finder, Search, Sought};
pub use gate::{Gate, LOADED, Shown, Using};
pub use named::NamedModel;
pub use trunkline_residency::{Action, Event, KeepAlive, ModelId, ModelSettings, Residency, Settings, State};

/// The most models whose usage is kept after they were removed.
const MAX_PAST_MODELS: usize = 256;

/// Reads a model's tokenizer and templates and starts its scheduler. The error is a line for operators.
pub type Open = Box<dyn Fn() -> BoxFuture<'static, Result<Arc<ServedModel>, String>> + Send + Sync>;

/// All models of a server. The first one answers requests that name none.
#[derive(Debug)]
pub struct Models {
    first: Arc<Entry>,
    entries: RwLock<BTreeMap<ModelId, Arc<Entry>>>,
    /// Set where models are loaded when they are asked for. Without it the server has one model, whose shards always
    /// run.
    on_demand: Option<OnDemand>,
}

/// The parts of a server that loads models when they are asked for.
#[derive(Debug)]
struct OnDemand {
    gate: Arc<Gate>,
    finder: Finder,
    /// The names and the usage of the last models that were removed.
    past_usage: Mutex<VecDeque<(String, Arc<UsageLedger>)>>,
}

/// A model that requests may name.
pub struct Entry {
    pub id: ModelId,
    pub name: String,
    /// Other names of the model.
    aliases: Vec<String>,
    served: OnceCell<Arc<ServedModel>>,
    open: Open,
    /// Why the model could not be opened the last time.
    problem: Mutex<Option<String>>,
}

/// The model of a request: one of the server's, or one that it is looking for.
#[derive(Debug, Clone)]
pub enum Target {
    Known(Arc<Entry>),
    Sought(Sought),
}

impl Target {
    pub fn name(&self) -> &str {
        match self {
            Self::Known(entry) => &entry.name,
            Self::Sought(sought) => &sought.name,
        }
    }
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
    pub fn new(id: ModelId, name: String, aliases: Vec<String>, open: Open) -> Self {
        Self { id, name, aliases, served: OnceCell::new(), open, problem: Mutex::default() }
    }

    /// Returns the entry of a model that is open already.
    pub fn opened_as(id: ModelId, served: Arc<ServedModel>) -> Self {
        let (name, aliases) = (served.model.served_name.clone(), served.model.aliases.clone());
        let open: Open = Box::new(|| Box::pin(async { Err("it is open".to_owned()) }));
        Self { served: OnceCell::from(served), ..Self::new(id, name, aliases, open) }
    }

    /// Returns the model if its tokenizer was read.
    pub fn opened(&self) -> Option<&Arc<ServedModel>> {
        self.served.get()
    }

    /// Returns why the model could not be opened the last time.
    pub fn problem(&self) -> Option<String> {
        self.problem.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns true if the model has this plain name.
    fn is_named(&self, name: &str) -> bool {
        [&self.name].into_iter().chain(&self.aliases).any(|own| plain_name(own) == name)
    }

    /// Returns true if an adapter of the model has this name, alone or after the model's.
    fn knows(&self, caller: &Caller, name: &str) -> bool {
        self.opened().is_some_and(|served| {
            !matches!(served.choose(caller, Named::model(Some(name))), Err(ApiError::UnknownModel { .. }))
        })
    }
}

impl Models {
    /// The one model of a server, which is always in memory.
    pub fn one(served: Arc<ServedModel>) -> Self {
        let first = Arc::new(Entry::opened_as(ModelId(0), served));
        Self { entries: RwLock::new([(first.id, first.clone())].into()), first, on_demand: None }
    }

    /// Models that are loaded when they are asked for.
    pub fn several(
        first: Entry,
        others: impl Iterator<Item = Entry>,
        gate: Arc<Gate>,
        finder: Finder,
    ) -> Self {
        let first = Arc::new(first);
        let entries = [first.clone()].into_iter().chain(others.map(Arc::new));
        let entries = entries.map(|entry| (entry.id, entry)).collect();
        Self {
            entries: RwLock::new(entries),
            first,
            on_demand: Some(OnDemand { gate, finder, past_usage: Mutex::default() }),
        }
    }

    pub fn gate(&self) -> Option<&Arc<Gate>> {
        self.on_demand.as_ref().map(|on_demand| &on_demand.gate)
    }

    pub fn finder(&self) -> Option<&Finder> {
        self.on_demand.as_ref().map(|on_demand| &on_demand.finder)
    }

    /// Adds a model while the server runs.
    pub fn add(&self, entry: Entry, settings: ModelSettings) {
        let Some(gate) = self.gate() else { return };
        gate.tell(Event::Added { model: entry.id, settings });
        self.entries.write().unwrap_or_else(PoisonError::into_inner).insert(entry.id, Arc::new(entry));
    }

    /// Forgets a model, whose open requests go on. The first one stays.
    pub fn remove(&self, id: ModelId) {
        let Some(OnDemand { gate, past_usage, .. }) = &self.on_demand else { return };
        if id == self.first.id {
            return;
        }
        let removed = self.entries.write().unwrap_or_else(PoisonError::into_inner).remove(&id);
        if let Some(served) = removed.as_ref().and_then(|entry| entry.opened()) {
            let mut past = past_usage.lock().unwrap_or_else(PoisonError::into_inner);
            past.truncate(MAX_PAST_MODELS - 1);
            past.push_front((served.model.served_name.clone(), served.usage.clone()));
        }
        gate.tell(Event::Removed { model: id });
    }

    /// Returns the names and the usage of the models that were opened, and of the last ones that were removed.
    pub fn usage(&self) -> Vec<(String, Arc<UsageLedger>)> {
        let own = |served: &Arc<ServedModel>| (served.model.served_name.clone(), served.usage.clone());
        let mut usage: Vec<_> = self.all().iter().filter_map(|entry| entry.opened().map(own)).collect();
        if let Some(OnDemand { past_usage, .. }) = &self.on_demand {
            usage.extend(past_usage.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned());
        }
        usage
    }

    /// Returns the models that the caller may use.
    pub fn listed(&self, caller: &Caller) -> impl Iterator<Item = Arc<Entry>> {
        self.all().into_iter().filter(|entry| caller.may_use_model(&entry.name))
    }

    /// Returns the models in the order in which they were added.
    pub fn all(&self) -> Vec<Arc<Entry>> {
        self.entries.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    pub fn entry(&self, id: ModelId) -> Option<Arc<Entry>> {
        self.entries.read().unwrap_or_else(PoisonError::into_inner).get(&id).cloned()
    }

    /// Returns the time at which a model was opened, or else at which the server was started, in Unix seconds.
    pub fn created(&self, entry: &Entry) -> u64 {
        let opened = entry.opened().or_else(|| self.first.opened());
        opened.map_or(0, |served| served.model.created_unix_s)
    }

    /// Returns the model that a request names, alone or before the name of an adapter, or else the first one that the
    /// caller may use. Fails for other names, unless an adapter of that model has it.
    pub fn find(&self, caller: &Caller, asked: Option<&str>) -> Result<Arc<Entry>, ApiError> {
        if self.on_demand.is_none() && caller.may_use_model(&self.first.name) {
            return Ok(self.first.clone());
        }
        let entries = self.entries.read().unwrap_or_else(PoisonError::into_inner);
        let listed = || entries.values().filter(|entry| caller.may_use_model(&entry.name));
        let exactly = |name: &str| listed().find(|entry| entry.is_named(name));
        let found = match asked.map(plain_name) {
            None => listed().next(),
            Some(asked) => {
                let base = || {
                    let base = exactly(asked.rsplit_once(':')?.0)?;
                    // Where models may be added, the end of the name may also be that of a file.
                    let is_its =
                        self.finder().is_none() || base.opened().is_none() || base.knows(caller, asked);
                    is_its.then_some(base)
                };
                let of_first = || listed().next().filter(|first| first.knows(caller, asked));
                exactly(asked).or_else(base).or_else(of_first)
            }
        };
        found.cloned().ok_or_else(|| {
            let mut names = listed().map(|entry| Arc::from(&*entry.name));
            ApiError::UnknownModel {
                model: asked.unwrap_or_default().chars().take(MAX_SHOWN_CHARS).collect(),
                served: names.next().map(|name: Arc<str>| name.to_string()).unwrap_or_default(),
                adapters: names.take(MAX_HINTS).collect(),
            }
        })
    }

    /// Does the same, and begins to look for a model that the server does not have, if the caller may add it.
    pub fn target(&self, caller: &Caller, asked: Option<&str>) -> Result<Target, ApiError> {
        match (self.find(caller, asked), asked, self.finder()) {
            (Err(unknown @ ApiError::UnknownModel { .. }), Some(asked), Some(finder)) => {
                finder.seek(caller, asked)?.map(Target::Sought).ok_or(unknown)
            }
            (found, ..) => found.map(Target::Known),
        }
    }

    /// Returns the state of a model as clients that wait for it read it after "model NAME is".
    pub fn shown(&self, target: &Target) -> String {
        match (target, self.gate()) {
            (Target::Sought(sought), _) => sought.shown(),
            (Target::Known(entry), Some(gate)) => {
                let shown = gate.shown(entry.id);
                let detail = shown.detail.map(|detail| format!(", {detail}")).unwrap_or_default();
                format!("{}{detail}", shown.word)
            }
            (Target::Known(_), None) => LOADED.to_owned(),
        }
    }

    /// Returns true if a request need not wait for its model.
    pub fn may_begin(&self, target: &Target) -> bool {
        match target {
            Target::Known(entry) => self.gate().is_none_or(|gate| gate.may_begin(entry.id)),
            Target::Sought(_) => false,
        }
    }

    /// Checks that requests would be served now: the server does not drain, and of the models in memory at least one is
    /// well. A server of several models is ready, too, if none is in memory after the first load.
    pub fn readiness(&self) -> Result<(), ApiError> {
        let Some(first) = self.first.opened() else { return Err(ApiError::ModelLoading) };
        let Some(gate) = self.gate() else { return first.readiness() };
        first.not_draining()?;
        let held = self.all().into_iter().filter(|entry| gate.shown(entry.id).word == LOADED);
        let outcomes = held.filter_map(|entry| entry.opened().map(|served| served.readiness()));
        match outcomes.reduce(|known, next| known.or(next)) {
            Some(outcome) => outcome,
            None if gate.has_loaded() => Ok(()),
            None => Err(ApiError::ModelLoading),
        }
    }

    /// Prepares a model for the end of its shards, which is no loss then.
    pub async fn leave(&self, id: ModelId) {
        if let Some(served) = self.entry(id).and_then(|entry| entry.opened().cloned()) {
            served.set_drains(Some(0)).await;
        }
    }

    /// Checks that restarting the shards of any model helps.
    pub fn liveness(&self) -> Result<(), ApiError> {
        let opened =
            self.all().into_iter().filter_map(|entry| entry.opened().map(|served| served.liveness()));
        opened.reduce(|known, next| known.or(next)).unwrap_or(Ok(()))
    }

    /// Waits until a model is found and in memory. Its tokenizer is read before that, so that no other model makes room
    /// in vain for one that cannot be read.
    pub async fn enter(
        &self,
        target: Target,
    ) -> Result<(ModelId, Arc<ServedModel>, Option<Using>), ApiError> {
        let mut entry = self.known(target).await?;
        loop {
            let entered = self.enter_known(&entry).await;
            // A reload may have given its name to another model.
            let heir =
                || self.all().into_iter().find(|other| other.name == entry.name && other.id > entry.id);
            match (entered, heir()) {
                (Err(ApiError::ModelRemoved { .. }), Some(other)) => entry = other,
                (entered, _) => return entered,
            }
        }
    }

    async fn enter_known(
        &self,
        entry: &Entry,
    ) -> Result<(ModelId, Arc<ServedModel>, Option<Using>), ApiError> {
        let Some(gate) = self.gate() else { return Ok((entry.id, self.served(entry).await?, None)) };
        if entry.problem().is_some() {
            gate.check_backoff(entry.id, &entry.name)?;
        }
        let served = self.served(entry).await?;
        Ok((entry.id, served, Some(gate.enter(entry.id, &entry.name).await?)))
    }

    /// Waits until a model is found.
    pub async fn known(&self, target: Target) -> Result<Arc<Entry>, ApiError> {
        match target {
            Target::Known(entry) => Ok(entry),
            Target::Sought(sought) => {
                let model = sought.name.to_string();
                let found = self.entry(sought.found().await?);
                found.ok_or(ApiError::ModelRemoved { model })
            }
        }
    }

    /// Returns a model, whose tokenizer is read now if it was never asked for. Its shards may not run.
    pub async fn served(&self, entry: &Entry) -> Result<Arc<ServedModel>, ApiError> {
        let opened = entry.served.get_or_try_init(&entry.open).await.cloned();
        let mut last = entry.problem.lock().unwrap_or_else(PoisonError::into_inner);
        *last = opened.as_ref().err().cloned();
        opened.map_err(|problem| {
            tracing::error!(model = entry.name, problem, "cannot open a model");
            let told = self.gate().and_then(|gate| {
                gate.tell(Event::Unreadable { model: entry.id, why: problem.clone() });
                gate.check_backoff(entry.id, &entry.name).err()
            });
            told.unwrap_or(ApiError::ModelFailed { model: entry.name.clone(), problem, retry_after_s: None })
        })
    }
}
