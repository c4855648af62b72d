//! Reads the validity period of a certificate (RFC 5280, section 4.1.2.5) from its DER encoding (X.690).

use std::ops::RangeInclusive;

const SEQUENCE: u8 = 0x30;
const INTEGER: u8 = 0x02;
const VERSION: u8 = 0xa0;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

/// Returns the certificate's validity period in Unix seconds, or `None` if it is not a certificate of RFC 5280.
pub fn validity(certificate: &[u8]) -> Option<RangeInclusive<i64>> {
    let mut outer = Der(certificate);
    let mut signed = Der(Der(outer.take(SEQUENCE)?).take(SEQUENCE)?);
    if signed.tag() == Some(VERSION) {
        signed.take(VERSION)?;
    }
    signed.take(INTEGER)?;
    // The signature algorithm and the issuer are skipped.
    signed.take(SEQUENCE)?;
    signed.take(SEQUENCE)?;
    let mut validity = Der(signed.take(SEQUENCE)?);
    let (not_before, not_after) = (validity.time()?, validity.time()?);
    Some(not_before..=not_after)
}

/// The bytes that are not yet read.
struct Der<'a>(&'a [u8]);

impl<'a> Der<'a> {
    fn tag(&self) -> Option<u8> {
        self.0.first().copied()
    }

    /// Returns the contents of the next value, which must have this tag.
    fn take(&mut self, tag: u8) -> Option<&'a [u8]> {
        let (&found, rest) = self.0.split_first()?;
        let (&first, rest) = rest.split_first()?;
        if found != tag {
            return None;
        }
        let (length, rest) = match first {
            0..=0x7f => (usize::from(first), rest),
            // In the long form, the low bits are the number of length bytes. No certificate needs more than four.
            0x81..=0x84 => {
                let (bytes, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
                (bytes.iter().fold(0, |length, byte| length << 8 | usize::from(*byte)), rest)
            }
            _ => return None,
        };
        let (contents, rest) = rest.split_at_checked(length)?;
        self.0 = rest;
        Some(contents)
    }

    fn time(&mut self) -> Option<i64> {
        let tag = self.tag()?;
        let text = std::str::from_utf8(self.take(tag)?).ok()?.strip_suffix('Z')?;
        let (year, rest) = match tag {
            // By RFC 5280, two-digit years from 50 on belong to the 20th century.
            UTC_TIME => {
                let (year, rest) = text.split_at_checked(2)?;
                let year: i64 = year.parse().ok()?;
                (if year < 50 { 2000 + year } else { 1900 + year }, rest)
            }
            GENERALIZED_TIME => {
                let (year, rest) = text.split_at_checked(4)?;
                (year.parse().ok()?, rest)
            }
            _ => return None,
        };
        if rest.len() != 10 || !rest.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let part = |begin: usize| rest[begin..begin + 2].parse::<i64>().ok();
        let (month, day, hour, minute, second) = (part(0)?, part(2)?, part(4)?, part(6)?, part(8)?);
        Some(days(year, month, day) * 86_400 + hour * 3_600 + minute * 60 + second)
    }
}

/// Returns the days since 1970-01-01: <https://howardhinnant.github.io/date_algorithms.html#days_from_civil>.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let (era, year_of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let day_of_year = (153 * (month + if month > 2 { -3 } else { 9 }) + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}
