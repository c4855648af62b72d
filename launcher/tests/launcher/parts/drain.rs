use std::time::Instant;

use trunkline_launcher::drain::{Request, SAME_SIGNAL_WINDOW};

#[test]
fn copy_of_the_first_signal_is_not_a_second_one() {
    let request = Request::now(15);
    assert!(!request.is_repeated_by(15));
    assert!(request.is_repeated_by(2), "another signal is another request");
    let earlier = Request::at(15, Instant::now().checked_sub(SAME_SIGNAL_WINDOW).unwrap());
    assert!(earlier.is_repeated_by(15));
}
