use crate::event::{KeepAlive, ModelSettings, Settings};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Unloaded,
    Loading { since_ms: u64 },
    Loaded { since_ms: u64 },
    Unloading,
}

#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) why: String,
    pub(crate) retry_at_ms: u64,
}

/// A model, as far as it is known.
#[derive(Debug)]
pub(crate) struct Model {
    pub(crate) settings: ModelSettings,
    pub(crate) phase: Phase,
    /// The size at the last load, if it was measured.
    pub(crate) measured_bytes: Option<u64>,
    pub(crate) num_open: u32,
    /// The time of the load, or of the last request that began, ended or was wanted since.
    pub(crate) last_used_ms: u64,
    /// True if a request has begun since the load. Until then the requests that wanted the model may be on their way.
    pub(crate) was_used: bool,
    /// The keep-alive of the present stay.
    pub(crate) keep_alive: KeepAlive,
    /// True if the model is unloaded as soon as it can be, because an administrator asked for it.
    pub(crate) is_unload_asked: bool,
    /// True if an administrator has asked for the load that is to come.
    pub(crate) is_load_asked: bool,
    /// True if the model is forgotten once it has left the memory.
    pub(crate) is_removed: bool,
    /// True if the model drains for the first one of the queue.
    pub(crate) is_victim: bool,
    /// The last failure, until a load succeeds.
    pub(crate) failure: Option<Failure>,
    /// Failures in a row, which the back-off depends on.
    num_failures: u32,
}

impl Model {
    pub(crate) fn new(settings: ModelSettings) -> Self {
        Self {
            keep_alive: settings.keep_alive,
            settings,
            phase: Phase::Unloaded,
            measured_bytes: None,
            num_open: 0,
            last_used_ms: 0,
            was_used: false,
            is_unload_asked: false,
            is_load_asked: false,
            is_removed: false,
            is_victim: false,
            failure: None,
            num_failures: 0,
        }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.measured_bytes.unwrap_or(self.settings.bytes)
    }

    /// Returns the bytes that the model holds at present.
    pub(crate) fn used_bytes(&self) -> u64 {
        if self.phase == Phase::Unloaded { 0 } else { self.bytes() }
    }

    pub(crate) fn is_loaded(&self) -> bool {
        matches!(self.phase, Phase::Loaded { .. })
    }

    pub(crate) fn is_loading(&self) -> bool {
        matches!(self.phase, Phase::Loading { .. })
    }

    pub(crate) fn may_begin(&self) -> bool {
        self.is_loaded() && !self.is_unload_asked && !self.is_victim
    }

    /// Returns true if the model's memory will be free without any further decision.
    pub(crate) fn is_leaving(&self) -> bool {
        self.phase == Phase::Unloading || (self.phase != Phase::Unloaded && self.is_unload_asked)
    }

    /// Returns the time from which on a loaded model may be unloaded or drained for another one, if ever.
    pub(crate) fn leaves_at(&self, settings: &Settings) -> Option<u64> {
        let Phase::Loaded { since_ms } = self.phase else { return None };
        if self.settings.is_pinned || self.is_unload_asked {
            return None;
        }
        let stayed_at = since_ms.saturating_add(settings.min_stay_ms);
        if self.num_open > 0 || !self.was_used {
            return Some(stayed_at);
        }
        Some(stayed_at.min(self.last_used_ms.saturating_add(settings.min_idle_ms)))
    }

    /// Returns the time when the keep-alive of an idle model ends, if it does.
    pub(crate) fn expires_at(&self, settings: &Settings) -> Option<u64> {
        let KeepAlive::For(keep_alive_ms) = self.keep_alive else { return None };
        if !self.is_loaded() || self.num_open > 0 || self.settings.is_pinned {
            return None;
        }
        let least_ms = if self.was_used { 0 } else { settings.min_stay_ms };
        Some(self.last_used_ms.saturating_add(keep_alive_ms.max(least_ms)))
    }

    pub(crate) fn is_in_backoff(&self, now_ms: u64) -> bool {
        self.failure.as_ref().is_some_and(|failure| now_ms < failure.retry_at_ms)
    }

    /// A load begins.
    pub(crate) fn load(&mut self, now_ms: u64) {
        self.phase = Phase::Loading { since_ms: now_ms };
        self.is_load_asked = false;
    }

    /// The load has succeeded.
    pub(crate) fn loaded(&mut self, bytes: Option<u64>, now_ms: u64) {
        self.phase = Phase::Loaded { since_ms: now_ms };
        self.measured_bytes = bytes.or(self.measured_bytes);
        self.last_used_ms = now_ms;
        self.was_used = false;
        self.failure = None;
    }

    /// An unload begins.
    pub(crate) fn unload(&mut self) {
        self.phase = Phase::Unloading;
        self.is_unload_asked = false;
        self.is_victim = false;
        // A keep-alive that a request sets from now on is that of the next stay.
        self.keep_alive = self.settings.keep_alive;
    }

    /// The model left as it was told to.
    pub(crate) fn unloaded(&mut self) {
        if self.phase != Phase::Unloading {
            self.unload();
        }
        self.phase = Phase::Unloaded;
        self.num_failures = 0;
    }

    /// The model failed while it was loading or loaded. Only a long stay ends the row of failures, so that a model that
    /// loads but crashes at its first request is backed off from, too.
    pub(crate) fn failed(&mut self, why: String, settings: &Settings, now_ms: u64) {
        let stay_ms = match self.phase {
            Phase::Loaded { since_ms } => now_ms - since_ms,
            _ => 0,
        };
        let num_before = if stay_ms > settings.max_backoff_ms { 0 } else { self.num_failures };
        self.unload();
        self.phase = Phase::Unloaded;
        self.num_failures = num_before.saturating_add(1);
        let factor = 1_u64 << num_before.min(63);
        let backoff_ms = settings.backoff_ms.saturating_mul(factor).min(settings.max_backoff_ms);
        self.failure = Some(Failure { why, retry_at_ms: now_ms.saturating_add(backoff_ms) });
    }
}
