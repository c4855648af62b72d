use std::collections::{BTreeMap, VecDeque};

use crate::event::{Action, Event, ModelId, ModelSettings, Settings, State, TooLarge};
use crate::eviction::{Candidate, Value, choose};
use crate::model::{Model, Phase};

/// Decides which models are in memory.
#[derive(Debug)]
pub struct Residency {
    settings: Settings,
    models: BTreeMap<ModelId, Model>,
    /// The models that wait for their turn, in the order in which they were wanted.
    queue: VecDeque<ModelId>,
    /// The latest time of an event.
    now_ms: u64,
}

impl Residency {
    pub fn new(settings: Settings) -> Self {
        Self { settings, models: BTreeMap::new(), queue: VecDeque::new(), now_ms: 0 }
    }

    /// Returns what to do after an event. A time before that of an earlier event counts as that one.
    pub fn handle(&mut self, event: Event, now_ms: u64) -> Vec<Action> {
        self.now_ms = self.now_ms.max(now_ms);
        self.apply(event);
        let mut actions = Vec::new();
        self.unload_leaving(&mut actions);
        // One model at a time is loaded, and room is made only for that one.
        let next = if self.models.values().any(Model::is_loading) { None } else { self.next() };
        let bytes = next.map_or(0, |model| self.models[&model].bytes());
        self.make_room(bytes, &mut actions);
        let has_room = self.used_bytes().saturating_add(bytes) <= self.settings.limit_bytes;
        if let Some(id) = next.filter(|_| has_room)
            && let Some(model) = self.models.get_mut(&id)
            && model.phase == Phase::Unloaded
        {
            model.load(self.now_ms);
            actions.push(Action::Load(id));
        }
        let mut queue = std::mem::take(&mut self.queue);
        queue.retain(|model| self.waits(*model));
        self.queue = queue;
        self.models.retain(|_, model| !model.is_removed || model.phase != Phase::Unloaded);
        actions
    }

    /// Returns when [`Event::Woke`] is due if no other event comes before.
    pub fn next_wakeup(&self) -> Option<u64> {
        let leaves_at = |model: &Model| {
            let is_needed = !self.queue.is_empty();
            model.leaves_at(&self.settings).filter(|_| is_needed)
        };
        let times =
            self.models.values().flat_map(|model| [model.expires_at(&self.settings), leaves_at(model)]);
        times.flatten().filter(|at_ms| *at_ms > self.now_ms).min()
    }

    /// Returns true if a request may begin on the model now. Otherwise it waits for the model's turn.
    pub fn may_begin(&self, model: ModelId) -> bool {
        self.models.get(&model).is_some_and(Model::may_begin)
    }

    /// Returns the state of a model that was added.
    pub fn state(&self, id: ModelId) -> Option<State> {
        let model = self.models.get(&id)?;
        let place = self.queue.iter().position(|queued| *queued == id);
        let num_open = model.num_open;
        if model.is_removed {
            return Some(State::Removed);
        }
        Some(match (model.phase, place, &model.failure) {
            (Phase::Loading { since_ms }, ..) if !model.is_unload_asked => State::Loading { since_ms },
            (Phase::Loaded { .. }, ..) if model.may_begin() => {
                State::Loaded { num_open, last_used_ms: model.last_used_ms }
            }
            (Phase::Loading { .. } | Phase::Loaded { .. }, ..) => State::Draining { num_open, place },
            (Phase::Unloading, ..) => State::Unloading { place },
            (Phase::Unloaded, Some(place), _) => State::Queued { place },
            (Phase::Unloaded, None, failure) => match (self.too_large(id, model), failure) {
                (Some(too_large), _) => State::TooLarge(too_large),
                (None, Some(failure)) => {
                    State::Failed { why: failure.why.clone(), retry_at_ms: failure.retry_at_ms }
                }
                (None, None) => State::Unloaded,
            },
        })
    }

    /// Returns the memory of all models that are loading, loaded or unloading.
    pub fn used_bytes(&self) -> u64 {
        sum(self.models.values().map(Model::used_bytes))
    }

    /// Returns the memory that a model needs: what was measured at its last load, or else the estimate.
    pub fn bytes(&self, model: ModelId) -> u64 {
        self.models.get(&model).map_or(0, Model::bytes)
    }

    /// Returns when an idle model is unloaded because its keep-alive ends, if it is.
    pub fn expires_at(&self, model: ModelId) -> Option<u64> {
        self.models.get(&model)?.expires_at(&self.settings)
    }

    pub fn is_pinned(&self, model: ModelId) -> bool {
        self.models.get(&model).is_some_and(|model| model.settings.is_pinned)
    }

    fn apply(&mut self, event: Event) {
        let now_ms = self.now_ms;
        if let Event::Added { model, settings } = event {
            return self.add(model, settings);
        }
        let Some(id) = event.model() else { return };
        let Some(model) = self.models.get_mut(&id) else { return };
        match event {
            Event::Added { .. } | Event::Woke => {}
            Event::Wanted { .. } | Event::LoadAsked { .. } | Event::Pinned { .. } if model.is_removed => {}
            Event::Wanted { .. } => {
                model.last_used_ms = now_ms;
                self.enqueue(id);
            }
            Event::Left { .. } if model.is_load_asked => {}
            Event::Left { .. } => self.queue.retain(|queued| *queued != id),
            Event::KeepAlive { keep_alive, .. } => {
                model.keep_alive = keep_alive;
                // The request is there, or has ended already.
                model.was_used |= model.is_loaded();
            }
            Event::Opened { .. } => {
                model.num_open += 1;
                model.last_used_ms = now_ms;
                model.was_used = true;
            }
            Event::Closed { .. } => {
                model.num_open = model.num_open.saturating_sub(1);
                model.last_used_ms = now_ms;
            }
            Event::Loaded { bytes, .. } if model.is_loading() => model.loaded(bytes, now_ms),
            Event::Loaded { .. } => {}
            Event::Failed { why, .. } if model.is_loading() || model.is_loaded() => {
                model.failed(why, &self.settings, now_ms);
                self.queue.retain(|queued| *queued != id);
            }
            Event::Unreadable { why, .. }
                if model.phase == Phase::Unloaded && !model.is_in_backoff(now_ms) =>
            {
                model.is_load_asked = false;
                model.failed(why, &self.settings, now_ms);
                self.queue.retain(|queued| *queued != id);
            }
            Event::Unreadable { .. } => {}
            // A model that fails while it is unloaded has gone, too.
            Event::Failed { .. } | Event::Unloaded { .. } if model.phase != Phase::Unloaded => {
                model.unloaded();
            }
            Event::Failed { .. } | Event::Unloaded { .. } => {}
            Event::LoadAsked { .. } => {
                model.failure = None;
                model.is_unload_asked = false;
                model.is_load_asked = true;
                self.enqueue(id);
            }
            Event::UnloadAsked { .. } => {
                model.is_unload_asked =
                    !model.settings.is_pinned && (model.is_loaded() || model.is_loading());
                self.queue.retain(|queued| *queued != id);
            }
            Event::Pinned { is_pinned, .. } => {
                model.settings.is_pinned = is_pinned;
                model.is_unload_asked &= !is_pinned;
            }
            Event::Removed { .. } => {
                (model.is_removed, model.settings.is_pinned) = (true, false);
                model.is_unload_asked = model.is_loaded() || model.is_loading();
                self.queue.retain(|queued| *queued != id);
            }
        }
    }

    fn add(&mut self, id: ModelId, settings: ModelSettings) {
        let Some(model) = self.models.get_mut(&id) else {
            self.models.insert(id, Model::new(settings));
            return;
        };
        if model.is_removed {
            return;
        }
        model.keep_alive = settings.keep_alive;
        model.is_unload_asked &= !settings.is_pinned;
        model.settings = settings;
        if model.phase == Phase::Unloaded {
            // It was measured with other settings.
            model.measured_bytes = None;
        }
    }

    /// Gives a model that a request waits for its place, unless it has one or cannot be loaded.
    fn enqueue(&mut self, model: ModelId) {
        if self.waits(model)
            && !self.models[&model].is_in_backoff(self.now_ms)
            && !self.queue.contains(&model)
        {
            self.queue.push_back(model);
        }
    }

    /// Returns true if a wanted model has to wait for a turn, and can have one.
    fn waits(&self, id: ModelId) -> bool {
        let model = &self.models[&id];
        let comes = model.may_begin() || (model.is_loading() && !model.is_unload_asked);
        !comes && self.too_large(id, model).is_none()
    }

    fn too_large(&self, id: ModelId, model: &Model) -> Option<TooLarge> {
        let pinned = self.models.iter().filter(|(other, model)| **other != id && model.settings.is_pinned);
        let pinned_bytes = sum(pinned.map(|(_, model)| model.used_bytes()));
        let limit_bytes = self.settings.limit_bytes;
        let bytes = model.bytes();
        (bytes > limit_bytes.saturating_sub(pinned_bytes)).then_some(TooLarge {
            bytes,
            limit_bytes,
            pinned_bytes,
        })
    }

    /// Returns the model whose turn it is. A model that still drains is overtaken and keeps its place.
    fn next(&self) -> Option<ModelId> {
        self.queue.iter().copied().find(|model| self.waits(*model) && !self.models[model].is_loaded())
    }

    /// Unloads the idle models that an administrator asked for, or whose keep-alive has ended.
    fn unload_leaving(&mut self, actions: &mut Vec<Action>) {
        for (id, model) in &mut self.models {
            let is_asked = model.is_loaded() && model.is_unload_asked && model.num_open == 0;
            if is_asked || model.expires_at(&self.settings).is_some_and(|at_ms| at_ms <= self.now_ms) {
                model.unload();
                actions.push(Action::Unload(*id));
            }
        }
    }

    /// Unloads idle models, or drains busy ones, so that there will be room for a model of this size. Takes back the
    /// drains that are no longer needed.
    fn make_room(&mut self, bytes: u64, actions: &mut Vec<Action>) {
        let limit_bytes = self.settings.limit_bytes;
        let used_bytes = self.used_bytes();
        // Models that are larger than estimated leave no time for waiting.
        let is_urgent = used_bytes > limit_bytes;
        let wanted_bytes = if is_urgent { 0 } else { bytes };
        let leaving_bytes =
            sum(self.models.values().filter(|model| model.is_leaving()).map(Model::used_bytes));
        let missing_bytes =
            (used_bytes - leaving_bytes).saturating_add(wanted_bytes).saturating_sub(limit_bytes);
        let mut victims = choose(self.candidates(is_urgent), missing_bytes);
        if !is_urgent && sum(victims.iter().map(|victim| victim.bytes)) < missing_bytes {
            victims.clear();
        }
        for (id, model) in &mut self.models {
            model.is_victim = victims.iter().any(|victim| victim.model == *id);
            if model.is_victim && model.num_open == 0 {
                model.unload();
                actions.push(Action::Unload(*id));
            }
        }
    }

    fn candidates(&self, is_urgent: bool) -> Vec<Candidate> {
        let may_leave = |model: &Model| {
            model.leaves_at(&self.settings).is_some_and(|at_ms| is_urgent || at_ms <= self.now_ms)
        };
        let value = |model: &Model| Value {
            is_busy: model.num_open > 0,
            is_open: !model.is_victim,
            priority: model.settings.priority,
            last_used_ms: model.last_used_ms,
        };
        let models = self.models.iter().filter(|(_, model)| may_leave(model));
        models
            .map(|(id, model)| Candidate { model: *id, bytes: model.used_bytes(), value: value(model) })
            .collect()
    }
}

/// Estimates come from outside, so their sum is bounded.
fn sum(bytes: impl Iterator<Item = u64>) -> u64 {
    bytes.fold(0, u64::saturating_add)
}
