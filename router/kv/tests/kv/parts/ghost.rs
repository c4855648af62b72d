//! The simulated cache of a policy.

use trunkline_kv::evict::ghost::{Found, Ghost};
use trunkline_kv::{LeafLru, PathHash};

/// Runs a sequence with these paths. Returns how many leading ones were there.
fn request(ghost: &mut Ghost<LeafLru>, paths: &[PathHash]) -> usize {
    ghost.begin();
    let (mut found, mut step) = (Vec::new(), None);
    for &path in paths {
        let (at, was_there) = ghost.visit(path, step);
        assert!(at.node.is_some(), "nothing goes while a request runs");
        found.push(was_there);
        step = Some(at);
    }
    found.into_iter().take_while(|&found| found == Found::Yes).count()
}

#[test]
fn leaves_are_evicted_first_and_only_as_many_as_needed() {
    let mut ghost = Ghost::new(4, LeafLru::default());
    assert_eq!(request(&mut ghost, &[1, 2, 3]), 0);
    assert_eq!(request(&mut ghost, &[1, 4]), 1);
    assert_eq!(request(&mut ghost, &[1, 2, 3]), 3);
    assert_eq!(request(&mut ghost, &[1, 4, 5, 6]), 2);
    // Six paths exceed the capacity by two. The least recently used leaf is 3, and then 2.
    assert_eq!(request(&mut ghost, &[1, 2, 3]), 1);
    assert_eq!(request(&mut ghost, &[1, 2, 3]), 3);
}

#[test]
fn paths_after_an_evicted_path_are_not_added() {
    let mut ghost = Ghost::new(1, LeafLru::default());
    ghost.begin();
    let (first, _) = ghost.visit(1, None);
    let (second, _) = ghost.visit(2, Some(first));
    ghost.begin();
    let (third, found) = ghost.visit(3, Some(second));
    assert_eq!((third.node, found), (None, Found::No));
    assert_eq!(ghost.visit(4, Some(third)).0.node, None);
    // Another path has the node of the evicted one.
    let (other, _) = ghost.visit(5, Some(first));
    assert_eq!(other.node, second.node);
    assert_eq!(ghost.visit(3, Some(second)).0.node, None);
}
