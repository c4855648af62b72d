//! Metrics by tenant. There are none without API keys. The key file bounds the number of tenants.

use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Unit;
use tokio::sync::watch;
use trunkline_scheduler::TenantUsage;

use super::usage::{UsageLedger, Used};

/// Returns the value of a gauge for one tenant.
type Value = fn(&TenantUsage) -> u32;
/// Returns the value of a counter for one tenant.
type Count = fn(&Used) -> u64;
/// Returns the value of a counter that is no whole number for one tenant.
type Amount = fn(&Used) -> f64;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct TenantLabel {
    tenant: String,
}

/// Counters of what tenants used, read when metrics are collected.
#[derive(Debug)]
pub struct UsageCollector {
    pub usage: Arc<UsageLedger>,
}

impl Collector for UsageCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let totals = self.usage.totals();
        let named = || totals.iter().filter_map(|(tenant, used)| Some((tenant.as_deref()?, used)));
        if named().next().is_none() {
            return Ok(());
        }
        let counts: [(&str, &str, Count); 4] = [
            ("trunkline_tenant_requests", "Outputs begun, by tenant", |used| used.work.sequences),
            ("trunkline_tenant_prompt_tokens", "Prompt tokens of these outputs, by tenant", |used| {
                used.work.prompt_tokens
            }),
            ("trunkline_tenant_cached_tokens", "Prompt tokens found in the KV cache, by tenant", |used| {
                used.work.cached_tokens
            }),
            ("trunkline_tenant_output_tokens", "Output tokens, by tenant", |used| used.work.output_tokens),
        ];
        for (name, help, value) in counts {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for (tenant, used) in named() {
                let label = TenantLabel { tenant: tenant.to_owned() };
                ConstCounter::new(value(used)).encode(family.encode_family(&label)?)?;
            }
        }
        let times: [(&str, &str, Amount); 2] = [
            ("trunkline_tenant_device", "Device time, divided by computed tokens, by tenant", |used| {
                used.work.device_time_us as f64 / 1e6
            }),
            (
                "trunkline_tenant_kv_byte",
                "Bytes of the pool in use times seconds in use, by tenant",
                |used| used.kv_byte_seconds,
            ),
        ];
        for (name, help, value) in times {
            let mut family =
                encoder.encode_descriptor(name, help, Some(&Unit::Seconds), MetricType::Counter)?;
            for (tenant, used) in named() {
                let label = TenantLabel { tenant: tenant.to_owned() };
                ConstCounter::new(value(used)).encode(family.encode_family(&label)?)?;
            }
        }
        Ok(())
    }
}

/// Gauges of the tenants' blocks in the pool, read when metrics are collected.
#[derive(Debug)]
pub struct TenantCollector {
    pub tenants: watch::Receiver<Vec<TenantUsage>>,
}

impl Collector for TenantCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let usages = self.tenants.borrow().clone();
        let named = || usages.iter().filter_map(|usage| Some((usage.tenant.as_deref()?, usage)));
        if named().next().is_none() {
            return Ok(());
        }
        let gauges: [(&str, &str, Value); 4] = [
            ("trunkline_tenant_kv_blocks", "Blocks of the pool that a tenant uses", |usage| usage.num_blocks),
            (
                "trunkline_tenant_kv_blocks_cached",
                "Blocks of a tenant that are held only by the KV index",
                |usage| usage.num_cached,
            ),
            ("trunkline_tenant_kv_blocks_pinned", "Blocks of a tenant that are pinned", |usage| {
                usage.num_pinned
            }),
            (
                "trunkline_tenant_kv_share_blocks",
                "Blocks of the pool that are guaranteed to a tenant",
                |usage| usage.num_share_blocks,
            ),
        ];
        for (name, help, value) in gauges {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for (tenant, usage) in named() {
                let label = TenantLabel { tenant: tenant.to_owned() };
                ConstGauge::new(f64::from(value(usage))).encode(family.encode_family(&label)?)?;
            }
        }
        let help = "Blocks of a tenant evicted from the KV index";
        let mut family =
            encoder.encode_descriptor("trunkline_tenant_evicted_blocks", help, None, MetricType::Counter)?;
        for (tenant, usage) in named() {
            let label = TenantLabel { tenant: tenant.to_owned() };
            ConstCounter::new(usage.num_evicted).encode(family.encode_family(&label)?)?;
        }
        Ok(())
    }
}
