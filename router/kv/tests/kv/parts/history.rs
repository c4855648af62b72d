//! The bounded history of paths.

use trunkline_kv::evict::history::{History, MIN_SETS, PathHash, PathUse, WAYS};

fn path_use(request: u32) -> PathUse {
    PathUse { request, num_requests: 1, class: 0, octave: 0 }
}

fn put(history: &mut History, path: PathHash, path_use: PathUse) {
    history.insert(path, path_use);
}

#[test]
fn the_least_recently_used_path_of_a_full_set_is_overwritten() {
    let mut history = History::new(WAYS);
    let paths: Vec<PathHash> = (1..=WAYS as u64 + 1).map(|path| path << 33).collect();
    for (request, &path) in paths.iter().enumerate() {
        put(&mut history, path, path_use(request as u32));
    }
    assert_eq!(history.get(paths[0]), None);
    assert!(paths[1..].iter().all(|&path| history.get(path).is_some()));
    put(&mut history, paths[1], PathUse { request: 9, num_requests: 2, class: 3, octave: 5 });
    assert_eq!(history.get(paths[1]), Some(PathUse { request: 9, num_requests: 2, class: 3, octave: 5 }));
    assert_eq!(history.capacity(), WAYS);
}

#[test]
fn it_grows_to_its_bound_and_keeps_its_entries() {
    let mut history = History::new(1 << 17);
    assert_eq!(history.capacity(), MIN_SETS * WAYS);
    let path = |number: u32| u64::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    for number in 1..=60_000 {
        put(&mut history, path(number), path_use(number));
    }
    assert_eq!(history.capacity(), 1 << 17);
    let num_kept = (1..=60_000).filter(|&number| history.get(path(number)) == Some(path_use(number))).count();
    assert!(num_kept > 57_000, "of 60,000 paths in room for 131,072, {num_kept} are there");
    for number in 60_001..=400_000 {
        put(&mut history, path(number), path_use(number));
    }
    assert_eq!(history.capacity(), 1 << 17);
}
