//! The metrics of scheduler, shard and object tier, read from their last report when `/metrics` is asked for.

use std::collections::BTreeSet;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};
use tokio::sync::watch;
use trunkline_scheduler::{AdapterUses, LaneStats, Stats};

use super::driver::DriverEnds;
use super::object::ObjectCounts;
use super::shard::ShardStatus;
use trunkline_base::metrics::tenants::{TenantCollector, UsageCollector};

impl DriverEnds {
    /// Adds the metrics of the driver's channels, and those of the object tier if there is one, to `registry`.
    pub fn register(&self, registry: &mut Registry, objects: Option<watch::Receiver<ObjectCounts>>) {
        registry.register_collector(Box::new(UsageCollector { usage: self.usage.clone() }));
        registry.register_collector(Box::new(TenantCollector { tenants: self.tenants.clone() }));
        let (stats, lanes, shards) = (self.stats.clone(), self.lanes.clone(), self.shards.clone());
        let adapters = self.adapters.clone();
        registry.register_collector(Box::new(SchedulerCollector { stats, lanes, adapters, shards, objects }));
    }
}

#[derive(Debug)]
struct SchedulerCollector {
    stats: watch::Receiver<Stats>,
    lanes: watch::Receiver<Vec<LaneStats>>,
    adapters: watch::Receiver<AdapterUses>,
    shards: watch::Receiver<Vec<ShardStatus>>,
    /// The object tier's counters; `None` without an object tier, where all are 0.
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
    running_lora_adapters: String,
    waiting_lora_adapters: String,
}

/// Joins the names as vLLM does.
fn lora_labels(max_lora: u32, uses: &AdapterUses) -> LoraLabels {
    let running = uses.lanes.iter().flatten().filter(|slot| slot.num_runs > 0).map(|slot| &*slot.name);
    LoraLabels {
        max_lora,
        running_lora_adapters: running.collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>().join(","),
        waiting_lora_adapters: uses.waiting.join(","),
    }
}

impl Collector for SchedulerCollector {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), std::fmt::Error> {
        let stats = *self.stats.borrow();
        let shard = ShardStatus::of_model(&self.shards.borrow());
        let info = match &shard {
            ShardStatus::Ready(info) => Some(info.as_ref()),
            ShardStatus::Loading | ShardStatus::Lost(_) => None,
        };
        for (name, help, value) in gauges(&stats) {
            gauge(&mut encoder, &format!("trunkline_{name}"), help, value as f64)?;
        }
        let objects = self.objects.as_ref().map(|objects| *objects.borrow()).unwrap_or_default();
        for (name, help, value) in counters(&stats).into_iter().chain(object_counters(&objects)) {
            let name = format!("trunkline_{name}");
            let metric = encoder.encode_descriptor(&name, help, None, MetricType::Counter)?;
            ConstCounter::new(value).encode(metric)?;
        }
        let (name, help) = ("trunkline_draft", "Time of the device that the draft model took");
        let metric = encoder.encode_descriptor(name, help, Some(&Unit::Seconds), MetricType::Counter)?;
        ConstCounter::new(stats.draft_time_us as f64 / 1e6).encode(metric)?;
        let used = match stats.blocks_total {
            0 => 0.0,
            total => stats.blocks_held as f64 / total as f64,
        };
        let (running, waiting) = (stats.num_running as f64, stats.num_waiting as f64);
        let step_error = stats.step_error_ppm as f64 / 1e6;
        for (name, help, value) in [
            ("trunkline_shard_ready", "1 while any shard is connected", f64::from(info.is_some())),
            ("trunkline_step_time_error_ratio", "Mean relative error of predicted step times", step_error),
            ("trunkline_kv_usage_ratio", "Blocks held by running sequences / all blocks", used),
            ("vllm:kv_cache_usage_perc", "Same as trunkline_kv_usage_ratio (Gateway API)", used),
            ("vllm:num_requests_running", "Same as trunkline_running_sequences (Gateway API)", running),
            ("vllm:num_requests_waiting", "Same as trunkline_queued_sequences (Gateway API)", waiting),
        ] {
            gauge(&mut encoder, name, help, value)?;
        }
        encode_lanes(&mut encoder, &self.lanes.borrow())?;
        let cache = CacheConfigLabels {
            block_size: info.map_or(0, |info| info.block_size),
            num_gpu_blocks: u32::try_from(stats.blocks_total).unwrap_or(u32::MAX),
            cache_dtype: info.map_or_else(String::new, |info| info.kv_dtype.clone()),
        };
        let help = "The KV pool of the device (Gateway API)";
        labelled(&mut encoder, "vllm:cache_config_info", help, &cache, 1.0)?;
        let max_lora = info.map_or(0, |info| info.num_adapter_slots);
        let lora = lora_labels(max_lora, &self.adapters.borrow());
        let help = "LoRA adapters of running and of waiting requests (Gateway API)";
        labelled(&mut encoder, "vllm:lora_requests_info", help, &lora, trunkline_base::clock::unix_seconds())
    }
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct LaneLabels {
    lane: u32,
}

/// Writes the metrics of each lane.
fn encode_lanes(encoder: &mut DescriptorEncoder, lanes: &[LaneStats]) -> Result<(), std::fmt::Error> {
    type Value = fn(&LaneStats) -> u64;
    let gauges: [(&str, &str, Value); 5] = [
        ("ready", "1 while the lane's shard is connected", |lane| u64::from(lane.is_connected)),
        ("draining", "1 while the lane drains, or is drained", |lane| u64::from(lane.is_draining)),
        ("running_sequences", "Sequences that run on the lane", |lane| lane.num_running),
        ("kv_blocks_held", "Blocks of the lane held by sequences or pins", |lane| lane.blocks_held),
        ("kv_blocks_cached", "Blocks of the lane held only by its KV index", |lane| lane.blocks_cached),
    ];
    for (name, help, value) in gauges {
        let name = format!("trunkline_lane_{name}");
        let mut family = encoder.encode_descriptor(&name, help, None, MetricType::Gauge)?;
        for (lane, stats) in (0..).zip(lanes) {
            ConstGauge::new(value(stats) as f64).encode(family.encode_family(&LaneLabels { lane })?)?;
        }
    }
    let counters: [(&str, &str, Value); 5] = [
        ("steps", "Steps planned for the lane", |lane| lane.steps),
        ("scheduled_tokens", "Tokens that the lane was asked to compute", |lane| lane.scheduled_tokens),
        ("prefix_hit_tokens", "Prompt tokens found in the lane's KV index", |lane| lane.prefix_hit_tokens),
        ("escapes", "Sequences that left the lane because a step was late", |lane| lane.escapes),
        ("losses", "Losses of the lane's shard", |lane| lane.losses),
    ];
    for (name, help, value) in counters {
        let name = format!("trunkline_lane_{name}");
        let mut family = encoder.encode_descriptor(&name, help, None, MetricType::Counter)?;
        for (lane, stats) in (0..).zip(lanes) {
            ConstCounter::new(value(stats)).encode(family.encode_family(&LaneLabels { lane })?)?;
        }
    }
    Ok(())
}

/// A name without its prefix, a description and a value.
type Sample = (&'static str, &'static str, u64);

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

fn gauges(stats: &Stats) -> [Sample; 18] {
    [
        ("queued_sequences", "Waiting sequences, including preempted ones", stats.num_waiting),
        ("running_sequences", "Running sequences", stats.num_running),
        ("steps_in_flight", "Plans whose results have not arrived", stats.steps_in_flight),
        ("kv_blocks_free", "Empty blocks of the pool", stats.blocks_free),
        ("kv_blocks_held", "Blocks held by sequences or pins", stats.blocks_held),
        ("kv_blocks_cached", "Blocks held only by the KV index", stats.blocks_cached),
        ("kv_blocks_pinned", "Held blocks that are pinned", stats.blocks_pinned),
        ("kv_blocks_late", "Held blocks that late restores may still write", stats.blocks_late),
        ("kv_blocks", "Blocks of the pool", stats.blocks_total),
        ("kv_window_parts_free", "Free window parts of the pool", stats.window_parts_free),
        ("kv_window_parts_needed", "Window parts needed by sequences", stats.window_parts_needed),
        ("kv_window_parts", "Window parts of the pool", stats.window_parts_total),
        ("store_blocks", "Blocks in the store", stats.store_blocks),
        (
            "store_blocks_pinned",
            "Pinned blocks in the store or on their way to it",
            stats.store_blocks_pinned,
        ),
        ("store_slots", "Slots of the store", stats.store_slots),
        ("adapter_slots", "Slots for adapters", stats.adapter_slots),
        ("adapter_slots_loaded", "Slots whose adapters are loaded", stats.adapter_slots_loaded),
        ("object_waiting_blocks", "Stored blocks waiting for their upload", stats.offered_blocks),
    ]
}

fn counters(stats: &Stats) -> [Sample; 34] {
    [
        ("steps", "Steps planned", stats.steps),
        ("prompt_tokens", "Prompt tokens of started sequences", stats.prompt_tokens),
        ("prefix_hit_tokens", "Prompt tokens found in the KV index", stats.prefix_hit_tokens),
        ("output_tokens", "Output tokens", stats.output_tokens),
        ("drafted_tokens", "Drafts computed", stats.drafted_tokens),
        ("accepted_draft_tokens", "Drafts that were right", stats.accepted_draft_tokens),
        ("scheduled_tokens", "Tokens planned to be computed", stats.scheduled_tokens),
        ("preemptions", "Sequences preempted", stats.preemptions),
        ("sequences_replayed", "Sequences queued again after their shard was lost", stats.replays),
        ("sequences_convicted", "Sequences that crashed the shard twice in a row", stats.convictions),
        ("fair_preemptions", "Sequences preempted for another tenant", stats.fair_preemptions),
        ("promotions", "Sequences promoted to a higher class after a long wait", stats.promotions),
        ("evicted_blocks", "Blocks dropped from the KV index", stats.evicted_blocks),
        ("dropped_window_parts", "Window parts dropped from blocks", stats.dropped_window_parts),
        ("pins", "Pins granted, including renewed ones", stats.pins_granted),
        ("pins_refused", "Pins refused because there was no room", stats.pins_refused),
        ("pins_dropped", "Pins that ended early to make room", stats.pins_dropped),
        ("stored_blocks", "Blocks written to the store", stats.stored_blocks),
        ("store_failures", "Blocks that could not be written to the store", stats.store_failures),
        ("store_evicted_blocks", "Blocks dropped from the store", stats.store_evicted_blocks),
        ("restored_blocks", "Blocks read back from the store", stats.restored_blocks),
        ("moved_blocks", "Blocks read from the store of another replica", stats.moved_blocks),
        ("moves", "Running sequences that a replica with less to do took over", stats.moves),
        ("hand_overs", "Prompts that one replica computed for another", stats.hand_overs),
        ("restore_failures", "Restores that ended at a missing or damaged block", stats.restore_failures),
        (
            "restores_declined",
            "Restores not started because computing was predicted to be faster",
            stats.restores_declined,
        ),
        ("restores_given_up", "Restores abandoned because they took too long", stats.restores_given_up),
        (
            "object_dropped_blocks",
            "Stored blocks not uploaded because too many were waiting",
            stats.unoffered_blocks,
        ),
        (
            "prefix_waits",
            "Times a request waited for another that was computing its prefix",
            stats.prefix_waits,
        ),
        ("adapter_loads", "Loads of adapters planned", stats.adapter_loads),
        ("adapter_load_failures", "Loads of adapters that failed", stats.adapter_load_failures),
        ("adapter_evictions", "Loaded adapters that gave others their room", stats.adapter_evictions),
        ("adapter_waits", "Sequences that waited for room for their adapter", stats.adapter_waits),
        ("unexpected_results", "Results that match no plan; not 0 means a defect", stats.unexpected_results),
    ]
}

fn object_counters(counts: &ObjectCounts) -> [Sample; 9] {
    [
        ("object_uploaded_blocks", "Blocks uploaded to the object store", counts.uploaded_blocks),
        ("object_uploaded_bytes", "Bytes uploaded to the object store", counts.uploaded_bytes),
        ("object_known_blocks", "Blocks not uploaded because the object store had them", counts.known_blocks),
        ("object_downloaded_blocks", "Blocks downloaded from the object store", counts.downloaded_blocks),
        ("object_downloaded_bytes", "Bytes downloaded from the object store", counts.downloaded_bytes),
        ("object_failures", "Failed downloads and uploads, and unusable objects", counts.failures),
        ("object_misses", "Downloads that ended at a missing block", counts.misses),
        (
            "object_declined",
            "Requests that downloaded nothing because computing was predicted to be faster",
            counts.declined,
        ),
        ("object_timeouts", "Requests that continued before their downloads were complete", counts.timeouts),
    ]
}
