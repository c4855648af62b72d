//! The errors of sequences that were refused or that ended without an answer.

use trunkline_scheduler::{EndReason, RejectReason, SequenceErrorCode};

use crate::request::ready::Delivery;
use trunkline_base::error::ApiError;

pub(super) fn bug(delivery: &Delivery) -> ApiError {
    tracing::error!(request_id = delivery.id.as_str(), "the driver dropped a request");
    ApiError::Bug { request_id: delivery.id.clone() }
}

pub(super) fn rejected(reason: RejectReason, retry_after_ms: Option<u64>, delivery: &Delivery) -> ApiError {
    let retry_after_s = retry_after_ms.unwrap_or(1_000).div_ceil(1_000).max(1);
    match reason {
        RejectReason::QueueFull { num_waiting, max_queued_requests, oldest_wait_ms } => ApiError::QueueFull {
            detail: format!(
                "queue is full ({num_waiting} of {max_queued_requests} requests waiting, oldest for {:.1} s)",
                oldest_wait_ms as f64 / 1e3
            ),
            retry_after_s,
        },
        RejectReason::QueueShared { num_waiting, num_free, max_queued_requests } => ApiError::QueueFull {
            detail: format!(
                "the tenant's share of the queue is full ({num_waiting} of its requests are waiting, and {num_free} of \
                 {max_queued_requests} places are free for all tenants)"
            ),
            retry_after_s,
        },
        RejectReason::DeadlineUnreachable { predicted_wait_ms, deadline_in_ms } => {
            ApiError::DeadlineUnreachable {
                predicted_wait_s: predicted_wait_ms as f64 / 1e3,
                deadline_in_s: deadline_in_ms as f64 / 1e3,
                by: delivery.deadline.map_or("timeout", |deadline| deadline.by),
                retry_after_s,
            }
        }
        RejectReason::TooLong { prompt_tokens, max_new_tokens, max_total_tokens } => {
            ApiError::ContextLength {
                limit: u32::try_from(max_total_tokens).unwrap_or(u32::MAX),
                prompt_tokens: prompt_tokens as usize,
                field: delivery.names.max_new_tokens,
                max_new_tokens: u64::from(max_new_tokens),
                hint: "shorten the prompt or the output, or raise `--max-batch-total-tokens`".into(),
            }
        }
        RejectReason::NoAdapters => ApiError::NoAdapters,
        RejectReason::ShardAway => ApiError::ShardAway,
        RejectReason::Poison { for_ms } => ApiError::PoisonRequest { for_s: for_ms.div_ceil(1_000) },
        RejectReason::Invalid { message } => {
            let request_id = delivery.id.as_str();
            tracing::error!(request_id, error = message, "the scheduler refused a validated request");
            ApiError::Bug { request_id: delivery.id.clone() }
        }
    }
}

pub(super) fn failed(reason: EndReason, delivery: &Delivery) -> ApiError {
    let request_id = delivery.id.as_str();
    match reason {
        EndReason::ShardLost => ApiError::ShardLost,
        EndReason::DeadlineExceeded => {
            delivery.deadline.map_or_else(|| bug(delivery), |deadline| deadline.exceeded())
        }
        EndReason::Failed(error) if error.code == SequenceErrorCode::GrammarFailed => {
            tracing::warn!(request_id, error = error.message, "a sequence cannot continue under its grammar");
            ApiError::GrammarFailed { detail: error.message }
        }
        EndReason::Failed(error) if error.code == SequenceErrorCode::CrashedShard => {
            tracing::error!(request_id, "a request crashed the shard twice in a row and is not tried again");
            ApiError::CrashedShard
        }
        EndReason::Failed(error) if error.code == SequenceErrorCode::AdapterFailed => {
            tracing::warn!(request_id, adapter = ?delivery.adapter, error = error.message, "an adapter was not loaded");
            delivery.adapter.as_ref().map_or_else(|| bug(delivery), |adapter| adapter.failed(error.message))
        }
        EndReason::Failed(error) => {
            tracing::error!(request_id, code = ?error.code, error = error.message, "a sequence failed on the shard");
            let detail = match error.code {
                SequenceErrorCode::NotFinite => "the model's output is not finite",
                SequenceErrorCode::UnreadWeights => "the model's weights cannot be read from the disk",
                SequenceErrorCode::InvalidPlan | SequenceErrorCode::InvalidResult => {
                    "router and shard disagree"
                }
                SequenceErrorCode::GrammarFailed
                | SequenceErrorCode::CrashedShard
                | SequenceErrorCode::AdapterFailed
                | SequenceErrorCode::Unspecified => "unknown reason",
            };
            ApiError::SequenceFailed { detail: detail.into() }
        }
        EndReason::EndToken | EndReason::Length | EndReason::Finished | EndReason::Aborted => bug(delivery),
    }
}
