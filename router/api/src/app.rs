//! The state that handlers share.

use std::sync::Arc;

use axum::extract::Request;
use bytes::Bytes;
use prometheus_client::registry::Registry;
use tokio::sync::watch;

use super::history::HistorySlot;
use super::kept_streams::KeptStreams;
use super::response_store::ResponseStore;
use trunkline_base::error::ApiError;
use trunkline_base::limits::ServerLimits;
use trunkline_base::metrics::Metrics;
use trunkline_base::shutdown::Phase;
use trunkline_base::tenants::Caller;
use trunkline_base::trace::TelemetrySlot;
use trunkline_generation::admission::{Admission, Admitted, Received};
use trunkline_generation::models::{Event, KeepAlive, ModelId, Models};
use trunkline_generation::place::Place;
use trunkline_generation::served::ServedModel;

/// What handlers see of the server, from the point of view of one model. Each field outlives any single request.
#[derive(Clone)]
pub struct App {
    /// The model of the request, which is the first one until the request's body names another.
    pub served: Arc<ServedModel>,
    /// All models.
    pub models: Arc<Models>,
    /// API keys, rate limits and the limit on open requests, which each request passes before it is computed.
    pub admission: Arc<Admission>,
    /// The metrics of the server. Those of a model are in [`ServedModel::registry`].
    pub registry: Arc<Registry>,
    /// Stored answers of `/v1/responses`, which later requests can continue.
    pub responses: Arc<ResponseStore>,
    /// Streamed answers that outlive their connections.
    pub kept_streams: Arc<KeptStreams>,
    /// Conversations that the server keeps, if it does.
    pub history: HistorySlot,
    pub limits: Arc<ServerLimits>,
    pub metrics: Arc<Metrics>,
    /// Set once, before the first request, if requests have spans.
    pub telemetry: TelemetrySlot,
    pub phase: watch::Receiver<Phase>,
}

impl App {
    /// Returns the same server from the point of view of this model.
    pub fn of_model(self: &Arc<Self>, served: Arc<ServedModel>) -> Arc<Self> {
        if Arc::ptr_eq(&self.served, &served) {
            return self.clone();
        }
        Arc::new(Self { served, ..Self::clone(self) })
    }

    /// Returns the server from the point of view of the model with this name, which need not be in memory.
    pub async fn named(
        self: &Arc<Self>,
        caller: &Caller,
        model: Option<&str>,
    ) -> Result<Arc<Self>, ApiError> {
        let entry = self.models.find(caller, model)?;
        Ok(self.of_model(self.models.served(&entry).await?))
    }

    /// Reads the body of a request that computes no step, takes a place for it, and parses the body. A large body is
    /// parsed on the blocking pool.
    pub async fn read<T: Send + 'static>(
        self: &Arc<Self>,
        request: Request,
        parse: impl FnOnce(&App, &Caller, &[u8]) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<(Arc<Self>, Caller, Place, T), ApiError> {
        let caller = Caller::of_request(&request)?;
        let (body, memory) = self.admission.read_body(&caller, request.into_body()).await?;
        let place = self.admission.place_without_shard(&self.served, &caller, memory)?;
        let named = self.admission.named(&self.models, &self.served, &caller, &body).await;
        let app = self.named(&caller, named.name.as_deref()).await?;
        let (view, sender) = (app.clone(), caller.clone());
        let parsed = app.served.parse(&caller, body, move |body| parse(&view, &sender, body)).await?;
        Ok((app, caller, place, parsed))
    }

    /// Does the same for a body whose `model` may be one that the server does not have.
    pub async fn read_of_any_model<T: Send + 'static>(
        &self,
        request: Request,
        parse: impl FnOnce(&[u8]) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<(Caller, Place, T), ApiError> {
        let caller = Caller::of_request(&request)?;
        let (body, memory) = self.admission.read_body(&caller, request.into_body()).await?;
        let place = self.admission.place_without_shard(&self.served, &caller, memory)?;
        let parsed = self.served.parse(&caller, body, parse).await?;
        Ok((caller, place, parsed))
    }

    /// Admits a request, and waits until the model is in memory that its body names.
    pub async fn admit(self: &Arc<Self>, request: Request) -> Result<(Arc<Self>, Admitted, Bytes), ApiError> {
        let received = self.admission.receive(&self.models, &self.served, request).await?;
        self.enter(received).await
    }

    /// Sets the time for which a model stays in memory after a request, if the request says so.
    pub fn keep(&self, model: ModelId, keep_alive: Option<KeepAlive>) {
        if let (Some(gate), Some(keep_alive)) = (self.models.gate(), keep_alive) {
            gate.tell(Event::KeepAlive { model, keep_alive });
        }
    }

    /// Waits until the model of a request is in memory.
    pub async fn enter(
        self: &Arc<Self>,
        received: Received,
    ) -> Result<(Arc<Self>, Admitted, Bytes), ApiError> {
        let (served, admitted, body) = self.admission.enter(&self.models, received).await?;
        Ok((self.of_model(served), admitted, body))
    }
}
