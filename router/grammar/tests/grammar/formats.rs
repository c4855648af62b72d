//! Checks of JSON schema's formats, written from their RFCs.

use std::net::{Ipv4Addr, Ipv6Addr};

/// Returns true if a text has a format.
pub fn is_valid(format: &str, text: &str) -> bool {
    match format {
        "date" => is_date(text),
        "date-time" => is_date_time(text),
        "duration" => is_duration(text),
        "email" => is_email(text),
        "hostname" => is_hostname(text),
        "ipv4" => text.parse::<Ipv4Addr>().is_ok(),
        "ipv6" => text.parse::<Ipv6Addr>().is_ok(),
        "time" => is_time(text),
        "uri" => is_uri(text),
        "uuid" => is_uuid(text),
        // Other formats are annotations.
        _ => true,
    }
}

/// Parses a number of exactly `count` digits.
fn digits(text: &str, count: usize) -> Option<u32> {
    let is_digits = text.len() == count && text.bytes().all(|byte| byte.is_ascii_digit());
    if is_digits { text.parse().ok() } else { None }
}

/// Checks `full-date` of RFC 3339.
fn is_date(text: &str) -> bool {
    let mut parts = text.split('-');
    let mut next = |count| parts.next().and_then(|part| digits(part, count));
    let (Some(year), Some(month), Some(day)) = (next(4), next(2), next(2)) else { return false };
    let is_leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let last = match month {
        2 => 28 + u32::from(is_leap),
        4 | 6 | 9 | 11 => 30,
        1..=12 => 31,
        _ => return false,
    };
    (1..=last).contains(&day) && parts.next().is_none()
}

/// Checks `full-time` of RFC 3339, which has an offset.
fn is_time(text: &str) -> bool {
    let Some((clock, rest)) = text.split_at_checked(8) else { return false };
    let is_clock = |text: &str, bounds: &[u32]| {
        let parts: Vec<_> = text.split(':').map(|part| digits(part, 2)).collect();
        parts.len() == bounds.len()
            && parts.iter().zip(bounds).all(|(part, bound)| part.is_some_and(|part| part <= *bound))
    };
    let offset = match rest.strip_prefix('.') {
        None => rest,
        Some(rest) => {
            let offset = rest.trim_start_matches(|char: char| char.is_ascii_digit());
            if offset.len() == rest.len() {
                return false;
            }
            offset
        }
    };
    // A leap second is the last second of a day in UTC. Here it may be the last of any minute.
    let is_offset = matches!(offset, "Z" | "z")
        || offset.strip_prefix(['+', '-']).is_some_and(|offset| is_clock(offset, &[23, 59]));
    is_clock(clock, &[23, 59, 60]) && is_offset
}

fn is_date_time(text: &str) -> bool {
    text.split_once(['T', 't']).is_some_and(|(date, time)| is_date(date) && is_time(time))
}

/// Checks `duration` of RFC 3339, appendix A, where units between the largest and the smallest may be missing.
fn is_duration(text: &str) -> bool {
    let Some(text) = text.strip_prefix('P') else { return false };
    let (days, time) = text.split_once('T').map_or((text, None), |(days, time)| (days, Some(time)));
    // Each unit occurs at most once, in this order.
    let has_units = |text: &str, units: &str| {
        let (mut units, mut number) = (units.chars(), 0);
        for char in text.chars() {
            if char.is_ascii_digit() {
                number += 1;
            } else if number == 0 || units.find(|unit| *unit == char).is_none() {
                return false;
            } else {
                number = 0;
            }
        }
        number == 0
    };
    let is_weeks = time.is_none() && !days.is_empty() && has_units(days, "W");
    let is_dates = has_units(days, "YMD") && (!days.is_empty() || time.is_some());
    is_weeks || is_dates && time.is_none_or(|time| !time.is_empty() && has_units(time, "HMS"))
}

/// Checks a host name of RFC 1123.
fn is_hostname(text: &str) -> bool {
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    text.len() <= 253 && text.split('.').all(is_label)
}

/// Checks an address of RFC 5321 whose local part is not quoted.
fn is_email(text: &str) -> bool {
    let is_text = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+/=?^_`{|}~-".contains(&byte);
    let is_word = |word: &str| !word.is_empty() && word.bytes().all(is_text);
    text.rsplit_once('@')
        .is_some_and(|(local, host)| local.len() <= 64 && local.split('.').all(is_word) && is_hostname(host))
}

/// Checks the scheme and the characters of a URI of RFC 3986.
fn is_uri(text: &str) -> bool {
    let Some((scheme, rest)) = text.split_once(':') else { return false };
    let is_scheme = scheme.starts_with(|char: char| char.is_ascii_alphabetic())
        && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+.-".contains(&byte));
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~:/?#[]@!$&'()*+,;=".contains(&byte);
    let mut parts = rest.split('%');
    let begin = parts.next().unwrap_or_default();
    let is_escaped = |part: &str| {
        let (digits, rest) = part.as_bytes().split_at_checked(2).unwrap_or_default();
        digits.len() == 2
            && digits.iter().all(u8::is_ascii_hexdigit)
            && rest.iter().all(|&byte| is_allowed(byte))
    };
    is_scheme && begin.bytes().all(is_allowed) && parts.all(is_escaped)
}

/// Checks the hyphenated text form of RFC 9562.
fn is_uuid(text: &str) -> bool {
    let is_group = |(group, count): (&str, usize)| {
        group.len() == count && group.bytes().all(|byte| byte.is_ascii_hexdigit())
    };
    let groups: Vec<&str> = text.split('-').collect();
    groups.len() == 5 && groups.into_iter().zip([8, 4, 4, 4, 12]).all(is_group)
}

#[test]
fn checks_of_formats_can_fail() {
    for (format, good, bad) in [
        ("date", "0000-02-29", "2023-02-29"),
        ("date", "2024-12-31", "2024-1-31"),
        ("date-time", "2024-02-29T23:59:59.5Z", "2024-02-29 23:59:59Z"),
        ("duration", "P1DT2H", "P"),
        ("duration", "P3W", "PT"),
        ("duration", "P1Y2D", "P1D2Y"),
        ("email", "a.b@c.de", "a..b@c.de"),
        ("hostname", "a-b.c", "-a.b"),
        ("ipv4", "1.2.3.255", "1.2.3.256"),
        ("ipv6", "1::2", "1::2::3"),
        ("time", "23:59:59+01:30", "23:59:59"),
        ("time", "00:00:00.25z", "24:00:00Z"),
        ("uri", "http://a/%20", "a b:c"),
        ("uri", "urn:x", "urn:%2"),
        ("uuid", "01234567-89ab-cdef-0123-456789abcdef", "0123456789abcdef0123456789abcdef"),
    ] {
        assert!(is_valid(format, good), "{format} {good}");
        assert!(!is_valid(format, bad), "{format} {bad}");
    }
}
