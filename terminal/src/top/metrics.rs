//! Reads the text of `/metrics`.

use std::collections::BTreeMap;

/// The samples of one scrape.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Samples(Vec<Sample>);

#[derive(Debug, Clone, PartialEq)]
struct Sample {
    name: String,
    labels: Vec<(String, String)>,
    value: f64,
}

/// A histogram's buckets: the upper bound and the number of values up to it.
pub type Buckets = Vec<(f64, f64)>;

impl Samples {
    /// Parses Prometheus text. Lines that are no samples are left out.
    pub fn parse(text: &str) -> Self {
        Self(text.lines().filter(|line| !line.starts_with('#')).filter_map(sample).collect())
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn named<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Sample> {
        self.0.iter().filter(move |sample| sample.name == name)
    }

    /// Returns the sum over all labels; `None` without a sample.
    pub fn sum(&self, name: &str) -> Option<f64> {
        let mut values = self.named(name).map(|sample| sample.value).peekable();
        values.peek()?;
        Some(values.sum())
    }

    /// Returns the first sample with these labels, among others.
    pub fn of(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let has = |sample: &Sample, wanted: &(&str, &str)| {
            sample.labels.iter().any(|(label, value)| (label.as_str(), value.as_str()) == *wanted)
        };
        let mut named = self.named(name);
        named.find(|sample| labels.iter().all(|label| has(sample, label))).map(|sample| sample.value)
    }

    /// Returns the sums by the value of a label.
    pub fn by(&self, name: &str, label: &str) -> BTreeMap<String, f64> {
        let mut sums = BTreeMap::new();
        for sample in self.named(name) {
            if let Some((_, value)) = sample.labels.iter().find(|(name, _)| name == label) {
                *sums.entry(value.clone()).or_default() += sample.value;
            }
        }
        sums
    }

    /// Returns a histogram's buckets, summed over all labels, in the order of their bounds.
    pub fn buckets(&self, name: &str) -> Buckets {
        let name = format!("{name}_bucket");
        let mut buckets: Buckets = Vec::new();
        for sample in self.named(&name) {
            let bound = sample.labels.iter().find(|(name, _)| name == "le").map(|(_, bound)| bound.parse());
            let Some(Ok(bound)) = bound else { continue };
            match buckets.iter_mut().find(|(other, _)| *other == bound) {
                Some((_, count)) => *count += sample.value,
                None => buckets.push((bound, sample.value)),
            }
        }
        buckets.sort_by(|(one, _), (other, _)| one.total_cmp(other));
        buckets
    }
}

/// Returns how many values each bucket has got since `before`. A histogram that has begun again counts from 0.
pub fn since(now: &Buckets, before: &Buckets) -> Buckets {
    let earlier =
        |bound: f64| before.iter().find(|(other, _)| *other == bound).map_or(0.0, |(_, count)| *count);
    if now.iter().any(|(bound, count)| *count < earlier(*bound)) {
        return now.clone();
    }
    now.iter().map(|(bound, count)| (*bound, count - earlier(*bound))).collect()
}

/// Returns an estimate of the value below which this part of the values lies, 0 to 1, as Prometheus makes it: values
/// are spread evenly in their bucket, and those in the last one count as its lower bound. `None` without a value.
pub fn quantile(buckets: &Buckets, part: f64) -> Option<f64> {
    let (_, all) = *buckets.last()?;
    if all <= 0.0 {
        return None;
    }
    let rank = part * all;
    let place = buckets.iter().position(|(_, count)| *count >= rank && *count > 0.0)?;
    let (bound, count) = buckets[place];
    let (lower, below) = if place == 0 { (0.0, 0.0) } else { buckets[place - 1] };
    if !bound.is_finite() {
        return Some(lower);
    }
    let inside = count - below;
    Some(if inside > 0.0 { lower + (bound - lower) * (rank - below).max(0.0) / inside } else { bound })
}

fn sample(line: &str) -> Option<Sample> {
    let line = line.trim();
    let name_end = line.find(['{', ' '])?;
    let (name, rest) = line.split_at(name_end);
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(rest) => labels(rest)?,
        None => (Vec::new(), rest),
    };
    // A time may follow the value.
    let value = rest.split_whitespace().next()?.parse().ok()?;
    Some(Sample { name: name.to_owned(), labels, value })
}

/// Reads labels up to the closing brace, and returns what follows it.
fn labels(mut rest: &str) -> Option<(Vec<(String, String)>, &str)> {
    let mut labels = Vec::new();
    loop {
        rest = rest.trim_start_matches([',', ' ']);
        if let Some(rest) = rest.strip_prefix('}') {
            return Some((labels, rest));
        }
        let (name, after) = rest.split_once("=\"")?;
        let (mut value, mut chars) = (String::new(), after.char_indices());
        let end = loop {
            match chars.next()? {
                (place, '"') => break place,
                (_, '\\') => value.push(match chars.next()?.1 {
                    'n' => '\n',
                    other => other,
                }),
                (_, c) => value.push(c),
            }
        };
        labels.push((name.to_owned(), value));
        rest = &after[end + 1..];
    }
}
