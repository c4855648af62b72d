//! Counts warnings that repeat, in place of writing each of them.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tracing::callsite::Identifier;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

use crate::trace::ACCESS_LOG;

/// The time after which warnings are written again, and those that were left out are reported.
pub const PERIOD: Duration = Duration::from_secs(10);
/// The lines that one place in the code writes in a period.
pub const MAX_LINES: u64 = 5;
/// Characters of a message that are kept for the report.
const MAX_KEPT_CHARS: usize = 200;

/// Lets warnings and errors pass until a place in the code has written [`MAX_LINES`] of them in this period, and counts
/// the rest. Lines of which each request has one always pass.
///
/// It holds one entry for each place, whatever the texts are. Less severe events never reach its lock.
#[derive(Clone, Default)]
pub struct Repeats {
    places: Arc<Mutex<HashMap<Identifier, Place>>>,
}

/// Events of one place in the code.
#[derive(Debug)]
pub struct Place {
    pub metadata: &'static Metadata<'static>,
    /// The message of the first of them.
    pub message: String,
    pub num_events: u64,
}

impl Repeats {
    /// Begins a new period and returns the events that were not written in the last one.
    pub fn next_period(&self) -> Vec<Place> {
        let places = std::mem::take(&mut *self.lock()).into_values();
        let left_out = places.filter(|place| place.num_events > MAX_LINES);
        left_out.map(|place| Place { num_events: place.num_events - MAX_LINES, ..place }).collect()
    }

    /// Counts an event. Returns true if it is written.
    fn admits(&self, event: &Event<'_>) -> bool {
        let metadata = event.metadata();
        if let Some(place) = self.lock().get_mut(&metadata.callsite()) {
            return place.count();
        }
        // Formatting a message runs others' code, which may log or panic, so the lock is free meanwhile.
        let mut message = Message::default();
        event.record(&mut message);
        let new = Place { metadata, message: message.0, num_events: 0 };
        self.lock().entry(metadata.callsite()).or_insert(new).count()
    }

    /// Locks the counts even if a holder panicked: they are only counts.
    fn lock(&self) -> MutexGuard<'_, HashMap<Identifier, Place>> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Place {
    /// Counts an event. Returns true if it is written.
    fn count(&mut self) -> bool {
        self.num_events += 1;
        self.num_events <= MAX_LINES
    }
}

impl<S: Subscriber> Layer<S> for Repeats {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        let metadata = event.metadata();
        *metadata.level() > Level::WARN || metadata.target() == ACCESS_LOG || self.admits(event)
    }
}

/// The beginning of an event's message.
#[derive(Default)]
struct Message(String);

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            self.0 = format!("{value:?}").chars().take(MAX_KEPT_CHARS).collect();
        }
    }
}
