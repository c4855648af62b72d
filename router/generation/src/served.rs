//! A served model: everything that a request needs once the server has decided to compute it.

use std::sync::Arc;

use bytes::Bytes;
use prometheus_client::registry::Registry;
use tokio::sync::watch;
use trunkline_scheduler::{LaneId, LaneStats, Stats};
use trunkline_text::ModelText;

use crate::adapters::{Adapters, Chosen, Named};
use crate::grammars::Grammars;
use crate::model::Model;
use crate::request::checked::Validator;
use trunkline_base::error::ApiError;
use trunkline_base::limits::{INLINE_BODY_BYTES, INLINE_TOKENIZE_BYTES, MAX_HANGS, ServerLimits};
use trunkline_base::metrics::usage::UsageLedger;
use trunkline_base::shutdown::Phase;
use trunkline_base::tenants::Caller;
use trunkline_base::tenants::permits::TenantPermits;
use trunkline_engine::driver::DriverHandle;
use trunkline_engine::driver::step_log::StepLog;
use trunkline_engine::kv_events::KvEvents;
use trunkline_engine::object::ObjectTier;
use trunkline_engine::shard::{Check, Health, ShardInfo, ShardStatus};

/// One model and the shards that compute it. A server of several models has one for each that was ever asked for; the
/// shards of some of them may have ended to make room for others.
pub struct ServedModel {
    /// Tokenizer, templates, name and reply style.
    pub model: Arc<Model>,
    pub driver: DriverHandle,
    /// The shard of each lane.
    pub shards: watch::Receiver<Vec<ShardStatus>>,
    /// The health of each lane's shard.
    pub health: watch::Receiver<Vec<Health>>,
    /// The scheduler's numbers after its last turn.
    pub stats: watch::Receiver<Stats>,
    /// The same of each lane.
    pub lanes: watch::Receiver<Vec<LaneStats>>,
    pub grammars: Arc<Grammars>,
    pub adapters: Arc<Adapters>,
    /// The object tier, where `--kv-object-store` names one.
    pub objects: Option<Arc<ObjectTier>>,
    pub limits: Arc<ServerLimits>,
    pub phase: watch::Receiver<Phase>,
    /// One permit for each thread of the blocking pool that parses large bodies, tokenizes long texts or writes long
    /// answers at the same time. All models share them.
    pub working: Arc<TenantPermits>,
    /// The log of cache changes that `/v1/kv/events` streams.
    pub kv_events: Arc<KvEvents>,
    /// The usage by tenant that `/v1/usage` lists.
    pub usage: Arc<UsageLedger>,
    /// The last steps, which `/v1/steps` lists.
    pub steps: Arc<StepLog>,
    /// The metrics of this model.
    pub registry: Registry,
}

impl ServedModel {
    /// Returns the description of a connected shard, or an error if there is none.
    pub fn shard_info(&self) -> Result<Arc<ShardInfo>, ApiError> {
        match ShardStatus::of_model(&self.shards.borrow()) {
            ShardStatus::Ready(info) => Ok(info),
            ShardStatus::Loading => Err(ApiError::ModelLoading),
            ShardStatus::Lost(_) => Err(ApiError::ShardAway),
        }
    }

    /// Returns the description of the shard that computes new requests, or an error if the server drains or still loads
    /// the model. While no shard is connected, this is a lost one, and requests wait in the queue.
    pub fn serving(&self) -> Result<Arc<ShardInfo>, ApiError> {
        self.not_draining()?;
        self.last_shard().ok_or(ApiError::ModelLoading)
    }

    /// Returns the description of the last shard that was connected, if there was one.
    pub fn last_shard(&self) -> Option<Arc<ShardInfo>> {
        match ShardStatus::of_model(&self.shards.borrow()) {
            ShardStatus::Ready(info) | ShardStatus::Lost(info) => Some(info),
            ShardStatus::Loading => None,
        }
    }

    pub fn not_draining(&self) -> Result<(), ApiError> {
        if *self.phase.borrow() == Phase::Serving { Ok(()) } else { Err(ApiError::Draining) }
    }

    /// Checks that requests would be served now: the server does not drain, and a shard is connected whose steps end.
    pub fn readiness(&self) -> Result<(), ApiError> {
        self.not_draining()?;
        self.shard_info()?;
        let is_ready = |status: &ShardStatus| matches!(status, ShardStatus::Ready(_));
        let ready: Vec<bool> = self.shards.borrow().iter().map(is_ready).collect();
        let outcomes =
            (0..).zip(ready).filter(|(_, is_ready)| *is_ready).map(|(lane, _)| self.wellness(lane));
        // The first lane that is well, or else the trouble of the last one.
        outcomes.reduce(|known, next| known.or(next)).unwrap_or(Err(ApiError::ShardAway))
    }

    /// Checks that the shard of a lane answers and its steps end.
    fn wellness(&self, lane: usize) -> Result<(), ApiError> {
        let health = self.health.borrow()[lane];
        let limit = self.limits.stuck_step_timeout.max(health.patience);
        match health.last {
            check if check.is_well(limit) => Ok(()),
            Check::Away | Check::Silent => Err(ApiError::ShardSilent),
            Check::Answered { step_running, .. } => {
                Err(ApiError::ShardStuck { running_s: step_running.as_secs(), limit_s: limit.as_secs() })
            }
        }
    }

    /// Waits until a shard of a lane computes, other than the one with the description `last`, and returns its own.
    pub async fn wait_lane_ready(&self, lane: usize, last: Option<&Arc<ShardInfo>>) -> Arc<ShardInfo> {
        let (mut shards, mut health) = (self.shards.clone(), self.health.clone());
        loop {
            let status = self.shards.borrow()[lane].clone();
            if let ShardStatus::Ready(info) = status
                && last.is_none_or(|last| !Arc::ptr_eq(last, &info))
                && self.wellness(lane).is_ok()
            {
                return info;
            }
            changed(&mut shards, &mut health).await;
        }
    }

    /// Returns the lane with this number, or an error if there is none.
    pub fn lane(&self, number: u32) -> Result<LaneId, ApiError> {
        let num_lanes = self.shards.borrow().len();
        let is_known = (number as usize) < num_lanes;
        is_known
            .then_some(LaneId(number))
            .ok_or_else(|| ApiError::value("lane", format!("is {number}, expected 0 to {}", num_lanes - 1)))
    }

    /// Leaves all lanes after so many milliseconds, or uses them again.
    pub async fn set_drains(&self, patience_ms: Option<u64>) {
        let num_lanes = self.shards.borrow().len();
        for lane in (0..).map(LaneId).take(num_lanes) {
            self.driver.set_drain(lane, patience_ms).await;
        }
    }

    /// Waits until [`Self::readiness`] finds the server ready.
    pub async fn wait_ready(&self) {
        let (mut shards, mut health) = (self.shards.clone(), self.health.clone());
        while self.readiness().is_err() {
            changed(&mut shards, &mut health).await;
        }
    }

    /// Checks that restarting shards helps: not all of them hung several times in a row.
    pub fn liveness(&self) -> Result<(), ApiError> {
        let hangs = self.health.borrow().iter().map(|health| health.hangs).min().unwrap_or(0);
        if hangs < MAX_HANGS { Ok(()) } else { Err(ApiError::ShardHung { hangs }) }
    }

    /// Returns the adapter that a request names, or `None` for the model alone. Refuses unknown names.
    pub fn choose(&self, caller: &Caller, named: Named<'_>) -> Result<Option<Chosen>, ApiError> {
        self.adapters.choose(&self.model, caller, named)
    }

    /// Checks the `model` field of a request that computes nothing.
    pub fn check_name(&self, caller: &Caller, asked: Option<&str>) -> Result<(), ApiError> {
        self.choose(caller, Named::model(asked)).map(drop)
    }

    pub fn validator(&self, shard: &ShardInfo) -> Validator {
        Validator::new(self.limits.clone(), self.model.clone(), shard)
    }

    /// Runs `work` on a text of `num_bytes`, on the blocking pool if the text is long.
    pub async fn tokenize<T: Send + 'static, E: Into<ApiError> + Send + 'static>(
        &self,
        caller: &Caller,
        num_bytes: usize,
        work: impl FnOnce(&ModelText) -> Result<T, E> + Send + 'static,
    ) -> Result<T, ApiError> {
        if num_bytes <= INLINE_TOKENIZE_BYTES {
            return work(&self.model.text).map_err(Into::into);
        }
        let model = self.model.clone();
        self.blocking(caller, move || work(&model.text)).await.map_err(Into::into)
    }

    /// Runs `parse` on a body and drops the body, on the blocking pool if it is large.
    pub async fn parse<T: Send + 'static>(
        &self,
        caller: &Caller,
        body: Bytes,
        parse: impl FnOnce(&[u8]) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        if body.len() <= INLINE_BODY_BYTES {
            return parse(&body);
        }
        self.blocking(caller, move || parse(&body)).await
    }

    /// Runs `work`, whose time grows with a request, on the blocking pool. A few run at a time, so that they delay no
    /// other requests, and those of a tenant delay only its own.
    #[expect(clippy::expect_used, reason = "there is no deadline")]
    pub async fn blocking<T: Send + 'static>(
        &self,
        caller: &Caller,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> T {
        let permit = self.working.take(caller.name(), None).await.expect("a permit becomes free");
        let done = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            work()
        });
        match done.await {
            Ok(result) => result,
            // A panic is answered as one in the handler would be.
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }
}

/// Waits until a shard or its health has changed.
async fn changed(shards: &mut watch::Receiver<Vec<ShardStatus>>, health: &mut watch::Receiver<Vec<Health>>) {
    let changed = tokio::select! {
        changed = shards.changed() => changed,
        changed = health.changed() => changed,
    };
    if changed.is_err() {
        // The driver or the health poll has ended with the server.
        std::future::pending::<()>().await;
    }
}
