use trunkline_launcher::cache::render::{age, number, size};

#[test]
fn numbers_are_readable() {
    assert_eq!([size(0), size(1023), size(1024), size(3 << 30)], ["0 B", "1023 B", "1.0 KiB", "3.0 GiB"]);
    assert_eq!([number(7), number(1_000), number(1_234_567)], ["7", "1,000", "1,234,567"]);
    let ages = [0, 59, 60, 7_200, 200_000].map(|seconds| age(1_000_000 - seconds, 1_000_000));
    assert_eq!(ages, ["0 s ago", "59 s ago", "1 min ago", "2 h ago", "2 days ago"]);
    assert_eq!(age(2_000_000, 1_000_000), "0 s ago", "a clock that was set back");
}
