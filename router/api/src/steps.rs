//! `/v1/steps`: the last steps and the sequences in them.

use axum::Extension;
use axum::extract::{Query, rejection::QueryRejection};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::of_model::{ModelQuery, OfModel};
use super::openai::ErrorResponse;
use super::respond;
use crate::app::App;
use trunkline_base::error::ApiError;
use trunkline_base::tenants::Caller;
use trunkline_engine::driver::step_log::{LoggedSequence, LoggedStep, STEPS_KEPT};

/// The memory of a step, or of a sequence in it: the row and its JSON text, whose buffer is briefly in memory twice.
const ROW_BYTES: usize = 1024;

/// The query of a request for the last steps.
#[derive(Debug, Deserialize, IntoParams)]
pub struct StepsQuery {
    /// The lane whose steps are returned; the default is all lanes.
    pub lane: Option<u32>,
    /// The `last` of an earlier answer, to get only newer steps.
    pub after: Option<u64>,
    /// The most steps to return, the latest ones, from 1 to 256; the default is 256.
    pub limit: Option<usize>,
}

/// What a step computed for one sequence.
#[derive(Debug, Serialize, ToSchema)]
pub struct StepSequence {
    /// Eight hexadecimal digits, the same in each step of the sequence.
    pub sequence: String,
    /// The `x-request-id` of the request. Absent without API keys, and if its client left before the step ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    /// Positions of the prompt, and those that are computed again after a preemption or a lost shard.
    pub prefill_tokens: u32,
    /// 1 if the step sampled a token behind the prompt's first one.
    pub decode_tokens: u32,
    /// Drafts that the step checked.
    pub draft_tokens: u32,
    /// Drafts that were right and became output.
    pub accepted_draft_tokens: u32,
}

/// What a step computed for other tenants, all together. The numbers are rounded up to powers of two, so that they do
/// not tell the lengths of prompts.
#[derive(Debug, Default, Serialize, ToSchema)]
pub struct StepOthers {
    /// As in the sequences.
    pub prefill_tokens: u32,
    /// As in the sequences.
    pub decode_tokens: u32,
}

/// A step: one pass of the model over a batch of sequences.
#[derive(Debug, Serialize, ToSchema)]
pub struct StepRow {
    /// Counts the steps of the model since the server started, from 1.
    pub number: u64,
    /// The lane of the shard that computed it.
    pub lane: u32,
    /// The time at which its result arrived, in seconds since 1970.
    pub end_time: f64,
    /// The time for which the device worked on it, in seconds.
    pub device_seconds: f64,
    /// Your sequences in the step; for admins and without API keys, all of them.
    pub sequences: Vec<StepSequence>,
    /// The other tenants' share of the step; absent if they had none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub others: Option<StepOthers>,
}

/// The last steps of a model.
#[derive(Debug, Serialize, ToSchema)]
pub struct StepList {
    /// The object type, always `list`.
    pub object: &'static str,
    /// The name of the model.
    pub model: String,
    /// The steps, oldest first. The server keeps the last 256 of each lane.
    pub data: Vec<StepRow>,
    /// The number of the last step so far, 0 before the first.
    pub last: u64,
}

/// Returns the last steps and what each computed for which sequence. A tenant sees its own sequences and the others'
/// share of a step; an admin sees all.
#[utoipa::path(
    get, path = "/v1/steps", params(StepsQuery, ModelQuery),
    responses(
        (status = 200, description = "The steps", body = StepList),
        (status = 400, description = "The query is invalid", body = ErrorResponse),
        (status = 503, description = "Other answers use the memory", body = ErrorResponse),
    )
)]
pub async fn steps(
    OfModel(app): OfModel,
    Extension(caller): Extension<Caller>,
    query: Result<Query<StepsQuery>, QueryRejection>,
) -> Response {
    respond::answer::<ErrorResponse>(list(&app, caller, query).await)
}

async fn list(
    app: &App,
    caller: Caller,
    query: Result<Query<StepsQuery>, QueryRejection>,
) -> Result<Response, ApiError> {
    let Query(query) = query.map_err(|error| ApiError::value("query", error.body_text()))?;
    let limit = query.limit.unwrap_or(STEPS_KEPT);
    if !(1..=STEPS_KEPT).contains(&limit) {
        return Err(ApiError::value("limit", format!("is {limit}, expected 1 to {STEPS_KEPT}")));
    }
    let lane = query.lane.map(|lane| app.served.lane(lane)).transpose()?;
    let mut memory = app.admission.answer_memory(&caller);
    let (mut steps, last) = app.served.steps.steps_after(query.after.unwrap_or(0), lane);
    steps.drain(..steps.len().saturating_sub(limit));
    let num_sequences: usize = steps.iter().map(|step| step.sequences.len()).sum();
    memory.grow_to((steps.len() + num_sequences) * ROW_BYTES)?;
    let model = app.served.model.served_name.to_string();
    let looker = caller.clone();
    let write = move || {
        let data = steps.iter().map(|step| row(step, &looker)).collect();
        axum::Json(StepList { object: "list", model, data, last }).into_response()
    };
    memory.hold(app.admission.look_blocking(&caller, write).await).await
}

fn row(step: &LoggedStep, caller: &Caller) -> StepRow {
    let may_see = |sequence: &&LoggedSequence| {
        caller.is_admin() || (sequence.tenant.is_some() && sequence.tenant.as_deref() == caller.name())
    };
    let (seen, hidden): (Vec<_>, Vec<_>) = step.sequences.iter().partition(may_see);
    let rounded = |count: fn(&LoggedSequence) -> u32| match hidden.iter().map(|one| count(one)).sum::<u32>() {
        0 => 0,
        sum => sum.next_power_of_two(),
    };
    let others = (!hidden.is_empty()).then(|| StepOthers {
        prefill_tokens: rounded(|sequence| sequence.num_prefill_tokens),
        decode_tokens: rounded(|sequence| sequence.num_decode_tokens),
    });
    // Without keys everybody may look, and a request's id can be all that is needed to read its stored answer.
    let shows_ids = caller.tenant().is_some();
    let sequences = seen.into_iter().map(|sequence| StepSequence {
        sequence: format!("{:08x}", sequence.pseudonym),
        request_id: sequence.request_id.as_deref().filter(|_| shows_ids).map(str::to_owned),
        prefill_tokens: sequence.num_prefill_tokens,
        decode_tokens: sequence.num_decode_tokens,
        draft_tokens: sequence.num_drafts,
        accepted_draft_tokens: sequence.num_accepted,
    });
    StepRow {
        number: step.number,
        lane: step.lane,
        end_time: step.ended_unix_seconds,
        device_seconds: step.device_time_us as f64 / 1e6,
        sequences: sequences.collect(),
        others,
    }
}
