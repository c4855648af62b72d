//! The adapters that requests may name: where their files are, and what the shard said about them.
//!
//! An adapter is opened by the shard when a request names it for the first time. One that is only registered costs its
//! name and its source.

mod choice;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::FutureExt;
use futures::future::{BoxFuture, Shared};
use tokio::sync::{Semaphore, watch};
use trunkline_settings::{MAX_ADAPTER_NAME_BYTES, MAX_ADAPTERS, is_adapter_name, parse_adapter};

use crate::model::Model;
use trunkline_base::error::ApiError;
use trunkline_base::limits::MAX_OPENING_ADAPTERS;
use trunkline_base::tenants::Caller;
use trunkline_engine::shard::{OpenAdapterError, OpenedAdapter, ShardStatus, open_adapter};

pub use choice::{Chosen, LoraScale, Named};

/// The file extension of adapters in a folder.
const GGUF: &str = "gguf";
/// The most entries of `--lora-folder` that are looked at.
const MAX_FOLDER_ENTRIES: usize = 10_000;
/// The most names of adapters in an error.
pub(crate) const MAX_HINTS: usize = 8;

/// An adapter that a request may name. It is a name and a source until it is opened.
pub struct Adapter {
    pub name: Arc<str>,
    /// A path or a Hub id.
    source: Arc<str>,
    is_in_folder: bool,
    state: Mutex<State>,
}

/// The state of an adapter's files, as far as it is known.
#[derive(Debug, Clone, Default)]
pub enum State {
    /// Nobody has asked the shard yet, or what it said is no longer true.
    #[default]
    Unopened,
    Opening(Opening),
    Open(Arc<OpenedAdapter>),
    /// The shard cannot use the files. The next request asks again.
    Unusable(Arc<str>),
}

type Opening = Shared<BoxFuture<'static, Result<Arc<OpenedAdapter>, NotOpen>>>;

/// The reason why an adapter is not open. All who wait for it get the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotOpen {
    Unusable(Arc<str>),
    /// There is no shard to ask, or it was lost.
    ShardAway,
}

impl Adapter {
    fn new(name: &str, source: &str, is_in_folder: bool) -> Arc<Self> {
        Arc::new(Self { name: name.into(), source: source.into(), is_in_folder, state: Mutex::default() })
    }

    /// Returns the source as a caller may see it, who gets the name unless it is an admin.
    pub fn source_for(&self, caller: &Caller) -> &str {
        if caller.is_admin() { &self.source } else { &self.name }
    }

    pub fn state(&self) -> State {
        self.lock().clone()
    }

    /// Forgets what the shard said, so that the next request asks again.
    fn forget(&self) {
        let mut state = self.lock();
        if matches!(&*state, State::Open(_)) {
            *state = State::Unopened;
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The adapters of a server.
pub struct Adapters {
    folder: Option<PathBuf>,
    known: Mutex<Known>,
    /// A permit for each adapter that may be opened at the same time.
    places: Semaphore,
    sockets: Vec<PathBuf>,
    shards: watch::Receiver<Vec<ShardStatus>>,
    /// The longest wait for a shard to ask.
    patience: Duration,
}

/// The registered adapters, and those of the folder that were used.
#[derive(Default)]
struct Known {
    /// By name, with their places in the order of registration.
    by_name: BTreeMap<Arc<str>, (u64, Arc<Adapter>)>,
    next: u64,
}

impl Known {
    /// Makes room for an adapter with this name, or refuses it beyond the limit.
    fn make_room(&mut self, name: &str) -> Result<(), ApiError> {
        if self.by_name.contains_key(name) {
            return Ok(());
        }
        if self.by_name.len() >= MAX_ADAPTERS {
            // Those of the folder are found again.
            self.by_name.retain(|_, (_, known)| !known.is_in_folder);
        }
        if self.by_name.len() >= MAX_ADAPTERS {
            let problem =
                format!("is one more than the {MAX_ADAPTERS} adapters that a server takes; hint: unload one");
            return Err(ApiError::value("lora_name", problem));
        }
        Ok(())
    }

    /// Adds an adapter, or replaces the one with its name. Refuses more than the limit.
    fn insert(&mut self, adapter: Arc<Adapter>) -> Result<(), ApiError> {
        self.make_room(&adapter.name)?;
        let number = self.by_name.get(&adapter.name).map_or(self.next, |(number, _)| *number);
        self.next += 1;
        self.by_name.insert(adapter.name.clone(), (number, adapter));
        Ok(())
    }
}

impl Adapters {
    /// Registers the adapters of the settings.
    pub fn new(
        settings: &trunkline_settings::Adapters,
        sockets: Vec<PathBuf>,
        shards: watch::Receiver<Vec<ShardStatus>>,
        patience: Duration,
    ) -> Self {
        let mut known = Known::default();
        for (name, source) in settings.lora.iter().filter_map(|text| parse_adapter(text)) {
            let adapter = Adapter::new(name, source, false);
            // The settings have no more than the limit.
            if known.insert(adapter).is_err() {
                break;
            }
        }
        Self {
            folder: settings.lora_folder.clone(),
            known: Mutex::new(known),
            places: Semaphore::new(MAX_OPENING_ADAPTERS),
            sockets,
            shards,
            patience,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns true unless the shard is known to take no adapters.
    pub fn has_slots(&self) -> bool {
        match ShardStatus::of_model(&self.shards.borrow()) {
            ShardStatus::Ready(info) | ShardStatus::Lost(info) => info.num_adapter_slots > 0,
            ShardStatus::Loading => true,
        }
    }

    /// Returns the adapter with this name. One of the folder is looked for there, each time.
    pub fn find(&self, name: &str) -> Option<Arc<Adapter>> {
        // The disk is not waited for with the lock.
        let known = self.lock().by_name.get(name).map(|(_, adapter)| adapter.clone());
        let is_there = |adapter: &Adapter| !adapter.is_in_folder || Path::new(&*adapter.source).exists();
        if let Some(adapter) = known.clone().filter(|adapter| is_there(adapter)) {
            return Some(adapter);
        }
        let found = self.folder.as_deref().and_then(|folder| in_folder(folder, name));
        let mut by_now = self.lock();
        match (by_now.by_name.get(name), &known) {
            (Some((_, now)), Some(known)) if Arc::ptr_eq(now, known) => drop(by_now.by_name.remove(name)),
            // Another request was faster.
            (Some((_, now)), _) => return Some(now.clone()),
            (None, _) => {}
        }
        let adapter = Adapter::new(name, &found?, true);
        // Without room among those that are known, each request opens it again.
        let (Ok(()) | Err(_)) = by_now.insert(adapter.clone());
        Some(adapter)
    }

    /// Returns the adapters that a caller may use: those that are registered in their order, then the others of the
    /// folder by name. It reads the folder.
    pub fn list(&self, caller: &Caller) -> Vec<Arc<Adapter>> {
        let in_folder = self.folder.as_deref().map(folder_entries).unwrap_or_default();
        let known = self.lock();
        let mut listed: Vec<&(u64, Arc<Adapter>)> =
            known.by_name.values().filter(|(_, adapter)| !adapter.is_in_folder).collect();
        listed.sort_by_key(|(number, _)| *number);
        let registered = listed.into_iter().map(|(_, adapter)| adapter.clone());
        let others = in_folder.iter().filter_map(|(name, source)| match known.by_name.get(name.as_str()) {
            Some((_, adapter)) => Some(adapter.clone()).filter(|adapter| adapter.is_in_folder),
            None => Some(Adapter::new(name, source, true)),
        });
        registered.chain(others).filter(|adapter| caller.may_use_adapter(&adapter.name)).collect()
    }

    /// Returns [`Self::list`], or nothing if the shard takes no adapters, without waiting for the folder's disk.
    pub async fn listed(self: &Arc<Self>, caller: &Caller) -> Vec<Arc<Adapter>> {
        if !self.has_slots() {
            return Vec::new();
        }
        let caller = caller.clone();
        self.look(move |adapters| adapters.list(&caller)).await
    }

    /// Runs `work`, which may read the folder, where it keeps no other request waiting.
    async fn look<T: Send + 'static>(self: &Arc<Self>, work: impl FnOnce(&Self) -> T + Send + 'static) -> T {
        if self.folder.is_none() {
            return work(self);
        }
        let adapters = self.clone();
        match tokio::task::spawn_blocking(move || work(&adapters)).await {
            Ok(found) => found,
            // A panic is answered as one in the handler would be.
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }

    /// Returns the registered names that a caller may use, for the hint of an error; none if they are many.
    fn hints(&self, caller: &Caller) -> Vec<Arc<str>> {
        let known = self.lock();
        let names = known.by_name.keys().filter(|name| caller.may_use_adapter(name));
        let names: Vec<Arc<str>> = names.take(MAX_HINTS + 1).cloned().collect();
        if names.len() > MAX_HINTS || !self.has_slots() { Vec::new() } else { names }
    }

    /// Returns what the shard says of an adapter, which it is asked once for all who wait.
    pub async fn open(self: &Arc<Self>, adapter: &Arc<Adapter>) -> Result<Arc<OpenedAdapter>, NotOpen> {
        let opening = {
            let mut state = adapter.lock();
            match &*state {
                State::Open(opened) => return Ok(opened.clone()),
                State::Opening(opening) => opening.clone(),
                State::Unopened | State::Unusable(_) => {
                    // It goes on without those who wait for it.
                    let task = tokio::spawn(self.clone().ask(adapter.clone()));
                    let opening = task.map(|done| done.unwrap_or(Err(NotOpen::ShardAway))).boxed().shared();
                    *state = State::Opening(opening.clone());
                    opening
                }
            }
        };
        opening.await
    }

    /// Asks a shard about an adapter, and keeps the answer.
    async fn ask(self: Arc<Self>, adapter: Arc<Adapter>) -> Result<Arc<OpenedAdapter>, NotOpen> {
        let opened = self.ask_shard(&adapter).await;
        *adapter.lock() = match &opened {
            Ok(opened) => State::Open(opened.clone()),
            Err(NotOpen::Unusable(problem)) => State::Unusable(problem.clone()),
            Err(NotOpen::ShardAway) => State::Unopened,
        };
        opened
    }

    async fn ask_shard(&self, adapter: &Adapter) -> Result<Arc<OpenedAdapter>, NotOpen> {
        let name = &*adapter.name;
        let mut shards = self.shards.clone();
        let is_ready = |status: &ShardStatus| matches!(status, ShardStatus::Ready(_));
        let ready = shards.wait_for(|shards| shards.iter().any(is_ready));
        let lane = match tokio::time::timeout(self.patience, ready).await {
            Ok(Ok(shards)) => shards.iter().position(is_ready),
            Ok(Err(_)) | Err(_) => None,
        };
        let socket = lane.and_then(|lane| self.sockets.get(lane)).ok_or(NotOpen::ShardAway)?;
        let _place = self.places.acquire().await.map_err(|_| NotOpen::ShardAway)?;
        match open_adapter(socket, &adapter.source).await {
            Ok(opened) => {
                let (rank, bytes, path) = (opened.rank, opened.num_bytes, &*opened.path);
                tracing::info!(adapter = name, rank, bytes, path, "adapter opened");
                Ok(Arc::new(opened))
            }
            Err(OpenAdapterError::Unusable(problem)) => {
                tracing::warn!(adapter = name, source = &*adapter.source, problem, "adapter cannot be used");
                Err(NotOpen::Unusable(problem.into()))
            }
            Err(OpenAdapterError::Shard(error)) => {
                tracing::warn!(adapter = name, %error, "the shard did not open an adapter");
                Err(NotOpen::ShardAway)
            }
        }
    }

    /// Opens the registered adapters as soon as a shard is ready, so that problems are logged early, or logs that the
    /// shard takes none.
    pub async fn open_registered(self: Arc<Self>) {
        let mut shards = self.shards.clone();
        let is_ready = |status: &ShardStatus| matches!(status, ShardStatus::Ready(_));
        if shards.wait_for(|shards| shards.iter().any(is_ready)).await.is_err() {
            return;
        }
        let adapters: Vec<Arc<Adapter>> =
            self.lock().by_name.values().map(|(_, adapter)| adapter.clone()).collect();
        if !self.has_slots() {
            if self.folder.is_some() || !adapters.is_empty() {
                tracing::error!(
                    "this backend takes no adapters, so requests that name one are refused; hint: use another \
                     `--backend`, or leave out `--lora` and `--lora-folder`"
                );
            }
            return;
        }
        for adapter in adapters {
            // The outcome is logged, and kept for requests.
            let _ = self.open(&adapter).await;
        }
    }

    /// Registers an adapter, which it opens before if the model `is_in_memory`. `replaces` allows a name that is
    /// registered already.
    pub async fn load(
        self: &Arc<Self>,
        model: &Model,
        name: &str,
        source: &str,
        replaces: bool,
        is_in_memory: bool,
    ) -> Result<(), ApiError> {
        if !is_adapter_name(name) {
            let problem =
                format!("must have 1 to {MAX_ADAPTER_NAME_BYTES} letters, digits, `.`, `_`, `-` or `/`");
            return Err(ApiError::value("lora_name", problem));
        }
        if model.is_named(name) {
            return Err(ApiError::value("lora_name", format!("is `{name}`, which is the model's own name")));
        }
        if source.is_empty() || source.contains(char::is_control) {
            return Err(ApiError::value("lora_path", "must be a path or a Hub id"));
        }
        if !self.has_slots() {
            return Err(ApiError::NoAdapters);
        }
        let taken = || {
            let is_registered = self.lock().by_name.get(name).is_some_and(|(_, known)| !known.is_in_folder);
            let problem =
                format!("is `{name}`, which is loaded already; hint: unload it first, or set `load_inplace`");
            if is_registered && !replaces { Err(ApiError::value("lora_name", problem)) } else { Ok(()) }
        };
        taken()?;
        self.lock().make_room(name)?;
        let adapter = Adapter::new(name, source, false);
        if is_in_memory {
            self.open(&adapter).await.map_err(|not_open| not_open.error(&adapter))?;
        }
        taken()?;
        self.lock().insert(adapter)
    }

    /// Removes a registered adapter. Requests that use it go on.
    pub fn unload(&self, name: &str) -> Result<(), ApiError> {
        let mut known = self.lock();
        match known.by_name.get(name) {
            Some((_, adapter)) if !adapter.is_in_folder => {
                known.by_name.remove(name);
                Ok(())
            }
            _ => Err(ApiError::UnknownAdapter { name: name.chars().take(MAX_ADAPTER_NAME_BYTES).collect() }),
        }
    }
}

impl NotOpen {
    fn error(self, adapter: &Adapter) -> ApiError {
        match self {
            Self::Unusable(problem) => ApiError::UnusableAdapter { name: adapter.name.clone(), problem },
            Self::ShardAway => ApiError::ShardAway,
        }
    }
}

/// Returns the path of an adapter in a folder.
fn in_folder(folder: &Path, name: &str) -> Option<String> {
    if name.contains('/') || name.starts_with('.') || !is_adapter_name(name) {
        return None;
    }
    let path = folder.join(name);
    let file = folder.join(format!("{name}.{GGUF}"));
    let found = if path.is_dir() { path } else { Some(file).filter(|file| file.is_file())? };
    found.into_os_string().into_string().ok()
}

/// Returns the names and paths of the adapters in a folder.
fn folder_entries(folder: &Path) -> BTreeMap<String, String> {
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) => {
            tracing::warn!(folder = %folder.display(), %error, "cannot read `--lora-folder`");
            return BTreeMap::new();
        }
    };
    let name = |entry: std::fs::DirEntry| {
        let name = entry.file_name().into_string().ok()?;
        let stem = name.strip_suffix(GGUF).and_then(|stem| stem.strip_suffix('.'));
        Some(stem.unwrap_or(&name).to_owned())
    };
    let names = entries.take(MAX_FOLDER_ENTRIES).filter_map(|entry| name(entry.ok()?));
    names.filter_map(|name| in_folder(folder, &name).map(|path| (name, path))).collect()
}
