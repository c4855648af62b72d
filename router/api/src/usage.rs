//! `/v1/usage`: what tenants used, by the hour.

use std::sync::Arc;
use std::time::UNIX_EPOCH;

use axum::Extension;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::openai::ErrorResponse;
use super::respond;
use crate::app::App;
use trunkline_base::error::ApiError;
use trunkline_base::metrics::usage::{SECONDS_PER_HOUR, Used};
use trunkline_base::tenants::Caller;

/// The memory of a row: the row and its JSON text, whose buffer is briefly in memory twice.
const ROW_BYTES: usize = 1024;

/// The query of a request for usage.
#[derive(Debug, Deserialize, IntoParams)]
pub struct UsageQuery {
    /// The first moment, as seconds since 1970 or in RFC 3339 (`2026-11-25T08:00:00Z`). The hour that contains it is
    /// included. The default is the oldest hour that is kept.
    from: Option<String>,
    /// The moment before which the last hour begins, in the same forms. The default is now.
    to: Option<String>,
}

/// What a tenant used in an hour.
#[derive(Debug, Serialize, ToSchema)]
pub struct UsageRow {
    /// The start of the hour, in seconds since 1970.
    pub start_time: u64,
    /// The end of the hour, in seconds since 1970.
    pub end_time: u64,
    /// The name of the tenant; null without API keys.
    pub tenant: Option<Box<str>>,
    /// The name of the model, on a server of several ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The number of outputs that were begun. A request with `n` outputs counts `n` times.
    pub requests: u64,
    /// The number of prompt tokens, cached ones included.
    pub prompt_tokens: u64,
    /// The number of prompt tokens that were found in the KV cache.
    pub cached_tokens: u64,
    /// The number of output tokens.
    pub output_tokens: u64,
    /// The device time in seconds. The time of a step is divided among its requests by the tokens that it computes.
    pub device_seconds: f64,
    /// The bytes of the device's KV cache in use, cached prompts included, times the seconds in use.
    pub kv_byte_seconds: f64,
}

/// The usage in a range of time.
#[derive(Debug, Serialize, ToSchema)]
pub struct UsageReport {
    /// The object type, always `list`.
    pub object: &'static str,
    /// The rows by hour and tenant, after each other for each model. The last models that were removed have rows, too.
    /// An hour without use has none.
    pub data: Vec<UsageRow>,
}

/// Returns what tenants used, by the hour, since the server started and for at most 31 days. A tenant sees its own rows
/// only; an admin sees those of all tenants.
#[utoipa::path(
    get, path = "/v1/usage", params(UsageQuery),
    responses(
        (status = 200, description = "The usage", body = UsageReport),
        (status = 400, description = "The query is invalid", body = ErrorResponse),
        (status = 503, description = "Other answers use the memory", body = ErrorResponse),
    )
)]
pub async fn usage(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    query: Result<Query<UsageQuery>, QueryRejection>,
) -> Response {
    respond::answer::<ErrorResponse>(report(&app, &caller, query).await)
}

async fn report(
    app: &App,
    caller: &Caller,
    query: Result<Query<UsageQuery>, QueryRejection>,
) -> Result<Response, ApiError> {
    let Query(query) = query.map_err(|error| ApiError::value("query", error.body_text()))?;
    let from = query.from.map_or(Ok(0), |text| parse_time("from", &text))?;
    let to = query.to.map_or(Ok(u64::MAX), |text| parse_time("to", &text))?;
    if from > to {
        return Err(ApiError::value("from", "is after `to`".to_owned()));
    }
    let hours = from / SECONDS_PER_HOUR..to.div_ceil(SECONDS_PER_HOUR);
    // A caller that is neither a tenant nor an admin has no rows.
    let only = (!caller.is_admin()).then(|| caller.name().unwrap_or_default().to_owned());
    let mut memory = app.admission.answer_memory(caller);
    let several = app.models.gate().is_some();
    let ledgers = app.models.usage();
    // The report of an admin may have many rows.
    let write = move || {
        let mut data = Vec::new();
        for (name, usage) in ledgers {
            let model = several.then_some(name);
            for hour in usage.hours(hours.clone()) {
                let rows = usage.rows(hour, only.as_deref());
                memory.grow_to((data.len() + rows.len()) * ROW_BYTES)?;
                data.extend(rows.into_iter().map(|(tenant, used)| row(hour, tenant, model.clone(), used)));
            }
        }
        let report = UsageReport { object: "list", data };
        Ok::<_, ApiError>((axum::Json(report).into_response(), memory))
    };
    let (response, memory) = app.admission.look_blocking(caller, write).await?;
    memory.hold(response).await
}

fn row(
    hour: u64,
    tenant: Option<Box<str>>,
    model: Option<String>,
    Used { work, kv_byte_seconds }: Used,
) -> UsageRow {
    UsageRow {
        start_time: hour * SECONDS_PER_HOUR,
        end_time: (hour + 1) * SECONDS_PER_HOUR,
        tenant,
        model,
        requests: work.sequences,
        prompt_tokens: work.prompt_tokens,
        cached_tokens: work.cached_tokens,
        output_tokens: work.output_tokens,
        device_seconds: work.device_time_us as f64 / 1e6,
        kv_byte_seconds,
    }
}

/// Parses seconds since 1970 or RFC 3339.
fn parse_time(field: &'static str, text: &str) -> Result<u64, ApiError> {
    if let Ok(seconds) = text.parse() {
        return Ok(seconds);
    }
    let time = humantime::parse_rfc3339_weak(text).ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    time.map(|time| time.as_secs()).ok_or_else(|| {
        let problem = "is not a time, expected seconds since 1970 or a form such as `2026-11-25T08:00:00Z`";
        ApiError::value(field, problem.to_owned())
    })
}
