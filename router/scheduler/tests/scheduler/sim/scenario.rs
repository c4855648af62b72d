//! The description of one run: limits, requests and faults.

use std::collections::BTreeSet;
use std::sync::Arc;

use trunkline_draft::Drafter;
use trunkline_scheduler::{
    AdapterHash, AdapterUse, CachePriority, LaneId, Millis, PolicyKind, PooledPrompt, Pooling, Priority,
    Retention, Salt, SamplingParams, SchedulerConfig, SequenceId, SequenceRequest, ShardLimits, Speculation,
    TenantShare, WindowLimits,
};

use super::model::Known;
use super::rng::{Rng, mix};
use super::shard::ShardFaults;
use super::store::StorePlan;

/// The behaviour of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Client {
    Waits,
    /// Disconnects so many milliseconds after its request.
    AbortsAfterMs(u64),
    /// The router finds a stop string after so many tokens.
    StopsAfterTokens(u32),
    /// Disconnects after so many tokens.
    AbortsAfterTokens(u32),
}

#[derive(Clone, Debug)]
pub struct Arrival {
    pub at: Millis,
    pub request: SequenceRequest,
    /// `request.salt` as a number.
    pub salt: u64,
    pub client: Client,
}

/// A loss of a lane's shard, and the limits of the shard that replaces it.
#[derive(Clone, Copy, Debug)]
pub struct Outage {
    pub lane: LaneId,
    pub at: Millis,
    /// `u64::MAX` if no other shard comes.
    pub for_ms: u64,
    pub limits: ShardLimits,
}

impl Outage {
    /// Returns an outage of the first lane.
    pub fn new(at: Millis, for_ms: u64, limits: ShardLimits) -> Self {
        Self { lane: LaneId::FIRST, at, for_ms, limits }
    }
}

/// A drain of a lane. Its shard stops once it is empty.
#[derive(Clone, Copy, Debug)]
pub struct Drain {
    pub lane: LaneId,
    pub at: Millis,
    /// Milliseconds until its sequences leave.
    pub patience_ms: u64,
    /// The lane serves again, with another shard if its own has stopped.
    pub until: Millis,
}

/// A time in which a lane's shard does nothing, as if its process were stopped.
#[derive(Clone, Copy, Debug)]
pub struct Stall {
    pub lane: LaneId,
    pub at: Millis,
    pub for_ms: u64,
}

/// The most bytes of an adapter in tests.
pub const MAX_ADAPTER_BYTES: u64 = 800;

/// The use of an adapter in tests. `index` is not 0.
pub fn adapter(index: u8, scale: f32) -> Arc<AdapterUse> {
    let path: Arc<str> = format!("/adapter-{index}").into();
    let num_bytes = adapter_bytes(index);
    Arc::new(AdapterUse {
        name: path.clone(),
        path,
        content_hash: AdapterHash([index; 32]),
        num_bytes,
        scale,
    })
}

/// The bytes of an adapter in tests. Every fourth is large.
pub fn adapter_bytes(index: u8) -> u64 {
    if index.is_multiple_of(4) { MAX_ADAPTER_BYTES } else { 100 + 10 * u64::from(index % 4) }
}

/// What crashes the shard, each time that a step computes it.
#[derive(Clone, Copy, Debug)]
pub enum Poison {
    /// This position of this request.
    Position { request: u64, position: u32 },
    /// These two requests together. Each is harmless without the other one.
    Pair(u64, u64),
}

impl Poison {
    /// Returns the most losses until nothing crashes the shard any more.
    pub fn max_losses(self) -> u64 {
        match self {
            Self::Position { .. } => 2,
            Self::Pair(..) => 4,
        }
    }
}

/// Everything that a run depends on.
#[derive(Clone, Debug)]
pub struct Scenario {
    pub seed: u64,
    pub config: SchedulerConfig,
    /// The limits of the first lane's shard.
    pub limits: ShardLimits,
    /// The limits of the other lanes' shards.
    pub more_lanes: Vec<ShardLimits>,
    pub faults: ShardFaults,
    pub arrivals: Vec<Arrival>,
    pub outages: Vec<Outage>,
    pub drains: Vec<Drain>,
    pub stalls: Vec<Stall>,
    pub poison: Option<Poison>,
    /// The shard hangs for so long before a poison crashes it.
    pub hang_ms: u64,
    /// The most extra milliseconds until a result arrives.
    pub max_delay_ms: u64,
    /// One result in so many is sent twice; none for 0.
    pub twice: u64,
    pub store: Option<StorePlan>,
    /// The longest time of a load, if requests have adapters.
    pub load_ms: Option<u64>,
}

pub fn salt(index: u64) -> Salt {
    if index == 0 { Salt::default() } else { Salt::of_tenant(&index.to_string()) }
}

/// Returns a request with defaults. `index` is its id and its sampling seed.
pub fn request(index: u64, token_ids: Vec<u32>, max_new_tokens: u32) -> SequenceRequest {
    SequenceRequest {
        id: SequenceId(index),
        token_ids,
        max_new_tokens,
        salt: salt(0),
        sampling: SamplingParams { seed: index, ..SamplingParams::default() },
        ..SequenceRequest::default()
    }
}

fn limits(rng: &mut Rng, vocab_size: u32) -> ShardLimits {
    let (block_size, num_blocks) = (rng.range_u32(1, 6), rng.range_u32(2, 40));
    ShardLimits {
        block_size,
        num_blocks,
        max_step_tokens: rng.range_u32(1, 24),
        max_step_sequences: rng.range_u32(1, 8),
        vocab_size,
        windows: None,
        numerics: 0,
        // These come from another limit, so that adding them changed no other number of a seed. Of large vectors, a
        // message has room for two.
        vector_size: if num_blocks.is_multiple_of(3) { 1_900_000 } else { 4 },
        max_draft_tokens: num_blocks % 8,
        max_own_drafts: num_blocks / 8 % 4,
        num_adapter_slots: 0,
        adapter_bytes: 0,
    }
}

impl Scenario {
    /// The most tokens of all requests together, prompts and outputs.
    pub fn num_tokens(&self) -> u64 {
        let requests = self.arrivals.iter().map(|arrival| &arrival.request);
        requests.map(|request| request.token_ids.len() as u64 + u64::from(request.max_new_tokens)).sum()
    }

    /// The number of tenants that have requests.
    #[allow(dead_code)]
    pub fn num_tenants(&self) -> usize {
        let tenants: BTreeSet<_> =
            self.arrivals.iter().map(|arrival| arrival.request.salt.tenant()).collect();
        tenants.len()
    }

    /// A scenario from one seed. Some runs are calm, some lack blocks, and some lose their shard again and again.
    pub fn random(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let vocab_size = rng.range_u32(2, 5);
        let first_limits = limits(&mut rng, vocab_size);
        let config = SchedulerConfig {
            num_lanes: 1,
            num_prefill_lanes: 0,
            max_queued_requests: rng.range_u32(1, 20),
            max_running_sequences: rng.range_u32(1, 9),
            max_step_tokens: if rng.once_in(3) { rng.range_u32(1, 12) } else { u32::MAX },
            max_prefill_tokens_beside_decodes: rng.range_u32(1, 12),
            // A step of the fake shard takes 0.2 ms and 0.1 ms a token.
            target_step_us: (seed % 6 * 500) as u32,
            target_ttft_ms: (seed % 4 * 20) as u32,
            max_concurrent_prefills: rng.range_u32(1, 4),
            cached_first_window_ms: rng.range(0, 300),
            // These come from the seed itself, so that adding them changed no other number of a seed.
            eviction: PolicyKind::ALL[(seed % PolicyKind::ALL.len() as u64) as usize],
            // No tier takes the offers, so they reach their limit.
            max_offered_blocks: 8,
            max_pinned_percent: (seed % 4 * 33) as u32,
            weights: Vec::new(),
            max_credit_tokens: (seed % 5 * 10) as u32,
            max_shared_prefill_tokens: (seed % 9) as u32,
            class_patience_ms: 60_000,
            speculation: match seed % 5 {
                0 => Speculation::Off,
                1 | 2 => Speculation::Auto,
                _ => Speculation::Always((seed / 5 % 7) as u32),
            },
            shard_patience_ms: if seed.is_multiple_of(7) { seed % 20 } else { 60_000 },
            shares: if (seed / 2).is_multiple_of(2) {
                Vec::new()
            } else {
                vec![
                    TenantShare { tenant: "1".into(), weight: 1 },
                    TenantShare { tenant: "2".into(), weight: 2 },
                ]
            },
        };
        let is_faulty = rng.once_in(3);
        let one_in = |rng: &mut Rng| if is_faulty { rng.range(20, 200) } else { 0 };
        let faults = ShardFaults {
            sequence_error: one_in(&mut rng),
            missing_token: one_in(&mut rng) * 3,
            foreign_token: one_in(&mut rng) * 3,
            ..ShardFaults::default()
        };
        let span_ms = rng.range(1, 200);
        let arrivals = Self::random_arrivals(&mut rng, vocab_size, span_ms);
        let mut outages = Vec::new();
        if rng.once_in(3) {
            let mut at = 0;
            for _ in 0..rng.range(1, 3) {
                at += rng.range(1, span_ms + 60);
                let for_ms = rng.range(0, 30);
                let limits = if rng.once_in(2) { limits(&mut rng, vocab_size) } else { first_limits };
                // Some shards compute other numbers.
                let limits = ShardLimits { numerics: u64::from(at.is_multiple_of(5)), ..limits };
                outages.push(Outage::new(Millis(at), for_ms, limits));
                at += for_ms;
            }
        }
        let max_delay_ms = if rng.once_in(2) { rng.range(0, 20) } else { 0 };
        let twice = if rng.once_in(4) { rng.range(2, 20) } else { 0 };
        let store = Self::random_store(seed);
        let poison = Self::random_poison(seed, arrivals.len() as u64);
        let mut scenario = Self {
            seed,
            config,
            limits: first_limits,
            more_lanes: Vec::new(),
            faults,
            arrivals,
            outages,
            drains: Vec::new(),
            stalls: Vec::new(),
            poison,
            hang_ms: 0,
            max_delay_ms,
            twice,
            store,
            load_ms: None,
        };
        let mut rng = Rng::new(seed ^ 0x4164_6170);
        if rng.once_in(4) {
            scenario.add_adapters(&mut rng);
        }
        scenario
    }

    /// Like [`Scenario::random`], where some requests have adapters.
    pub fn random_adapters(seed: u64) -> Self {
        Self::random(seed).with_adapters(seed)
    }

    /// Like [`Scenario::random_lanes`], where some requests have adapters.
    pub fn random_adapter_lanes(seed: u64) -> Self {
        Self::random_lanes(seed).with_adapters(seed)
    }

    fn with_adapters(mut self, seed: u64) -> Self {
        if self.load_ms.is_none() {
            self.add_adapters(&mut Rng::new(seed ^ 0x6c6f_7261));
        }
        self
    }

    /// Gives most requests one of a few adapters, and most shards some slots, often fewer than there are adapters.
    fn add_adapters(&mut self, rng: &mut Rng) {
        let num_adapters = rng.range(1, 9);
        self.load_ms = Some([0, 5, 60, 3_000][rng.range(0, 3) as usize]);
        self.faults.load = if rng.once_in(3) { rng.range(2, 12) } else { 0 };
        self.faults.broken_adapter = rng.once_in(4).then(|| rng.range(1, num_adapters) as u8);
        self.limits.num_adapter_slots = if rng.once_in(12) { 0 } else { rng.range_u32(1, 4) };
        // Some have room for all slots, and some for hardly more than one adapter.
        let budgets = [MAX_ADAPTER_BYTES, 950, 4 * MAX_ADAPTER_BYTES];
        self.limits.adapter_bytes = budgets[rng.range(0, 2) as usize];
        self.add_slots(rng);
        for Arrival { request, salt, .. } in &mut self.arrivals {
            if rng.once_in(3) {
                continue;
            }
            let (index, scale) = (rng.range(1, num_adapters) as u8, if rng.once_in(8) { 0.5 } else { 1.0 });
            let adapter = adapter(index, scale);
            request.salt.adapter = Some(adapter.in_salt());
            *salt += 1_000 * u64::from(index) + if scale == 1.0 { 0 } else { 100 };
            request.adapter = Some(adapter);
        }
    }

    /// Gives the other lanes' shards, and those that replace lost ones, slots for adapters. Some have none.
    fn add_slots(&mut self, rng: &mut Rng) {
        let replacing = self.outages.iter_mut().map(|outage| &mut outage.limits);
        for limits in self.more_lanes.iter_mut().chain(replacing) {
            limits.num_adapter_slots = if rng.once_in(6) { 0 } else { rng.range_u32(1, 4) };
            // A few have no room for the large ones.
            limits.adapter_bytes =
                if rng.once_in(6) { MAX_ADAPTER_BYTES - 1 } else { self.limits.adapter_bytes };
        }
    }

    /// Like [`Scenario::random`], with 2 to 8 lanes, and sometimes up to 64. Pools may have different sizes, and any
    /// lane may stall or be lost, some for good.
    pub fn random_lanes(seed: u64) -> Self {
        let mut scenario = Self::random(seed);
        let mut rng = Rng::new(seed ^ 0x6c61_6e65);
        let num_lanes = if rng.once_in(50) { rng.range(9, 64) } else { rng.range(2, 8) };
        let are_equal = rng.once_in(2);
        let vocab_size = scenario.limits.vocab_size;
        let draw = |rng: &mut Rng| if are_equal { scenario.limits } else { limits(rng, vocab_size) };
        scenario.more_lanes = (1..num_lanes).map(|_| draw(&mut rng)).collect();
        for _ in 0..if rng.once_in(2) { rng.range(1, 4) } else { 0 } {
            let (at, for_ms) = (Millis(rng.range(0, 200)), rng.range(0, 60));
            let for_ms = if rng.once_in(6) { u64::MAX } else { for_ms };
            scenario.outages.push(Outage::new(at, for_ms, draw(&mut rng)));
        }
        for outage in &mut scenario.outages {
            outage.lane = LaneId(rng.range(0, num_lanes - 1) as u32);
        }
        // These come from a generator of their own. Some lanes are lost while they stall.
        let mut late_rng = Rng::new(seed ^ 0x6c61_7465);
        for _ in 0..if late_rng.once_in(2) { late_rng.range(1, 4) } else { 0 } {
            let (lane, at) =
                (LaneId(late_rng.range(0, num_lanes - 1) as u32), Millis(late_rng.range(0, 200)));
            let for_ms = late_rng.range(50, 700);
            scenario.stalls.push(Stall { lane, at, for_ms });
            if late_rng.once_in(3) {
                let lost_at = at.plus(late_rng.range(0, for_ms));
                let limits = scenario.limits_of(lane);
                scenario.outages.push(Outage { lane, ..Outage::new(lost_at, late_rng.range(0, 60), limits) });
            }
        }
        scenario.hang_ms = if late_rng.once_in(2) { late_rng.range(0, 900) } else { 0 };
        scenario.config.num_lanes = num_lanes as u32;
        if rng.once_in(3) {
            scenario.config.num_prefill_lanes = rng.range(1, num_lanes - 1) as u32;
        }
        if rng.once_in(2) {
            scenario.add_drains(seed);
        }
        if scenario.load_ms.is_some() {
            scenario.add_slots(&mut Rng::new(seed ^ 0x736c_6f74));
        }
        scenario
    }

    /// Drains random lanes. All of them come back.
    pub fn add_drains(&mut self, seed: u64) {
        let mut rng = Rng::new(seed ^ 0x6472_6169);
        for _ in 0..rng.range(1, 6) {
            let lane = LaneId(rng.range(0, u64::from(self.config.num_lanes) - 1) as u32);
            let (at, patience_ms) = (Millis(rng.range(0, 200)), rng.range(0, 40));
            let until = at.plus(rng.range(0, 100));
            self.drains.push(Drain { lane, at, patience_ms, until });
        }
    }

    /// The same with this many lanes that are like the first one.
    pub fn on_lanes(mut self, num_lanes: u32) -> Self {
        self.more_lanes = vec![self.limits; num_lanes as usize - 1];
        self.config.num_lanes = num_lanes;
        self
    }

    /// Returns the moment at which a lane's shard ends what it begins at `from`, if it would end at `until` without
    /// stalls.
    pub fn end_of(&self, lane: LaneId, from: Millis, until: Millis) -> Millis {
        let mut stalls: Vec<Stall> = self.stalls.iter().copied().filter(|stall| stall.lane == lane).collect();
        stalls.sort_by_key(|stall| stall.at);
        stalls.iter().fold(until, |until, stall| {
            let end = stall.at.plus(stall.for_ms);
            if stall.at <= until && from < end { until.plus(end.since(stall.at.max(from))) } else { until }
        })
    }

    /// The limits of a lane's first shard.
    pub fn limits_of(&self, lane: LaneId) -> ShardLimits {
        lane.0.checked_sub(1).map_or(self.limits, |index| self.more_lanes[index as usize])
    }

    /// Like [`Scenario::random`], for a model with windows and few or many window parts.
    pub fn random_windowed(seed: u64) -> Self {
        let window_size = Rng::new(seed ^ 0x7769_6e64).range_u32(1, 24);
        Self::random(seed).with_windows(seed, window_size, false)
    }

    /// Like [`Scenario::random`], for a model with recurrent layers and few or many states.
    pub fn random_recurrent(seed: u64) -> Self {
        let mut scenario = Self::random(seed);
        let unset = |limits: &mut ShardLimits| {
            (limits.max_draft_tokens, limits.max_own_drafts) = (0, 0);
        };
        unset(&mut scenario.limits);
        scenario.outages.iter_mut().for_each(|outage| unset(&mut outage.limits));
        scenario.store = None;
        scenario.with_windows(seed, 2, true)
    }

    fn with_windows(self, seed: u64, window_size: u32, is_recurrent: bool) -> Self {
        let mut scenario = self;
        let mut rng = Rng::new(seed ^ 0x7061_7274);
        let spare = rng.range_u32(0, 12);
        let set = |limits: &mut ShardLimits| {
            let least =
                WindowLimits { num_parts: 0, window_size, is_recurrent }.least_parts(limits.block_size);
            limits.windows = Some(WindowLimits { num_parts: least + spare, window_size, is_recurrent });
        };
        set(&mut scenario.limits);
        scenario.outages.iter_mut().for_each(|outage| set(&mut outage.limits));
        scenario
    }

    /// Like [`Scenario::random`], where some requests ask for vectors.
    pub fn random_pooled(seed: u64) -> Self {
        let mut scenario = Self::random(seed);
        let mut rng = Rng::new(seed ^ 0x706f_6f6c);
        let shards = scenario.outages.iter().map(|outage| outage.limits.max_step_tokens);
        let step_tokens =
            shards.chain([scenario.limits.max_step_tokens, scenario.config.max_step_tokens]).min();
        for Arrival { request, client, .. } in &mut scenario.arrivals {
            let is_plain = !request.constrained && request.sampling.prompt_logprobs.is_none();
            if !is_plain || !rng.once_in(2) {
                continue;
            }
            let fits = request.token_ids.len() as u32 <= step_tokens.unwrap_or(0);
            let pooling = match rng.range(0, 2) {
                0 => Pooling::Last,
                1 if fits => Pooling::Whole,
                _ => Pooling::All,
            };
            request.pooling = Some(PooledPrompt { pooling, second_text: rng.range_u32(0, 3) });
            request.max_new_tokens = 1;
            request.sampling.end_token_ids.clear();
            request.drafter = None;
            request.retention = Retention::default();
            if matches!(client, Client::StopsAfterTokens(_) | Client::AbortsAfterTokens(_)) {
                *client = Client::Waits;
            }
        }
        scenario
    }

    /// A poison from a generator of its own, as with [`Scenario::random_store`].
    fn random_poison(seed: u64, num_arrivals: u64) -> Option<Poison> {
        let mut rng = Rng::new(seed ^ 0x706f_6973);
        if rng.once_in(5) {
            let (request, position) = (rng.range(0, num_arrivals - 1), rng.range_u32(0, 30));
            return Some(Poison::Position { request, position });
        }
        (rng.once_in(5) && num_arrivals > 1).then(|| {
            let first = rng.range(0, num_arrivals - 2);
            Poison::Pair(first, rng.range(first + 1, num_arrivals - 1))
        })
    }

    /// A store from a generator of its own, so that adding it changed no other number of a seed.
    fn random_store(seed: u64) -> Option<StorePlan> {
        let mut rng = Rng::new(seed ^ 0x7374_6f72);
        let is_faulty = rng.once_in(3);
        let one_in = |rng: &mut Rng| if is_faulty { rng.range(3, 30) } else { 0 };
        rng.once_in(2).then(|| StorePlan {
            num_slots: rng.range_u32(1, 60),
            write_fault: one_in(&mut rng),
            broken_block: one_in(&mut rng),
            max_delay_ms: if rng.once_in(2) { rng.range(0, 30) } else { 0 },
            hung_read: if rng.once_in(3) { rng.range(1, 10) } else { 0 },
            full: rng.once_in(3).then(|| {
                let from = Millis(rng.range(0, 150));
                (from, from.plus(rng.range(1, 100)))
            }),
            lost_at: rng.once_in(4).then(|| Millis(rng.range(0, 200))),
            visit_ms: if rng.once_in(2) { rng.range(1, 20) } else { 0 },
        })
    }

    fn random_arrivals(rng: &mut Rng, vocab_size: u32, span_ms: u64) -> Vec<Arrival> {
        let num_salts = rng.range(1, 2);
        let longest = rng.range(1, 40);
        let mut prompts: Vec<Vec<u32>> = Vec::new();
        for _ in 0..3 {
            let count = rng.range(1, longest);
            prompts.push(rng.tokens(count, vocab_size));
        }
        let impatience = rng.range(2, 12);
        let mut arrivals = Vec::new();
        for index in 0..rng.range(1, 24) {
            let salt_index = rng.range(1, num_salts) - 1;
            // The prompt is part of an earlier conversation with some new tokens.
            let known = &prompts[rng.range(0, prompts.len() as u64 - 1) as usize];
            let keep = if rng.once_in(2) { known.len() as u64 } else { rng.range(0, known.len() as u64) };
            let mut token_ids = known[..keep as usize].to_vec();
            let count = rng.range(u64::from(token_ids.is_empty()), 8);
            token_ids.extend(rng.tokens(count, vocab_size));
            if rng.once_in(40) {
                token_ids.push(vocab_size);
            }
            let mut asked = request(index, token_ids, rng.range_u32(0, 20));
            let at = Millis(rng.range(0, span_ms));
            if rng.once_in(2) {
                asked.sampling.end_token_ids = vec![rng.range_u32(0, vocab_size - 1)];
                asked.ignore_eos = rng.once_in(4);
            }
            asked.priority = match rng.range(0, 5) {
                0 => Priority::High,
                1 => Priority::Low,
                _ => Priority::Normal,
            };
            if rng.once_in(6) {
                asked.deadline = Some(at.plus(rng.range(0, 80)));
            }
            asked.salt = salt(salt_index);
            // These come from the index, so that adding them changed no other number of a seed.
            asked.retention = Retention {
                pinned_ms: index.is_multiple_of(4).then_some(index % 7 * 20),
                num_tokens: index.is_multiple_of(3).then_some(index as u32 % 40),
                cache_priority: if index % 5 == 3 { CachePriority::Low } else { CachePriority::Normal },
                group: index.is_multiple_of(6).then(|| format!("group {}", index % 4).into()),
            };
            asked.constrained = index % 3 == 1;
            // A constrained request has none, because forced tokens may end its output before its prompt is computed.
            asked.sampling.prompt_logprobs = (index % 5 == 2 && !asked.constrained).then_some(3);
            let client = if !rng.once_in(impatience) {
                Client::Waits
            } else {
                match rng.range(0, 2) {
                    0 => Client::AbortsAfterMs(rng.range(0, 60)),
                    1 => Client::StopsAfterTokens(rng.range_u32(1, 8)),
                    _ => Client::AbortsAfterTokens(rng.range_u32(1, 8)),
                }
            };
            // The conversation goes on: another request may begin with this prompt and its answer.
            let model = super::model::Model { vocab_size };
            if asked.token_ids.iter().all(|&token| token < vocab_size) {
                let known = Known::of(&asked, salt_index);
                let output = model.generate(&known, index, asked.max_new_tokens, &[]).0;
                // Predictions are right, sometimes wrong, or absent.
                let wrong_in = [1, 5, 64][index as usize % 3];
                let is_wrong = |place: &usize| mix(index ^ *place as u64).is_multiple_of(wrong_in);
                let tokens = output.iter().enumerate();
                let prediction = tokens.map(|(place, token)| if is_wrong(&place) { 0 } else { *token });
                let prediction: Vec<u32> = prediction.skip((index % 2) as usize * output.len()).collect();
                asked.drafter = (index % 7 != 3).then(|| Drafter::new(&asked.token_ids, &prediction));
                let mut whole = asked.token_ids.clone();
                whole.extend(output);
                prompts.push(whole);
            }
            arrivals.push(Arrival { at, request: asked, salt: salt_index, client });
        }
        arrivals
    }
}
