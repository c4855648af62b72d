//! Metrics in Prometheus' (OpenMetrics) text form. Names are `trunkline_*` in base units, and those that the Gateway
//! API Inference Extension scrapes.

use std::time::{SystemTime, UNIX_EPOCH};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};
use tokio::sync::watch;
use trunkline_scheduler::{EndReason, Stats, TenantUsage, Usage};

use self::tenants::{TenantCollector, TenantMetrics};
use crate::engine::object::ObjectCounts;
use crate::engine::shard::ShardStatus;
use crate::error::ErrorClass;

pub mod tenants;

/// Content type of `render`.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Labels of `trunkline_http_requests_total`.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct RouteLabels {
    /// Route pattern; `unmatched` if there is none.
    pub route: String,
    /// HTTP method.
    pub method: String,
    /// HTTP status.
    pub status: u16,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct CodeLabel {
    code: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

/// What is measured where it happens; the scheduler's own numbers are read from its `Stats` when somebody asks.
pub struct Metrics {
    /// HTTP answers.
    pub http_requests: Family<RouteLabels, Counter>,
    rejections: Family<CodeLabel, Counter>,
    ends: Family<ReasonLabel, Counter>,
    /// Sequences aborted: client gone or too slow.
    pub aborts: Counter,
    /// Connections given up because their client did not read.
    pub stalled_connections: Counter,
    /// Times that changed files of certificate and key were taken.
    pub tls_reloads: Counter,
    /// Times that they could not be used.
    pub tls_reload_failures: Counter,
    /// Device time of a step.
    pub step_seconds: Histogram,
    /// Tokens computed by a step.
    pub step_tokens: Histogram,
    /// Arrival to first output token.
    pub ttft_seconds: Histogram,
    /// Output token to output token.
    pub itl_seconds: Histogram,
    /// Submission to first chunk.
    pub queue_seconds: Histogram,
    /// Time that the masks of a step's sequences take, each.
    pub mask_seconds: Histogram,
    /// Time to compile a grammar.
    pub grammar_compile_seconds: Histogram,
    /// Grammars that were compiled before.
    pub grammar_hits: Counter,
    /// Prompt lengths of ended requests.
    prompt_tokens: Histogram,
    /// Output lengths of ended requests.
    output_tokens: Histogram,
    /// By tenant.
    pub tenants: TenantMetrics,
}

impl Default for Metrics {
    fn default() -> Self {
        let seconds = || Histogram::new(exponential_buckets(0.001, 2.0, 18));
        let tokens = || Histogram::new(exponential_buckets(1.0, 2.0, 18));
        Self {
            http_requests: Family::default(),
            rejections: Family::default(),
            ends: Family::default(),
            aborts: Counter::default(),
            stalled_connections: Counter::default(),
            tls_reloads: Counter::default(),
            tls_reload_failures: Counter::default(),
            step_seconds: seconds(),
            step_tokens: tokens(),
            ttft_seconds: seconds(),
            itl_seconds: seconds(),
            queue_seconds: seconds(),
            mask_seconds: Histogram::new(exponential_buckets(1e-6, 4.0, 10)),
            grammar_compile_seconds: seconds(),
            grammar_hits: Counter::default(),
            prompt_tokens: tokens(),
            output_tokens: tokens(),
            tenants: TenantMetrics::default(),
        }
    }
}

impl Metrics {
    /// A sequence ended.
    pub fn observe_end(&self, reason: &EndReason, usage: Usage) {
        self.ends.get_or_create(&ReasonLabel { reason: end_label(reason) }).inc();
        self.prompt_tokens.observe(f64::from(usage.prompt_tokens));
        self.output_tokens.observe(f64::from(usage.output_tokens));
    }

    /// A request was answered with an error; those that ask the client to come back count as rejections.
    pub fn observe_failure(&self, class: ErrorClass, code: &'static str) {
        if class == ErrorClass::Overload {
            self.rejections.get_or_create(&CodeLabel { code }).inc();
        }
    }

    /// A registry of all metrics, those of the scheduler included.
    pub fn registry(
        &self,
        stats: watch::Receiver<Stats>,
        shard: watch::Receiver<ShardStatus>,
        objects: Option<watch::Receiver<ObjectCounts>>,
        tenants: watch::Receiver<Vec<TenantUsage>>,
    ) -> Registry {
        let mut registry = Registry::default();
        let own = registry.sub_registry_with_prefix("trunkline");
        own.register("http_requests", "HTTP answers by route and status", self.http_requests.clone());
        own.register(
            "rejections",
            "Requests told to come back later, by error code",
            self.rejections.clone(),
        );
        own.register("sequences_ended", "Sequences ended, by reason", self.ends.clone());
        own.register(
            "aborts",
            "Sequences aborted because their client left or read too slowly",
            self.aborts.clone(),
        );
        let counters = [
            (
                "stalled_connections",
                "Connections given up because their client did not read",
                &self.stalled_connections,
            ),
            ("tls_reloads", "Times that a changed certificate and key were taken", &self.tls_reloads),
            (
                "tls_reload_failures",
                "Times that a changed certificate and key could not be used",
                &self.tls_reload_failures,
            ),
        ];
        for (name, help, counter) in counters {
            own.register(name, help, counter.clone());
        }
        own.register(
            "grammar_hits",
            "Grammars that were compiled for an earlier request",
            self.grammar_hits.clone(),
        );
        let seconds = [
            ("step_duration", "Time the device worked on a step", &self.step_seconds),
            ("time_to_first_token", "Arrival of a request to its first output token", &self.ttft_seconds),
            ("inter_token", "Time between two output tokens of a request", &self.itl_seconds),
            ("queue_time", "Submission of a request to its first chunk", &self.queue_seconds),
            ("grammar_mask", "Time to work out what a sequence may sample", &self.mask_seconds),
            ("grammar_compile", "Time to compile a grammar", &self.grammar_compile_seconds),
        ];
        for (name, help, histogram) in seconds {
            own.register_with_unit(name, help, Unit::Seconds, histogram.clone());
        }
        own.register("step_tokens", "Tokens computed by a step", self.step_tokens.clone());
        own.register("request_prompt_tokens", "Prompt tokens of a request", self.prompt_tokens.clone());
        own.register("request_output_tokens", "Output tokens of a request", self.output_tokens.clone());
        self.tenants.register(own);
        registry.register_collector(Box::new(TenantCollector { tenants }));
        registry.register_collector(Box::new(SchedulerCollector { stats, shard, objects }));
        registry
    }
}

/// All metrics as text.
pub fn render(registry: &Registry) -> Result<String, std::fmt::Error> {
    let mut out = String::new();
    text::encode(&mut out, registry)?;
    Ok(out)
}

fn end_label(reason: &EndReason) -> &'static str {
    match reason {
        EndReason::EndToken => "end_token",
        EndReason::Length => "length",
        EndReason::Finished => "stop_string",
        EndReason::Aborted => "aborted",
        EndReason::DeadlineExceeded => "deadline_exceeded",
        EndReason::Failed(_) => "failed",
        EndReason::ShardLost => "shard_lost",
    }
}

#[derive(Debug)]
struct SchedulerCollector {
    stats: watch::Receiver<Stats>,
    shard: watch::Receiver<ShardStatus>,
    /// None without an object tier: all are 0 then.
    objects: Option<watch::Receiver<ObjectCounts>>,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct CacheConfigLabels {
    block_size: u32,
    num_gpu_blocks: u32,
    cache_dtype: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct LoraLabels {
    max_lora: u32,
    running_lora_adapters: &'static str,
    waiting_lora_adapters: &'static str,
}

impl Collector for SchedulerCollector {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), std::fmt::Error> {
        let stats = *self.stats.borrow();
        let shard = self.shard.borrow().clone();
        let info = match &shard {
            ShardStatus::Ready(info) => Some(info.as_ref()),
            ShardStatus::Loading | ShardStatus::Lost => None,
        };
        for (name, help, value) in gauges(&stats) {
            gauge(&mut encoder, name, help, value as f64)?;
        }
        let objects = self.objects.as_ref().map(|objects| *objects.borrow()).unwrap_or_default();
        for (name, help, value) in counters(&stats).into_iter().chain(object_counters(&objects)) {
            let metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            ConstCounter::new(value).encode(metric)?;
        }
        let used = match stats.blocks_total {
            0 => 0.0,
            total => stats.blocks_held as f64 / total as f64,
        };
        gauge(
            &mut encoder,
            "trunkline_shard_ready",
            "1 while a shard is connected",
            f64::from(info.is_some()),
        )?;
        gauge(
            &mut encoder,
            "trunkline_kv_usage_ratio",
            "Blocks held by running sequences / all blocks",
            used,
        )?;
        gauge(&mut encoder, "vllm:kv_cache_usage_perc", "As trunkline_kv_usage_ratio (Gateway API)", used)?;
        gauge(
            &mut encoder,
            "vllm:num_requests_running",
            "As trunkline_running_sequences (Gateway API)",
            stats.num_running as f64,
        )?;
        gauge(
            &mut encoder,
            "vllm:num_requests_waiting",
            "As trunkline_queued_sequences (Gateway API)",
            stats.num_waiting as f64,
        )?;
        let cache = CacheConfigLabels {
            block_size: info.map_or(0, |info| info.block_size),
            num_gpu_blocks: info.map_or(0, |info| info.num_device_blocks),
            cache_dtype: info.map_or_else(String::new, |info| info.kv_dtype.clone()),
        };
        labelled(&mut encoder, "vllm:cache_config_info", "KV pool of the device (Gateway API)", &cache, 1.0)?;
        let lora = LoraLabels { max_lora: 0, running_lora_adapters: "", waiting_lora_adapters: "" };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        labelled(&mut encoder, "vllm:lora_requests_info", "Adapters in use: none (Gateway API)", &lora, now)
    }
}

fn gauge(encoder: &mut DescriptorEncoder, name: &str, help: &str, value: f64) -> Result<(), std::fmt::Error> {
    let metric = ConstGauge::new(value);
    metric.encode(encoder.encode_descriptor(name, help, None, MetricType::Gauge)?)
}

fn labelled(
    encoder: &mut DescriptorEncoder,
    name: &str,
    help: &str,
    labels: &impl EncodeLabelSet,
    value: f64,
) -> Result<(), std::fmt::Error> {
    let metric = ConstGauge::new(value);
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    metric.encode(family.encode_family(labels)?)
}

fn gauges(stats: &Stats) -> [(&'static str, &'static str, u64); 16] {
    [
        ("trunkline_queued_sequences", "Sequences that wait, preempted ones included", stats.num_waiting),
        ("trunkline_running_sequences", "Sequences that run", stats.num_running),
        ("trunkline_steps_in_flight", "Plans whose results are out", stats.steps_in_flight),
        ("trunkline_kv_blocks_free", "Blocks with nothing in them", stats.blocks_free),
        ("trunkline_kv_blocks_held", "Blocks that sequences hold", stats.blocks_held),
        ("trunkline_kv_blocks_cached", "Blocks that only the KV index holds", stats.blocks_cached),
        ("trunkline_kv_blocks_pinned", "Held blocks that pins hold", stats.blocks_pinned),
        ("trunkline_kv_blocks_late", "Held blocks that late restores may still write", stats.blocks_late),
        ("trunkline_kv_blocks", "Blocks of the pool", stats.blocks_total),
        ("trunkline_kv_window_parts_free", "Window parts that no block has", stats.window_parts_free),
        ("trunkline_kv_window_parts_needed", "Window parts that sequences need", stats.window_parts_needed),
        ("trunkline_kv_window_parts", "Window parts of the pool", stats.window_parts_total),
        ("trunkline_store_blocks", "Blocks in the store", stats.store_blocks),
        (
            "trunkline_store_blocks_pinned",
            "Blocks that pins keep in the store, there or on their way",
            stats.store_blocks_pinned,
        ),
        ("trunkline_store_slots", "Slots of the store", stats.store_slots),
        ("trunkline_object_waiting_blocks", "Stored blocks that wait for their upload", stats.offered_blocks),
    ]
}

fn counters(stats: &Stats) -> [(&'static str, &'static str, u64); 23] {
    [
        ("trunkline_steps", "Steps planned", stats.steps),
        ("trunkline_prompt_tokens", "Prompt tokens of started sequences", stats.prompt_tokens),
        ("trunkline_prefix_hit_tokens", "Prompt tokens that a prefix hit spared", stats.prefix_hit_tokens),
        ("trunkline_output_tokens", "Output tokens", stats.output_tokens),
        ("trunkline_scheduled_tokens", "Tokens planned to be computed", stats.scheduled_tokens),
        ("trunkline_preemptions", "Sequences preempted", stats.preemptions),
        ("trunkline_fair_preemptions", "Sequences preempted for another tenant", stats.fair_preemptions),
        ("trunkline_promotions", "Sequences that got into the class above", stats.promotions),
        ("trunkline_evicted_blocks", "Blocks dropped from the KV index", stats.evicted_blocks),
        ("trunkline_dropped_window_parts", "Window parts taken from blocks", stats.dropped_window_parts),
        ("trunkline_pins", "Prompts pinned, or pinned again", stats.pins_granted),
        ("trunkline_pins_refused", "Prompts not pinned for want of room", stats.pins_refused),
        ("trunkline_pins_dropped", "Pins that ended early to make room", stats.pins_dropped),
        ("trunkline_stored_blocks", "Blocks written to the store", stats.stored_blocks),
        ("trunkline_store_failures", "Blocks that could not be written to the store", stats.store_failures),
        ("trunkline_store_evicted_blocks", "Blocks dropped from the store", stats.store_evicted_blocks),
        ("trunkline_restored_blocks", "Blocks read back from the store", stats.restored_blocks),
        ("trunkline_restore_failures", "Restores that met a missing or broken block", stats.restore_failures),
        (
            "trunkline_restores_declined",
            "Restores not begun as computing was predicted to be quicker",
            stats.restores_declined,
        ),
        (
            "trunkline_restores_given_up",
            "Restores that took so long that their sequences computed instead",
            stats.restores_given_up,
        ),
        (
            "trunkline_object_dropped_blocks",
            "Times a stored block did not wait for its upload as too many did",
            stats.unoffered_blocks,
        ),
        (
            "trunkline_prefix_waits",
            "Times a request waited for another that computed its prefix",
            stats.prefix_waits,
        ),
        (
            "trunkline_unexpected_results",
            "Results that answer no plan; a defect if not 0",
            stats.unexpected_results,
        ),
    ]
}

fn object_counters(counts: &ObjectCounts) -> [(&'static str, &'static str, u64); 9] {
    [
        ("trunkline_object_uploaded_blocks", "Blocks put into the object store", counts.uploaded_blocks),
        (
            "trunkline_object_uploaded_bytes",
            "Bytes of blocks put into the object store",
            counts.uploaded_bytes,
        ),
        ("trunkline_object_known_blocks", "Blocks that the object store had already", counts.known_blocks),
        ("trunkline_object_downloaded_blocks", "Blocks got from the object store", counts.downloaded_blocks),
        (
            "trunkline_object_downloaded_bytes",
            "Bytes of blocks got from the object store",
            counts.downloaded_bytes,
        ),
        (
            "trunkline_object_failures",
            "Gets and puts that failed, and objects that cannot be used",
            counts.failures,
        ),
        (
            "trunkline_object_misses",
            "Downloads that ended at a block which the object store lacks",
            counts.misses,
        ),
        (
            "trunkline_object_declined",
            "Requests that did not ask the object store as computing was predicted to be quicker",
            counts.declined,
        ),
        (
            "trunkline_object_timeouts",
            "Requests that went on before the object store had given all",
            counts.timeouts,
        ),
    ]
}
