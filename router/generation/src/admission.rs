//! Admission: keys, the tenant's limits, the body, and a place among the open requests.
//!
//! A body is read before its request takes a place, so a slow sender keeps no one out. The bytes of all bodies that are
//! being read are bounded together. Before admission, callers share what there is by tenant, or by address where the
//! key does not tell them apart.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::Request;
use bytes::Bytes;
use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;
use trunkline_scheduler::{Millis, Scheduler};

use super::answer_memory::AnswerMemory;
use super::choices::Choices;
use super::generate::Generation;
use super::models::{ModelId, Models, NamedModel, Target};
use super::place::Place;
use super::served::ServedModel;
use crate::request::arrival::Arrival;
use crate::request::deadline::header_timeout;
use crate::request::ready::GenerationRequest;
use trunkline_base::error::{ApiError, ErrorClass};
use trunkline_base::limits::ServerLimits;
use trunkline_base::metrics::Metrics;
use trunkline_base::request_id::RequestId;
use trunkline_base::shutdown::Phase;
use trunkline_base::tenants::permits::{TenantPermit, TenantPermits};
use trunkline_base::tenants::{
    Access, Caller, HeldMemory, HeldPlaces, Limiter, MemoryBudget, OpenPlaces, OverLimit, RateSlot,
    SharedPlaces,
};
use trunkline_engine::driver::DriverGone;
use trunkline_engine::kv_events::{KvEvents, Listener, MAX_LISTENERS};
use trunkline_engine::shard::ShardInfo;
use trunkline_http::{check_encoding, read_body};

/// The longest `Retry-After` of a request that finds no free place, in seconds.
const MAX_RETRY_S: u64 = 60;

/// A request whose body is read, and which may have to wait for its model.
pub struct Received {
    pub body: Bytes,
    pub arrival: Arrival,
    /// Whether the body asks for a stream, if it says so. Only a server of several models knows it so early.
    pub is_stream: Option<bool>,
    pub target: Target,
    permit: Place,
}

/// A request that passed admission, with its place and its origin.
pub struct Admitted {
    /// The place that it holds until it is answered.
    pub permit: Place,
    pub model: ModelId,
    pub shard: Arc<ShardInfo>,
    pub arrival: Arrival,
}

/// The keys, rates and places that all requests share.
pub struct Admission {
    pub access: Access,
    /// One permit for each open request.
    pub open: Arc<Semaphore>,
    /// The permits that each tenant holds, where there are several tenants.
    pub places: Arc<SharedPlaces>,
    /// The permits that requests for each model hold, where there are several models.
    pub models: Arc<SharedPlaces>,
    /// The memory of open requests: of their bodies until they are tokenized, and of their prompts from then on.
    pub requests: Arc<MemoryBudget>,
    /// The memory of whole answers.
    pub answers: Arc<MemoryBudget>,
    /// The places of those who listen to events of the KV cache.
    pub listeners: Arc<SharedPlaces>,
    /// One permit for each look at the state that the driving task owns, or holds a lock on.
    pub looks: TenantPermits,
    pub limits: Arc<ServerLimits>,
    /// Counts the requests that are over their tenant's rate.
    pub metrics: Arc<Metrics>,
    pub phase: watch::Receiver<Phase>,
}

impl Admission {
    /// Reads the body of a request and takes a place for it.
    ///
    /// Refuses it while the server drains, without a shard, and beyond the limits of the server or of its tenant. The
    /// checks that need no body come before the body is read. `served` is the model of requests that name none.
    pub async fn receive(
        &self,
        models: &Models,
        served: &ServedModel,
        request: Request,
    ) -> Result<Received, ApiError> {
        let (caller, limiter) = self.look(models, served, &request)?;
        let arrival = self.arrival(caller, &request)?;
        check_encoding(request.headers())?;
        let mut phase = self.phase.clone();
        let (body, memory) = tokio::select! {
            body = self.read_body(&arrival.caller, request.into_body()) => body?,
            // The request would be refused at the end of its body; the drain does not wait for that.
            _ = phase.wait_for(|phase| *phase != Phase::Serving) => return Err(ApiError::Draining),
        };
        self.serving(models, served)?;
        let tenant = arrival.caller.name().unwrap_or_default();
        let take_own = limiter.map(|limiter| move || limiter.admit(Instant::now()));
        let permit = self.place(served, tenant, take_own, memory)?;
        let named = self.named(models, served, &arrival.caller, &body).await;
        let target = models.target(&arrival.caller, named.name.as_deref())?;
        let permit = Place { of_model: self.place_of_model(models, served, target.name())?, ..permit };
        Ok(Received { body, arrival, is_stream: named.is_stream, target, permit })
    }

    /// Does the same for a request that is checked like those that generate but computes no step. It is not charged to
    /// its tenant's rates.
    pub async fn receive_without_steps(
        &self,
        models: &Models,
        served: &ServedModel,
        request: Request,
    ) -> Result<Received, ApiError> {
        self.serving(models, served)?;
        let arrival = self.arrival(Caller::of_request(&request)?, &request)?;
        check_encoding(request.headers())?;
        let (body, memory) = self.read_body(&arrival.caller, request.into_body()).await?;
        let permit = self.place_without_shard(served, &arrival.caller, memory)?;
        let named = self.named(models, served, &arrival.caller, &body).await;
        let target = models.target(&arrival.caller, named.name.as_deref())?;
        Ok(Received { body, arrival, is_stream: Some(false), target, permit })
    }

    /// Counts a request among those for its model, if there are several models. Requests that wait for one must leave
    /// places for others.
    fn place_of_model(
        &self,
        models: &Models,
        served: &ServedModel,
        model: &str,
    ) -> Result<Option<Arc<HeldPlaces>>, ApiError> {
        if models.gate().is_none() {
            return Ok(None);
        }
        match self.models.take(model, 1, self.open.available_permits()) {
            Ok(held) => Ok(Some(Arc::new(held))),
            Err(num_open) => Err(ApiError::PlacesOfModel {
                model: model.to_owned(),
                num_open,
                limit: self.limits.max_open,
                retry_after_s: next_end_s(served, num_open),
            }),
        }
    }

    /// Waits until the model of a request is in memory, and returns it.
    pub async fn enter(
        &self,
        models: &Models,
        received: Received,
    ) -> Result<(Arc<ServedModel>, Admitted, Bytes), ApiError> {
        let Received { body, arrival, target, mut permit, .. } = received;
        let entering = async {
            if let Some(trace) = arrival.id.trace() {
                trace.update(|record| record.model = target.name().to_owned());
            }
            let (model, served, using) = models.enter(target).await?;
            permit.uses(using);
            let shard = served.serving()?;
            Ok((served, Admitted { permit, model, shard, arrival: arrival.clone() }, body))
        };
        let deadline = arrival.deadline(None)?;
        let mut phase = self.phase.clone();
        tokio::select! {
            entered = entering => entered,
            error = async {
                match deadline {
                    Some(deadline) => {
                        tokio::time::sleep_until(deadline.at).await;
                        deadline.exceeded()
                    }
                    None => std::future::pending().await,
                }
            } => Err(error),
            _ = phase.wait_for(|phase| *phase != Phase::Serving) => Err(ApiError::Draining),
        }
    }

    /// Refuses requests while the server drains, and where it has one model whose shard does not run.
    fn serving(&self, models: &Models, served: &ServedModel) -> Result<(), ApiError> {
        if models.gate().is_some() { served.not_draining() } else { served.serving().map(drop) }
    }

    /// Returns what a body says about its model, which only a server of several models has to know.
    pub async fn named(
        &self,
        models: &Models,
        served: &ServedModel,
        caller: &Caller,
        body: &Bytes,
    ) -> NamedModel {
        if models.gate().is_none() {
            return NamedModel::default();
        }
        let named = served.parse(caller, body.clone(), |body| Ok(NamedModel::of_body(body))).await;
        named.unwrap_or_default()
    }

    fn arrival(&self, caller: Caller, request: &Request) -> Result<Arrival, ApiError> {
        Ok(Arrival {
            id: RequestId::of(request),
            caller,
            at: Instant::now(),
            header_timeout: header_timeout(request.headers())?,
            flag_timeout: self.limits.request_timeout(),
        })
    }

    /// Checks whether a request would be admitted now, without taking a place. Returns its caller and the tenant's
    /// limiter.
    pub fn look(
        &self,
        models: &Models,
        served: &ServedModel,
        request: &Request,
    ) -> Result<(Caller, Option<Arc<Limiter>>), ApiError> {
        let caller = Caller::of_request(request)?;
        self.serving(models, served)?;
        let tenant = caller.name().unwrap_or_default();
        let limiter = self.access.limiter(tenant);
        if let (Some(limiter), Some(slot)) = (&limiter, request.extensions().get::<RateSlot>()) {
            slot.set(limiter);
            limiter.check(Instant::now()).map_err(|over| self.over_limit(served, tenant, over))?;
        }
        if self.open.available_permits() == 0 {
            return Err(self.too_many_requests(served));
        }
        Ok((caller, limiter))
    }

    /// Reads a request's body within the limits of bytes and time. Returns it with its memory.
    pub async fn read_body(&self, caller: &Caller, body: Body) -> Result<(Bytes, HeldMemory), ApiError> {
        read_body(body, &self.limits, self.requests.account(Some(self.sharer(caller)))).await
    }

    /// Takes a place among all open requests, among those that the tenant may have beside others, and with `take_own`
    /// among those that its limit allows.
    fn place(
        &self,
        served: &ServedModel,
        tenant: &str,
        take_own: Option<impl FnOnce() -> Result<OpenPlaces, OverLimit>>,
        memory: HeldMemory,
    ) -> Result<Place, ApiError> {
        let permit = self.open.clone().try_acquire_owned().map_err(|_| self.too_many_requests(served))?;
        let shared = self.shared_places(served, tenant, 1)?;
        let own = take_own.map(|take| take()).transpose();
        let tenant = own.map_err(|over| self.over_limit(served, tenant, over))?;
        Ok(Place { permit, memory, tenant, shared, of_model: None, using: None })
    }

    /// Takes a place for a request that needs no shard, such as one that only tokenizes. It counts among the open
    /// requests of its tenant and of all.
    pub fn place_without_shard(
        &self,
        served: &ServedModel,
        caller: &Caller,
        memory: HeldMemory,
    ) -> Result<Place, ApiError> {
        let tenant = caller.name().unwrap_or_default();
        let take_own = self.access.limiter(tenant).map(|limiter| move || limiter.open());
        self.place(served, tenant, take_own, memory)
    }

    /// Charges a request that takes no place to its tenant's rate of requests.
    pub fn charge(&self, served: &ServedModel, request: &Request) -> Result<(), ApiError> {
        let caller = Caller::of_request(request)?;
        let tenant = caller.name().unwrap_or_default();
        let Some(limiter) = self.access.limiter(tenant) else { return Ok(()) };
        if let Some(slot) = request.extensions().get::<RateSlot>() {
            slot.set(&limiter);
        }
        limiter.take_request(Instant::now()).map_err(|over| self.over_limit(served, tenant, over))
    }

    /// Waits until the caller may look at the state that the driving task owns or shares. Callers take turns.
    #[expect(clippy::expect_used, reason = "there is no deadline")]
    pub async fn look_permit(&self, caller: &Caller) -> TenantPermit {
        self.looks.take(Some(&self.sharer(caller)), None).await.expect("a permit becomes free")
    }

    /// Does `work`, such as to write what was looked up, on the blocking pool when the caller's turn has come.
    pub async fn look_blocking<T: Send + 'static>(
        &self,
        caller: &Caller,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> T {
        let permit = self.look_permit(caller).await;
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

    /// Calls `question` with the scheduler between two steps when the caller's turn has come.
    pub async fn ask<T: Send + 'static>(
        &self,
        served: &ServedModel,
        caller: &Caller,
        question: impl FnOnce(&mut Scheduler, Millis) -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        let _permit = self.look_permit(caller).await;
        served.driver.ask(question).await.map_err(|DriverGone| ApiError::ShardAway)
    }

    /// Adds a listener to the events of the KV cache after `last_id`, or from now on.
    pub fn listen(
        &self,
        events: &Arc<KvEvents>,
        caller: &Caller,
        last_id: Option<&str>,
    ) -> Result<(Listener, HeldPlaces), ApiError> {
        let limit = MAX_LISTENERS;
        let listener = events.listen(last_id).ok_or(ApiError::TooManyListeners { limit })?;
        let shared = self.listeners.take(&self.sharer(caller), 1, events.num_free());
        let shared = shared.map_err(|num_own| ApiError::ListenersShared { num_own, limit })?;
        Ok((listener, shared))
    }

    /// Returns an empty account for the memory of a whole answer.
    pub fn answer_memory(&self, caller: &Caller) -> AnswerMemory {
        let tenant = caller.name().filter(|_| self.has_tenants());
        AnswerMemory::new(self.answers.account(tenant.map(Into::into)))
    }

    /// Returns the name under which a caller shares what is used before a request is admitted: its tenant's if there
    /// are several, and otherwise its address.
    fn sharer(&self, caller: &Caller) -> Arc<str> {
        match caller.name() {
            Some(tenant) if self.has_tenants() => tenant.into(),
            _ => caller.network(),
        }
    }

    fn has_tenants(&self) -> bool {
        self.access.ring().is_some_and(|ring| ring.tenants().len() > 1)
    }

    /// Counts the places that a tenant has just taken, if there are several tenants. Refuses the request if too few
    /// would be left for the others.
    fn shared_places(
        &self,
        served: &ServedModel,
        tenant: &str,
        count: usize,
    ) -> Result<Option<HeldPlaces>, ApiError> {
        if !self.has_tenants() {
            return Ok(None);
        }
        let held = self.places.take(tenant, count, self.open.available_permits());
        held.map(Some).map_err(|num_open| ApiError::PlacesShared {
            num_open,
            limit: self.limits.max_open,
            retry_after_s: next_end_s(served, num_open),
        })
    }

    pub fn too_many_requests(&self, served: &ServedModel) -> ApiError {
        let limit = self.limits.max_open;
        ApiError::TooManyRequests { limit, retry_after_s: next_end_s(served, limit) }
    }

    pub(super) fn over_limit(&self, served: &ServedModel, tenant: &str, over: OverLimit) -> ApiError {
        self.metrics.count_rejection(tenant, over.kind.name());
        let retry_after_s = match over.wait {
            Ok(wait) => wait.as_nanos().div_ceil(1_000_000_000).max(1) as u64,
            Err(num_open) => next_end_s(served, num_open as usize),
        };
        ApiError::RateLimited {
            tenant: tenant.to_owned(),
            field: over.kind.name(),
            limit: over.limit,
            retry_after_s,
        }
    }

    /// Starts requests that are answered together, with `num_choices` outputs of each. Every output takes a place;
    /// `permit` is the place of the first one.
    pub async fn generate(
        &self,
        served: &ServedModel,
        requests: Vec<GenerationRequest>,
        num_choices: usize,
        mut permit: Place,
    ) -> Result<Choices, ApiError> {
        let tenant = requests
            .first()
            .and_then(|request| request.sequence.salt.tenant())
            .unwrap_or_default()
            .to_owned();
        let num_outputs = requests.len().saturating_mul(num_choices);
        self.take_more(served, &tenant, &mut permit, num_outputs.saturating_sub(1))?;
        permit.hold_prompts(&requests, num_choices)?;
        let num_tokens = requests.iter().map(|request| request.sequence.token_ids.len() as u64).sum();
        let limiter = permit.tenant.as_ref().map(|tenant| tenant.limiter().clone());
        if let Some(limiter) = &limiter {
            limiter.take_prompt(num_tokens, Instant::now()).map_err(|over| {
                limiter.give_back(1, 0, Instant::now());
                self.over_limit(served, &tenant, over)
            })?;
        }
        let outputs = requests.into_iter().flat_map(|request| request.into_choices(num_choices));
        let mut generations = Vec::new();
        for (request, place) in outputs.zip(permit.split_all()) {
            let started = Generation::start(request, served, place).await;
            generations.push(started.inspect_err(|error| {
                // A request that the server has no room for is not charged to its tenant.
                if let (Some(limiter), ErrorClass::Overload) = (&limiter, error.class()) {
                    limiter.give_back(1, num_tokens, Instant::now());
                }
            })?);
        }
        Ok(Choices::new(generations, num_choices))
    }

    pub(super) fn take_more(
        &self,
        served: &ServedModel,
        tenant: &str,
        place: &mut Place,
        num_more: usize,
    ) -> Result<(), ApiError> {
        let num_more = u32::try_from(num_more).unwrap_or(u32::MAX);
        if num_more == 0 {
            return Ok(());
        }
        let (limit, num_outputs) = (self.limits.max_open, num_more as usize + 1);
        let most = SharedPlaces::most_of(limit);
        if self.has_tenants() && num_outputs > most {
            let problem = format!(
                "asks for {num_outputs} outputs at once, but one of several tenants gets at most {most} of the {limit} \
                 places; hint: send several requests or raise `--max-concurrent-requests`"
            );
            return Err(ApiError::value("n", problem));
        }
        let more =
            self.open.clone().try_acquire_many_owned(num_more).map_err(|_| self.too_many_requests(served))?;
        let shared = self.shared_places(served, tenant, num_more as usize)?;
        if let Some(places) = &mut place.tenant {
            places.take_more(num_more).map_err(|over| match over.limit {
                limit if u64::from(num_more) >= limit => {
                    let problem = format!(
                        "asks for {} outputs at once, but `{}` of the tenant is {limit}; hint: send several requests",
                        u64::from(num_more) + 1,
                        over.kind.name()
                    );
                    ApiError::value("n", problem)
                }
                _ => self.over_limit(served, tenant, over),
            })?;
        }
        match (&mut place.shared, shared) {
            (Some(held), Some(more)) => held.merge(more),
            // A reload of the keys has changed whether there are several tenants.
            (held, more) => *held = more.or(held.take()),
        }
        place.permit.merge(more);
        Ok(())
    }
}

/// Predicts when one of `num_open` requests ends, in seconds, by how long earlier ones ran.
fn next_end_s(served: &ServedModel, num_open: usize) -> u64 {
    let run_ms = served.stats.borrow().run_ms;
    (run_ms / (num_open as u64).max(1)).div_ceil(1_000).clamp(1, MAX_RETRY_S)
}
