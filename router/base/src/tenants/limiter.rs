//! Limits each tenant's requests and tokens per minute, and its open requests.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::bucket::Bucket;

pub const MAX_LIMIT: u32 = 1_000_000_000;

/// A tenant's limits in the key file. `None` means no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TenantLimits {
    pub requests_per_minute: Option<u32>,
    /// The most prompt and output tokens per minute.
    pub tokens_per_minute: Option<u32>,
    /// The most open requests. Each output counts as one.
    pub max_concurrent_requests: Option<u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitKind {
    Requests,
    Tokens,
    Concurrency,
}

impl LimitKind {
    pub fn name(self) -> &'static str {
        match self {
            Self::Requests => "requests_per_minute",
            Self::Tokens => "tokens_per_minute",
            Self::Concurrency => "max_concurrent_requests",
        }
    }
}

/// The error for a request that exceeds a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OverLimit {
    pub kind: LimitKind,
    pub limit: u64,
    /// The time until a retry can be admitted. For the limit of open requests, their number instead.
    pub wait: Result<Duration, u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// The amount per minute.
    pub limit: u64,
    /// The amount that may be used now.
    pub remaining: u64,
    /// The time until the whole amount is available again.
    pub full_in: Duration,
}

/// The state of a tenant's rate limits, for response headers. `None` means no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Rates {
    pub requests: Option<Rate>,
    pub tokens: Option<Rate>,
}

/// A tenant's limits and their use. It is kept when the key file is reloaded.
#[derive(Debug)]
pub struct Limiter {
    begin: Instant,
    used: Mutex<Used>,
}

#[derive(Debug, Default)]
struct Used {
    requests: Option<Bucket>,
    tokens: Option<Bucket>,
    max_open: Option<u32>,
    num_open: u32,
}

/// Places among a tenant's open requests. Dropping it returns them.
#[derive(Debug)]
pub struct OpenPlaces {
    limiter: Arc<Limiter>,
    num: u32,
}

impl Limiter {
    /// Creates a limiter without any use.
    pub fn new(limits: TenantLimits, now: Instant) -> Self {
        let limiter = Self { begin: now, used: Mutex::default() };
        limiter.set_limits(limits, now);
        limiter
    }

    /// Changes the limits and keeps the use.
    pub fn set_limits(&self, limits: TenantLimits, now: Instant) {
        let (mut used, now) = (self.used(), self.since(now));
        set_rate(&mut used.requests, limits.requests_per_minute, now);
        set_rate(&mut used.tokens, limits.tokens_per_minute, now);
        used.max_open = limits.max_concurrent_requests;
    }

    /// Checks whether a request with one output would be admitted now, without changing anything.
    pub fn check(&self, now: Instant) -> Result<(), OverLimit> {
        let now = self.since(now);
        self.used().check(1, now)
    }

    /// Admits a request and returns its place, or changes nothing.
    pub fn admit(self: &Arc<Self>, now: Instant) -> Result<OpenPlaces, OverLimit> {
        let now = self.since(now);
        let mut used = self.used();
        used.check(1, now)?;
        if let Some(requests) = &mut used.requests {
            requests.take(1, now);
        }
        used.num_open += 1;
        drop(used);
        Ok(OpenPlaces { limiter: self.clone(), num: 1 })
    }

    /// Returns a place for a request that is not charged to the rates.
    pub fn open(self: &Arc<Self>) -> Result<OpenPlaces, OverLimit> {
        let mut used = self.used();
        used.check_open(1)?;
        used.num_open += 1;
        drop(used);
        Ok(OpenPlaces { limiter: self.clone(), num: 1 })
    }

    /// Takes a request that needs no place from the rate of requests.
    pub fn take_request(&self, now: Instant) -> Result<(), OverLimit> {
        let now = self.since(now);
        let Some(requests) = &mut self.used().requests else { return Ok(()) };
        over(LimitKind::Requests, requests, 1, now)?;
        requests.take(1, now);
        Ok(())
    }

    /// Takes a prompt's tokens if the rate allows it. A prompt above the amount of a minute needs the whole amount.
    pub fn take_prompt(&self, num_tokens: u64, now: Instant) -> Result<(), OverLimit> {
        let now = self.since(now);
        let Some(tokens) = &mut self.used().tokens else { return Ok(()) };
        over(LimitKind::Tokens, tokens, num_tokens, now)?;
        tokens.take(num_tokens, now);
        Ok(())
    }

    /// Takes an output's tokens, even if that exceeds the rate.
    pub fn take_output(&self, num_tokens: u64, now: Instant) {
        let now = self.since(now);
        if let Some(tokens) = &mut self.used().tokens {
            tokens.take(num_tokens, now);
        }
    }

    /// Returns the requests and tokens of a request that the server then rejected.
    pub fn give_back(&self, num_requests: u64, num_tokens: u64, now: Instant) {
        let now = self.since(now);
        let mut used = self.used();
        if let Some(requests) = &mut used.requests {
            requests.give_back(num_requests, now);
        }
        if let Some(tokens) = &mut used.tokens {
            tokens.give_back(num_tokens, now);
        }
    }

    pub fn rates(&self, now: Instant) -> Rates {
        let now = self.since(now);
        let rate = |bucket: &mut Bucket| Rate {
            limit: bucket.per_minute(),
            remaining: bucket.remaining(now),
            full_in: bucket.full_in(now),
        };
        let mut used = self.used();
        Rates { requests: used.requests.as_mut().map(rate), tokens: used.tokens.as_mut().map(rate) }
    }

    fn since(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.begin)
    }

    fn used(&self) -> MutexGuard<'_, Used> {
        // No panic can leave the values half changed.
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OpenPlaces {
    /// Takes `num` more places, or changes nothing.
    pub fn take_more(&mut self, num: u32) -> Result<(), OverLimit> {
        let mut used = self.limiter.used();
        used.check_open(num)?;
        used.num_open += num;
        self.num += num;
        Ok(())
    }

    /// Splits off one place, or returns `None` if there is only one.
    pub fn split(&mut self) -> Option<Self> {
        if self.num < 2 {
            return None;
        }
        self.num -= 1;
        Some(Self { limiter: self.limiter.clone(), num: 1 })
    }

    pub fn limiter(&self) -> &Arc<Limiter> {
        &self.limiter
    }
}

impl Drop for OpenPlaces {
    fn drop(&mut self) {
        self.limiter.used().num_open -= self.num;
    }
}

impl Used {
    fn check(&mut self, num_places: u32, now: Duration) -> Result<(), OverLimit> {
        self.check_open(num_places)?;
        if let Some(requests) = &mut self.requests {
            over(LimitKind::Requests, requests, 1, now)?;
        }
        match &mut self.tokens {
            // The prompt's length is not known yet. Requiring one token refuses requests while the tenant is in debt.
            Some(tokens) => over(LimitKind::Tokens, tokens, 1, now),
            None => Ok(()),
        }
    }

    fn check_open(&self, num_places: u32) -> Result<(), OverLimit> {
        match self.max_open {
            Some(limit) if self.num_open.saturating_add(num_places) > limit => {
                Err(OverLimit { kind: LimitKind::Concurrency, limit: limit.into(), wait: Err(self.num_open) })
            }
            _ => Ok(()),
        }
    }
}

fn over(kind: LimitKind, bucket: &mut Bucket, amount: u64, now: Duration) -> Result<(), OverLimit> {
    let wait = bucket.wait_for(amount, now);
    if wait.is_zero() {
        return Ok(());
    }
    Err(OverLimit { kind, limit: bucket.per_minute(), wait: Ok(wait) })
}

fn set_rate(bucket: &mut Option<Bucket>, per_minute: Option<u32>, now: Duration) {
    match (bucket.as_mut(), per_minute) {
        (Some(bucket), Some(per_minute)) => bucket.set_rate(per_minute, now),
        (None, Some(per_minute)) => *bucket = Some(Bucket::new(per_minute, now)),
        (_, None) => *bucket = None,
    }
}
