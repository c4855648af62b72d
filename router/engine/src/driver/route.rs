//! Sends the scheduler's updates to their requests.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::mpsc::error::TrySendError;
use trunkline_base::limits::MAX_WAITING_TOKENS;
use trunkline_scheduler::{Event, SampledToken, SequenceId, Update};

use super::{Driver, SequenceUpdate};

/// If a request has this many unread tokens, the threads that write them get a turn before the next step.
const MANY_WAITING_TOKENS: usize = MAX_WAITING_TOKENS / 2;

impl Driver {
    /// Sends the scheduler's updates to their requests. If that aborts a request or forces its tokens, the new updates
    /// are sent too. All are published before, so that a client that has its answer finds it counted.
    pub(super) fn route(&mut self) {
        while !self.updates.is_empty() {
            self.publish();
            for update in std::mem::take(&mut self.updates) {
                match update {
                    Update::Started { id, cached_tokens, queued_ms, restored } => {
                        self.metrics.queue_seconds.observe(queued_ms as f64 / 1e3);
                        let time = Duration::from_micros(restored.time_us);
                        let restored = (restored.num_tokens > 0).then_some((restored.num_tokens, time));
                        self.tell(id, SequenceUpdate::Started { cached_tokens, restored });
                    }
                    Update::Pinned { id, pinned } => self.tell(id, SequenceUpdate::Pinned(pinned)),
                    Update::Scored { id, scores } => self.tell(id, SequenceUpdate::Scored(scores)),
                    Update::Drafted { id, num_drafts, num_accepted } => {
                        self.metrics.draft_tokens.observe(num_drafts.into());
                        self.tell(id, SequenceUpdate::Drafted { num_drafts, num_accepted });
                    }
                    Update::Token { id, token } => self.on_token(id, token),
                    Update::Pooled { id, vector } => self.tell(id, SequenceUpdate::Pooled(vector)),
                    Update::Awaits { id, token_ids, drafts } => {
                        if let Some(allowed) = self.constraints.follow(id, token_ids, drafts) {
                            let event = Event::Allow { id, allowed };
                            self.scheduler.handle(self.now(), event, &mut self.updates);
                        }
                    }
                    Update::Ended { id, reason, usage } => {
                        self.constraints.forget(id);
                        self.metrics.observe_end(&reason, usage);
                        self.tell(id, SequenceUpdate::Ended(reason));
                        self.clients.remove(&id);
                    }
                    Update::Rejected { id, reason, retry_after_ms } => {
                        self.constraints.forget(id);
                        self.tell(id, SequenceUpdate::Rejected { reason, retry_after_ms });
                        self.clients.remove(&id);
                    }
                }
            }
        }
    }

    fn on_token(&mut self, id: SequenceId, token: SampledToken) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        let now = self.turn;
        match client.last_token.replace(now) {
            None => self.metrics.ttft_seconds.observe((now - client.arrived).as_secs_f64()),
            Some(last) => self.metrics.itl_seconds.observe((now - last).as_secs_f64()),
        }
        self.tell(id, SequenceUpdate::Token(token));
    }

    /// Sends an update without waiting, and aborts the request if its buffer is full. If the request has closed its
    /// buffer, the update is dropped, because the request sends a command when it ends.
    pub(super) fn tell(&mut self, id: SequenceId, update: SequenceUpdate) {
        let Some(client) = self.clients.get(&id) else { return };
        match client.updates.try_send(update) {
            Ok(()) => {
                self.is_crowded |= client.updates.capacity() <= MAX_WAITING_TOKENS - MANY_WAITING_TOKENS;
            }
            Err(TrySendError::Closed(_)) => {}
            Err(TrySendError::Full(_)) => {
                client.overflowed.store(true, Ordering::Release);
                tracing::warn!(
                    sequence_id = id.0,
                    limit = MAX_WAITING_TOKENS,
                    "client reads too slowly, request aborted"
                );
                self.clients.remove(&id);
                self.constraints.forget(id);
                self.metrics.aborts.inc();
                self.scheduler.handle(self.now(), Event::Abort(id), &mut self.updates);
            }
        }
    }
}
