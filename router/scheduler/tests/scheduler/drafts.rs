//! Which drafts a plan has.

use trunkline_draft::{Draft, Drafter};
use trunkline_scheduler::drafts::{BareStep, Candidate, choose};
use trunkline_scheduler::sequence::SequenceKey;
use trunkline_scheduler::step_cost::{StepCost, StepWork};
use trunkline_scheduler::{Salt, SchedulerConfig, SequenceRequest, ShardLimits, Speculation};

use crate::sim::driver::{Driver, LIMITS};
use crate::sim::scenario::request;

/// The costs of a shard whose steps take `base_us` and `row_us` for each row.
fn cost(base_us: u64, row_us: u64) -> StepCost {
    let mut cost = StepCost::default();
    for _ in 0..50 {
        for num_rows in [1, 3, 8, 16, 20, 64, 200] {
            let mut work = StepWork::default();
            work.add(100, num_rows);
            cost.add(work, base_us + row_us * u64::from(num_rows));
        }
    }
    cost
}

/// Returns how many of its drafts each of `num_streams` decodes keeps. The probability of each further draft is
/// `probability` times that of the one before.
fn kept(cost: &StepCost, num_streams: u32, probability: f32) -> Vec<usize> {
    kept_of(cost, num_streams, probability, None)
}

/// Like [`kept`], for drafts of a draft model that takes `draft_us` for each.
fn kept_of(cost: &StepCost, num_streams: u32, probability: f32, draft_us: Option<f64>) -> Vec<usize> {
    let (is_own, draft_us) = (draft_us.is_some(), draft_us.unwrap_or(0.0));
    let drafts = (1..=16).map(|power| Draft { token_id: 1, probability: probability.powi(power) });
    let drafts: Vec<Draft> = drafts.collect();
    let candidate = Candidate { key: SequenceKey::default(), first: 100, num_tokens: 1, drafts, is_own };
    let mut candidates = vec![candidate; num_streams as usize];
    let mut bare = BareStep { num_samples: num_streams, work: StepWork::default() };
    (0..num_streams).for_each(|_| bare.work.add(100, 1));
    if !choose(cost, draft_us, bare, &mut candidates) {
        return vec![0; num_streams as usize];
    }
    candidates.iter().map(|candidate| candidate.drafts.len()).collect()
}

#[test]
fn drafts_are_chosen_by_what_they_gain_and_cost() {
    // As measured for a small model on two cores, in microseconds.
    let small = cost(3_600, 460);
    assert_eq!(kept(&small, 1, 0.99), [16]);
    let likely = kept(&small, 1, 0.8)[0];
    assert!((4..16).contains(&likely), "{likely}");
    assert_eq!(kept(&small, 1, 0.1), [0], "the pause costs more");
    let at_8: usize = kept(&small, 8, 0.8).iter().sum();
    assert!(at_8 < 8 * likely, "rows are dearer at {at_8}");
    // Where rows cost nearly all of a step, drafts gain nothing, however likely they are.
    assert_eq!(kept(&cost(100, 1_000), 8, 0.9), [0; 8]);
    // A draft model takes its time, for all sequences together.
    let own = |num_streams, draft_us| kept_of(&small, num_streams, 0.9, Some(draft_us));
    assert_eq!(own(1, 0.0), kept(&small, 1, 0.9));
    assert!((2..own(1, 0.0)[0]).contains(&own(1, 700.0)[0]), "{:?}", own(1, 700.0));
    assert_eq!(own(1, 5_000.0), [1], "the first one is free");
    // Before any step was measured there are none.
    assert_eq!(kept(&StepCost::default(), 1, 0.99), [0]);
}

/// Sends requests one after the other, whose outputs are all the same.
struct Speaker(Driver);

impl Speaker {
    fn new() -> Self {
        let limits = ShardLimits { max_draft_tokens: 4, ..LIMITS };
        let config = SchedulerConfig { speculation: Speculation::Always(4), ..SchedulerConfig::default() };
        Self(Driver::new(config, limits))
    }

    /// Returns how many drafts a request had.
    fn num_drafts(&mut self, id: u64, salt: Salt) -> usize {
        let mut asked: SequenceRequest = request(id, (7..20).collect(), 12);
        // The model's text depends on the seed and the salt. All requests have the same text.
        asked.sampling.seed = 1;
        asked.drafter = Some(Drafter::new(&asked.token_ids, &[]));
        asked.salt = salt;
        self.0.submit(asked);
        self.0.known.get_mut(&1).expect("it was just submitted").salt = 0;
        let mut num_drafts = 0;
        while let Some(plan) = self.0.step() {
            num_drafts += plan.chunks.iter().map(|chunk| chunk.draft_token_ids.len()).sum::<usize>();
        }
        num_drafts
    }
}

#[test]
fn a_sequence_drafts_from_outputs_of_its_salt_only() {
    let mut speaker = Speaker::new();
    let (alice, bob) = (|| Salt::of_tenant("alice"), || Salt::of_tenant("bob"));
    assert_eq!(speaker.num_drafts(1, alice()), 0, "the text does not repeat itself");
    assert_eq!(speaker.num_drafts(2, bob()), 0, "it is another tenant's");
    assert_eq!(speaker.num_drafts(3, alice().with_cache_salt("x")), 0, "it has another salt");
    assert!(speaker.num_drafts(4, alice()) > 4, "its own tenant said it before");
}

#[test]
fn a_tenant_with_many_salts_drops_only_its_own_outputs() {
    let mut speaker = Speaker::new();
    let salted = |number: u64| Salt::of_tenant("mallory").with_cache_salt(&number.to_string());
    speaker.num_drafts(1, Salt::of_tenant("alice"));
    for number in 2..200 {
        speaker.num_drafts(number, salted(number));
    }
    assert!(speaker.num_drafts(200, Salt::of_tenant("alice")) > 4, "another tenant's outputs are kept");
    assert!(speaker.num_drafts(201, salted(199)) > 4, "so are the latest of the many");
    assert_eq!(speaker.num_drafts(202, salted(2)), 0, "and the oldest of them are dropped");
}
