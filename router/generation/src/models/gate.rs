//! The gate that requests pass before they use a model. A request waits here while its model is loaded.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use trunkline_base::error::ApiError;
use trunkline_residency::{Action, Event, ModelId, Residency, State};

/// The word for a model that requests can use at once.
pub const LOADED: &str = "loaded";

/// Decides which models are in memory, with the clock that the decisions need.
#[derive(Debug)]
pub struct Gate {
    inner: Mutex<Inner>,
    begin: Instant,
    /// True once any model was in memory.
    has_loaded: AtomicBool,
    /// Changes after each event.
    changed: watch::Sender<()>,
    /// Receives what the launcher has to do.
    actions: mpsc::UnboundedSender<Action>,
}

#[derive(Debug)]
struct Inner {
    residency: Residency,
    /// The number of requests that wait for each model.
    waiting: BTreeMap<ModelId, usize>,
    /// The percentage of its weights that each lane of a model has loaded since the model's last load began.
    progress: BTreeMap<ModelId, BTreeMap<u32, u8>>,
}

/// A request that uses a model, which stays in memory until this is dropped.
#[derive(Debug)]
pub struct Using {
    gate: Arc<Gate>,
    model: ModelId,
}

impl Drop for Using {
    fn drop(&mut self) {
        self.gate.tell(Event::Closed { model: self.model });
    }
}

/// A request that waits for a model.
struct Waiting<'a> {
    gate: &'a Gate,
    model: ModelId,
}

impl<'a> Waiting<'a> {
    fn new(gate: &'a Gate, model: ModelId) -> Self {
        *gate.inner().waiting.entry(model).or_default() += 1;
        gate.tell(Event::Wanted { model });
        Self { gate, model }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let is_last = {
            let mut inner = self.gate.inner();
            let left = inner.waiting.remove(&self.model).unwrap_or(1) - 1;
            if left > 0 {
                inner.waiting.insert(self.model, left);
            }
            left == 0
        };
        if is_last {
            self.gate.tell(Event::Left { model: self.model });
        }
    }
}

/// The state of a model as clients see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shown {
    /// One of a few words.
    pub word: &'static str,
    /// Why the model cannot be used, or what a request waits for.
    pub detail: Option<String>,
    pub bytes: u64,
    pub is_pinned: bool,
    /// The time after which an idle model leaves the memory, if it does.
    pub leaves_in: Option<Duration>,
}

impl Gate {
    /// Returns the gate, and what the launcher has to do from now on.
    pub fn new(residency: Residency) -> (Arc<Self>, mpsc::UnboundedReceiver<Action>) {
        let (actions, ordered) = mpsc::unbounded_channel();
        let inner = Mutex::new(Inner { residency, waiting: BTreeMap::new(), progress: BTreeMap::new() });
        let (begin, changed) = (Instant::now(), watch::channel(()).0);
        let gate = Arc::new(Self { inner, begin, has_loaded: AtomicBool::new(false), changed, actions });
        tokio::spawn(wake(gate.clone()));
        (gate, ordered)
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.begin.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Handles an event.
    pub fn tell(&self, event: Event) {
        if let Event::Loaded { .. } = event {
            self.has_loaded.store(true, Ordering::Relaxed);
        }
        let actions = {
            let mut inner = self.inner();
            if let Event::Removed { model } = &event {
                inner.progress.remove(model);
            }
            let actions = inner.residency.handle(event, self.now_ms());
            for action in &actions {
                if let Action::Load(model) = action {
                    inner.progress.remove(model);
                }
            }
            actions
        };
        for action in actions {
            // This fails while the server stops.
            let _ = self.actions.send(action);
        }
        self.changed.send_replace(());
    }

    /// Notes how much of a model's weights a lane has loaded.
    pub fn note_loading(&self, model: ModelId, lane: u32, percent: u8) {
        self.inner().progress.entry(model).or_default().insert(lane, percent);
    }

    /// Waits until a request may use a model, which is loaded if it is not in memory.
    pub async fn enter(self: &Arc<Self>, model: ModelId, name: &str) -> Result<Using, ApiError> {
        let mut changed = self.changed.subscribe();
        if let Some(using) = self.try_enter(model) {
            return Ok(using);
        }
        let _waiting = Waiting::new(self, model);
        loop {
            changed.mark_unchanged();
            if let Some(using) = self.try_enter(model) {
                return Ok(using);
            }
            if let Some(Err(error)) = self.outcome(model, name) {
                return Err(error);
            }
            let state = self.inner().residency.state(model);
            if let Some(
                State::Unloaded | State::Draining { place: None, .. } | State::Unloading { place: None },
            ) = state
            {
                // It left again, or an admin has taken it out of the queue.
                self.tell(Event::Wanted { model });
            }
            // The sender is here, so this does not fail.
            let _ = changed.changed().await;
        }
    }

    /// Asks for a model as an administrator, and waits until it is in memory or cannot be loaded.
    pub async fn load(&self, model: ModelId, name: &str) -> Result<(), ApiError> {
        let mut changed = self.changed.subscribe();
        self.tell(Event::LoadAsked { model });
        loop {
            changed.mark_unchanged();
            if let Some(outcome) = self.outcome(model, name) {
                return outcome;
            }
            if self.inner().residency.state(model) == Some(State::Unloaded) {
                let problem = "another administrator has unloaded it meanwhile".to_owned();
                return Err(ApiError::ModelFailed { model: name.to_owned(), problem, retry_after_s: None });
            }
            // The sender is here, so this does not fail.
            let _ = changed.changed().await;
        }
    }

    /// Lets a model leave the memory, and waits until it has. Its open requests are finished before.
    pub async fn unload(&self, model: ModelId, name: &str) -> Result<(), ApiError> {
        let mut changed = self.changed.subscribe();
        if self.inner().residency.is_pinned(model) {
            return Err(ApiError::ModelPinned { model: name.to_owned() });
        }
        self.tell(Event::UnloadAsked { model });
        loop {
            changed.mark_unchanged();
            // A request that came meanwhile may have brought it back.
            if !matches!(
                self.inner().residency.state(model),
                Some(State::Draining { .. } | State::Unloading { .. })
            ) {
                return Ok(());
            }
            let _ = changed.changed().await;
        }
    }

    /// Fails if a model is not loaded again yet because it has just failed.
    pub fn check_backoff(&self, id: ModelId, name: &str) -> Result<(), ApiError> {
        let now = self.now_ms();
        match self.inner().residency.state(id) {
            Some(State::Failed { why, retry_at_ms }) if now < retry_at_ms => {
                Err(failed(name.to_owned(), why, retry_at_ms, now))
            }
            _ => Ok(()),
        }
    }

    /// Returns whether a model is in memory, or why it cannot be or is no more; `None` while that is not known.
    fn outcome(&self, id: ModelId, name: &str) -> Option<Result<(), ApiError>> {
        let now = self.now_ms();
        let model = name.to_owned();
        let Some(state) = self.inner().residency.state(id) else {
            return Some(Err(ApiError::ModelRemoved { model }));
        };
        match state {
            State::Removed => Some(Err(ApiError::ModelRemoved { model })),
            State::Loaded { .. } => Some(Ok(())),
            State::Failed { why, retry_at_ms } => Some(Err(failed(model, why, retry_at_ms, now))),
            State::TooLarge(sizes) => {
                Some(Err(ApiError::ModelTooLarge { model, problem: sizes.to_string() }))
            }
            _ => None,
        }
    }

    /// Returns true once any model was in memory.
    pub fn has_loaded(&self) -> bool {
        self.has_loaded.load(Ordering::Relaxed)
    }

    /// Waits until a model is removed and has left the memory.
    pub async fn forgotten(&self, model: ModelId) {
        let mut changed = self.changed.subscribe();
        // The sender is here, so this does not fail.
        let _ = changed.wait_for(|()| self.inner().residency.state(model).is_none()).await;
    }

    /// Returns true if a model is in memory or on its way, and not leaving.
    pub fn is_held(&self, model: ModelId) -> bool {
        let state = self.inner().residency.state(model);
        matches!(state, Some(State::Loading { .. } | State::Loaded { .. } | State::Draining { .. }))
    }

    /// Returns true if a request for the model would not have to wait.
    pub fn may_begin(&self, model: ModelId) -> bool {
        self.inner().residency.may_begin(model)
    }

    /// Begins to use a model that is in memory.
    pub fn try_enter(self: &Arc<Self>, model: ModelId) -> Option<Using> {
        let mut inner = self.inner();
        inner.residency.may_begin(model).then(|| {
            inner.residency.handle(Event::Opened { model }, self.now_ms());
            Using { gate: self.clone(), model }
        })
    }

    /// Waits until the state of any model has changed.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// Returns the state of a model.
    pub fn shown(&self, model: ModelId) -> Shown {
        let now = self.now_ms();
        let inner = self.inner();
        let residency = &inner.residency;
        let (word, detail) = match residency.state(model).unwrap_or(State::Unloaded) {
            State::Unloaded => ("unloaded", None),
            State::Queued { place } => ("queued", Some(behind(place))),
            State::Loading { since_ms } => {
                let percent = inner.progress.get(&model).and_then(|lanes| lanes.values().min());
                let percent = percent.map(|percent| format!("{percent} %, ")).unwrap_or_default();
                ("loading", Some(format!("{percent}for {} s", now.saturating_sub(since_ms) / 1000)))
            }
            State::Loaded { .. } => (LOADED, None),
            State::Draining { place, .. } | State::Unloading { place } => ("unloading", place.map(behind)),
            State::Removed => ("unloading", None),
            State::Failed { why, .. } => ("failed", Some(why)),
            State::TooLarge(sizes) => ("failed", Some(sizes.to_string())),
        };
        let leaves_in =
            residency.expires_at(model).map(|at_ms| Duration::from_millis(at_ms.saturating_sub(now)));
        let (bytes, is_pinned) = (residency.bytes(model), residency.is_pinned(model));
        Shown { word, detail, bytes, is_pinned, leaves_in }
    }
}

fn failed(model: String, problem: String, retry_at_ms: u64, now_ms: u64) -> ApiError {
    let retry_after_s = Some(retry_at_ms.saturating_sub(now_ms).div_ceil(1000).max(1));
    ApiError::ModelFailed { model, problem, retry_after_s }
}

fn behind(place: usize) -> String {
    match place {
        0 => "it is the next one to be loaded".to_owned(),
        1 => "another model is loaded before it".to_owned(),
        _ => format!("{place} other models are loaded before it"),
    }
}

/// Tells the time to the decisions that wait for it.
async fn wake(gate: Arc<Gate>) {
    let mut changed = gate.changed.subscribe();
    loop {
        changed.mark_unchanged();
        let next = gate.inner().residency.next_wakeup();
        let due = async {
            match next {
                Some(at_ms) => {
                    tokio::time::sleep_until(gate.begin + Duration::from_millis(at_ms)).await;
                }
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = due => gate.tell(Event::Woke),
            // The sender is in the gate, so this does not fail.
            _ = changed.changed() => {}
        }
    }
}
