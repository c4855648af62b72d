//! The requests' side of the driver: the commands that they send and the updates that they receive.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::mpsc::{self, OwnedPermit};
use tokio::sync::oneshot;
use tokio::time::Instant;
use trunkline_grammar::Constraint;
use trunkline_scheduler::{
    EndReason, Event, LaneId, Millis, Pinned, RejectReason, SampledToken, Scheduler, SequenceId,
    SequenceRequest, TenantShare, TenantWeight, TokenScore,
};

use trunkline_base::limits::MAX_WAITING_TOKENS;
use trunkline_base::trace::SpanIds;

/// An update that the driver sends to a request.
#[derive(Debug)]
pub enum SequenceUpdate {
    /// The scheduler received the sequence.
    Accepted,
    /// The scheduler rejected the sequence.
    Rejected {
        reason: RejectReason,
        /// The predicted time until a retry would be admitted.
        retry_after_ms: Option<u64>,
    },
    /// The first chunk of the prompt is in a plan.
    Started {
        /// Prompt tokens that were found in the KV index and need not be computed.
        cached_tokens: u32,
        /// The tokens among them that were read from the store, and the time that this took.
        restored: Option<(u32, Duration)>,
    },
    /// The part of the prompt that is pinned. Sent before the first token if the request asked for a pin.
    Pinned(Pinned),
    /// The next logprobs of the prompt. All of them are sent before the first token.
    Scored(Vec<TokenScore>),
    /// A step computed drafts; its tokens follow.
    Drafted {
        num_drafts: u32,
        num_accepted: u32,
    },
    Token(SampledToken),
    /// The vector of the prompt, if the sequence asked for it.
    Pooled(Vec<f32>),
    /// The sequence ended. No update follows.
    Ended(EndReason),
}

pub(super) enum Command {
    Submit(Box<Submission>),
    Finish(SequenceId),
    Abort(SequenceId),
    Drain { lane: LaneId, patience_ms: Option<u64> },
    Ask(Question),
}

/// A function that the driver calls with the scheduler between two steps.
pub(super) type Question = Box<dyn FnOnce(&mut Scheduler, Millis) + Send>;

/// A sequence to compute.
pub struct NewSequence {
    /// The computation. The driver sets `id`, `deadline` and `constrained`.
    pub request: SequenceRequest,
    /// The constraint of the grammar that the output must follow, before the first token.
    pub constraint: Option<Constraint>,
    /// The time at which the request arrived, from which the time to the first token is measured.
    pub arrived: Instant,
    /// The time at which the sequence is ended, even if it is still in the queue.
    pub deadline: Option<Instant>,
    /// The request's span, if it is sampled.
    pub span: Option<SpanIds>,
    pub request_id: Arc<str>,
}

pub(super) struct Submission {
    pub(super) sequence: NewSequence,
    pub(super) client: Client,
}

/// The driver's side of a request.
pub(super) struct Client {
    pub(super) updates: mpsc::Sender<SequenceUpdate>,
    pub(super) overflowed: Arc<AtomicBool>,
    pub(super) arrived: Instant,
    pub(super) last_token: Option<Instant>,
    pub(super) span: Option<SpanIds>,
    pub(super) request_id: Arc<str>,
}

/// Submits sequences to the driver. Cheap to clone.
#[derive(Clone, Debug)]
pub struct DriverHandle {
    commands: mpsc::Sender<Command>,
    next_id: Arc<AtomicU64>,
}

/// The error when the driver is gone. The process is then about to end.
#[derive(Debug, thiserror::Error)]
#[error("the driving task is gone")]
pub struct DriverGone;

impl DriverHandle {
    pub(super) fn new(commands: mpsc::Sender<Command>) -> Self {
        Self { commands, next_id: Arc::new(AtomicU64::new(1)) }
    }

    /// Submits a sequence to the driver under a new id.
    pub async fn submit(&self, mut sequence: NewSequence) -> Result<Sequence, DriverGone> {
        let id = SequenceId(self.next_id.fetch_add(1, Ordering::Relaxed));
        sequence.request.id = id;
        let (updates, received) = mpsc::channel(MAX_WAITING_TOKENS);
        let overflowed = Arc::new(AtomicBool::new(false));
        let client = Client {
            updates,
            overflowed: overflowed.clone(),
            arrived: sequence.arrived,
            last_token: None,
            span: sequence.span,
            request_id: sequence.request_id.clone(),
        };
        // The slot for the end is reserved before the submission is sent, so an abort is never lost and never waits.
        let end = self.commands.clone().reserve_owned().await.map_err(|_| DriverGone)?;
        let submit = self.commands.reserve().await.map_err(|_| DriverGone)?;
        submit.send(Command::Submit(Box::new(Submission { sequence, client })));
        Ok(Sequence { id, end: Some(end), updates: received, overflowed })
    }

    /// Calls `question` with the scheduler between two steps and returns its result. It must be quick, because all
    /// streams wait for it.
    pub async fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&mut Scheduler, Millis) -> T + Send + 'static,
    ) -> Result<T, DriverGone> {
        let (answer, answered) = oneshot::channel();
        let question: Question = Box::new(move |scheduler, now| {
            // The caller may be gone.
            let _ = answer.send(question(scheduler, now));
        });
        self.commands.send(Command::Ask(question)).await.map_err(|_| DriverGone)?;
        answered.await.map_err(|_| DriverGone)
    }

    /// Begins to drain a lane, or ends its drain; see [`Event::Drain`].
    pub async fn set_drain(&self, lane: LaneId, patience_ms: Option<u64>) {
        // If this fails, the driver has ended, and nothing runs on any lane.
        let _ = self.commands.send(Command::Drain { lane, patience_ms }).await;
    }

    /// Changes the tenants' shares of the KV cache and their weights in the queue.
    pub async fn set_weights(&self, shares: Vec<TenantShare>, weights: Vec<TenantWeight>) {
        let set = |scheduler: &mut Scheduler, now| {
            for event in [Event::Shares(shares), Event::Weights(weights)] {
                scheduler.handle(now, event, &mut Vec::new());
            }
        };
        // It fails only if the process is about to end.
        let _ = self.ask(set).await;
    }
}

/// A submitted sequence, as its request holds it. Dropping it aborts the sequence.
pub struct Sequence {
    pub(super) id: SequenceId,
    end: Option<OwnedPermit<Command>>,
    updates: mpsc::Receiver<SequenceUpdate>,
    overflowed: Arc<AtomicBool>,
}

impl Sequence {
    /// Returns the next update, or `None` after the last one. It is also `None` if the driver aborted the sequence
    /// because its buffer was full (see `overflowed`).
    pub async fn next(&mut self) -> Option<SequenceUpdate> {
        self.updates.recv().await
    }

    /// Polls for the next update, like `next`.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<SequenceUpdate>> {
        self.updates.poll_recv(cx)
    }

    /// Ends the sequence early, for example after a stop string. Its computed blocks stay in the KV index.
    pub fn finish(&mut self) {
        if let Some(slot) = self.end.take() {
            slot.send(Command::Finish(self.id));
        }
    }

    /// Returns true if the driver aborted the sequence because too many updates were unread.
    pub fn overflowed(&self) -> bool {
        self.overflowed.load(Ordering::Acquire)
    }
}

impl Drop for Sequence {
    fn drop(&mut self) {
        if let Some(slot) = self.end.take() {
            slot.send(Command::Abort(self.id));
        }
    }
}
