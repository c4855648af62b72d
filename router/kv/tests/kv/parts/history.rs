//! The history of paths in fixed memory.

use trunkline_kv::history::{History, MIN_SETS, PathHash, Sight, WAYS};

fn sight(request: u32) -> Sight {
    Sight { request, num_seen: 1, class: 0, octave: 0, unit: 0 }
}

fn put(history: &mut History, path: PathHash, sight: Sight) {
    history.see(path, sight.request, |_| sight);
}

#[test]
fn the_path_seen_longest_ago_makes_room_in_fixed_memory() {
    let mut history = History::new(WAYS);
    let paths: Vec<PathHash> = (1..=WAYS as u64 + 1).map(|path| path << 33).collect();
    for (request, &path) in paths.iter().enumerate() {
        put(&mut history, path, sight(request as u32));
    }
    assert_eq!(history.get(paths[0]), None);
    assert!(paths[1..].iter().all(|&path| history.get(path).is_some()));
    put(&mut history, paths[1], Sight { request: 9, num_seen: 2, class: 3, octave: 5, unit: 7 });
    assert_eq!(history.get(paths[1]), Some(Sight { request: 9, num_seen: 2, class: 3, octave: 5, unit: 7 }));
    assert_eq!(history.capacity(), WAYS);
}

#[test]
fn it_grows_to_its_bound_and_keeps_what_it_had() {
    let mut history = History::new(1 << 17);
    assert_eq!(history.capacity(), MIN_SETS * WAYS);
    let path = |number: u32| u64::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    for number in 1..=60_000 {
        put(&mut history, path(number), sight(number));
    }
    assert_eq!(history.capacity(), 1 << 17);
    let num_kept = (1..=60_000).filter(|&number| history.get(path(number)) == Some(sight(number))).count();
    assert!(num_kept > 57_000, "of 60,000 paths in room for 131,072, {num_kept} are there");
    for number in 60_001..=400_000 {
        put(&mut history, path(number), sight(number));
    }
    assert_eq!(history.capacity(), 1 << 17);
}
