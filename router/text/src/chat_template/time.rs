//! Formats the date that some templates write into their system prompt with `strftime_now`.

use std::fmt::Write;

use minijinja::{Error, ErrorKind};

const SECONDS_PER_DAY: i64 = 86_400;
const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// A time in UTC, in the proleptic Gregorian calendar. Months and days are numbered from 1, weekdays from 0 for Sunday.
struct Civil {
    year: i64,
    month: i64,
    day: i64,
    day_of_year: i64,
    weekday: usize,
    second_of_day: i64,
}

impl Civil {
    /// Converts a Unix time with `civil_from_days` of <https://howardhinnant.github.io/date_algorithms.html>.
    fn from_unix(unix_s: i64) -> Self {
        let days = unix_s.div_euclid(SECONDS_PER_DAY);
        let shifted = days + 719_468;
        let era = shifted.div_euclid(146_097);
        let day_of_era = shifted.rem_euclid(146_097);
        let year_of_era =
            (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        // The year of this algorithm begins in March.
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let march_month = (5 * day_of_year + 2) / 153;
        let day = day_of_year - (153 * march_month + 2) / 5 + 1;
        let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
        let year = year_of_era + era * 400 + i64::from(month <= 2);
        let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
        let before_march = 59 + i64::from(is_leap);
        let day_of_year = if month > 2 { day_of_year + before_march } else { day_of_year - 306 };
        Self {
            year,
            month,
            day,
            day_of_year: day_of_year + 1,
            weekday: usize::try_from((days + 4).rem_euclid(7)).unwrap_or_default(),
            second_of_day: unix_s.rem_euclid(SECONDS_PER_DAY),
        }
    }
}

/// Implements Python's `strftime` in UTC and English for the directives that templates use. `-` suppresses padding.
pub fn strftime(unix_s: i64, format: &str) -> Result<String, Error> {
    let time = Civil::from_unix(unix_s);
    let (hour, minute, second) =
        (time.second_of_day / 3600, time.second_of_day / 60 % 60, time.second_of_day % 60);
    let hour_12 = (hour + 11) % 12 + 1;
    let month =
        usize::try_from(time.month - 1).ok().and_then(|idx| MONTHS.get(idx)).copied().unwrap_or_default();
    let weekday = DAYS[time.weekday];

    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(char) = chars.next() {
        if char != '%' {
            out.push(char);
            continue;
        }
        let mut directive = chars.next();
        let is_padded = directive != Some('-');
        if !is_padded {
            directive = chars.next();
        }
        let mut number = |value: i64, width: usize| {
            let width = if is_padded { width } else { 0 };
            write!(out, "{value:0width$}")
        };
        let written = match directive {
            Some('Y') => number(time.year, 4),
            Some('y') => number(time.year.rem_euclid(100), 2),
            Some('m') => number(time.month, 2),
            Some('d') => number(time.day, 2),
            Some('H') => number(hour, 2),
            Some('I') => number(hour_12, 2),
            Some('M') => number(minute, 2),
            Some('S') => number(second, 2),
            Some('j') => number(time.day_of_year, 3),
            Some('w') => number(time.weekday as i64, 1),
            Some('B') => out.write_str(month),
            Some('b' | 'h') => out.write_str(&month[..3]),
            Some('A') => out.write_str(weekday),
            Some('a') => out.write_str(&weekday[..3]),
            Some('p') => out.write_str(if hour < 12 { "AM" } else { "PM" }),
            Some('F') => write!(out, "{:04}-{:02}-{:02}", time.year, time.month, time.day),
            Some('T') => write!(out, "{hour:02}:{minute:02}:{second:02}"),
            Some('Z') => out.write_str("UTC"),
            Some('z') => out.write_str("+0000"),
            Some('%') => out.write_str("%"),
            other => {
                let detail = format!("strftime directive {other:?} is not supported");
                return Err(Error::new(ErrorKind::InvalidOperation, detail));
            }
        };
        written.map_err(|error| Error::new(ErrorKind::WriteFailure, "cannot write").with_source(error))?;
    }
    Ok(out)
}
