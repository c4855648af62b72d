//! Starts what serves one model: its scheduler, and a link and a health poll for each of its shards.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::FutureExt;
use futures::future::join_all;
use tokio::sync::{mpsc, watch};
use trunkline_object::Remote;
use trunkline_scheduler::{LaneId, SchedulerConfig, Speculation};
use trunkline_settings::Speculate;

use trunkline_base::limits::ServerLimits;
use trunkline_base::metrics::ModelMetrics;
use trunkline_base::shutdown::Phase;
use trunkline_base::tenants::permits::TenantPermits;
use trunkline_base::trace::TelemetrySlot;
use trunkline_engine::driver::Driver;
use trunkline_engine::object::{MAX_OFFERED_BLOCKS, ObjectTier};
use trunkline_engine::shard::{HangWatch, Health, LinkEnd, ShardStatus, run_link, watch_health};
use trunkline_engine::step_thread::StepThread;
use trunkline_generation::adapters::Adapters;
use trunkline_generation::admission::Admission;
use trunkline_generation::grammars::Grammars;
use trunkline_generation::model::Model;
use trunkline_generation::models::{Entry, Event, Gate, ModelId};
use trunkline_generation::served::ServedModel;
use trunkline_http::serve::AbortOnDrop;

/// What a model needs to be served.
pub struct ModelParts {
    pub model: Model,
    pub limits: ServerLimits,
    /// The sockets of its shards, by lane.
    pub shard_sockets: Vec<PathBuf>,
    /// The object tier below the stores of its shards.
    pub remote: Option<Remote>,
}

/// A model that is opened when it is first asked for.
pub struct LaterModel {
    pub id: ModelId,
    pub name: String,
    pub aliases: Vec<String>,
    /// Reads the model's tokenizer and templates, which takes a while. The error is a line for operators.
    pub load: Box<dyn Fn() -> Result<ModelParts, String> + Send + Sync>,
}

/// A model that has just been opened.
pub struct Opened {
    pub served: Arc<ServedModel>,
    pub shard_sockets: Vec<PathBuf>,
}

/// Starts models, and owns what they run.
pub struct Runner {
    pub admission: Arc<Admission>,
    pub phase: watch::Receiver<Phase>,
    pub telemetry: TelemetrySlot,
    pub working: Arc<TenantPermits>,
    /// Decides which models are in memory, where there are several.
    pub gate: Option<Arc<Gate>>,
    /// Receives each model that is opened.
    pub opened: mpsc::UnboundedSender<Opened>,
    /// Receives a message when the step loop of a model has ended, which is a defect.
    pub ended: mpsc::Sender<()>,
    /// The tasks of each model, which run until it is removed or the server ends.
    pub tasks: Mutex<BTreeMap<ModelId, Vec<AbortOnDrop>>>,
}

impl Runner {
    /// Starts what serves a model. It must be called inside a tokio runtime, and fails if the thread of the step loop
    /// cannot be started.
    pub fn start(self: &Arc<Self>, id: ModelId, parts: ModelParts) -> io::Result<Arc<ServedModel>> {
        let ModelParts { model, limits, shard_sockets, remote } = parts;
        let metrics = Arc::new(ModelMetrics::default());
        let (driver, ends) = Driver::new(
            self.config(&limits, shard_sockets.len(), remote.is_some()),
            self.admission.limits.max_open,
            self.phase.clone(),
            metrics.clone(),
            self.telemetry.clone(),
        );
        let (health_in, health) = watch::channel(vec![Health::default(); shard_sockets.len()]);
        let hangs = HangWatch::new(&limits);
        let objects =
            remote.map(|remote| Arc::new(ObjectTier::new(remote, ends.handle.clone(), shard_sockets.len())));
        let upload = objects.clone().map(|objects| AbortOnDrop::spawn(objects.upload(ends.stats.clone())));
        let mut registry = metrics.registry();
        ends.register(&mut registry, objects.as_ref().map(|objects| objects.counts()));
        let patience = limits.shard_restart_timeout;
        let adapters =
            Arc::new(Adapters::new(&limits.adapters, shard_sockets.clone(), ends.shards.clone(), patience));
        let (model, limits) = (Arc::new(model), Arc::new(limits));
        let served = Arc::new(ServedModel {
            grammars: Arc::new(Grammars::new(model.clone(), limits.grammar(), metrics)),
            model,
            adapters: adapters.clone(),
            driver: ends.handle,
            shards: ends.shards.clone(),
            health: health.clone(),
            stats: ends.stats,
            lanes: ends.lanes.clone(),
            objects: objects.clone(),
            limits,
            phase: self.phase.clone(),
            working: self.working.clone(),
            kv_events: ends.kv_events.shared(),
            usage: ends.usage,
            steps: ends.steps,
            registry,
        });
        let (expected_in, is_expected) = watch::channel(true);
        let lanes = || (0..).map(LaneId).zip(shard_sockets.iter().cloned());
        let links: Vec<_> = lanes()
            .map(|(lane, socket)| {
                let (events, shards) = (ends.links.clone(), ends.shards.clone());
                let (health, lanes) = (health.clone(), ends.lanes.clone());
                let is_expected = is_expected.clone();
                let end = LinkEnd { lane, events, shards, health, lanes, is_expected };
                let gate = objects.as_ref().map(|objects| objects.store_gate(lane));
                run_link(socket, end, gate)
            })
            .collect();
        drop(ends.links);
        let mut steps = StepThread::start(driver.run(), join_all(links).map(drop))?;
        tokio::spawn(ends.kv_events.run());
        tokio::spawn(adapters.open_registered());
        let health_in = Arc::new(health_in);
        let polls = lanes().map(|(lane, socket)| {
            let (shards, stats) = (ends.shards.clone(), ends.lanes.clone());
            watch_health(lane, socket, hangs.clone(), shards, stats, health_in.clone())
        });
        let polls = AbortOnDrop::spawn(join_all(polls.collect::<Vec<_>>()).map(drop));
        let ended = self.ended.clone();
        let steps = AbortOnDrop::spawn(async move {
            steps.ended().await;
            // This fails while the server stops.
            let _ = ended.send(()).await;
        });
        let gate = self.gate.clone();
        let loaded = gate.map(|gate| AbortOnDrop::spawn(report_loaded(gate, id, served.clone())));
        let gate = self.gate.clone();
        let expects =
            gate.map(|gate| AbortOnDrop::spawn(expect_shards(gate, id, served.clone(), expected_in)));
        let tasks = [Some(polls), Some(steps), upload, loaded, expects];
        self.tasks().insert(id, tasks.into_iter().flatten().collect());
        if let Some(gate) = self.gate.clone() {
            tokio::spawn(end_if_removed(self.clone(), gate, id));
        }
        // Nobody listens in tests.
        let _ = self.opened.send(Opened { served: served.clone(), shard_sockets });
        Ok(served)
    }

    fn config(&self, limits: &ServerLimits, num_lanes: usize, has_objects: bool) -> SchedulerConfig {
        let access = &self.admission.access;
        SchedulerConfig {
            num_lanes: num_lanes as u32,
            num_prefill_lanes: limits.prefill_replicas,
            max_queued_requests: u32::try_from(limits.max_queued()).unwrap_or(u32::MAX),
            eviction: limits.eviction_policy,
            max_offered_blocks: if has_objects { MAX_OFFERED_BLOCKS } else { 0 },
            shares: access.shares(),
            weights: access.weights(),
            max_pinned_percent: limits.max_pinned_percent,
            target_step_us: limits.target_itl_ms * 1_000,
            target_ttft_ms: limits.target_ttft_ms,
            speculation: match limits.speculate {
                Speculate::Off => Speculation::Off,
                Speculate::Auto => Speculation::Auto,
                Speculate::Always(most) => Speculation::Always(most),
            },
            shard_patience_ms: u64::try_from(limits.shard_restart_timeout.as_millis()).unwrap_or(u64::MAX),
            ..SchedulerConfig::default()
        }
    }

    pub fn tasks(&self) -> MutexGuard<'_, BTreeMap<ModelId, Vec<AbortOnDrop>>> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the entry of a model that is opened when it is first asked for.
    pub fn later(self: &Arc<Self>, later: LaterModel) -> Entry {
        let (runner, load, id) = (self.clone(), Arc::new(later.load), later.id);
        let open = move || {
            let (runner, load) = (runner.clone(), load.clone());
            async move {
                let loaded = tokio::task::spawn_blocking(move || load()).await;
                let parts = loaded.map_err(|error| error.to_string())??;
                runner.start(id, parts).map_err(|error| format!("cannot start its step loop: {error}"))
            }
            .boxed()
        };
        Entry::new(id, later.name, later.aliases, Box::new(open))
    }
}

/// Tells the links of a model whether its shards should run, and uses its lanes again when it is loaded, which
/// [`Models::leave`](trunkline_generation::models::Models::leave) has ended.
async fn expect_shards(
    gate: Arc<Gate>,
    model: ModelId,
    served: Arc<ServedModel>,
    is_expected: watch::Sender<bool>,
) {
    let mut changes = gate.changes();
    loop {
        changes.mark_unchanged();
        let is_held = gate.is_held(model);
        if is_expected.send_if_modified(|last| std::mem::replace(last, is_held) != is_held) && is_held {
            served.set_drains(None).await;
        }
        // The sender is in the gate, so this does not fail.
        let _ = changes.changed().await;
    }
}

/// Ends what runs for a model once it is removed and has left the memory.
async fn end_if_removed(runner: Arc<Runner>, gate: Arc<Gate>, model: ModelId) {
    gate.forgotten(model).await;
    runner.tasks().remove(&model);
}

/// Tells the gate each time that the shards of a model begin to compute.
async fn report_loaded(gate: Arc<Gate>, model: ModelId, served: Arc<ServedModel>) {
    let mut shards = served.shards.clone();
    let is_ready = |status: &ShardStatus| matches!(status, ShardStatus::Ready(_));
    loop {
        served.wait_ready().await;
        gate.tell(Event::Loaded { model, bytes: memory_of(&served.shards.borrow()) });
        // An error means that the driver has ended.
        if shards.wait_for(|shards| !shards.iter().any(is_ready)).await.is_err() {
            return;
        }
    }
}

/// Returns the memory of all shards of a model, whose lanes are alike, from what those say that compute already.
fn memory_of(shards: &[ShardStatus]) -> Option<u64> {
    let bytes = |status: &ShardStatus| match status {
        ShardStatus::Ready(info) => Some(info.memory_bytes),
        _ => None,
    };
    let most = shards.iter().filter_map(bytes).max().filter(|bytes| *bytes > 0)?;
    Some(most.saturating_mul(shards.len() as u64))
}
