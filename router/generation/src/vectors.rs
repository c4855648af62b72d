//! Vectors of prompts: sequences that end with a vector instead of tokens.

use std::time::SystemTime;

use futures::stream::{self, StreamExt, TryStreamExt};
use tokio::time::Instant;
use trunkline_scheduler::EndReason;

use super::admission::Admission;
use super::failure::{bug, failed, rejected};
use super::generate::{submit, terminated};
use super::place::Place;
use super::served::ServedModel;
use crate::request::arrival::Arrival;
use crate::request::ready::GenerationRequest;
use trunkline_base::error::{ApiError, ErrorClass};
use trunkline_base::trace::{MAX_TIMELINES, Timeline, TokenCounts};
use trunkline_engine::driver::SequenceUpdate;

/// The most prompts of one request that wait or run at the same time. Each takes a place.
const MAX_AT_ONCE: usize = 16;

/// The vectors of a request's prompts, in their order.
#[derive(Debug)]
pub struct Vectors {
    pub vectors: Vec<Vec<f32>>,
    pub prompt_tokens: u32,
    pub cached_tokens: u32,
}

impl Admission {
    /// Computes the vectors of prompts of `num_tokens` in all, several at a time. `permit` is the place of the request.
    ///
    /// `requests` makes each request when it is computed, so only a few prompts are in memory at a time.
    pub async fn vectors(
        &self,
        served: &ServedModel,
        arrival: &Arrival,
        num_tokens: u64,
        requests: impl ExactSizeIterator<Item = Result<GenerationRequest, ApiError>> + Send,
        mut permit: Place,
    ) -> Result<Vectors, ApiError> {
        let tenant = arrival.caller.name().unwrap_or_default().to_owned();
        let limiter = permit.tenant.as_ref().map(|tenant| tenant.limiter().clone());
        if let Some(limiter) = &limiter {
            limiter.take_prompt(num_tokens, Instant::now()).map_err(|over| {
                limiter.give_back(1, 0, Instant::now());
                self.over_limit(served, &tenant, over)
            })?;
        }
        // Without room for several at a time, they are computed one after the other.
        let wanted = requests.len().clamp(1, MAX_AT_ONCE);
        let has_more = self.take_more(served, &tenant, &mut permit, wanted - 1).is_ok();
        let at_once = if has_more { wanted } else { 1 };
        let compute = async |request: Result<_, ApiError>| vector(request?, served).await;
        let computed = stream::iter(requests.map(compute)).buffered(at_once).try_collect();
        let computed: Result<Vec<_>, _> = computed.await;
        drop(permit);
        let computed = computed.inspect_err(|error| {
            // A request that the server has no room for is not charged to its tenant.
            if let (Some(limiter), ErrorClass::Overload) = (&limiter, error.class()) {
                limiter.give_back(1, num_tokens, Instant::now());
            }
        })?;
        let mut all = Vectors { vectors: Vec::new(), prompt_tokens: 0, cached_tokens: 0 };
        let mut timelines = Vec::new();
        for (values, timeline) in computed {
            all.vectors.push(values);
            all.prompt_tokens += timeline.tokens.prompt;
            all.cached_tokens += timeline.tokens.cached;
            timelines.push(timeline);
        }
        if let Some(trace) = arrival.id.trace() {
            let tokens = TokenCounts { prompt: all.prompt_tokens, cached: all.cached_tokens, output: 0 };
            timelines.truncate(MAX_TIMELINES);
            trace.update(|record| {
                record.tokens = Some(tokens);
                record.finish_reasons = vec!["stop"];
                record.sequences = timelines;
            });
        }
        Ok(all)
    }
}

/// Computes the vector of one prompt. Dropping the future aborts its sequence.
async fn vector(request: GenerationRequest, served: &ServedModel) -> Result<(Vec<f32>, Timeline), ApiError> {
    let prompt = request.sequence.token_ids.len() as u32;
    let mut timeline = Timeline::begin(TokenCounts { prompt, ..TokenCounts::default() });
    let (mut sequence, delivery) = submit(request, &served.driver).await?;
    let mut vector = None;
    loop {
        let update = tokio::select! {
            update = sequence.next() => update,
            () = terminated(served.phase.clone()) => {
                let limit_s = served.limits.graceful_termination_timeout.as_secs();
                return Err(ApiError::Terminated { limit_s, num_tokens: 0 });
            }
        };
        match update {
            Some(SequenceUpdate::Accepted) => {}
            Some(SequenceUpdate::Started { cached_tokens, restored }) => {
                timeline.tokens.cached = cached_tokens;
                timeline.restored = restored;
                timeline.started.get_or_insert_with(SystemTime::now);
            }
            Some(SequenceUpdate::Pooled(values)) => vector = Some(values),
            Some(SequenceUpdate::Ended(EndReason::Length)) => {
                timeline.ended = SystemTime::now();
                return vector.map(|values| (values, timeline)).ok_or_else(|| bug(&delivery));
            }
            Some(SequenceUpdate::Ended(reason)) => return Err(failed(reason, &delivery)),
            Some(SequenceUpdate::Rejected { reason, retry_after_ms }) => {
                return Err(rejected(reason, retry_after_ms, &delivery));
            }
            Some(
                SequenceUpdate::Pinned(_)
                | SequenceUpdate::Scored(_)
                | SequenceUpdate::Drafted { .. }
                | SequenceUpdate::Token(_),
            )
            | None => return Err(bug(&delivery)),
        }
    }
}
