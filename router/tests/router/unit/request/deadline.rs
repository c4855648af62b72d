use std::time::Duration;

use axum::http::{HeaderMap, HeaderName};
use tokio::time::Instant;
use trunkline_generation::request::deadline::{Deadline, header_timeout};

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn the_earliest_deadline_wins_and_is_named() {
    let now = Instant::now();
    let deadline = |header: Option<u32>, timeout, flag: Option<u32>| {
        let times = |times: u32| SECOND * times;
        let deadline = Deadline::new(now, header.map(times), timeout, flag.map(times)).unwrap();
        deadline.map(|deadline| (deadline.at - now, deadline.by))
    };
    assert_eq!(deadline(None, None, None), None);
    assert_eq!(deadline(Some(3), Some(2.0), Some(9)), Some((SECOND * 2, "timeout")));
    assert_eq!(deadline(Some(1), Some(2.0), Some(9)), Some((SECOND, "x-request-timeout")));
    assert_eq!(deadline(Some(3), Some(20.0), Some(2)), Some((SECOND * 2, "--request-timeout")));
    assert_eq!(deadline(None, None, Some(2)), Some((SECOND * 2, "--request-timeout")));
}

#[test]
fn invalid_timeouts_are_refused() {
    for value in [0.0, -1.0, f64::NAN, f64::INFINITY, 86_400.1] {
        let error = Deadline::new(Instant::now(), None, Some(value), None).unwrap_err();
        assert_eq!((error.code(), error.param()), ("invalid_value", Some("timeout")), "{value}");
    }
    assert!(Deadline::new(Instant::now(), None, Some(1e-12), None).unwrap().unwrap().after > Duration::ZERO);
    let header = |text: &str| {
        header_timeout(&HeaderMap::from_iter([(
            HeaderName::from_static("x-request-timeout"),
            text.try_into().unwrap(),
        )]))
        .ok()
    };
    assert_eq!(header(" 2.5 "), Some(Some(SECOND * 5 / 2)));
    for text in ["", "soon", "0", "-1", "nan", "1e9", "2 s"] {
        assert_eq!(header(text), None, "{text}");
    }
    assert_eq!(header_timeout(&HeaderMap::new()).unwrap(), None);
}
