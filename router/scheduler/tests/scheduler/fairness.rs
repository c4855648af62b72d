//! Several tenants: none is starved, service is by weight, and a flood leaves the others their time to the first token.
//! Seeds are chosen as in `simulation.rs`.
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::draw;
use crate::sim::driver::{Driver, LIMITS};
use crate::sim::rng::Rng;
use crate::sim::scenario::{Arrival, MAX_ADAPTER_BYTES, Scenario, adapter, request, salt};
use crate::sim::shard::seed_of;
use crate::sim::tenants::{Service, arrival, weights};
use crate::sim::{Options, run};
use crate::simulation::run_all;
use trunkline_scheduler::{
    AdapterUse, LaneId, Millis, Priority, RejectReason, SchedulerConfig, SequenceId, SequenceRequest,
    ShardLimits, Stats, Update,
};

#[test]
fn every_request_of_every_tenant_ends_once_with_its_own_text() {
    let counts: [fn(&Stats) -> u64; 3] =
        [|stats| stats.fair_preemptions, |stats| stats.promotions, |stats| stats.preemptions];
    run_all("--kind tenants ", Scenario::random_tenants, 40, &counts, |_| {});
}

/// Returns a percentile by the nearest-rank method.
fn percentile(mut values: Vec<u64>, percent: usize) -> u64 {
    values.sort_unstable();
    values[(values.len() * percent).div_ceil(100) - 1]
}

/// Returns the times to the first token of tenant 2.
fn ttft_ms(scenario: &Scenario) -> Vec<u64> {
    let report = run(scenario, Options::default());
    let own = scenario.arrivals.iter().filter(|arrival| arrival.salt == 2);
    own.map(|arrival| report.first_token_at[&arrival.request.id].since(arrival.at)).collect()
}

/// Chats of tenant 2, one after another, each with enough time to end.
fn chats(rng: &mut Rng, num_chats: u64) -> Vec<Arrival> {
    let chat = |n: u64| {
        let num_tokens = rng.range(300, 900);
        arrival(rng, Millis(100 + 250 * n), 10_000 + n, 2, num_tokens, 24)
    };
    (0..num_chats).map(chat).collect()
}

/// 200 requests of tenant 1 for each lane at once, and then as many as the devices can compute.
fn flood(rng: &mut Rng, until_ms: u64, num_lanes: u32) -> Vec<Arrival> {
    let num_lanes = u64::from(num_lanes);
    let later = (0..num_lanes * until_ms / 40).map(|n| 100 + 40 * n / num_lanes);
    let times = std::iter::repeat_n(90, 200 * num_lanes as usize).chain(later);
    let asked = times.zip(0..).map(|(at, n)| {
        let (num_tokens, num_new) = (rng.range(20, 600), rng.range_u32(16, 200));
        arrival(rng, Millis(at), n, 1, num_tokens, num_new)
    });
    asked.collect()
}

#[test]
fn a_flood_of_200_leaves_a_second_tenant_its_time_to_the_first_token() {
    let (num_seeds, num_chats) = if draw::is_test_all() { (2, 120) } else { (1, 50) };
    for (seed, num_lanes, num_chats) in
        (0..num_seeds).flat_map(|seed| [(seed, 1, num_chats), (seed, 2, num_chats / 4)])
    {
        let mut rng = Rng::new(seed);
        let own = chats(&mut rng, num_chats);
        let flood = flood(&mut rng, 250 * num_chats, num_lanes);
        let beside = flood.into_iter().chain(own.iter().cloned()).collect();
        let scenario = |arrivals| Scenario::of_tenants(seed, &[1, 1], arrivals).on_lanes(num_lanes);
        let (alone, beside) = (ttft_ms(&scenario(own)), ttft_ms(&scenario(beside)));
        let p99 = (percentile(alone, 99), percentile(beside, 99));
        assert!(2 * p99.1 <= 3 * p99.0, "seed {seed}, {num_lanes} lanes: p99 alone and beside: {p99:?} ms");
    }
}

/// Tenants at a driver with [`LIMITS`]. The last digit of a request's sampling seed is its tenant's number.
struct Tenants {
    driver: Driver,
    service: Service,
    num_submitted: u64,
    /// The tenant of each waiting request, with the service of all tenants when it arrived.
    waiting: BTreeMap<SequenceId, (u64, Got)>,
    open: BTreeMap<SequenceId, u64>,
    /// True if a lane had no step in flight in the last call of `step`.
    was_idle: bool,
    are_adapters: bool,
}

/// The service that each tenant has got.
type Got = BTreeMap<u64, u64>;

const NUM_TENANTS: u64 = 3;
const MAX_PROMPT: u64 = 40;
const MAX_NEW: u32 = 20;

impl Tenants {
    /// Tenants that share [`LIMITS`], which the lanes divide among each other.
    fn on_lanes(num_lanes: u32, all: &[u32], max_credit_tokens: u32) -> Self {
        let config = SchedulerConfig {
            num_lanes,
            weights: weights(all),
            max_queued_requests: 10_000,
            max_credit_tokens,
            ..SchedulerConfig::default()
        };
        let limits = ShardLimits {
            num_blocks: LIMITS.num_blocks / num_lanes,
            max_step_sequences: LIMITS.max_step_sequences / num_lanes,
            num_adapter_slots: 100,
            adapter_bytes: 100 * MAX_ADAPTER_BYTES,
            ..LIMITS
        };
        Self {
            driver: Driver::new(config, limits).with_all_lanes(),
            service: Service::default(),
            num_submitted: 0,
            waiting: BTreeMap::new(),
            open: BTreeMap::new(),
            was_idle: false,
            are_adapters: false,
        }
    }

    /// Adapters of a single tenant in their place.
    fn of_adapters(num_lanes: u32) -> Self {
        Self { are_adapters: true, ..Self::on_lanes(num_lanes, &[1], 2_048) }
    }

    /// Returns the adapter of the next request. The first tenant has a hundred.
    fn adapter(&self, tenant: u64) -> Option<Arc<AdapterUse>> {
        match tenant {
            _ if self.are_adapters => (tenant > 1).then(|| adapter(tenant as u8, 1.0)),
            1 => Some(adapter((self.num_submitted % 100 + 1) as u8, 1.0)),
            _ => None,
        }
    }

    fn submit(&mut self, rng: &mut Rng, tenant: u64, priority: Priority) -> SequenceId {
        self.num_submitted += 1;
        let (num_tokens, num_new) = (rng.range(1, MAX_PROMPT), rng.range_u32(1, MAX_NEW));
        let mut asked = request(self.num_submitted * 10 + tenant, rng.tokens(num_tokens, 50), num_new);
        (asked.salt, asked.priority) = (salt(if self.are_adapters { 1 } else { tenant }), priority);
        asked.adapter = self.adapter(tenant);
        asked.salt.adapter = asked.adapter.as_ref().map(|adapter| adapter.in_salt());
        let id = asked.id;
        self.waiting.insert(id, (tenant, self.service.by_tenant.clone()));
        self.open.insert(id, tenant);
        self.driver.submit(asked);
        id
    }

    fn num_open(&self, tenant: u64) -> usize {
        self.open.values().filter(|&&other| other == tenant).count()
    }

    /// Plans until run-ahead is full, then takes one result of each lane. Returns the tenants of started requests, with
    /// the service of all tenants when each request arrived and now.
    fn step(&mut self) -> Vec<(u64, Got, Got)> {
        let mut started = Vec::new();
        // All lanes are asked again after each plan, as the router does.
        let num_lanes = self.driver.scheduler.lane_ids().count();
        let (mut lane, mut num_without) = (LaneId::FIRST, 0);
        while num_without < num_lanes {
            let Some(plan) = self.driver.plan_on(lane) else {
                lane = LaneId((lane.0 + 1) % num_lanes as u32);
                num_without += 1;
                continue;
            };
            num_without = 0;
            // The plan is not counted yet, because the request started in it.
            for update in std::mem::take(&mut self.driver.updates) {
                match update {
                    Update::Started { id, .. } => {
                        let (tenant, then) = self.waiting.remove(&id).expect("it waited");
                        started.push((tenant, then, self.service.by_tenant.clone()));
                    }
                    Update::Ended { id, .. } => {
                        self.open.remove(&id);
                    }
                    _ => {}
                }
            }
            self.service.add(lane, &plan, |seed| seed % 10);
            self.driver.load_at_once(lane, &plan);
        }
        self.driver.now = self.driver.now.plus(1);
        self.was_idle = false;
        for lane in self.driver.scheduler.lane_ids() {
            self.was_idle |= !self.driver.acknowledge_on(lane);
        }
        for update in std::mem::take(&mut self.driver.updates) {
            if let Update::Ended { id, .. } = update {
                self.open.remove(&id);
            }
        }
        started
    }
}

/// The most service by weight that one tenant may be behind another, by theorem 4.4 of the paper, with the tokens of
/// the pool in one batch and the credits of both.
fn bound(all: &[u32], max_credit_tokens: u32) -> u64 {
    let pool = u64::from(LIMITS.num_blocks * LIMITS.block_size);
    let least = u64::from(*all.iter().min().expect("tenants"));
    (2 * MAX_PROMPT.max(2 * pool) + 2 * u64::from(max_credit_tokens)) / least
}

#[test]
fn tenants_with_work_waiting_are_served_by_weight_and_the_device_is_never_idle() {
    let num_seeds = if draw::is_test_all() { 20 } else { 5 };
    for (num_lanes, seed) in
        [1, 2].into_iter().flat_map(|num_lanes| (0..num_seeds).map(move |seed| (num_lanes, seed)))
    {
        let mut rng = Rng::new(seed);
        let all: Vec<u32> = (0..NUM_TENANTS).map(|_| rng.range_u32(1, 5)).collect();
        let mut tenants = Tenants::on_lanes(num_lanes, &all, 2_048);
        while tenants.service.by_tenant.values().sum::<u64>() < 30_000 {
            for tenant in 1..=NUM_TENANTS {
                while tenants.num_open(tenant) < 20 {
                    tenants.submit(&mut rng, tenant, Priority::Normal);
                }
            }
            tenants.step();
            assert!(!tenants.was_idle, "seed {seed}: work waits");
            let by_weight: Vec<u64> = (1..=NUM_TENANTS)
                .map(|tenant| tenants.service.of(tenant) / u64::from(all[tenant as usize - 1]))
                .collect();
            let (least, most) = (by_weight.iter().min(), by_weight.iter().max());
            let is_fair = most.zip(least).is_some_and(|(most, least)| most - least <= bound(&all, 0));
            assert!(is_fair, "seed {seed}: weights {all:?}, service {:?}", tenants.service.by_tenant);
        }
    }
}

#[test]
fn adapters_with_work_waiting_are_served_equally() {
    let num_seeds = if draw::is_test_all() { 20 } else { 5 };
    for (num_lanes, seed) in
        [1, 2].into_iter().flat_map(|num_lanes| (0..num_seeds).map(move |seed| (num_lanes, seed)))
    {
        let mut rng = Rng::new(seed);
        let mut adapters = Tenants::of_adapters(num_lanes);
        while adapters.service.by_tenant.values().sum::<u64>() < 30_000 {
            for adapter in 1..=NUM_TENANTS {
                // The first one is the model alone, and the last one floods.
                while adapters.num_open(adapter) < if adapter == NUM_TENANTS { 60 } else { 8 } {
                    adapters.submit(&mut rng, adapter, Priority::Normal);
                }
            }
            adapters.step();
            let got = (1..=NUM_TENANTS).map(|adapter| adapters.service.of(adapter));
            let (least, most) = (got.clone().min().unwrap_or(0), got.max().unwrap_or(0));
            let all = &adapters.service.by_tenant;
            assert!(most - least <= bound(&[1], 0), "seed {seed}: {all:?}");
        }
    }
}

#[test]
fn no_adapter_waits_while_others_get_more_than_their_part() {
    let num_seeds = if draw::is_test_all() { 60 } else { 15 };
    let mut num_started = 0;
    for (num_lanes, seed) in
        [1, 2].into_iter().flat_map(|num_lanes| (0..num_seeds).map(move |seed| (num_lanes, seed)))
    {
        let mut rng = Rng::new(seed);
        let mut adapters = Tenants::of_adapters(num_lanes);
        for _ in 0..600 {
            for adapter in 1..=NUM_TENANTS {
                let count = if rng.once_in(40) { rng.range(1, 40) } else { u64::from(rng.once_in(12)) };
                (0..count).for_each(|_| {
                    adapters.submit(&mut rng, adapter, Priority::Normal);
                });
            }
            for (adapter, then, now) in adapters.step() {
                num_started += 1;
                let got = |of: u64| now.get(&of).unwrap_or(&0) - then.get(&of).unwrap_or(&0);
                for other in 1..=NUM_TENANTS {
                    let limit = got(adapter) + bound(&[1], 0);
                    assert!(
                        got(other) <= limit,
                        "seed {seed}: {adapter} waited while {other} got {}",
                        got(other)
                    );
                }
            }
        }
    }
    assert!(num_started > 320 * num_seeds, "{num_started}");
}

#[test]
fn a_flood_for_one_adapter_leaves_another_of_the_tenant_its_turn() {
    let mut rng = Rng::new(1);
    let asked = |arrival: Arrival, of: u8| {
        let adapter = adapter(of, 1.0);
        let mut request = arrival.request;
        (request.salt.adapter, request.adapter) = (Some(adapter.in_salt()), Some(adapter));
        Arrival { request, salt: 1_000 * u64::from(of), ..arrival }
    };
    let flood = flood(&mut rng, 1_000, 1).into_iter().map(|arrival| asked(arrival, 1));
    let one = asked(chats(&mut rng, 1).remove(0), 2);
    let id = one.request.id;
    let arrivals = flood.chain([one]).collect();
    let mut scenario = Scenario::of_tenants(1, &[1], arrivals);
    (scenario.limits.num_adapter_slots, scenario.limits.adapter_bytes) = (2, 2 * MAX_ADAPTER_BYTES);
    scenario.arrivals.iter_mut().for_each(|arrival| arrival.request.salt.tenant = None);
    let report = run(&scenario, Options::default());
    let waited_ms = report.started_at[&id].since(Millis(100));
    let before = scenario.arrivals.iter().filter(|arrival| arrival.at <= Millis(90));
    let of_flood = before.map(|arrival| report.started_at[&arrival.request.id].since(arrival.at)).max();
    assert!(5 * waited_ms < of_flood.unwrap_or(0), "{waited_ms} ms of {of_flood:?}");
}

#[test]
fn no_tenant_waits_while_others_get_more_than_their_part() {
    let num_seeds = if draw::is_test_all() { 60 } else { 15 };
    let mut num_started = 0;
    for (num_lanes, seed) in
        [1, 2].into_iter().flat_map(|num_lanes| (0..num_seeds).map(move |seed| (num_lanes, seed)))
    {
        let mut rng = Rng::new(seed);
        let all: Vec<u32> = (0..NUM_TENANTS).map(|_| rng.range_u32(1, 5)).collect();
        let max_credit_tokens = rng.range_u32(0, 300);
        let mut tenants = Tenants::on_lanes(num_lanes, &all, max_credit_tokens);
        for _ in 0..600 {
            // All tenants have bursts and pauses.
            for tenant in 1..=NUM_TENANTS {
                let count = if rng.once_in(40) { rng.range(1, 40) } else { u64::from(rng.once_in(12)) };
                (0..count).for_each(|_| {
                    tenants.submit(&mut rng, tenant, Priority::Normal);
                });
            }
            for (tenant, then, now) in tenants.step() {
                num_started += 1;
                let got = |other: u64| {
                    let delta = now.get(&other).unwrap_or(&0) - then.get(&other).unwrap_or(&0);
                    delta / u64::from(all[other as usize - 1])
                };
                for other in 1..=NUM_TENANTS {
                    let limit = got(tenant) + bound(&all, max_credit_tokens);
                    assert!(
                        got(other) <= limit,
                        "seed {seed}: tenant {tenant} waited while {other} got {} of {limit}",
                        got(other)
                    );
                }
            }
        }
    }
    assert!(num_started > 320 * num_seeds, "{num_started}");
}

#[test]
fn a_request_that_waits_long_is_promoted_to_the_class_above() {
    let mut rng = Rng::new(1);
    let mut tenants = Tenants::on_lanes(1, &[1, 1], 0);
    let waiting = tenants.submit(&mut rng, 1, Priority::Low);
    let patience_ms = SchedulerConfig::default().class_patience_ms;
    let mut was_promoted_at = None;
    for _ in 0..400 {
        // There are more requests of the highest class than the device can compute.
        while tenants.num_open(2) < 20 {
            tenants.submit(&mut rng, 2, Priority::High);
        }
        tenants.driver.now = tenants.driver.now.plus(1_000);
        tenants.step();
        if !tenants.waiting.contains_key(&waiting) {
            was_promoted_at = Some(tenants.driver.now);
            break;
        }
    }
    let started_at = was_promoted_at.expect("it runs in the end");
    assert!(started_at >= Millis(2 * patience_ms), "{started_at:?}: two classes up");
    assert!(started_at <= Millis(2 * patience_ms + 30_000), "{started_at:?}");
}

#[test]
fn a_tenant_that_fills_the_queue_leaves_places_to_others() {
    let config = |weights: &[u32]| SchedulerConfig {
        max_queued_requests: 16,
        max_running_sequences: 1,
        weights: crate::sim::tenants::weights(weights),
        ..SchedulerConfig::default()
    };
    // The first id of each tenant is a hundred times its number.
    let submit = |driver: &mut Driver, tenant: u64, count: u64| -> Vec<Option<RejectReason>> {
        let ids = 100 * tenant..100 * tenant + count;
        let answers = ids.map(|id| {
            driver.submit(SequenceRequest {
                salt: salt(tenant),
                ..request(id, vec![(id % 40) as u32 + 1; 4], 10)
            });
            driver.rejection(id).map(|(reason, retry_after_ms)| {
                assert!(retry_after_ms.is_some(), "{reason:?}");
                reason.clone()
            })
        });
        answers.collect()
    };
    let mut driver = Driver::new(config(&[1, 5, 1]), LIMITS);
    let shared = |num_waiting, num_free| {
        Some(RejectReason::QueueShared { num_waiting, num_free, max_queued_requests: 16 })
    };
    let flood = submit(&mut driver, 1, 20);
    assert!(flood[..14].iter().all(Option::is_none), "seven eighths: {flood:?}");
    assert!(flood[14..].iter().all(|answer| *answer == shared(14, 2)), "{flood:?}");
    assert_eq!(submit(&mut driver, 2, 2), [None, shared(1, 1)], "weights decide the order, not the places");
    assert_eq!(submit(&mut driver, 3, 1), [None], "the last place is for a tenant without waiting requests");
    let full = RejectReason::QueueFull { num_waiting: 16, max_queued_requests: 16, oldest_wait_ms: 0 };
    assert_eq!(submit(&mut driver, 4, 1), [Some(full)]);
    assert_eq!(driver.scheduler.stats().rejected_queue_full, 8);
    driver.run();
    for id in (100..114).chain([200, 300]) {
        assert_eq!(driver.output(id).len(), 10, "{id}");
    }
    // A tenant that is the only one, or has no key, may fill the whole queue.
    for (weights, tenant) in [(&[1][..], 1), (&[1, 1], 0)] {
        let answers = submit(&mut Driver::new(config(weights), LIMITS), tenant, 17);
        assert!(answers[..16].iter().all(Option::is_none) && answers[16].is_some(), "{answers:?}");
    }
}

#[test]
fn preempted_sequences_take_no_place_of_new_requests() {
    let config = SchedulerConfig {
        max_queued_requests: 1,
        weights: crate::sim::tenants::weights(&[1, 1]),
        ..SchedulerConfig::default()
    };
    let mut driver = Driver::new(config, ShardLimits { num_blocks: 20, ..LIMITS });
    let of_first = |id: u64| SequenceRequest { salt: salt(1), ..request(id, vec![id as u32; 6], 24) };
    for id in 1..=3 {
        driver.submit(of_first(id));
        driver.step();
    }
    while driver.scheduler.stats().num_waiting == 0 {
        assert!(driver.step().is_some(), "the pool is too small for all");
    }
    assert_eq!(driver.scheduler.stats().preemptions, 1);
    driver.submit(of_first(4));
    assert_eq!(driver.rejection(4), None, "none of its requests in the queue is new");
    driver.submit(of_first(5));
    assert!(driver.rejection(5).is_some(), "now one is");
}

#[test]
fn a_tenant_that_asks_for_little_has_the_next_plan_to_itself() {
    let mut rng = Rng::new(3);
    let mut tenants = Tenants::on_lanes(1, &[1, 1], 2_048);
    (0..200).for_each(|_| {
        tenants.submit(&mut rng, 1, Priority::Normal);
    });
    (0..20).for_each(|_| {
        tenants.step();
    });
    assert_eq!(tenants.driver.scheduler.stats().num_running, u64::from(LIMITS.max_step_sequences));
    for round in 0..10 {
        tenants.submit(&mut rng, 2, Priority::Normal);
        tenants.driver.acknowledge();
        let plan = tenants.driver.plan().expect("a step was over");
        tenants.service.add(LaneId::FIRST, &plan, |seed| seed % 10);
        let seeds: Vec<u64> = plan.starts.iter().map(|start| seed_of(start) % 10).collect();
        assert_eq!((seeds.as_slice(), plan.chunks.len()), (&[2][..], 1), "round {round}");
        while tenants.num_open(2) > 0 {
            tenants.step();
        }
    }
    let stats = tenants.driver.scheduler.stats();
    assert!(stats.fair_preemptions > 0, "{stats:?}");
}
