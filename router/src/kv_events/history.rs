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
pub(super) struct History {
    epoch: Arc<str>,
    events: VecDeque<Arc<LoggedEvent>>,
    next: u64,
    max_events: usize,
}

impl History {
    pub(super) fn new(epoch: String, max_events: usize) -> Self {
        Self { epoch: epoch.into(), events: VecDeque::new(), next: 0, max_events }
    }

    /// Takes events in; returns the number of the next one.
    pub(super) fn append(&mut self, unix_seconds: f64, events: Vec<KvEvent>) -> u64 {
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
    pub(super) fn read(&self, from: u64, limit: usize) -> Option<Vec<Arc<LoggedEvent>>> {
        let first = self.next - self.events.len() as u64;
        let skipped = usize::try_from(from.checked_sub(first)?).ok()?;
        Some(self.events.iter().skip(skipped).take(limit).cloned().collect())
    }

    /// Where a listener begins that saw the event `last_id` last, or none.
    pub(super) fn resume(&self, last_id: Option<&str>) -> Resume {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(history: &History, from: u64) -> Option<Vec<u64>> {
        let events = history.read(from, 10)?;
        Some(events.iter().map(|event| event.number).collect())
    }

    #[test]
    fn the_last_events_are_kept() {
        let mut history = History::new("e".into(), 3);
        assert_eq!(numbers(&history, 0), Some(vec![]));
        assert_eq!(history.append(1.0, vec![KvEvent::AllBlocksCleared; 2]), 2);
        assert_eq!(numbers(&history, 0), Some(vec![0, 1]));
        assert_eq!(history.append(2.0, vec![KvEvent::AllBlocksCleared; 3]), 5);
        assert_eq!(numbers(&history, 1), None);
        assert_eq!(numbers(&history, 2), Some(vec![2, 3, 4]));
        assert_eq!(numbers(&history, 5), Some(vec![]));
        assert_eq!(history.read(2, 1).unwrap().len(), 1);
    }

    #[test]
    fn who_comes_back_goes_on_or_is_told_that_it_cannot() {
        let mut history = History::new("e".into(), 3);
        history.append(1.0, vec![KvEvent::AllBlocksCleared; 5]);
        let begin = |last_id| {
            let resume = history.resume(last_id);
            (resume.next, resume.is_lost)
        };
        assert_eq!(begin(None), (5, false));
        assert_eq!(begin(Some("e-4")), (5, false));
        assert_eq!(begin(Some("e-1")), (2, false));
        let unknown =
            ["e-0", "e-5", "f-4", "4", "", "e-", "e--1", "e-18446744073709551615", "e-99999999999999999999"];
        for last_id in unknown {
            assert_eq!(begin(Some(last_id)), (5, true), "{last_id}");
        }
    }
}
