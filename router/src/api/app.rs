//! The state that handlers share.

use std::sync::Arc;

use axum::extract::Request;
use bytes::Bytes;
use prometheus_client::registry::Registry;
use tokio::sync::watch;

use super::response_store::ResponseStore;
use crate::error::ApiError;
use crate::generation::admission::{Admission, Admitted};
use crate::generation::served::ServedModel;
use crate::kv_events::KvEvents;
use crate::limits::ServerLimits;
use crate::metrics::Metrics;
use crate::shutdown::Phase;

/// The state that every handler gets: one place for each thing that outlives a request.
pub struct App {
    /// The model that is served. A second model would be a second one of these.
    pub served: ServedModel,
    /// The keys, rates and places that a request meets before it is computed.
    pub admission: Admission,
    /// The feed behind `/v1/kv/events`.
    pub kv_events: Arc<KvEvents>,
    /// Everything that `/metrics` shows.
    pub registry: Registry,
    /// Answers of `/v1/responses` that later requests continue.
    pub responses: Arc<ResponseStore>,
    /// The limits that flags set.
    pub limits: Arc<ServerLimits>,
    /// Counters and histograms of handlers.
    pub metrics: Arc<Metrics>,
    /// Says whether the server serves, drains or terminates.
    pub phase: watch::Receiver<Phase>,
}

impl App {
    /// Admits a request and reads its body; see [`Admission::admit`].
    pub async fn admit(&self, request: Request) -> Result<(Admitted, Bytes), ApiError> {
        self.admission.admit(&self.served, request).await
    }
}
