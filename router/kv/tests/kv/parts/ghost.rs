//! The cache that a policy imagines.

use trunkline_kv::evict::ghost::{Found, Ghost};
use trunkline_kv::{LeafLru, PathHash};

/// Has a sequence with these paths, one after another; returns how many from the front were there.
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
fn leaves_go_first_and_only_what_does_not_fit() {
    let mut ghost = Ghost::new(4, LeafLru::default());
    assert_eq!(request(&mut ghost, &[1, 2, 3]), 0);
    assert_eq!(request(&mut ghost, &[1, 4]), 1);
    assert_eq!(request(&mut ghost, &[1, 2, 3]), 3);
    assert_eq!(request(&mut ghost, &[1, 4, 5, 6]), 2);
    // Six paths are two too many: 3 was used longest ago, then 2, which is a leaf now.
    assert_eq!(request(&mut ghost, &[1, 2, 3]), 1);
    assert_eq!(request(&mut ghost, &[1, 2, 3]), 3);
}

#[test]
fn what_follows_a_path_that_went_is_not_there() {
    let mut ghost = Ghost::new(1, LeafLru::default());
    ghost.begin();
    let (first, _) = ghost.visit(1, None);
    let (second, _) = ghost.visit(2, Some(first));
    ghost.begin();
    let (third, found) = ghost.visit(3, Some(second));
    assert_eq!((third.node, found), (None, Found::No));
    assert_eq!(ghost.visit(4, Some(third)).0.node, None);
    // Another path has the place of the one that went.
    let (other, _) = ghost.visit(5, Some(first));
    assert_eq!(other.node, second.node);
    assert_eq!(ghost.visit(3, Some(second)).0.node, None);
}
