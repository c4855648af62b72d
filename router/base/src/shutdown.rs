//! The phases of a server's life, and a channel that announces them.

use tokio::sync::watch;

/// The phase of the server. It only moves forward.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Phase {
    /// New requests are admitted.
    #[default]
    Serving,
    /// Open requests are finished, and no new ones are admitted.
    Draining,
    /// The time for draining is over, and every open request is answered with an error.
    Terminating,
}

/// The sender of the phase.
#[derive(Debug)]
pub struct Shutdown {
    phase: watch::Sender<Phase>,
}

impl Default for Shutdown {
    fn default() -> Self {
        Self { phase: watch::channel(Phase::Serving).0 }
    }
}

impl Shutdown {
    pub fn subscribe(&self) -> watch::Receiver<Phase> {
        self.phase.subscribe()
    }

    /// Enters `phase`, unless the server is already in it or in a later one.
    pub fn enter(&self, phase: Phase) {
        self.phase.send_if_modified(|now| {
            let forward = *now < phase;
            *now = phase.max(*now);
            forward
        });
    }
}
