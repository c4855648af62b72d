//! Amounts with a unit: sizes and durations.

/// A base unit, and the units that users may write in its place.
#[derive(Debug)]
pub struct Unit {
    /// Placeholder in the help text.
    pub(crate) value_name: &'static str,
    /// The kind of amount with its article, for errors.
    pub(crate) what: &'static str,
    pub(crate) examples: &'static str,
    /// The suffixes with their values in the base unit. Only the first ones, in falling order, are for showing.
    suffixes: &'static [(&'static str, u64)],
    num_shown: usize,
}

const K: u64 = 1000;

/// Bytes. The letters alone mean powers of two.
pub(crate) static BYTES: Unit = Unit {
    value_name: "SIZE",
    what: "a size",
    examples: "`10GiB`, `10GB` or a number of bytes",
    suffixes: &[
        ("TiB", 1 << 40),
        ("GiB", 1 << 30),
        ("MiB", 1 << 20),
        ("KiB", 1 << 10),
        ("TB", K * K * K * K),
        ("GB", K * K * K),
        ("MB", K * K),
        ("KB", K),
        ("kB", K),
        ("B", 1),
        ("T", 1 << 40),
        ("G", 1 << 30),
        ("M", 1 << 20),
        ("K", 1 << 10),
    ],
    num_shown: 4,
};

pub(crate) static SECONDS: Unit = Unit {
    value_name: "DURATION",
    what: "a duration",
    examples: "`5m`, `90s` or a number of seconds",
    suffixes: &[("d", 24 * 3600), ("h", 3600), ("m", 60), ("s", 1)],
    num_shown: 4,
};

pub(crate) static MILLISECONDS: Unit = Unit {
    value_name: "DURATION",
    what: "a duration",
    examples: "`2s`, `45ms` or a number of milliseconds",
    suffixes: &[("ms", 1), ("d", K * 24 * 3600), ("h", K * 3600), ("m", K * 60), ("s", K)],
    num_shown: 1,
};

impl Unit {
    /// Returns how many base units `text` means: a whole number, and a suffix or none.
    pub(crate) fn parse(&self, text: &str) -> Option<u64> {
        let suffix =
            self.suffixes.iter().find_map(|(suffix, value)| Some((text.strip_suffix(suffix)?, *value)));
        let (number, value) = suffix.unwrap_or((text, 1));
        number.trim_end().parse::<u64>().ok()?.checked_mul(value)
    }

    /// Writes an amount with the largest suffix that leaves it whole. Zero has none, because it often means "none".
    pub(crate) fn shown(&self, amount: u64) -> String {
        let shown = &self.suffixes[..self.num_shown];
        match shown.iter().find(|(_, value)| amount != 0 && amount.is_multiple_of(*value)) {
            Some((suffix, value)) => format!("{}{suffix}", amount / value),
            None => amount.to_string(),
        }
    }
}
