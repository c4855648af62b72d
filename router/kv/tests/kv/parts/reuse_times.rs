//! The worth of a block by its age.

use trunkline_kv::evict::reuse_times::{NUM_AGES, ReuseTimes, age_index, smoothed};

/// Learns from requests with one block of the class each, which is used again after `pause` requests if that is given.
fn learned(pause: Option<u64>) -> ReuseTimes {
    let mut times = ReuseTimes::new(1, 1);
    for request in 0..4_000 {
        times.advance(1);
        times.used(0, 1.0);
        if let Some(pause) = pause.filter(|&pause| request >= pause) {
            times.reused(0, pause, 1.0);
        }
    }
    times.advance(1);
    times.update_worth();
    times
}

#[test]
fn before_anything_is_learned_older_blocks_are_worth_less() {
    let times = ReuseTimes::new(6, 3);
    for class in 0..6 {
        // Age 0 is the present request.
        assert!((2..NUM_AGES).all(|age| times.worth(class, age) <= times.worth(class, age - 1)));
    }
}

#[test]
fn blocks_that_are_due_are_worth_more_than_new_and_overdue_ones() {
    let times = learned(Some(100));
    let due = times.worth(0, age_index(95));
    assert!(due > 2.0 * times.worth(0, age_index(1)), "just came");
    assert!(due > 2.0 * times.worth(0, age_index(1_000)), "did not come back");
    assert!(due > 10.0 * learned(None).worth(0, 1), "of those that never do");
}

#[test]
fn constantly_used_blocks_tell_nothing_about_others() {
    let mut times = ReuseTimes::new(2, 1);
    let before = times.worth(0, 1);
    for _ in 0..1_000 {
        times.advance(1);
        times.used(1, 1.0);
        times.reused(1, 1, 1.0);
    }
    times.update_worth();
    assert_eq!(times.worth(0, 1), before);
    assert!(times.worth(1, 1) > 10.0 * before);
}

#[test]
fn a_share_is_smoothed_over_its_neighbours() {
    let mut of_ages = [0.0; NUM_AGES];
    (of_ages[0], of_ages[8], of_ages[NUM_AGES - 1]) = (4.0, 8.0, 4.0);
    let ages = [0, 1, 2, 7, 8, 9, 10, NUM_AGES - 2, NUM_AGES - 1];
    assert_eq!(ages.map(|age| smoothed(&of_ages, age)), [3.0, 1.0, 0.0, 2.0, 4.0, 2.0, 0.0, 1.0, 3.0]);
}

#[test]
fn ages_are_half_octaves() {
    assert_eq!([0, 1, 2, 3, 4, 5, 6, 8].map(age_index), [0, 1, 3, 4, 5, 5, 6, 7]);
    assert_eq!(age_index(u64::MAX), NUM_AGES - 1);
}
