//! Scenarios with several tenants, their weights, floods and classes.

use std::collections::BTreeMap;

use trunkline_scheduler::{
    LaneId, Millis, PolicyKind, Priority, SchedulerConfig, ShardLimits, StepPlan, TenantWeight,
};

use super::driver::LIMITS;
use super::rng::Rng;
use super::scenario::{Arrival, Client, Scenario, request, salt};
use super::shard::{ShardFaults, seed_of};

/// The weights of tenants 1, 2 and so on.
pub type Weights = Vec<u32>;

pub fn weights(weights: &[u32]) -> Vec<TenantWeight> {
    let named = weights.iter().zip(1..);
    named.map(|(&weight, n)| TenantWeight { tenant: n.to_string().into(), weight }).collect()
}

impl Scenario {
    /// Like [`Scenario::random`], with two to four tenants of any weight. One of them may send all its requests at
    /// once, and waiting requests are promoted soon.
    pub fn random_tenants(seed: u64) -> Self {
        let mut scenario = Self::random(seed);
        let mut rng = Rng::new(seed ^ 0x7465_6e61);
        let num_tenants = rng.range(2, 4);
        let all: Weights = (0..num_tenants).map(|_| rng.range_u32(1, 5)).collect();
        let flood = rng.once_in(2).then(|| (rng.range(1, num_tenants), rng.range(0, 100)));
        scenario.config.weights = weights(&all);
        scenario.config.max_credit_tokens = rng.range_u32(0, 40);
        scenario.config.class_patience_ms = rng.range(1, 300);
        scenario.config.max_queued_requests = rng.range_u32(4, 40);
        for arrival in &mut scenario.arrivals {
            let mut tenant = rng.range(1, num_tenants);
            if let Some((flooding, at)) = flood
                && rng.once_in(2)
            {
                tenant = flooding;
                arrival.at = Millis(at);
            }
            // The adapter stays.
            arrival.salt = tenant + arrival.salt / 100 * 100;
            arrival.request.salt.tenant = salt(tenant).tenant;
        }
        scenario
    }

    /// A scenario without faults. The shard computes a token in 0.1 ms and has 32 places.
    pub fn of_tenants(seed: u64, all: &[u32], arrivals: Vec<Arrival>) -> Self {
        Self {
            seed,
            config: SchedulerConfig {
                weights: weights(all),
                max_queued_requests: 10_000,
                eviction: PolicyKind::default(),
                ..SchedulerConfig::default()
            },
            limits: ShardLimits {
                block_size: 16,
                num_blocks: 2_000,
                max_step_tokens: 256,
                max_step_sequences: 32,
                vocab_size: 50_000,
                ..LIMITS
            },
            more_lanes: Vec::new(),
            faults: ShardFaults::default(),
            arrivals,
            outages: Vec::new(),
            drains: Vec::new(),
            stalls: Vec::new(),
            poison: None,
            hang_ms: 0,
            max_delay_ms: 0,
            twice: 0,
            store: None,
            load_ms: None,
        }
    }
}

/// A tenant's request with a prompt that shares nothing with others.
pub fn arrival(rng: &mut Rng, at: Millis, index: u64, tenant: u64, num_tokens: u64, num_new: u32) -> Arrival {
    let mut asked = request(index, rng.tokens(num_tokens, 50_000), num_new);
    asked.salt = salt(tenant);
    asked.priority = Priority::Normal;
    Arrival { at, request: asked, salt: tenant, client: Client::Waits }
}

/// The service that plans give each tenant: 1 for a prompt token that is computed for the first time, 2 for an output
/// token.
#[derive(Clone, Debug, Default)]
pub struct Service {
    /// The sampling seed and the length of the prompt, by lane and wire id.
    runs: BTreeMap<(LaneId, u64), (u64, u32)>,
    /// The number of computed positions, by sampling seed.
    computed: BTreeMap<u64, u32>,
    /// The service of each tenant, by its number.
    pub by_tenant: BTreeMap<u64, u64>,
}

impl Service {
    /// Adds a plan of a lane. `tenant` returns a sequence's tenant by its sampling seed.
    pub fn add(&mut self, lane: LaneId, plan: &StepPlan, tenant: impl Fn(u64) -> u64) {
        for start in &plan.starts {
            self.runs.insert((lane, start.sequence_id), (seed_of(start), start.num_prompt_tokens));
        }
        for chunk in &plan.chunks {
            let (seed, num_prompt_tokens) = self.runs[&(lane, chunk.sequence_id)];
            let computed = self.computed.entry(seed).or_default();
            let end = (chunk.first_position + chunk.num_tokens).min(num_prompt_tokens);
            let num_prompt = end.saturating_sub(chunk.first_position.max(*computed));
            *computed = (*computed).max(end);
            *self.by_tenant.entry(tenant(seed)).or_default() +=
                u64::from(num_prompt) + 2 * u64::from(chunk.sample);
        }
    }

    pub fn of(&self, tenant: u64) -> u64 {
        self.by_tenant.get(&tenant).copied().unwrap_or(0)
    }
}
