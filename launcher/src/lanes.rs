//! The lanes of a pair that its router leaves empty, and what callers of `trunkline lanes` wait for.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use trunkline_settings::Order;

use crate::caller::LaneState;
use crate::child::{ChildId, ShardId};
use crate::log::Log;
use crate::process::Process;

/// The state of a lane that a caller waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Goal {
    Drained(ShardId),
    Serving(ShardId),
}

/// Why a lane is not drained or added.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LaneError {
    #[error("the server is not ready yet; hint: try again later")]
    NotReady,
    #[error("a reload is under way; hint: try again later")]
    Reloads,
    #[error("the server has no model of this name, only {names}")]
    UnknownModel { names: String },
    #[error("the model has the lanes 0 to {last}")]
    Unknown { last: usize },
    #[error("the lane is gone, because the server was reloaded or the model removed")]
    Gone,
    #[error("no other lane serves; hint: add another one first, or stop the server")]
    Last,
    #[error("it serves already")]
    Serves,
    #[error("the model is not in memory; hint: load it before, for example with a request")]
    Unloaded,
    #[error("its shard crashed too often; hint: see the log of the server")]
    GivenUp,
    #[error("the lane was added again meanwhile")]
    AddedAgain,
    #[error("the lane was drained again meanwhile")]
    DrainedAgain,
}

impl Goal {
    /// Returns the outcome if a lane in this state has reached the goal, or will not reach it.
    pub(crate) fn outcome(self, state: LaneState) -> Option<Result<(), LaneError>> {
        match (self, state) {
            (Self::Drained(_), LaneState::Drained)
            | (Self::Serving(_), LaneState::Serves | LaneState::Elsewhere) => Some(Ok(())),
            (Self::Drained(_), LaneState::Drains)
            | (Self::Serving(_), LaneState::Starts | LaneState::Restarts | LaneState::Waits) => None,
            (Self::Drained(_), _) => Some(Err(LaneError::AddedAgain)),
            (Self::Serving(_), LaneState::Drains | LaneState::Drained) => Some(Err(LaneError::DrainedAgain)),
            (Self::Serving(_), LaneState::Unloaded) => Some(Err(LaneError::Unloaded)),
            (Self::Serving(_), LaneState::GivenUp) => Some(Err(LaneError::GivenUp)),
        }
    }

    pub(crate) fn shard(self) -> ShardId {
        match self {
            Self::Drained(shard) | Self::Serving(shard) => shard,
        }
    }
}

/// The lanes that a router leaves empty, by the places of their shards.
#[derive(Debug, Default)]
pub(crate) struct Drains(BTreeMap<ShardId, Drain>);

#[derive(Debug)]
struct Drain {
    /// The path of the socket on which the shard listens.
    socket: PathBuf,
    /// The time for which its sequences may go on.
    patience: Duration,
    /// True once the router has reported that nothing is left on the lane.
    is_empty: bool,
    /// The time at which the shard is killed, if it was told to stop.
    kill_at: Option<Instant>,
    /// True if the lane is added again once its shard has stopped.
    starts_again: bool,
}

impl Drains {
    pub(crate) fn has(&self, lane: ShardId) -> bool {
        self.0.contains_key(&lane)
    }

    pub(crate) fn is_empty(&self, lane: ShardId) -> bool {
        self.0.get(&lane).is_some_and(|drain| drain.is_empty)
    }

    /// Lets the router empty the lane whose shard has this socket, within this time.
    pub(crate) fn begin(
        &mut self,
        lane: ShardId,
        socket: PathBuf,
        patience: Duration,
        router: Option<&Process>,
        log: &Log,
    ) {
        let new = Drain { socket, patience, is_empty: false, kill_at: None, starts_again: false };
        let drain = self.0.entry(lane).or_insert(new);
        drain.starts_again = false;
        send(&drain.order(), router, log);
    }

    /// Lets the router use a lane again. Returns false if its shard has to stop before, after which [`Self::ended`]
    /// returns true.
    pub(crate) fn end(&mut self, lane: ShardId, router: Option<&Process>, log: &Log) -> bool {
        if let Some(drain) = self.0.get_mut(&lane)
            && drain.kill_at.is_some()
        {
            drain.starts_again = true;
            return false;
        }
        if let Some(drain) = self.0.remove(&lane) {
            send(&Order::Undrain { socket: drain.socket }, router, log);
        }
        true
    }

    /// Gives a router that was started again the orders of the one before.
    pub(crate) fn repeat(&self, router: &Process, log: &Log) {
        self.0.values().for_each(|drain| send(&drain.order(), Some(router), log));
    }

    /// Notes that nothing is left on a lane.
    pub(crate) fn emptied(&mut self, lane: ShardId) {
        if let Some(drain) = self.0.get_mut(&lane) {
            drain.is_empty = true;
        }
    }

    /// Notes that the shard of a lane has ended. Returns true if it should be started again.
    pub(crate) fn ended(&mut self, lane: ShardId) -> bool {
        let Some(drain) = self.0.get_mut(&lane) else { return false };
        drain.kill_at = None;
        drain.starts_again
    }

    /// Stops the shards among these processes whose lanes are empty, and kills those that have not stopped within
    /// `patience`.
    pub(crate) fn stop<'a>(
        &mut self,
        processes: impl Iterator<Item = &'a Process>,
        patience: Duration,
        log: &Log,
    ) {
        let now = Instant::now();
        for process in processes {
            let ChildId::Shard(shard) = process.id() else { continue };
            let Some(drain) = self.0.get_mut(&shard).filter(|drain| drain.is_empty) else { continue };
            let (id, pid) = (process.id(), process.pid());
            match drain.kill_at {
                None => {
                    log.info("its lane is empty; stopping", &[("process", &id), ("pid", &pid)]);
                    process.signal(Signal::TERM);
                }
                Some(at) if at <= now => {
                    log.warn("did not stop in time and was killed", &[("process", &id), ("pid", &pid)]);
                    process.signal(Signal::KILL);
                }
                Some(_) => continue,
            }
            drain.kill_at = Some(now + patience);
        }
    }

    /// Returns the next time at which a shard is killed.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.0.values().filter_map(|drain| drain.kill_at).min()
    }
}

impl Drain {
    fn order(&self) -> Order {
        let patience_ms = u64::try_from(self.patience.as_millis()).unwrap_or(u64::MAX);
        Order::Drain { socket: self.socket.clone(), patience_ms }
    }
}

/// Sends an order. A router that is away gets it when it is started again.
fn send(order: &Order, router: Option<&Process>, log: &Log) {
    if let Some(router) = router
        && let Err(error) = router.order(order)
    {
        log.warn("cannot give an order", &[("process", &router.id()), ("error", &error)]);
    }
}
