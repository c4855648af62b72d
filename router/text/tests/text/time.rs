//! Dates in templates equal those of Python.

use trunkline_text::parts::strftime;

#[test]
fn dates_equal_those_of_python() {
    // Python printed each line with `datetime.fromtimestamp(t, timezone.utc).strftime(format)`.
    let format = "%a %A %-d %d %b %B %m %Y %y %j %H:%I:%M:%S %p";
    let cases = [
        (0, "Thu Thursday 1 01 Jan January 01 1970 70 001 00:12:00:00 AM"),
        (951_782_400, "Tue Tuesday 29 29 Feb February 02 2000 00 060 00:12:00:00 AM"),
        (1_709_251_199, "Thu Thursday 29 29 Feb February 02 2024 24 060 23:11:59:59 PM"),
        (1_735_689_599, "Tue Tuesday 31 31 Dec December 12 2024 24 366 23:11:59:59 PM"),
        (1_767_225_600, "Thu Thursday 1 01 Jan January 01 2026 26 001 00:12:00:00 AM"),
        (1_772_366_400, "Sun Sunday 1 01 Mar March 03 2026 26 060 12:12:00:00 PM"),
        (4_107_542_399, "Sun Sunday 28 28 Feb February 02 2100 00 059 23:11:59:59 PM"),
        (-1, "Wed Wednesday 31 31 Dec December 12 1969 69 365 23:11:59:59 PM"),
    ];
    for (unix_s, expected) in cases {
        assert_eq!(strftime(unix_s, format).unwrap(), expected);
    }
}

#[test]
fn unknown_directives_are_errors() {
    for format in ["%Q", "%", "%#z"] {
        assert!(strftime(0, format).is_err(), "{format}");
    }
    assert_eq!(strftime(0, "100 %% %F %T").unwrap(), "100 % 1970-01-01 00:00:00");
}
