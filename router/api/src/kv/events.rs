//! `/v1/kv/events`: blocks that enter and leave the KV cache, as server-sent events.

use std::convert::Infallible;
use std::fmt::Write;
use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use serde::Serialize;
use tokio::sync::watch;
use trunkline_scheduler::{BlockKey, KvEvent, Owner, Scheduler};
use utoipa::ToSchema;

use crate::app::App;
use crate::of_model::{ModelQuery, OfModel};
use crate::openai::ErrorResponse;
use crate::respond;
use crate::respond::ErrorForm;
use trunkline_base::error::ApiError;
use trunkline_base::limits::MAX_WRITE_BYTES;
use trunkline_base::shutdown::Phase;
use trunkline_base::tenants::{Caller, HeldPlaces, KeyRing};
use trunkline_engine::kv_events::{Listener, LoggedEvent, MAX_HISTORY, TooSlow};

/// The header in which a reconnecting client sends the id of the last event it saw (WHATWG HTML, section 9.2).
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
/// The most events to take from the log at once, including those that the caller may not see.
const MAX_EVENTS_PER_TURN: usize = 256;

/// The data of an event, which reports a change in the KV cache. The event's name equals `type`. To resume after an
/// event, send its `id` as `Last-Event-ID`.
#[derive(Debug, Serialize, ToSchema)]
#[serde(tag = "type")]
pub enum KvEventData {
    /// A block was added to a tier. Requests can find it there from now on.
    BlockStored {
        /// The time of the change, in seconds since 1970.
        timestamp: f64,
        /// The lane in whose cache it happened, from 0.
        lane: u32,
        /// The tier: `device`, `disk` or `object`.
        tier: &'static str,
        /// The key of the block: 32 hexadecimal digits, the same in all tiers and on all machines.
        key: String,
        /// The key of the preceding block; null for the first block of a prefix.
        parent: Option<String>,
        /// The number of blocks before it; null if the tier does not record it.
        depth: Option<u32>,
        /// The namespace of the block, as in `/v1/kv/tree`; null if the tier does not record it.
        namespace: Option<String>,
        /// The name of the adapter that the block was computed with. Absent if there was none, or if the tier does not
        /// record it.
        #[serde(skip_serializing_if = "Option::is_none")]
        adapter: Option<String>,
        /// The tokens of the block. Absent if the tier does not record them, or if no API keys are configured.
        #[serde(skip_serializing_if = "Option::is_none")]
        token_ids: Option<Vec<u32>>,
    },
    /// A block was removed from a tier. Requests no longer find it there.
    BlockRemoved {
        /// The time of the change, in seconds since 1970.
        timestamp: f64,
        /// The lane in whose cache it happened, from 0.
        lane: u32,
        /// The tier: `device`, `disk` or `object`.
        tier: &'static str,
        /// The key of the block.
        key: String,
        /// The namespace of the block; null if the tier does not record it.
        namespace: Option<String>,
    },
    /// Earlier events no longer describe the cache. List its current contents with `/v1/kv/tree`.
    AllBlocksCleared {
        /// The time of the change, in seconds since 1970.
        timestamp: f64,
        /// The lane whose cache was cleared; null for all of them.
        lane: Option<u32>,
    },
}

/// Reports blocks as they enter and leave the KV cache.
///
/// You receive the events of your own tenant. Admins receive the events of all tenants.
#[utoipa::path(
    get, path = "/v1/kv/events",
    params(ModelQuery, (
        "Last-Event-ID" = Option<String>, Header,
        description = "The `id` of the last event that you received; the stream resumes after it",
    )),
    responses(
        (status = 200, description = "A stream of events", body = KvEventData, content_type = "text/event-stream"),
        (status = 429, description = "Too many clients are listening, or the tenant has reached its rate of requests", body = ErrorResponse),
        (status = 503, description = "The server is draining", body = ErrorResponse),
    )
)]
pub async fn events(
    OfModel(app): OfModel,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
) -> Response {
    respond::answer::<ErrorResponse>(listen(&app, caller, &headers).await.map(EventStream::into_response))
}

async fn listen(app: &Arc<App>, caller: Caller, headers: &HeaderMap) -> Result<EventStream, ApiError> {
    if *app.phase.borrow() != Phase::Serving {
        return Err(ApiError::Draining);
    }
    // A header that is not text cannot be one of our ids; it is treated as an unknown one.
    let last_id = headers.get(LAST_EVENT_ID).map(|value| value.to_str().unwrap_or_default());
    let (listener, place) = app.admission.listen(&app.served.kv_events, &caller, last_id)?;
    // Recording is on before the response's header is sent, so the client misses nothing that happens after it.
    let record = |scheduler: &mut Scheduler, _| scheduler.record_kv_events(true);
    app.admission.ask(&app.served, &caller, record).await?;
    let ring = app.admission.access.ring();
    let mut text = String::from(":\n\n");
    if listener.resume.is_lost {
        let number = listener.resume.next.checked_sub(1);
        let timestamp = trunkline_base::clock::unix_seconds();
        let data = KvEventData::AllBlocksCleared { timestamp, lane: None };
        write_event(&mut text, &listener.resume.epoch, number, &data);
    }
    let (app, phase) = (app.clone(), app.phase.clone());
    Ok(EventStream { listener, _place: place, caller, ring, app, phase, text, has_ended: false })
}

/// A running stream of KV events.
struct EventStream {
    listener: Listener,
    _place: HeldPlaces,
    caller: Caller,
    /// The API keys at the start of the stream.
    ring: Option<Arc<KeyRing>>,
    app: Arc<App>,
    phase: watch::Receiver<Phase>,
    /// Events that are rendered but not yet sent.
    text: String,
    has_ended: bool,
}

impl EventStream {
    fn into_response(self) -> Response {
        let headers = [
            (header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream")),
            (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
            (HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no")),
        ];
        let body = futures::stream::unfold(self, |mut stream| async move {
            let bytes = stream.next().await?;
            Some((Ok::<_, Infallible>(bytes), stream))
        });
        (headers, Body::from_stream(body)).into_response()
    }

    /// Returns the next piece of the body, or `None` after the last one.
    async fn next(&mut self) -> Option<Bytes> {
        let keep_alive = self.app.limits.timeouts.keep_alive;
        loop {
            self.gather();
            if !self.text.is_empty() {
                return Some(std::mem::take(&mut self.text).into());
            }
            if self.has_ended {
                return None;
            }
            tokio::select! {
                () = self.listener.changed() => {}
                () = tokio::time::sleep(keep_alive) => self.text.push_str(":\n\n"),
                // A listener must not delay a drain. Its client reconnects, to this server or another.
                _ = self.phase.wait_for(|phase| *phase != Phase::Serving) => self.has_ended = true,
            }
        }
    }

    /// Renders the available events, up to the size of one write.
    fn gather(&mut self) {
        while !self.has_ended && self.text.len() < MAX_WRITE_BYTES {
            if !self.has_its_key() {
                self.text.push_str(": the API keys have changed, reconnect\n\n");
                self.has_ended = true;
                return;
            }
            match self.listener.take(MAX_EVENTS_PER_TURN) {
                Ok(events) if events.is_empty() => return,
                Ok(events) => events.iter().for_each(|event| self.show(event)),
                Err(TooSlow) => {
                    let error = ApiError::SlowListener { limit: MAX_HISTORY };
                    tracing::warn!(code = error.code(), %error, "stream of KV events ended");
                    self.app.metrics.observe_failure(error.class(), error.code());
                    write_data(&mut self.text, "error", &ErrorResponse::from_error(&error));
                    self.has_ended = true;
                }
            }
        }
    }

    /// Returns true if the API keys are still those at the start of the stream. After a reload the client must
    /// authenticate again.
    fn has_its_key(&self) -> bool {
        match (&self.ring, self.app.admission.access.ring()) {
            (None, None) => true,
            (Some(then), Some(now)) => Arc::ptr_eq(then, &now),
            _ => false,
        }
    }

    fn show(&mut self, logged: &LoggedEvent) {
        if let Some(data) = data(logged, &self.caller) {
            write_event(&mut self.text, &self.listener.resume.epoch, Some(logged.number), &data);
        }
    }
}

/// Returns the data that the caller may see, or `None` for an event of another tenant.
fn data(logged: &LoggedEvent, caller: &Caller) -> Option<KvEventData> {
    let (timestamp, lane) = (logged.unix_seconds, logged.lane.0);
    let may_see =
        |owner: &Owner| caller.is_admin() || caller.name().is_some_and(|name| owner.tenant() == Some(name));
    let namespace = |owner: &Owner| owner.root_key().map(|key| key.to_string()[..8].to_owned());
    match &logged.event {
        KvEvent::BlockStored(stored) => may_see(&stored.owner).then(|| KvEventData::BlockStored {
            timestamp,
            lane,
            tier: stored.tier.name(),
            key: stored.key.to_string(),
            parent: stored.parent.as_ref().map(BlockKey::to_string),
            depth: stored.depth,
            namespace: namespace(&stored.owner),
            adapter: stored.owner.adapter().map(|adapter| adapter.name.to_string()),
            // Without API keys anyone may listen, so the tokens of prompts are not shown.
            token_ids: (caller.tenant().is_some() && !stored.token_ids.is_empty())
                .then(|| stored.token_ids.to_vec()),
        }),
        KvEvent::BlockRemoved { key, tier, owner } => may_see(owner).then(|| KvEventData::BlockRemoved {
            timestamp,
            lane,
            tier: tier.name(),
            key: key.to_string(),
            namespace: namespace(owner),
        }),
        KvEvent::AllBlocksCleared => Some(KvEventData::AllBlocksCleared { timestamp, lane: Some(lane) }),
    }
}

fn write_event(text: &mut String, epoch: &str, number: Option<u64>, data: &KvEventData) {
    let name = match data {
        KvEventData::BlockStored { .. } => "BlockStored",
        KvEventData::BlockRemoved { .. } => "BlockRemoved",
        KvEventData::AllBlocksCleared { .. } => "AllBlocksCleared",
    };
    if let Some(number) = number {
        // Writing to a string does not fail.
        let _ = writeln!(text, "id: {epoch}-{number}");
    }
    write_data(text, name, data);
}

fn write_data(text: &mut String, name: &str, data: &impl Serialize) {
    // Strings, numbers and lists are always JSON.
    let json = serde_json::to_string(data).unwrap_or_default();
    let _ = write!(text, "event: {name}\ndata: {json}\n\n");
}
