//! The cache of one tenant makes no difference to another. Step by step the plans are those of a cold prompt, so no
//! timing can tell them apart. Requests that share a prefix of their own tenant show that the comparison can fail.

use trunkline_scheduler::*;

use crate::sim::driver::{LIMITS, answer};
use crate::sim::scenario;

const SMALL: ShardLimits = ShardLimits { num_blocks: 256, max_step_tokens: 32, vocab_size: 1_000, ..LIMITS };
const PROMPT_TOKENS: u32 = 101;

/// The prompt that was computed before, or is being computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Before {
    /// The same prompt of the same tenant.
    Own,
    /// The same prompt of another tenant.
    Foreign,
    /// Another prompt of another tenant, with the same length.
    Cold,
}

/// The numbers in a plan, without the ids of blocks, slots and sequences.
type Shape = Vec<(String, Vec<u32>)>;

struct World {
    scheduler: Scheduler,
    updates: Vec<Update>,
    now: Millis,
}

fn prompt(begin: u32) -> Vec<u32> {
    (begin..begin + PROMPT_TOKENS).collect()
}

fn request(id: u64, tenant: &str, token_ids: Vec<u32>) -> SequenceRequest {
    let salt = Salt::of_tenant(tenant);
    SequenceRequest { salt, ignore_eos: true, ..scenario::request(id, token_ids, 3) }
}

fn shape(plan: &StepPlan) -> Shape {
    let starts = plan.starts.iter().map(|start| start.token_ids.len() as u32).collect();
    let copies = plan.copies.iter().map(|copy| copy.num_tokens).collect();
    let restores = plan.restores.iter().map(|restore| restore.blocks.len() as u32).collect();
    let chunks = plan.chunks.iter().flat_map(|chunk| {
        let counts = [chunk.new_block_ids.len() as u32, chunk.stores.len() as u32, u32::from(chunk.sample)];
        [chunk.first_position, chunk.num_tokens].into_iter().chain(counts)
    });
    vec![
        ("starts".into(), starts),
        ("copies".into(), copies),
        ("restores".into(), restores),
        ("chunks".into(), chunks.collect()),
        ("ends".into(), vec![plan.ends.len() as u32]),
    ]
}

impl World {
    fn new() -> Self {
        let shares = ["a", "b"].map(|tenant| TenantShare { tenant: tenant.into(), weight: 1 });
        let config = SchedulerConfig { shares: shares.into(), ..SchedulerConfig::default() };
        let mut world = Self { scheduler: Scheduler::new(config), updates: Vec::new(), now: Millis(0) };
        world.handle(Event::ShardReady(LaneId::FIRST, SMALL));
        world
    }

    fn handle(&mut self, event: Event) {
        self.scheduler.handle(self.now, event, &mut self.updates);
        self.scheduler.check_invariants();
    }

    /// Makes one plan and answers it at once.
    fn step(&mut self) -> Option<Shape> {
        self.now = self.now.plus(10);
        let plan = self.scheduler.plan(LaneId::FIRST, self.now, &mut self.updates)?;
        let shape = shape(&plan);
        self.handle(Event::StepResult(LaneId::FIRST, answer(&plan, 999)));
        let stores = plan.chunks.iter().flat_map(|chunk| &chunk.stores);
        let stores = stores.map(|store| StoreOutcome { slot: store.slot, is_stored: true }).collect();
        let restores = plan.restores.iter().map(|restore| RestoreOutcome {
            restore_id: restore.restore_id,
            num_blocks: restore.blocks.len() as u32,
            time_us: 100,
        });
        self.handle(Event::Transfers(
            LaneId::FIRST,
            Transfers { stores, restores: restores.collect(), ..Transfers::default() },
        ));
        Some(shape)
    }

    fn run(&mut self) -> Vec<Shape> {
        std::iter::from_fn(|| self.step()).collect()
    }

    fn submit_before(&mut self, before: Before) {
        let (tenant, begin) = match before {
            Before::Own => ("b", 0),
            Before::Foreign => ("a", 0),
            Before::Cold => ("a", 500),
        };
        self.handle(Event::Submit(Box::new(request(1, tenant, prompt(begin)))));
    }

    fn submit_asked(&mut self) {
        self.handle(Event::Submit(Box::new(request(2, "b", prompt(0)))));
    }

    fn cached_tokens(&self) -> u32 {
        let started = self.updates.iter().find_map(|update| match update {
            Update::Started { id: SequenceId(2), cached_tokens, .. } => Some(*cached_tokens),
            _ => None,
        });
        started.expect("it was started")
    }
}

/// Runs the same requests after each kind of earlier prompt, and compares the plans.
fn compare(what: &str, play: impl Fn(Before) -> (Vec<Shape>, Stats, u32)) {
    let (foreign, foreign_stats, foreign_cached) = play(Before::Foreign);
    let (cold, cold_stats, cold_cached) = play(Before::Cold);
    assert!(!cold.is_empty(), "{what}");
    assert_eq!(foreign, cold, "{what}: a foreign prompt is a cold one");
    assert_eq!(foreign_stats, cold_stats, "{what}: and so are all counts");
    assert_eq!((foreign_cached, cold_cached), (0, 0), "{what}");
    let (own, _, own_cached) = play(Before::Own);
    assert_ne!(own, cold, "{what}: the tenant's own prompt is not");
    assert!(own_cached > 0, "{what}");
}

#[test]
fn a_foreign_prompt_that_is_cached_is_planned_like_a_cold_one() {
    compare("cached", |before| {
        let mut world = World::new();
        world.submit_before(before);
        world.run();
        world.submit_asked();
        (world.run(), world.scheduler.stats(), world.cached_tokens())
    });
}

#[test]
fn a_foreign_prompt_that_is_being_computed_delays_and_helps_no_request() {
    for num_steps in 1..4 {
        compare("being computed", |before| {
            let mut world = World::new();
            world.submit_before(before);
            let mut shapes: Vec<Shape> = (0..num_steps).filter_map(|_| world.step()).collect();
            world.submit_asked();
            shapes.extend(world.run());
            let stats = world.scheduler.stats();
            assert_eq!(stats.prefix_waits > 0, before == Before::Own, "{before:?}");
            (shapes, stats, world.cached_tokens())
        });
    }
}

#[test]
fn a_foreign_prompt_that_lies_in_the_store_is_planned_like_a_cold_one() {
    compare("stored", |before| {
        let mut world = World::new();
        world.handle(Event::StoreReady(
            LaneId::FIRST,
            StoreContents { num_slots: 4_096, ..StoreContents::default() },
        ));
        world.submit_before(before);
        world.run();
        // The pool is filled with other prompts, so this one is only in the store.
        for id in 0..80 {
            let noise = (0..PROMPT_TOKENS).map(|position| (position * 7 + id) % 900).rev().collect();
            let tenant = ["a", "b"][id as usize % 2];
            world.handle(Event::Submit(Box::new(request(100 + u64::from(id), tenant, noise))));
            world.run();
        }
        world.submit_asked();
        (world.run(), world.scheduler.stats(), world.cached_tokens())
    });
}

#[test]
fn a_foreign_prompt_does_not_change_who_goes_first() {
    // Requests queue up, and a cached prompt would move ahead in the queue.
    compare("queued", |before| {
        let mut world = World::new();
        world.submit_before(before);
        world.run();
        for id in 10..30 {
            let token_ids = (0..PROMPT_TOKENS).map(|position| (position * 3 + id) % 900).collect();
            world.handle(Event::Submit(Box::new(request(u64::from(id), "b", token_ids))));
        }
        world.now = world.now.plus(100);
        world.submit_asked();
        (world.run(), world.scheduler.stats(), world.cached_tokens())
    });
}

#[test]
fn a_flood_of_concurrent_requests_leaves_a_history_within_its_share_alone() {
    // The tenant's own flood, for comparison, evicts the history.
    for (flooding, expected) in [("a", PROMPT_TOKENS - 1), ("b", 0)] {
        let mut world = World::new();
        world.submit_before(Before::Own);
        world.run();
        for id in 10..50 {
            let token_ids = (0..PROMPT_TOKENS).map(|position| (position * 3 + id) % 900 + 50).collect();
            world.handle(Event::Submit(Box::new(request(u64::from(id), flooding, token_ids))));
        }
        world.run();
        let num_evicted = world.scheduler.stats().evicted_blocks;
        assert!(num_evicted > u64::from(SMALL.num_blocks), "{num_evicted} blocks were evicted");
        world.submit_asked();
        world.run();
        assert_eq!(world.cached_tokens(), expected, "flooded by {flooding}");
    }
}
