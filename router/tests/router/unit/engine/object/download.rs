use std::time::Duration;

use trunkline_engine::object::download::{MAX_BUDGET, UNMEASURED_BUDGET, budget};
use trunkline_scheduler::Coverage;

#[test]
fn downloads_never_wait_longer_than_computing_takes() {
    let of = |compute_ms| budget(&Coverage { num_blocks: 0, is_extensible: true, compute_ms });
    assert_eq!(of(None), UNMEASURED_BUDGET);
    assert_eq!(of(Some(120.0)), Duration::from_millis(120));
    assert_eq!(of(Some(1e9)), MAX_BUDGET);
    assert_eq!(of(Some(f64::MAX)), MAX_BUDGET);
}
