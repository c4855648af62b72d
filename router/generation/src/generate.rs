//! A running request: submits the sequence, turns its tokens into text, finds stop strings, and yields one stream of
//! [`GenerationEvent`]s. Dialects render the stream; plain answers fold it.

use std::ops::AddAssign;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, SystemTime};

use tokio::sync::watch;
use tokio::time::Instant;
use trunkline_draft::Drafter;
use trunkline_scheduler::{EndReason, Pinned, SampledToken, SequenceRequest, Tier, TokenLogprob, TokenScore};
use trunkline_text::{DecodeSpecial, Detokenizer, TextStart, Tokenizer};

use super::failure::{bug, failed, rejected};
use super::place::Place;
use super::served::ServedModel;
use super::stops::Stops;
use crate::request::ready::{Delivery, GenerationRequest};
use trunkline_base::error::ApiError;
use trunkline_base::limits::{MAX_WAITING_TOKENS, ServerLimits};
use trunkline_base::request_id::RequestId;
use trunkline_base::shutdown::Phase;
use trunkline_base::trace::{MAX_TIMELINES, RequestTrace, Timeline, TokenCounts};
use trunkline_engine::driver::{DriverGone, DriverHandle, NewSequence, Sequence, SequenceUpdate};

/// The reason for which an output is complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinishReason {
    /// An end token of the model, or the end of a grammar.
    EndToken,
    /// A token of the request's `stop_token_ids`.
    StopToken { token_id: u32 },
    /// The limit of `max_new_tokens`, or of the context.
    Length,
    /// A stop string of the request.
    StopString {
        /// The index of the string in the request.
        index: usize,
    },
}

/// The token counts of a request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    pub prompt_tokens: u32,
    /// Generated tokens, an end token included.
    pub output_tokens: u32,
    pub cached_tokens: u32,
    /// The cached tokens that were not on the device.
    pub restored: RestoredTokens,
    /// The pinned tokens of the prompt, if the request asks for a pin.
    pub pinned: Option<Pinned>,
    /// Drafts that became part of the output.
    pub accepted_drafts: u32,
    /// Drafts that were computed in vain.
    pub rejected_drafts: u32,
    /// The time from the first step to the first token.
    pub prompt_time: Duration,
    /// The time from the first token to the last.
    pub output_time: Duration,
}

/// The prompt tokens that were read from each tier below the device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RestoredTokens {
    pub host: u32,
    pub disk: u32,
    /// Those that were downloaded for this request.
    pub object: u32,
}

impl RestoredTokens {
    /// Divides the last `num_restored` of the cached tokens. Those behind `num_local` were downloaded.
    fn of(cached_tokens: u32, num_restored: u32, num_local: Option<u32>, store: Tier) -> Self {
        let num_restored = num_restored.min(cached_tokens);
        let num_downloaded = num_local.map_or(0, |num_local| cached_tokens.saturating_sub(num_local));
        let object = num_downloaded.min(num_restored);
        let of_store = num_restored - object;
        match store {
            Tier::Host => Self { host: of_store, disk: 0, object },
            _ => Self { host: 0, disk: of_store, object },
        }
    }

    pub fn total(self) -> u32 {
        self.host + self.disk + self.object
    }
}

impl AddAssign for RestoredTokens {
    fn add_assign(&mut self, other: Self) {
        self.host += other.host;
        self.disk += other.disk;
        self.object += other.object;
    }
}

/// A generated token and its text.
#[derive(Debug, Clone, PartialEq)]
pub struct OutputToken {
    pub id: u32,
    /// The text that became certain with it, stop strings not considered. Empty in the middle of a character.
    pub text: String,
    /// Natural logarithm; 0 if logprobs were not asked for.
    pub logprob: f32,
    /// The likeliest tokens in its place.
    pub top_logprobs: Vec<TokenLogprob>,
    /// True if it is a control token, which has no text of its own.
    pub special: bool,
    /// True if it is an end token that ends the output.
    pub is_end: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Output {
    /// The token; `None` if the output ends without one.
    pub token: Option<OutputToken>,
    /// Text that no later token can change.
    pub text: String,
    /// The token counts and times up to here.
    pub so_far: Usage,
    /// Set on the last piece.
    pub finish: Option<(FinishReason, Usage)>,
}

/// A prompt and its logprobs.
#[derive(Debug, Default, PartialEq)]
pub struct ScoredPrompt {
    pub token_ids: Vec<u32>,
    /// The logprobs of all tokens but the first.
    pub scores: Vec<TokenScore>,
}

/// An event of a running request, which a dialect renders.
#[derive(Debug)]
pub enum GenerationEvent {
    /// The first step is planned. The usage has the prompt and its cached tokens.
    Started(Usage),
    /// The prompt's logprobs, if the request asks for them. They precede the first output.
    Prompt(Arc<ScoredPrompt>),
    Output(Output),
    /// The output failed; nothing follows.
    Failed(ApiError),
}

/// A running request, seen from its HTTP handler.
///
/// Turns the sequence's tokens into text. Dropping it aborts the sequence and releases its place, so a client that
/// disconnects needs no further handling.
pub struct Generation {
    sequence: Sequence,
    delivery: Delivery,
    max_new_tokens: u32,
    tokenizer: Arc<Tokenizer>,
    detokenizer: Detokenizer,
    stops: Stops,
    usage: Usage,
    /// The prompt with its logprobs so far, if they are asked for; taken when they are complete.
    scored: Option<ScoredPrompt>,
    ended: bool,
    /// True if nothing is to be generated, so that the scheduler sends no token.
    ends_at_once: bool,
    /// Resolves when the drain has taken too long. It is kept because registering a new waker for every token is slow.
    terminated: Pin<Box<dyn Future<Output = ()> + Send>>,
    limits: Arc<ServerLimits>,
    timeline: Timeline,
    store_tier: Tier,
    /// The leading tokens that needed no download; `None` if nothing was downloaded.
    num_local_tokens: Option<u32>,
    /// Counts the request as open.
    place: Place,
}

impl Generation {
    /// Submits the request and waits until the scheduler has accepted or refused it, which happens without delay.
    ///
    /// If there is an object tier, this first downloads the prompt's missing blocks, unless computing them is predicted
    /// to be faster.
    pub async fn start(
        request: GenerationRequest,
        served: &ServedModel,
        place: Place,
    ) -> Result<Self, ApiError> {
        let SequenceRequest { token_ids, max_new_tokens, sampling, salt, .. } = &request.sequence;
        let (max_new_tokens, prompt_tokens) = (*max_new_tokens, token_ids.len() as u32);
        tracing::debug!(
            prompt_tokens,
            max_new_tokens,
            seed = sampling.seed,
            temperature = sampling.temperature,
            "request admitted"
        );
        // A prompt whose logprobs are asked for has to be computed.
        let is_scored = sampling.prompt_logprobs.is_some();
        let mut num_local_tokens = None;
        if let Some(objects) = served.objects.as_ref().filter(|_| !is_scored) {
            let latest = request.delivery.deadline.map(|deadline| deadline.at);
            num_local_tokens = objects.fetch(salt, token_ids, latest).await;
        }
        let has_host_store = served.last_shard().is_some_and(|shard| shard.has_store_in_memory());
        let scored = is_scored.then(|| ScoredPrompt { token_ids: token_ids.clone(), scores: Vec::new() });
        let timeline = Timeline::begin(TokenCounts::default());
        let (mut sequence, delivery) = submit(request, &served.driver).await?;
        let mut ends_at_once = false;
        match sequence.next().await {
            Some(SequenceUpdate::Accepted) => {}
            // The request generates nothing and reports nothing of its prompt.
            Some(SequenceUpdate::Ended(EndReason::Length)) => ends_at_once = true,
            Some(SequenceUpdate::Rejected { reason, retry_after_ms }) => {
                return Err(rejected(reason, retry_after_ms, &delivery));
            }
            Some(SequenceUpdate::Ended(reason)) => return Err(failed(reason, &delivery)),
            _ => return Err(bug(&delivery)),
        }
        let tokenizer = served.model.text.tokenizer.clone();
        let detokenizer =
            Detokenizer::new(tokenizer.clone(), delivery.special_tokens, TextStart::Continuation);
        Ok(Self {
            sequence,
            stops: Stops::new(&delivery.stops, delivery.stop_text, delivery.sections.as_ref()),
            usage: Usage { prompt_tokens, ..Usage::default() },
            scored,
            delivery,
            max_new_tokens,
            tokenizer,
            detokenizer,
            ended: false,
            ends_at_once,
            terminated: Box::pin(terminated(served.phase.clone())),
            limits: served.limits.clone(),
            timeline,
            store_tier: if has_host_store { Tier::Host } else { Tier::Disk },
            num_local_tokens,
            place,
        })
    }

    pub fn id(&self) -> &RequestId {
        &self.delivery.id
    }

    /// Returns the token counts so far.
    pub fn usage(&self) -> Usage {
        self.usage
    }

    /// Polls for the next event; `None` after the last piece of output or a failure. Tokens that have arrived precede
    /// the end of the server.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<GenerationEvent>> {
        while !self.ended {
            if let Some(prompt) = self.take_scored_prompt() {
                return Poll::Ready(Some(GenerationEvent::Prompt(prompt)));
            }
            if self.ends_at_once {
                return Poll::Ready(Some(self.end_without_token(FinishReason::Length)));
            }
            let update = match self.sequence.poll_next(cx) {
                Poll::Ready(update) => update,
                Poll::Pending => {
                    ready!(self.terminated.as_mut().poll(cx));
                    let limit_s = self.limits.graceful_termination_timeout.as_secs();
                    let num_tokens = self.usage.output_tokens;
                    return Poll::Ready(Some(self.fail(ApiError::Terminated { limit_s, num_tokens })));
                }
            };
            if let Some(event) = self.on_update(update) {
                return Poll::Ready(Some(event));
            }
        }
        Poll::Ready(None)
    }

    /// Returns true while the prompt's logprobs are still to come.
    pub fn awaits_prompt(&self) -> bool {
        self.scored.is_some() && !self.ended
    }

    /// Takes the prompt's logprobs when they are complete.
    fn take_scored_prompt(&mut self) -> Option<Arc<ScoredPrompt>> {
        self.scored.take_if(|prompt| prompt.scores.len() == prompt.token_ids.len() - 1).map(Arc::new)
    }

    /// Turns an update into an event. `None` as an update means that the driver has dropped the sequence.
    fn on_update(&mut self, update: Option<SequenceUpdate>) -> Option<GenerationEvent> {
        Some(match update {
            Some(SequenceUpdate::Token(token)) => self.on_token(token),
            Some(SequenceUpdate::Accepted) => return None,
            Some(SequenceUpdate::Drafted { num_drafts, num_accepted }) => {
                self.usage.accepted_drafts += num_accepted;
                self.usage.rejected_drafts += num_drafts - num_accepted;
                return None;
            }
            Some(SequenceUpdate::Scored(more)) => {
                self.scored.iter_mut().for_each(|prompt| prompt.scores.extend_from_slice(&more));
                return None;
            }
            // A sequence that generates never gets a vector.
            Some(SequenceUpdate::Pooled(_)) => {
                let error = bug(&self.delivery);
                self.fail(error)
            }
            Some(SequenceUpdate::Started { cached_tokens, restored }) => {
                self.usage.cached_tokens = cached_tokens;
                let num_restored = restored.map_or(0, |(num_tokens, _)| num_tokens);
                self.usage.restored =
                    RestoredTokens::of(cached_tokens, num_restored, self.num_local_tokens, self.store_tier);
                self.timeline.restored = restored;
                self.timeline.started.get_or_insert_with(SystemTime::now);
                GenerationEvent::Started(self.usage)
            }
            Some(SequenceUpdate::Pinned(pinned)) => {
                self.usage.pinned = Some(pinned);
                return None;
            }
            Some(SequenceUpdate::Ended(EndReason::EndToken)) => {
                self.end_without_token(FinishReason::EndToken)
            }
            Some(SequenceUpdate::Ended(EndReason::Length)) => self.end_without_token(FinishReason::Length),
            Some(SequenceUpdate::Ended(reason)) => {
                let error = failed(reason, &self.delivery);
                self.fail(error)
            }
            Some(SequenceUpdate::Rejected { reason, retry_after_ms }) => {
                let error = rejected(reason, retry_after_ms, &self.delivery);
                self.fail(error)
            }
            None if self.sequence.overflowed() => {
                self.fail(ApiError::SlowReader { limit: MAX_WAITING_TOKENS })
            }
            None => {
                let error = bug(&self.delivery);
                self.fail(error)
            }
        })
    }

    fn fail(&mut self, error: ApiError) -> GenerationEvent {
        self.ended = true;
        GenerationEvent::Failed(error)
    }

    fn on_token(&mut self, token: SampledToken) -> GenerationEvent {
        self.usage.output_tokens += 1;
        self.place.count_output();
        let now = SystemTime::now();
        let first = *self.timeline.first_token.get_or_insert(now);
        self.timeline.last_token = Some(now);
        let since = |begin: SystemTime, end: SystemTime| end.duration_since(begin).unwrap_or_default();
        self.usage.prompt_time =
            self.timeline.started.map_or(Duration::ZERO, |started| since(started, first));
        self.usage.output_time = since(first, now);
        let is_end = self.delivery.end_token_ids.contains(&token.token_id);
        let special = self.tokenizer.is_special(token.token_id);
        // An end token has no text, also where the vocabulary does not call it special.
        let mut text = if is_end { String::new() } else { self.detokenizer.push(token.token_id) };
        let is_hidden = self.delivery.special_tokens == DecodeSpecial::Skip;
        if special && is_hidden && self.delivery.shown_token_ids.contains(&token.token_id) {
            let name = self.tokenizer.token_bytes(token.token_id).unwrap_or_default();
            text.push_str(&String::from_utf8_lossy(name));
        }
        let step = self.stops.push(&text);
        let mut token = OutputToken {
            id: token.token_id,
            text,
            logprob: token.logprob,
            top_logprobs: token.top_logprobs,
            special,
            is_end,
        };
        let mut certain = step.text;
        let finish = if let Some(index) = step.matched {
            self.sequence.finish();
            Some(FinishReason::StopString { index })
        } else if is_end || self.usage.output_tokens >= self.max_new_tokens {
            let rest = self.detokenizer.finish();
            token.text.push_str(&rest);
            let matched = self.flush(&rest, &mut certain);
            let reason = match is_end {
                true if self.delivery.stop_token_ids.contains(&token.id) => {
                    FinishReason::StopToken { token_id: token.id }
                }
                true => FinishReason::EndToken,
                false => FinishReason::Length,
            };
            Some(matched.map_or(reason, |index| FinishReason::StopString { index }))
        } else {
            None
        };
        self.ended = finish.is_some();
        let finish = finish.map(|reason| (reason, self.usage));
        GenerationEvent::Output(Output { token: Some(token), text: certain, so_far: self.usage, finish })
    }

    fn end_without_token(&mut self, reason: FinishReason) -> GenerationEvent {
        self.ended = true;
        let rest = self.detokenizer.finish();
        let mut text = String::new();
        let matched = self.flush(&rest, &mut text);
        let reason = matched.map_or(reason, |index| FinishReason::StopString { index });
        let finish = Some((reason, self.usage));
        GenerationEvent::Output(Output { token: None, text, so_far: self.usage, finish })
    }

    /// Appends the text that was held back to `certain`; returns the index of a stop string that it completes.
    fn flush(&mut self, rest: &str, certain: &mut String) -> Option<usize> {
        let mut step = self.stops.push(rest);
        certain.push_str(&step.text);
        if step.matched.is_none() {
            step = self.stops.finish();
            certain.push_str(&step.text);
        }
        step.matched
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        let Some(trace) = self.delivery.id.trace() else { return };
        let Usage { prompt_tokens: prompt, cached_tokens: cached, output_tokens: output, .. } = self.usage;
        let tokens = TokenCounts { prompt, cached, output };
        let timeline = Timeline { ended: SystemTime::now(), tokens, ..self.timeline.clone() };
        trace.update(|record| {
            if record.sequences.len() < MAX_TIMELINES {
                record.sequences.push(timeline);
            }
        });
    }
}

/// Submits the sequence of a request, unless its deadline has passed, and returns it with what stays here.
pub(super) async fn submit(
    request: GenerationRequest,
    driver: &DriverHandle,
) -> Result<(Sequence, Delivery), ApiError> {
    let GenerationRequest { sequence: mut request, delivery, grammar, prediction_token_ids } = request;
    if let Some(deadline) = delivery.deadline.filter(|deadline| deadline.at <= Instant::now()) {
        return Err(deadline.exceeded());
    }
    request.drafter = prediction_token_ids.map(|prediction| Drafter::new(&request.token_ids, &prediction));
    let sequence = NewSequence {
        constraint: grammar.map(|grammar| grammar.constraint(&request.token_ids)),
        request,
        arrived: delivery.arrived,
        deadline: delivery.deadline.map(|deadline| deadline.at),
        span: delivery.id.trace().and_then(RequestTrace::span_ids),
        request_id: delivery.id.name(),
    };
    let submitted = driver.submit(sequence).await;
    submitted.map_err(|DriverGone| bug(&delivery)).map(|sequence| (sequence, delivery))
}

pub(super) async fn terminated(mut phase: watch::Receiver<Phase>) {
    // The server has the sender. Without a server this never resolves.
    if phase.wait_for(|phase| *phase == Phase::Terminating).await.is_err() {
        std::future::pending::<()>().await;
    }
}
