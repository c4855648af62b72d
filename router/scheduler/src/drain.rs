//! Empties a lane whose shard will be stopped, without ending a sequence.
//!
//! A lane that drains takes no sequence while another one serves. What runs there goes on for a while; then it goes
//! back to the queue as after a preemption, and another lane takes it. If no other lane serves, nothing leaves.

use crate::lane::{Drain, Lane};
use crate::lifecycle::Lifecycle;

/// Returns true if the lane leaves all waiting sequences to others.
pub(crate) fn leaves_all(parts: &Lifecycle<'_>) -> bool {
    parts.lane.drain.is_some() && parts.others.iter().any(Lane::serves)
}

/// Begins a drain, or ends it. Sequences that wait for a prefix on the lane may find it on another one.
pub(crate) fn set_drain(parts: &mut Lifecycle<'_>, patience_ms: Option<u64>) {
    parts.lane.drain = patience_ms.map(|ms| Drain { until: parts.now.plus(ms), is_due: false });
    if leaves_all(parts) {
        for key in parts.lane.running.keys().to_vec() {
            parts.wake_waiters(key, None);
        }
    }
}

/// Preempts what runs on a lane whose time to drain is over, except sequences that no other lane takes, or whose last
/// token is in flight.
pub(crate) fn preempt_overdue(parts: &mut Lifecycle<'_>) {
    let now = parts.now;
    let Some(drain) = parts.lane.drain.as_mut().filter(|drain| drain.until <= now) else { return };
    drain.is_due = true;
    for key in parts.lane.running.keys().to_vec() {
        let sequence = &parts.sequences[key];
        let goes_on = !sequence.is_running()
            || sequence.is_finishing(sequence.run())
            || !parts.others.iter().any(|lane| lane.serves() && lane.shard().takes(sequence));
        if !goes_on {
            parts.preempt(key);
        }
    }
}
