//! `/v1/kv/events`: what enters and leaves the KV cache, as server-sent events.

use std::convert::Infallible;
use std::fmt::Write;
use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use serde::Serialize;
use tokio::sync::watch;
use trunkline_scheduler::{BlockKey, KvEvent, Owner, Scheduler};
use utoipa::ToSchema;

use crate::api::app::App;
use crate::api::openai::ErrorResponse;
use crate::api::respond;
use crate::api::respond::ErrorForm;
use crate::error::ApiError;
use crate::kv_events::{Listener, LoggedEvent, MAX_HISTORY, MAX_LISTENERS, TooSlow};
use crate::limits::MAX_WRITE_BYTES;
use crate::shutdown::Phase;
use crate::tenants::{Caller, KeyRing};

/// Where a client that comes back says what it saw last (WHATWG HTML, section 9.2).
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
/// Events looked at in one turn, shown or not.
const MAX_EVENTS_PER_TURN: usize = 256;

/// Something changed in the KV cache: the data of an event. Its `event` is `type`, its `id` can be sent back as
/// `Last-Event-ID`.
#[derive(Debug, Serialize, ToSchema)]
#[serde(tag = "type")]
pub enum KvEventData {
    /// A block can be found from now on.
    BlockStored {
        /// When, in seconds since 1970.
        timestamp: f64,
        /// `device`, `disk` or `object`.
        tier: &'static str,
        /// The block's name: 32 hexadecimal digits, the same in all tiers and on all machines.
        key: String,
        /// The block before it; null for the first.
        parent: Option<String>,
        /// Blocks before it; null where the tier does not know.
        depth: Option<u32>,
        /// Its namespace, as in `/v1/kv/tree`; null where the tier does not know.
        namespace: Option<String>,
        /// Its tokens; left out where the tier does not know them, and without API keys.
        #[serde(skip_serializing_if = "Option::is_none")]
        token_ids: Option<Vec<u32>>,
    },
    /// A block can be found no more in this tier.
    BlockRemoved {
        /// When, in seconds since 1970.
        timestamp: f64,
        /// `device`, `disk` or `object`.
        tier: &'static str,
        /// The block's name.
        key: String,
        /// Its namespace; null where the tier does not know.
        namespace: Option<String>,
    },
    /// What was said before holds no more; `/v1/kv/tree` lists what is there.
    AllBlocksCleared {
        /// When, in seconds since 1970.
        timestamp: f64,
    },
}

/// What enters and leaves the KV cache, as it happens.
///
/// Each caller gets the events of its own tenant, an admin those of all.
#[utoipa::path(
    get, path = "/v1/kv/events", tag = "KV cache",
    params(("Last-Event-ID" = Option<String>, Header, description = "`id` of the last event seen: what came after it is sent first")),
    responses(
        (status = 200, description = "Events", body = KvEventData, content_type = "text/event-stream"),
        (status = 429, description = "Too many listeners", body = ErrorResponse),
        (status = 503, description = "Draining", body = ErrorResponse),
    )
)]
pub async fn events(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
) -> Response {
    respond::answer::<ErrorResponse>(listen(&app, caller, &headers).await.map(EventStream::into_response))
}

async fn listen(app: &Arc<App>, caller: Caller, headers: &HeaderMap) -> Result<EventStream, ApiError> {
    if *app.phase.borrow() != Phase::Serving {
        return Err(ApiError::Draining);
    }
    // What is no text is no id of ours either.
    let last_id = headers.get(LAST_EVENT_ID).map(|value| value.to_str().unwrap_or_default());
    let listener =
        app.kv_events.listen(last_id).ok_or(ApiError::TooManyListeners { limit: MAX_LISTENERS })?;
    // Whatever is asked for after the answer's header came is recorded.
    let record = |scheduler: &mut Scheduler, _| scheduler.record_kv_events(true);
    app.served.driver.ask(record).await.map_err(|_| ApiError::ShardAway)?;
    let ring = app.admission.access.ring();
    let mut text = String::from(":\n\n");
    if listener.resume.is_lost {
        let number = listener.resume.next.checked_sub(1);
        let data = KvEventData::AllBlocksCleared { timestamp: crate::clock::unix_seconds() };
        write_event(&mut text, &listener.resume.epoch, number, &data);
    }
    let (app, phase) = (app.clone(), app.phase.clone());
    Ok(EventStream { listener, caller, ring, app, phase, text, has_ended: false })
}

/// A stream of events under way.
struct EventStream {
    listener: Listener,
    caller: Caller,
    /// The keys when it began.
    ring: Option<Arc<KeyRing>>,
    app: Arc<App>,
    phase: watch::Receiver<Phase>,
    /// Written and not yet sent.
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

    /// The next piece of the body; none after the last.
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
                // The listener must not hold a drain up; its client finds another server, or this one again.
                _ = self.phase.wait_for(|phase| *phase != Phase::Serving) => self.has_ended = true,
            }
        }
    }

    /// Writes all events that are there, up to the size of a write.
    fn gather(&mut self) {
        while !self.has_ended && self.text.len() < MAX_WRITE_BYTES {
            if !self.has_its_key() {
                self.text.push_str(": the API keys are others now, connect again\n\n");
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

    /// The keys are those that it came with: after they were read again it must show its own once more.
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

/// What a caller sees of an event; none if it is another's.
fn data(logged: &LoggedEvent, caller: &Caller) -> Option<KvEventData> {
    let timestamp = logged.unix_seconds;
    let may_see =
        |owner: &Owner| caller.is_admin() || caller.name().is_some_and(|name| owner.tenant() == Some(name));
    let namespace = |owner: &Owner| owner.root_key().map(|key| key.to_string()[..8].to_owned());
    match &logged.event {
        KvEvent::BlockStored(stored) => may_see(&stored.owner).then(|| KvEventData::BlockStored {
            timestamp,
            tier: stored.tier.name(),
            key: stored.key.to_string(),
            parent: stored.parent.as_ref().map(BlockKey::to_string),
            depth: stored.depth,
            namespace: namespace(&stored.owner),
            // Without keys nobody is known, and everybody is let in: prompts are not shown to them.
            token_ids: (caller.tenant().is_some() && !stored.token_ids.is_empty())
                .then(|| stored.token_ids.to_vec()),
        }),
        KvEvent::BlockRemoved { key, tier, owner } => may_see(owner).then(|| KvEventData::BlockRemoved {
            timestamp,
            tier: tier.name(),
            key: key.to_string(),
            namespace: namespace(owner),
        }),
        KvEvent::AllBlocksCleared => Some(KvEventData::AllBlocksCleared { timestamp }),
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
