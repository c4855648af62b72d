use std::fmt;

/// Identifies a model. The owner chooses the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ModelId(pub u32);

/// What holds for all models.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The memory that all models may use together.
    pub limit_bytes: u64,
    /// The time that a model stays after its load before it must leave for another one.
    pub min_stay_ms: u64,
    /// A model that has served a request since its load leaves earlier if it has been idle for this time. It covers
    /// the pause between two requests of one client, so that two clients with short requests do not swap at each one.
    pub min_idle_ms: u64,
    /// The time after a failure before the model is loaded again. It doubles with each further failure.
    pub backoff_ms: u64,
    pub max_backoff_ms: u64,
}

#[derive(Clone, Debug)]
pub struct ModelSettings {
    /// The estimated size, which includes all that the model's processes allocate.
    pub bytes: u64,
    /// True if the model, once loaded, is never unloaded.
    pub is_pinned: bool,
    /// Models of a lower priority are evicted first.
    pub priority: i32,
    pub keep_alive: KeepAlive,
}

/// How long a model stays loaded after its last request if nothing else needs its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeepAlive {
    Forever,
    /// In milliseconds. With 0 the model is unloaded when its last request ends.
    For(u64),
}

/// Something that has happened. Events of a model that was not added have no effect.
#[derive(Clone, Debug)]
pub enum Event {
    /// A model exists, or its settings have changed.
    Added {
        model: ModelId,
        settings: ModelSettings,
    },
    /// A request waits for the model.
    Wanted {
        model: ModelId,
    },
    /// No request waits for the model any more.
    Left {
        model: ModelId,
    },
    /// A request sets the keep-alive of the model's present stay. It is to be reported after [`Event::Opened`], since
    /// an idle model without any time left is unloaded at once.
    KeepAlive {
        model: ModelId,
        keep_alive: KeepAlive,
    },
    /// A request begins on the model, which [`Residency::may_begin`](crate::Residency::may_begin) allowed.
    Opened {
        model: ModelId,
    },
    /// A request on the model has ended. Each opened request is closed once, also if the model failed meanwhile.
    Closed {
        model: ModelId,
    },
    /// A load has succeeded. `bytes` is the measured size, which counts from now on instead of the estimate.
    Loaded {
        model: ModelId,
        bytes: Option<u64>,
    },
    /// A load has failed, or a loaded model has. The model's memory is free.
    Failed {
        model: ModelId,
        why: String,
    },
    /// The model's files cannot be read, which its owner has found out apart from any load. A model that is not in
    /// memory has failed then.
    Unreadable {
        model: ModelId,
        why: String,
    },
    /// The model's memory is free.
    Unloaded {
        model: ModelId,
    },
    /// An administrator wants the model loaded, at once even if it has just failed.
    LoadAsked {
        model: ModelId,
    },
    /// An administrator wants the model unloaded once its requests have ended. A pinned model stays.
    UnloadAsked {
        model: ModelId,
    },
    Pinned {
        model: ModelId,
        is_pinned: bool,
    },
    /// The model exists no more. It leaves the memory once its requests have ended, and is forgotten then.
    Removed {
        model: ModelId,
    },
    /// The time of [`Residency::next_wakeup`](crate::Residency::next_wakeup) has come.
    Woke,
}

impl Event {
    pub(crate) fn model(&self) -> Option<ModelId> {
        match self {
            Self::Added { model, .. }
            | Self::Wanted { model }
            | Self::Left { model }
            | Self::KeepAlive { model, .. }
            | Self::Opened { model }
            | Self::Closed { model }
            | Self::Loaded { model, .. }
            | Self::Failed { model, .. }
            | Self::Unreadable { model, .. }
            | Self::Unloaded { model }
            | Self::LoadAsked { model }
            | Self::UnloadAsked { model }
            | Self::Pinned { model, .. }
            | Self::Removed { model } => Some(*model),
            Self::Woke => None,
        }
    }
}

/// An order to the owner. A load ends with [`Event::Loaded`] or [`Event::Failed`], an unload with
/// [`Event::Unloaded`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Load(ModelId),
    Unload(ModelId),
}

/// What a client is told about a model. Requests begin on it only in [`State::Loaded`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    Unloaded,
    /// The model waits for its turn behind `place` other models.
    Queued {
        place: usize,
    },
    Loading {
        since_ms: u64,
    },
    Loaded {
        num_open: u32,
        last_used_ms: u64,
    },
    /// The model is unloaded when its load or its open requests have ended. It has a place in the queue if it is wanted
    /// again.
    Draining {
        num_open: u32,
        place: Option<usize>,
    },
    Unloading {
        place: Option<usize>,
    },
    Failed {
        why: String,
        retry_at_ms: u64,
    },
    TooLarge(TooLarge),
    /// The model was removed, and is about to leave the memory.
    Removed,
}

/// Why a model cannot be loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLarge {
    pub bytes: u64,
    pub limit_bytes: u64,
    /// The memory that pinned models hold.
    pub pinned_bytes: u64,
}

impl fmt::Display for TooLarge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the model needs {} bytes, but all models may use {}", self.bytes, self.limit_bytes)?;
        if self.pinned_bytes > 0 {
            write!(f, ", and pinned ones hold {} of them", self.pinned_bytes)?;
        }
        Ok(())
    }
}
