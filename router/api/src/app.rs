//! The state that handlers share.

use std::sync::Arc;

use axum::extract::Request;
use bytes::Bytes;
use prometheus_client::registry::Registry;
use tokio::sync::watch;

use super::response_store::ResponseStore;
use trunkline_base::error::ApiError;
use trunkline_base::limits::ServerLimits;
use trunkline_base::metrics::Metrics;
use trunkline_base::metrics::usage::UsageLedger;
use trunkline_base::shutdown::Phase;
use trunkline_base::tenants::Caller;
use trunkline_base::trace::TelemetrySlot;
use trunkline_engine::kv_events::KvEvents;
use trunkline_generation::admission::{Admission, Admitted};
use trunkline_generation::place::Place;
use trunkline_generation::served::ServedModel;

/// The state that axum passes to every handler. Each field outlives any single request.
pub struct App {
    /// The served model and the driver of its step loop.
    pub served: ServedModel,
    /// API keys, rate limits and the limit on open requests, which each request passes before it is computed.
    pub admission: Admission,
    /// The log of cache changes that `/v1/kv/events` streams.
    pub kv_events: Arc<KvEvents>,
    /// The metrics that `/metrics` renders.
    pub registry: Registry,
    /// The usage by tenant that `/v1/usage` lists.
    pub usage: Arc<UsageLedger>,
    /// Stored answers of `/v1/responses`, which later requests can continue.
    pub responses: Arc<ResponseStore>,
    pub limits: Arc<ServerLimits>,
    pub metrics: Arc<Metrics>,
    /// Set once, before the first request, if requests have spans.
    pub telemetry: TelemetrySlot,
    pub phase: watch::Receiver<Phase>,
}

impl App {
    /// Reads the body of a request that computes no step, takes a place for it, and parses the body. A large body is
    /// parsed on the blocking pool.
    pub async fn read<T: Send + 'static>(
        self: &Arc<Self>,
        request: Request,
        parse: impl FnOnce(&App, &Caller, &[u8]) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<(Caller, Place, T), ApiError> {
        let caller = Caller::of_request(&request)?;
        let body = self.admission.read_body(&caller, request.into_body()).await?;
        let place = self.admission.place_without_shard(&self.served, &caller)?;
        let (app, sender) = (self.clone(), caller.clone());
        let parsed = self.served.parse(&caller, body, move |body| parse(&app, &sender, body)).await?;
        Ok((caller, place, parsed))
    }

    pub async fn admit(&self, request: Request) -> Result<(Admitted, Bytes), ApiError> {
        self.admission.admit(&self.served, request).await
    }
}
