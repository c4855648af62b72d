//! Metrics by tenant. There are none without API keys. The key file bounds the number of tenants.

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use tokio::sync::watch;
use trunkline_scheduler::TenantUsage;

/// Returns the value of a gauge for one tenant.
type Value = fn(&TenantUsage) -> u32;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct TenantLabel {
    tenant: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct LimitLabels {
    tenant: String,
    limit: &'static str,
}

#[derive(Default)]
pub struct TenantMetrics {
    requests: Family<TenantLabel, Counter>,
    prompt_tokens: Family<TenantLabel, Counter>,
    cached_tokens: Family<TenantLabel, Counter>,
    output_tokens: Family<TenantLabel, Counter>,
    rejections: Family<LimitLabels, Counter>,
}

/// The counters of a tenant that a running request increments.
pub struct TenantCounters {
    /// Prompt tokens that were found in the KV index.
    pub cached_tokens: Counter,
    pub output_tokens: Counter,
}

impl TenantMetrics {
    /// Counts a request of a tenant and its prompt tokens.
    pub fn begin(&self, tenant: &str, num_prompt_tokens: u64) -> TenantCounters {
        let label = TenantLabel { tenant: tenant.to_owned() };
        self.requests.get_or_create(&label).inc();
        self.prompt_tokens.get_or_create(&label).inc_by(num_prompt_tokens);
        TenantCounters {
            cached_tokens: self.cached_tokens.get_or_create(&label).clone(),
            output_tokens: self.output_tokens.get_or_create(&label).clone(),
        }
    }

    /// Counts a request that was rejected because of this limit of its tenant.
    pub fn count_rejection(&self, tenant: &str, limit: &'static str) {
        self.rejections.get_or_create(&LimitLabels { tenant: tenant.to_owned(), limit }).inc();
    }

    /// Registers the counters in `own`, the registry that adds our prefix.
    pub fn register(&self, own: &mut Registry) {
        let counters = [
            ("tenant_requests", "Requests submitted, by tenant", &self.requests),
            ("tenant_prompt_tokens", "Prompt tokens submitted, by tenant", &self.prompt_tokens),
            ("tenant_cached_tokens", "Prompt tokens found in the KV cache, by tenant", &self.cached_tokens),
            ("tenant_output_tokens", "Output tokens, by tenant", &self.output_tokens),
        ];
        for (name, help, family) in counters {
            own.register(name, help, family.clone());
        }
        let help = "Requests rejected because of a limit of their tenant, by tenant and limit";
        own.register("tenant_rejections", help, self.rejections.clone());
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
