//! The history of the latest events.

use std::collections::VecDeque;
use std::sync::Arc;

use trunkline_scheduler::{KvEvent, LaneId};

#[derive(Debug, PartialEq)]
pub struct LoggedEvent {
    /// The number of the event since the process started, from 0.
    pub number: u64,
    pub unix_seconds: f64,
    /// The lane whose KV cache has changed.
    pub lane: LaneId,
    pub event: KvEvent,
}

/// The position at which a listener starts to read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resume {
    /// The prefix of this process's event ids.
    pub epoch: Arc<str>,
    /// The number of the first event to read.
    pub next: u64,
    /// True if the listener asked to continue after an event that is not in the history. What it knows is then out of
    /// date.
    pub is_lost: bool,
}

/// The latest events, with consecutive numbers. An event's id is `EPOCH-NUMBER`.
pub struct History {
    epoch: Arc<str>,
    events: VecDeque<Arc<LoggedEvent>>,
    next: u64,
    max_events: usize,
}

impl History {
    pub fn new(epoch: String, max_events: usize) -> Self {
        Self { epoch: epoch.into(), events: VecDeque::new(), next: 0, max_events }
    }

    /// Appends events of a lane and returns the number of the next one.
    pub fn append(&mut self, unix_seconds: f64, lane: LaneId, events: Vec<KvEvent>) -> u64 {
        for event in events {
            if self.events.len() == self.max_events {
                self.events.pop_front();
            }
            self.events.push_back(Arc::new(LoggedEvent { number: self.next, unix_seconds, lane, event }));
            self.next += 1;
        }
        self.next
    }

    /// Returns at most `limit` events, starting with number `from`, or `None` if that one was dropped.
    pub fn read(&self, from: u64, limit: usize) -> Option<Vec<Arc<LoggedEvent>>> {
        let first = self.next - self.events.len() as u64;
        let skipped = usize::try_from(from.checked_sub(first)?).ok()?;
        Some(self.events.iter().skip(skipped).take(limit).cloned().collect())
    }

    /// Returns the position of a listener whose last event was `last_id`, or of a new one.
    pub fn resume(&self, last_id: Option<&str>) -> Resume {
        let now = Resume { epoch: self.epoch.clone(), next: self.next, is_lost: false };
        let Some(last_id) = last_id else { return now };
        let first = self.next - self.events.len() as u64;
        let number = last_id
            .strip_prefix(&*self.epoch)
            .and_then(|rest| rest.strip_prefix('-'))
            .and_then(|number| number.parse::<u64>().ok()?.checked_add(1));
        match number.filter(|next| (first..=self.next).contains(next)) {
            Some(next) => Resume { next, ..now },
            None => Resume { is_lost: true, ..now },
        }
    }
}
