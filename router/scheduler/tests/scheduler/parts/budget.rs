//! Tests of a step's budget and of the division of its prefill tokens.

use proptest::prelude::*;
use trunkline_scheduler::Priority::{self, High, Low, Normal};
use trunkline_scheduler::budget::{
    PrefillGoal, PrefillNeed, PrefillRoom, StepBudget, TimeRoom, divide_prefill, step_time_for,
};
use trunkline_scheduler::fairness::Fairness;
use trunkline_scheduler::sequence::SequenceKey;
use trunkline_scheduler::step_cost::{StepCost, StepWork};
use trunkline_scheduler::{Chunk, LogitsRows};

use crate::sim::driver::LIMITS;

/// A need of a tenant with this service so far. Each number is another tenant.
fn divide_served(budget: u32, needs: &[(Priority, u64, u32)]) -> Vec<u32> {
    let mut fairness = Fairness::new(&[], 0);
    let needs: Vec<_> = needs
        .iter()
        .map(|&(priority, served, num_tokens)| PrefillNeed {
            key: SequenceKey::default(),
            priority,
            tenant: fairness.enter(Some(&served.to_string())),
            served,
            first: 0,
            num_tokens,
        })
        .collect();
    divide_prefill(PrefillRoom { tokens: budget, time: None }, &needs)
}

fn chunk(first_position: u32, num_tokens: u32, score: bool, sample: bool) -> Chunk {
    Chunk { sequence_id: 1, first_position, num_tokens, score, sample, ..Chunk::default() }
}

#[test]
fn chunks_tokens_and_rows_are_spent_apart() {
    let mut budget = StepBudget::new(32, &LIMITS);
    let mut spend = |chunk: Chunk, num_to_score: u32| {
        budget.spend(chunk.num_tokens, LogitsRows::of(&chunk, num_to_score));
        (budget.tokens, budget.chunks, budget.rows)
    };
    // A part of a prompt has no row, a decode has one, and a scored chunk has one for each scored position and one to
    // sample from.
    assert_eq!(spend(chunk(0, 10, false, false), 0), (22, 7, 8));
    assert_eq!(spend(chunk(10, 1, false, true), 0), (21, 6, 7));
    assert_eq!(spend(chunk(0, 3, true, false), 5), (18, 5, 4));
    assert_eq!(spend(chunk(3, 3, true, true), 5), (15, 4, 1));
    assert!(!budget.is_spent());
    budget.spend(1, LogitsRows::of(&chunk(11, 1, false, true), 0));
    assert_eq!((budget.tokens, budget.chunks, budget.rows), (14, 3, 0));
    assert!(budget.is_spent());
}

#[test]
fn a_tenant_gets_what_those_leave_that_got_less() {
    let needs = [(Normal, 9, 100), (Normal, 3, 40), (Normal, 9, 10), (Normal, 3, 50)];
    assert_eq!(divide_served(60, &needs), [0, 40, 0, 20]);
    assert_eq!(divide_served(110, &needs), [10, 40, 10, 50]);
    assert_eq!(divide_served(60, &[(High, 9, 50), (Normal, 3, 40)]), [50, 10]);
}

#[test]
fn prefill_is_divided() {
    type Case<'a> = (&'a str, u32, &'a [(Priority, u32)], &'a [u32]);
    let cases: [Case<'_>; 16] = [
        ("one prompt gets everything", 512, &[(Normal, 10_000)], &[512]),
        ("what it needs", 512, &[(Normal, 10)], &[10]),
        ("nothing is left", 0, &[(Normal, 10)], &[0]),
        ("nobody asks", 7, &[], &[]),
        ("a short prompt does not wait", 512, &[(Normal, 10_000), (Normal, 20)], &[492, 20]),
        ("nor behind two", 512, &[(Normal, 10_000), (Normal, 4_000), (Normal, 20)], &[128, 364, 20]),
        // Prompts of about the same size are served in the order of their arrival.
        ("the first is shorter", 512, &[(Normal, 8_000), (Normal, 9_000)], &[512, 0]),
        ("the first is longer", 512, &[(Normal, 9_000), (Normal, 8_000)], &[512, 0]),
        ("half the size", 512, &[(Normal, 600), (Normal, 300), (Normal, 299)], &[213, 0, 299]),
        ("no third", 500, &[(Normal, 600), (Normal, 200), (Normal, 110)], &[190, 200, 110]),
        ("a third of it", 500, &[(Normal, 600), (Normal, 200), (Normal, 90)], &[210, 200, 90]),
        ("the oldest gets on with one token", 1, &[(Normal, 10_000), (Normal, 1)], &[1, 0]),
        ("and with a quarter", 100, &[(Normal, 900), (Normal, 100), (Normal, 100)], &[25, 75, 0]),
        // A class gets what the higher ones leave.
        ("three", 100, &[(High, 90), (Normal, 50), (Normal, 5), (Low, 50)], &[90, 5, 5, 0]),
        ("nothing", 100, &[(High, 200), (Low, 5)], &[100, 0]),
        ("the rest", 100, &[(High, 10), (Low, 500)], &[10, 90]),
    ];
    for (what, budget, needs, shares) in cases {
        let needs: Vec<_> = needs.iter().map(|&(priority, num_tokens)| (priority, 0, num_tokens)).collect();
        assert_eq!(divide_served(budget, &needs), shares, "{what}");
    }
}

/// The costs of a backend on which a step takes 1 ms, a row 100 µs, and a position of context 0.1 µs.
fn known_cost() -> StepCost {
    let mut cost = StepCost::default();
    for round in 0..400_u64 {
        let rows = 1 + round % 60;
        let work = StepWork { rows, context: (round % 7) * 10_000, decode_context: (round % 5) * 10_000 };
        let time_us = 1_000 + 100 * rows.saturating_sub(16) + (work.context + work.decode_context) / 10;
        cost.add(work, time_us);
    }
    cost
}

#[test]
fn rows_that_read_little_context_get_more_of_the_time() {
    let cost = known_cost();
    let divide = |target_us: u32, least: u32, needs: &[(u32, u32)]| {
        let tenant = Fairness::new(&[], 0).enter(None);
        let need = |&(first, num_tokens): &(u32, u32)| PrefillNeed {
            key: SequenceKey::default(),
            priority: Normal,
            tenant,
            served: 0,
            first,
            num_tokens,
        };
        let needs: Vec<_> = needs.iter().map(need).collect();
        let time = TimeRoom {
            cost: &cost,
            target_us: f64::from(target_us),
            work: StepWork { rows: 8, ..StepWork::default() },
            least,
        };
        divide_prefill(PrefillRoom { tokens: 1_000, time: Some(time) }, &needs)
    };
    // 8 rows are free, the others take 100 µs each: at the start of a prompt 6 ms is room for nearly 58 rows, behind
    // 10,000 positions, where each row takes another 1 ms, for 5.
    assert!((50..=58).contains(&divide(6_000, 0, &[(0, 900)])[0]));
    assert!((4..=5).contains(&divide(6_000, 0, &[(10_000, 900)])[0]));
    // The long prompt gets a quarter of what it alone would get. The short one gets the rest of the time.
    let [long, short] = divide(6_000, 0, &[(10_000, 900), (0, 36)])[..] else { panic!("two shares") };
    assert!((1..=2).contains(&long) && short >= 34, "{long} {short}");
    assert_eq!(divide(1, 16, &[(10_000, 900)]), [16]);
    assert_eq!(divide(1, 16, &[(10_000, 900), (0, 36)]), [4, 12]);
}

proptest! {
    #[test]
    fn a_step_takes_its_target_time_and_the_oldest_prompts_get_on(
        needs in prop::collection::vec((0..3_u8, 0..3_u8, 0..8_000_u32, 1..8_000_u32), 1..12),
        num_decodes in 1..40_u64,
        target_us in 100..40_000_u32,
        least in 1..64_u32,
        tokens in 1..512_u32,
    ) {
        let cost = known_cost();
        let mut fairness = Fairness::new(&[], 0);
        let needs: Vec<_> = needs
            .into_iter()
            .map(|(class, tenant, first, num_tokens)| PrefillNeed {
                key: SequenceKey::default(),
                priority: [High, Normal, Low][usize::from(class)],
                tenant: fairness.enter(Some(&tenant.to_string())),
                served: u64::from(tenant),
                first,
                num_tokens,
            })
            .collect();
        let work = StepWork { rows: num_decodes, decode_context: 100 * num_decodes, ..StepWork::default() };
        let time = TimeRoom { cost: &cost, target_us: f64::from(target_us), work, least };
        let shares = divide_prefill(PrefillRoom { tokens, time: Some(time) }, &needs);
        let total: u32 = shares.iter().sum();
        let mut with_prefill = work;
        for (need, &share) in needs.iter().zip(&shares) {
            prop_assert!(share <= need.num_tokens);
            with_prefill.context += u64::from(share) * u64::from(need.first) + u64::from(share * (share + 1) / 2);
            with_prefill.rows += u64::from(share);
        }
        prop_assert!(total <= tokens);
        let step_us = cost.predict_us(with_prefill).unwrap();
        prop_assert!(step_us <= f64::from(target_us) * 1.000_001 || total <= least, "{step_us} for {shares:?}");
        // Whatever else waits, the first need of the first class and tenant gets on, and not by its smallest part.
        let first = (0..needs.len()).min_by_key(|&index| (needs[index].priority, needs[index].served, index)).unwrap();
        let least_share = tokens.min(least).div_ceil(4).min(needs[first].num_tokens);
        prop_assert!(shares[first] >= least_share, "{shares:?}");
    }

    #[test]
    fn a_step_grows_only_for_goals_that_it_meets(
        goals in prop::collection::vec((1.0..1e6, 0.0..4e6), 0..6),
        decode_us in 1.0..1e5,
        target_us in 1_000.0..1e5,
    ) {
        let mut goals: Vec<_> =
            goals.into_iter().map(|(work_us, left_us)| PrefillGoal { work_us, left_us }).collect();
        let step_us = step_time_for(&mut goals, decode_us, target_us);
        prop_assert!((target_us..=4.0 * target_us).contains(&step_us));
        if step_us > target_us {
            // A goal is the reason, and a shorter step would miss it: the prompts up to it are through in time, just.
            let share = 1.0 - decode_us / step_us;
            let is_met = |goal: &PrefillGoal| {
                let work_us: f64 = goals.iter().filter(|g| g.work_us <= goal.work_us).map(|g| g.work_us).sum();
                goal.work_us / share <= goal.left_us * 1.000_001 && work_us / share >= goal.left_us * 0.999_999
            };
            prop_assert!(goals.iter().any(is_met));
        }
    }
}

#[test]
fn a_goal_that_no_step_can_meet_slows_no_stream() {
    let step = |goals: &[(f64, f64)]| {
        let goal = |&(work_us, left_us): &(f64, f64)| PrefillGoal { work_us, left_us };
        step_time_for(&mut goals.iter().map(goal).collect::<Vec<_>>(), 20_000.0, 40_000.0)
    };
    assert_eq!(step(&[]), 40_000.0);
    // Half of a step of 40 ms goes to prompts, three quarters of one of 80 ms.
    assert_eq!(step(&[(500_000.0, 1_000_000.0)]), 40_000.0);
    assert_eq!(step(&[(750_000.0, 1_000_000.0)]), 80_000.0);
    assert_eq!(step(&[(500_000.0, 1_000_000.0), (250_000.0, 900_000.0)]), 80_000.0);
    assert_eq!(step(&[(950_000.0, 1_000_000.0)]), 40_000.0);
    assert_eq!(step(&[(750_000.0, 1_000_000.0), (5_000_000.0, 1_000_000.0)]), 80_000.0);
    assert_eq!(step(&[(1.0, 0.0)]), 40_000.0);
}
