//! What tenants used since the router started: totals for `/metrics`, and hours for `/v1/usage`.
//!
//! The driver adds to both at the end of each turn, so that they agree with each other at any time.

use std::collections::BTreeMap;
use std::ops::{AddAssign, Range};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use trunkline_scheduler::Consumption;

use crate::clock::unix_seconds;

/// The hours that are kept: 31 days.
pub const MAX_USAGE_HOURS: usize = 31 * 24;
/// The rows that are kept. A row is a tenant in an hour, and takes about 150 bytes. The oldest hours are dropped first.
pub const MAX_USAGE_ROWS: usize = 100_000;
pub const SECONDS_PER_HOUR: u64 = 3600;
/// The name of requests without a tenant.
const NO_NAME: &str = "";

/// What a tenant used.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Used {
    pub work: Consumption,
    /// Bytes of the block pool in use, times the seconds in use.
    pub kv_byte_seconds: f64,
}

impl AddAssign for Used {
    fn add_assign(&mut self, other: Self) {
        self.work += other.work;
        self.kv_byte_seconds += other.kv_byte_seconds;
    }
}

/// The rows of one hour or of all time, by tenant.
type Rows = BTreeMap<Box<str>, Used>;

/// The usage of all tenants.
#[derive(Debug)]
pub struct UsageLedger(Mutex<Ledger>);

/// The ledger itself. It reads no clock; its callers tell it the time.
#[derive(Debug)]
pub struct Ledger {
    totals: Rows,
    /// By hours since 1970.
    hours: BTreeMap<u64, Rows>,
    num_rows: usize,
    /// The bytes of the pool that each tenant uses since `settled`.
    held: Vec<(Box<str>, f64)>,
    settled: Instant,
}

impl Default for UsageLedger {
    fn default() -> Self {
        Self(Mutex::new(Ledger::new(Instant::now())))
    }
}

impl UsageLedger {
    /// Begins to record a turn of the driver. Readers wait until that is done.
    pub fn record(&self) -> Recording<'_> {
        Recording { ledger: self.settled(), hour: unix_seconds() as u64 / SECONDS_PER_HOUR }
    }

    /// Returns what each tenant used since the router started, in the order of their names. The name is `None` for
    /// requests without a tenant.
    pub fn totals(&self) -> Vec<(Option<Box<str>>, Used)> {
        self.settled().totals()
    }

    /// Returns the kept hours of `hours`, which are counted since 1970.
    pub fn hours(&self, hours: Range<u64>) -> Vec<u64> {
        self.settled().hours(hours)
    }

    /// Returns what each tenant used in an hour, or what one did. The driver waits meanwhile.
    pub fn rows(&self, hour: u64, only: Option<&str>) -> Vec<(Option<Box<str>>, Used)> {
        self.settled().rows(hour, only)
    }

    /// Returns the ledger with the pool's use up to now.
    fn settled(&self) -> MutexGuard<'_, Ledger> {
        // Nothing can panic between two changes that belong together.
        let mut ledger = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        ledger.settle(unix_seconds(), Instant::now());
        ledger
    }
}

/// Records a turn of the driver.
pub struct Recording<'a> {
    ledger: MutexGuard<'a, Ledger>,
    hour: u64,
}

impl Recording<'_> {
    /// Adds to the work that was done for a tenant.
    pub fn add(&mut self, tenant: Option<&str>, work: Consumption) {
        self.ledger.add(self.hour, tenant, Used { work, ..Used::default() });
    }

    /// Sets the bytes of the pool that each tenant uses from now on.
    pub fn hold<'a>(&mut self, held: impl Iterator<Item = (Option<&'a str>, f64)>) {
        self.ledger.hold(held);
    }
}

fn named(rows: &Rows) -> impl Iterator<Item = (Option<Box<str>>, Used)> {
    rows.iter().map(|(name, &used)| (tenant_of(name).map(Into::into), used))
}

impl Ledger {
    pub fn new(now: Instant) -> Self {
        Self { totals: BTreeMap::new(), hours: BTreeMap::new(), num_rows: 0, held: Vec::new(), settled: now }
    }

    pub fn totals(&self) -> Vec<(Option<Box<str>>, Used)> {
        named(&self.totals).collect()
    }

    pub fn hours(&self, hours: Range<u64>) -> Vec<u64> {
        if hours.is_empty() {
            return Vec::new();
        }
        self.hours.range(hours).map(|(&hour, _)| hour).collect()
    }

    pub fn rows(&self, hour: u64, only: Option<&str>) -> Vec<(Option<Box<str>>, Used)> {
        let Some(rows) = self.hours.get(&hour) else { return Vec::new() };
        match only {
            Some(tenant) => {
                let used = tenant_of(tenant).and_then(|tenant| rows.get(tenant));
                used.map(|&used| (Some(tenant.into()), used)).into_iter().collect()
            }
            None => named(rows).collect(),
        }
    }

    pub fn add(&mut self, hour: u64, tenant: Option<&str>, used: Used) {
        let tenant = tenant.unwrap_or(NO_NAME);
        add(&mut self.totals, tenant, used);
        let is_new = add(self.hours.entry(hour).or_default(), tenant, used);
        self.num_rows += usize::from(is_new);
        while self.hours.len() > MAX_USAGE_HOURS || (self.num_rows > MAX_USAGE_ROWS && self.hours.len() > 1) {
            let oldest = self.hours.pop_first().map_or(0, |(_, rows)| rows.len());
            self.num_rows -= oldest;
        }
    }

    /// Adds the use of the pool since the last call to the hours in which it was.
    pub fn settle(&mut self, unix_s: f64, now: Instant) {
        let mut left = now.saturating_duration_since(self.settled);
        self.settled = now;
        if left.is_zero() || self.held.is_empty() {
            return;
        }
        let held = std::mem::take(&mut self.held);
        let mut hour = unix_s as u64 / SECONDS_PER_HOUR;
        let mut of_hour = Duration::from_secs_f64((unix_s - (hour * SECONDS_PER_HOUR) as f64).max(0.0));
        // From the present hour back to the one in which the use began. Older hours than those kept are not counted.
        for _ in 0..MAX_USAGE_HOURS {
            let time = left.min(of_hour);
            for (tenant, bytes) in &held {
                let kv_byte_seconds = bytes * time.as_secs_f64();
                self.add(hour, tenant_of(tenant), Used { kv_byte_seconds, ..Used::default() });
            }
            left -= time;
            if left.is_zero() || hour == 0 {
                break;
            }
            (hour, of_hour) = (hour - 1, Duration::from_secs(SECONDS_PER_HOUR));
        }
        self.held = held;
    }

    pub fn hold<'a>(&mut self, held: impl Iterator<Item = (Option<&'a str>, f64)>) {
        let mut num_held = 0;
        for (tenant, bytes) in held {
            let tenant = tenant.unwrap_or(NO_NAME);
            match self.held.get_mut(num_held) {
                Some(known) if *known.0 == *tenant => known.1 = bytes,
                Some(other) => *other = (tenant.into(), bytes),
                None => self.held.push((tenant.into(), bytes)),
            }
            num_held += 1;
        }
        self.held.truncate(num_held);
    }
}

fn tenant_of(name: &str) -> Option<&str> {
    (name != NO_NAME).then_some(name)
}

/// Adds to a tenant's row. Returns true if the row is new.
fn add(rows: &mut Rows, tenant: &str, used: Used) -> bool {
    match rows.get_mut(tenant) {
        Some(row) => {
            *row += used;
            false
        }
        None => rows.insert(tenant.into(), used).is_none(),
    }
}
