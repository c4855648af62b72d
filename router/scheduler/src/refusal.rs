//! Rejections of new requests, and when a rejected client should retry.

use crate::estimate::Load;
use crate::event::{AdapterUse, RejectReason, SequenceId, SequenceRequest, Update};
use crate::fairness::Backlog;
use crate::lane::gives_up_at;
use crate::lifecycle::Lifecycle;
use crate::message_size::MAX_ADAPTER_PATH_BYTES;

/// The time after which a rejected client should retry, as long as nothing was measured.
const DEFAULT_RETRY_AFTER_MS: u64 = 1_000;
/// The shortest time after which a rejected client should retry.
const MIN_RETRY_AFTER_MS: u64 = 100;
/// The most requests that one tenant may have waiting for each free place in the queue, as with open requests (dynamic
/// thresholds: Choudhury and Hahne, IEEE/ACM Transactions on Networking 6(2), 1998). A tenant that floods the queue
/// gets seven eighths of it, and the next tenant finds a place.
const MAX_WAITING_PER_FREE_PLACE: u32 = 7;

/// Why a request cannot be taken, if it cannot.
pub(crate) fn refusal(parts: &Lifecycle<'_>, request: &SequenceRequest) -> Option<RejectReason> {
    if request.token_ids.is_empty() {
        return Some(RejectReason::Invalid { message: "the prompt has no tokens".to_owned() });
    }
    if request.token_ids.len() as u64 + u64::from(request.max_new_tokens) > u64::from(u32::MAX) {
        return Some(RejectReason::Invalid { message: "prompt and output pass 2^32 tokens".to_owned() });
    }
    if let Err(error) = request.sampling.check() {
        return Some(RejectReason::Invalid { message: error.to_string() });
    }
    if let Some(message) = adapter_problem(request) {
        return Some(RejectReason::Invalid { message: message.to_owned() });
    }
    let misfit = misfit(parts, request);
    if misfit.is_some() {
        return misfit;
    }
    if let Some(for_ms) = parts.poisons.refused_ms(request, parts.now) {
        return Some(RejectReason::Poison { for_ms });
    }
    let is_away = parts.lanes().all(|lane| lane.shard.is_none());
    if is_away && gives_up_at(parts.lanes(), parts.config).is_some_and(|at| at <= parts.now) {
        return Some(RejectReason::ShardAway);
    }
    let queue_refusal = queue_refusal(parts, request.salt.tenant());
    if queue_refusal.is_some() {
        return queue_refusal;
    }
    let deadline_in_ms = request.deadline?.since(parts.now);
    let predicted_wait_ms = predict_wait_ms(parts, backlog_ahead(parts, request.salt.tenant()))?;
    (deadline_in_ms == 0 || predicted_wait_ms > deadline_in_ms)
        .then_some(RejectReason::DeadlineUnreachable { predicted_wait_ms, deadline_in_ms })
}

/// Reports that a sequence was not taken.
pub(crate) fn reject(parts: &mut Lifecycle<'_>, id: SequenceId, reason: RejectReason) {
    parts.counters.count_rejection(&reason);
    let retry_after_ms = match &reason {
        RejectReason::QueueFull { .. } | RejectReason::QueueShared { .. } => {
            let num_retries_expected = parts.sequences.count_retry();
            Some(retry_after_ms(parts, num_retries_expected))
        }
        RejectReason::DeadlineUnreachable { predicted_wait_ms, deadline_in_ms } => {
            Some(predicted_wait_ms.saturating_sub(*deadline_in_ms).max(MIN_RETRY_AFTER_MS))
        }
        RejectReason::ShardAway => Some(DEFAULT_RETRY_AFTER_MS),
        RejectReason::TooLong { .. }
        | RejectReason::NoAdapters
        | RejectReason::Poison { .. }
        | RejectReason::Invalid { .. } => None,
    };
    parts.updates.push(Update::Rejected { id, reason, retry_after_ms });
}

/// Why the queue has no place for one more sequence of a tenant, if it has none.
fn queue_refusal(parts: &Lifecycle<'_>, tenant: Option<&str>) -> Option<RejectReason> {
    let max_queued_requests = parts.config.max_queued_requests.max(1);
    let num_new = parts.sequences.queue().num_new();
    let num_free = max_queued_requests.saturating_sub(num_new);
    if num_free == 0 {
        return Some(RejectReason::QueueFull {
            num_waiting: num_new,
            max_queued_requests,
            oldest_wait_ms: oldest_wait_ms(parts),
        });
    }
    // A tenant without waiting requests gets even the last place.
    let num_waiting = parts.sequences.tenants().num_new(tenant).filter(|&num_new| num_new > 0)?;
    let is_over = num_waiting >= MAX_WAITING_PER_FREE_PLACE.saturating_mul(num_free - 1);
    is_over.then_some(RejectReason::QueueShared { num_waiting, num_free, max_queued_requests })
}

/// When the queue will probably have had room for `num_before` more sequences. It admits one in the time that its last
/// sequence waits, divided by its length.
fn retry_after_ms(parts: &Lifecycle<'_>, num_before: u64) -> u64 {
    let backlog = backlog(parts);
    let Some(wait_ms) = predict_wait_ms(parts, backlog) else { return DEFAULT_RETRY_AFTER_MS };
    (wait_ms.saturating_mul(num_before) / (backlog.num_waiting + 1)).max(MIN_RETRY_AFTER_MS)
}

fn oldest_wait_ms(parts: &Lifecycle<'_>) -> u64 {
    let new = parts.sequences.iter().filter(|(_, s)| s.run.is_none() && s.first_start.is_none());
    new.map(|(_, sequence)| parts.now.since(sequence.submitted_at)).max().unwrap_or(0)
}

/// What is wrong with the adapter of a request, if anything is.
fn adapter_problem(request: &SequenceRequest) -> Option<&'static str> {
    let adapter = request.adapter.as_deref();
    // Otherwise it could hit blocks that were computed without the adapter.
    if adapter.map(AdapterUse::in_salt) != request.salt.adapter {
        return Some("the salt is not that of the adapter");
    }
    let is_long = adapter.is_some_and(|adapter| adapter.path.len() > MAX_ADAPTER_PATH_BYTES);
    is_long.then_some("the path of the adapter is too long for a plan")
}

/// Why no connected shard can ever run a request, if none can.
fn misfit(parts: &Lifecycle<'_>, request: &SequenceRequest) -> Option<RejectReason> {
    let highest_token_id = request.token_ids.iter().copied().max().unwrap_or(0);
    let num_prompt_tokens = request.token_ids.len() as u32;
    let mut misfits = Vec::new();
    for shard in parts.lanes().filter_map(|lane| lane.shard.as_ref()) {
        misfits.push(shard.misfit(
            highest_token_id,
            num_prompt_tokens,
            request.max_new_tokens,
            request.adapter.as_deref(),
        )?);
    }
    clearest(misfits.into_iter())
}

/// Chooses the reason for the client from those of all shards: that a shard takes no adapters only if none does.
pub(crate) fn clearest(misfits: impl Iterator<Item = RejectReason>) -> Option<RejectReason> {
    misfits.reduce(|one, other| if one == RejectReason::NoAdapters { other } else { one })
}

/// All of the queue.
fn backlog(parts: &Lifecycle<'_>) -> Backlog {
    let queue = parts.sequences.queue();
    Backlog { num_waiting: queue.num_waiting() as u64, num_uncached_tokens: queue.num_uncached_tokens() }
}

/// The part of the queue ahead of one more sequence of a tenant.
fn backlog_ahead(parts: &Lifecycle<'_>, tenant: Option<&str>) -> Backlog {
    parts.sequences.tenants().backlog_ahead(tenant, backlog(parts))
}

/// The predicted milliseconds until a request behind this part of the queue starts. The lanes share the queue, and the
/// request starts on the first that has a place. None without a shard: it may come back in a moment, and quickly.
fn predict_wait_ms(parts: &Lifecycle<'_>, ahead: Backlog) -> Option<u64> {
    let serving = || parts.lanes().filter(|lane| lane.serves());
    let num_lanes = serving().count() as u64;
    let predicted = serving().filter_map(|lane| {
        let running = lane.running.keys();
        let num_unplanned = running.iter().map(|&key| u64::from(parts.sequences[key].num_unplanned()));
        let num_running_tokens: u64 = num_unplanned.filter(|&num_tokens| num_tokens > 1).sum();
        lane.throughput.predict_wait_ms(Load {
            num_prefill_tokens: num_running_tokens + ahead.num_uncached_tokens.div_ceil(num_lanes),
            num_waiting: ahead.num_waiting.div_ceil(num_lanes),
            num_running: running.len() as u64,
            max_running: lane.max_running(parts.config) as u64,
        })
    });
    predicted.min()
}
