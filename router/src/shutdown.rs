//! The three phases of a server's life, and who is told of them.

use tokio::sync::watch;

/// Where the server is in its life; it only goes forward.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Phase {
    /// Admits requests.
    #[default]
    Serving,
    /// Finishes what runs and admits nothing new.
    Draining,
    /// The time to finish is over: every open request is answered with an error.
    Terminating,
}

/// Moves the phase forward.
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
    /// A view of the phase.
    pub fn subscribe(&self) -> watch::Receiver<Phase> {
        self.phase.subscribe()
    }

    /// Enters `phase` unless it is passed already.
    pub fn enter(&self, phase: Phase) {
        self.phase.send_if_modified(|now| {
            let forward = *now < phase;
            *now = phase.max(*now);
            forward
        });
    }
}
