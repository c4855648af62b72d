use tokio::time::Instant;
use trunkline_engine::driver::late::{LINE_INTERVAL, LateRestores};
use trunkline_scheduler::Stats;

#[test]
fn one_line_a_minute_reports_all_restores() {
    let (mut late, begin) = (LateRestores::default(), Instant::now());
    let stats = |restores_given_up| Stats { restores_given_up, ..Stats::default() };
    assert_eq!(late.take(&stats(0), begin), None);
    assert_eq!(late.take(&stats(1), begin), Some(1));
    assert_eq!(late.take(&stats(3), begin + LINE_INTERVAL / 2), None);
    assert_eq!(late.take(&stats(4), begin + LINE_INTERVAL), Some(3));
    assert_eq!(late.take(&stats(4), begin + LINE_INTERVAL * 3), None);
}
