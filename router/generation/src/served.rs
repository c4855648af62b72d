//! A served model: everything that a request needs once the server has decided to compute it.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::watch;
use trunkline_scheduler::Stats;
use trunkline_text::ModelText;

use crate::grammars::Grammars;
use crate::model::Model;
use crate::request::checked::Validator;
use trunkline_base::error::ApiError;
use trunkline_base::limits::{INLINE_BODY_BYTES, INLINE_TOKENIZE_BYTES, MAX_HANGS, ServerLimits};
use trunkline_base::shutdown::Phase;
use trunkline_base::tenants::Caller;
use trunkline_base::tenants::permits::TenantPermits;
use trunkline_engine::driver::DriverHandle;
use trunkline_engine::object::ObjectTier;
use trunkline_engine::shard::{Check, Health, ShardInfo, ShardStatus};

/// One model and the shard that computes it. The server has one of these; serving several models means several.
pub struct ServedModel {
    /// Tokenizer, templates, name and reply style.
    pub model: Arc<Model>,
    pub driver: DriverHandle,
    pub shard: watch::Receiver<ShardStatus>,
    pub health: watch::Receiver<Health>,
    /// The scheduler's numbers after its last turn.
    pub stats: watch::Receiver<Stats>,
    pub grammars: Arc<Grammars>,
    /// The object tier, where `--kv-object-store` names one.
    pub objects: Option<Arc<ObjectTier>>,
    pub limits: Arc<ServerLimits>,
    pub phase: watch::Receiver<Phase>,
    /// One permit for each thread of the blocking pool that parses large bodies, tokenizes long texts or writes long
    /// answers at the same time.
    pub working: TenantPermits,
}

impl ServedModel {
    /// Returns the shard's description, or an error if no shard is connected.
    pub fn shard_info(&self) -> Result<Arc<ShardInfo>, ApiError> {
        match &*self.shard.borrow() {
            ShardStatus::Ready(info) => Ok(info.clone()),
            ShardStatus::Loading => Err(ApiError::ModelLoading),
            ShardStatus::Lost(_) => Err(ApiError::ShardAway),
        }
    }

    /// Returns the description of the shard that computes new requests, or an error if the server drains or still loads
    /// the model. While a lost shard is replaced, this is the lost one, and requests wait in the queue.
    pub fn serving(&self) -> Result<Arc<ShardInfo>, ApiError> {
        self.not_draining()?;
        match &*self.shard.borrow() {
            ShardStatus::Ready(info) | ShardStatus::Lost(info) => Ok(info.clone()),
            ShardStatus::Loading => Err(ApiError::ModelLoading),
        }
    }

    fn not_draining(&self) -> Result<(), ApiError> {
        if *self.phase.borrow() == Phase::Serving { Ok(()) } else { Err(ApiError::Draining) }
    }

    /// Checks that requests would be served now: the server does not drain, a shard is connected, its steps end.
    pub fn readiness(&self) -> Result<(), ApiError> {
        self.not_draining()?;
        self.shard_info()?;
        match self.health.borrow().last {
            check if check.is_well(self.limits.stuck_step_timeout) => Ok(()),
            Check::Away | Check::Silent => Err(ApiError::ShardSilent),
            Check::Answered { step_running, .. } => Err(ApiError::ShardStuck {
                running_s: step_running.as_secs(),
                limit_s: self.limits.stuck_step_timeout.as_secs(),
            }),
        }
    }

    /// Waits until [`Self::readiness`] finds the server ready.
    pub async fn wait_ready(&self) {
        let (mut shard, mut health) = (self.shard.clone(), self.health.clone());
        while self.readiness().is_err() {
            let changed = tokio::select! {
                changed = shard.changed() => changed,
                changed = health.changed() => changed,
            };
            if changed.is_err() {
                // The driver or the health poll has ended with the server.
                std::future::pending::<()>().await;
            }
        }
    }

    /// Checks that restarting the shard helps: it did not hang several times in a row.
    pub fn liveness(&self) -> Result<(), ApiError> {
        let hangs = self.health.borrow().hangs;
        if hangs < MAX_HANGS { Ok(()) } else { Err(ApiError::ShardHung { hangs }) }
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
