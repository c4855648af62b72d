//! The last events, numbered.

use std::collections::VecDeque;
use std::sync::Arc;

use trunkline_scheduler::KvEvent;

/// An event as it is kept.
#[derive(Debug, PartialEq)]
pub struct LoggedEvent {
    /// Counts from 0 in the life of this process.
    pub number: u64,
    /// When it was taken, in seconds since 1970.
    pub unix_seconds: f64,
    /// What happened.
    pub event: KvEvent,
}

/// Where a listener begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resume {
    /// What this process puts before the numbers of its events.
    pub epoch: Arc<str>,
    /// The first event that it gets.
    pub next: u64,
    /// It asked for what came after an event that is not known any more, or never was: what it knows holds no more.
    pub is_lost: bool,
}

/// The last events. Numbers grow by one; the names of events are `EPOCH-NUMBER`.
pub struct History {
    epoch: Arc<str>,
    events: VecDeque<Arc<LoggedEvent>>,
    next: u64,
    max_events: usize,
}

impl History {
    /// An empty one that keeps at most `max_events`.
    pub fn new(epoch: String, max_events: usize) -> Self {
        Self { epoch: epoch.into(), events: VecDeque::new(), next: 0, max_events }
    }

    /// Takes events in; returns the number of the next one.
    pub fn append(&mut self, unix_seconds: f64, events: Vec<KvEvent>) -> u64 {
        for event in events {
            if self.events.len() == self.max_events {
                self.events.pop_front();
            }
            self.events.push_back(Arc::new(LoggedEvent { number: self.next, unix_seconds, event }));
            self.next += 1;
        }
        self.next
    }

    /// At most `limit` events from `from` on. None: it is gone.
    pub fn read(&self, from: u64, limit: usize) -> Option<Vec<Arc<LoggedEvent>>> {
        let first = self.next - self.events.len() as u64;
        let skipped = usize::try_from(from.checked_sub(first)?).ok()?;
        Some(self.events.iter().skip(skipped).take(limit).cloned().collect())
    }

    /// Where a listener begins that saw the event `last_id` last, or none.
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
