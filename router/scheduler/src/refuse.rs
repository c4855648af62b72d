//! What is not taken, and when it is worth another try.

use crate::estimate::Load;
use crate::event::{Millis, RejectReason, SequenceId, SequenceRequest, Update};
use crate::fairness::Backlog;
use crate::scheduler::Scheduler;

/// What a rejected client is told to wait before anything was measured.
const DEFAULT_RETRY_AFTER_MS: u64 = 1_000;
/// Least that it is told.
const MIN_RETRY_AFTER_MS: u64 = 100;
/// A tenant has at most so many times as many waiting as it leaves free (dynamic thresholds: Choudhury and Hahne,
/// IEEE/ACM Transactions on Networking 6(2), 1998), as among the open requests: one that floods the queue has seven
/// eighths of it, and whoever comes next finds a place.
const PART_OF_FREE: u32 = 7;

impl Scheduler {
    /// Why a request cannot be taken, if it cannot.
    pub(crate) fn refusal(&self, now: Millis, request: &SequenceRequest) -> Option<RejectReason> {
        if request.token_ids.is_empty() {
            return Some(RejectReason::Invalid { message: "the prompt has no tokens".to_owned() });
        }
        if request.token_ids.len() as u64 + u64::from(request.max_new_tokens) > u64::from(u32::MAX) {
            return Some(RejectReason::Invalid { message: "prompt and output pass 2^32 tokens".to_owned() });
        }
        if let Some(shard) = &self.shard {
            let misfit = shard.misfit(&request.token_ids, request.token_ids.len(), request.max_new_tokens);
            if misfit.is_some() {
                return misfit;
            }
        }
        let no_place = self.no_place(now, request.salt.tenant());
        if no_place.is_some() {
            return no_place;
        }
        let deadline_in_ms = request.deadline?.since(now);
        let predicted_wait_ms = self.throughput.predict_wait_ms(self.load_ahead(request.salt.tenant()))?;
        (deadline_in_ms == 0 || predicted_wait_ms > deadline_in_ms)
            .then_some(RejectReason::DeadlineUnreachable { predicted_wait_ms, deadline_in_ms })
    }

    /// Why one more sequence of a tenant may not wait, if it may not.
    fn no_place(&self, now: Millis, tenant: Option<&str>) -> Option<RejectReason> {
        let max_queued_requests = self.config.max_queued_requests.max(1);
        let num_free = max_queued_requests.saturating_sub(self.queue.num_new());
        if num_free == 0 {
            return Some(RejectReason::QueueFull {
                num_waiting: self.queue.num_new(),
                max_queued_requests,
                oldest_wait_ms: self.oldest_wait_ms(now),
            });
        }
        // Who has nothing waiting gets the last place, too.
        let num_waiting = self.fairness.num_new(tenant).filter(|&num_new| num_new > 0)?;
        (num_waiting >= PART_OF_FREE.saturating_mul(num_free - 1)).then_some(RejectReason::QueueShared {
            num_waiting,
            num_free,
            max_queued_requests,
        })
    }

    pub(crate) fn reject(&mut self, id: SequenceId, reason: RejectReason, updates: &mut Vec<Update>) {
        let retry_after_ms = match &reason {
            RejectReason::QueueFull { .. } | RejectReason::QueueShared { .. } => {
                self.counters.rejected_queue_full += 1;
                self.num_told_to_retry += 1;
                Some(self.retry_after_ms(self.num_told_to_retry))
            }
            RejectReason::DeadlineUnreachable { predicted_wait_ms, deadline_in_ms } => {
                self.counters.rejected_deadline += 1;
                Some(predicted_wait_ms.saturating_sub(*deadline_in_ms).max(MIN_RETRY_AFTER_MS))
            }
            RejectReason::TooLong { .. } => {
                self.counters.rejected_too_long += 1;
                None
            }
            RejectReason::Invalid { .. } => {
                self.counters.rejected_invalid += 1;
                None
            }
        };
        updates.push(Update::Rejected { id, reason, retry_after_ms });
    }

    /// When the queue is likely to have had room for so many more: it lets one through in the time that its last takes,
    /// divided by its length.
    fn retry_after_ms(&self, num_before: u64) -> u64 {
        let load = self.load();
        let Some(wait_ms) = self.throughput.predict_wait_ms(load) else { return DEFAULT_RETRY_AFTER_MS };
        (wait_ms.saturating_mul(num_before) / (load.num_waiting + 1)).max(MIN_RETRY_AFTER_MS)
    }

    fn oldest_wait_ms(&self, now: Millis) -> u64 {
        let new = self.sequences.iter().filter(|(_, s)| s.run.is_none() && s.first_start.is_none());
        new.map(|(_, sequence)| now.since(sequence.submitted_at)).max().unwrap_or(0)
    }

    fn load(&self) -> Load {
        let running = self.running.iter().map(|&key| u64::from(self.sequences[key].num_unplanned()));
        let num_running_tokens: u64 = running.filter(|&num_tokens| num_tokens > 1).sum();
        Load {
            num_prefill_tokens: num_running_tokens + self.queue.num_uncached_tokens(),
            num_waiting: self.queue.num_waiting() as u64,
            num_running: self.running.len() as u64,
            max_running: self.max_running() as u64,
        }
    }

    /// What is ahead of one more sequence of a tenant.
    fn load_ahead(&self, tenant: Option<&str>) -> Load {
        let load = self.load();
        let num_uncached_tokens = self.queue.num_uncached_tokens();
        let all = Backlog { num_waiting: load.num_waiting, num_uncached_tokens };
        let ahead = self.fairness.backlog_ahead(tenant, all);
        Load {
            num_prefill_tokens: load.num_prefill_tokens - num_uncached_tokens + ahead.num_uncached_tokens,
            num_waiting: ahead.num_waiting,
            ..load
        }
    }
}
