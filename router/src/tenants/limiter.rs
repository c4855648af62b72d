//! How much one tenant may send: requests and tokens a minute, requests at once.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::bucket::Bucket;

/// Greatest rate and number of requests.
pub const MAX_LIMIT: u32 = 1_000_000_000;

/// A tenant's limits as its table in the key file says; what is absent is not limited.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TenantLimits {
    /// `requests_per_minute`.
    pub requests_per_minute: Option<u32>,
    /// `tokens_per_minute`: of prompts and outputs.
    pub tokens_per_minute: Option<u32>,
    /// `max_concurrent_requests`; each output counts as one.
    pub max_concurrent_requests: Option<u32>,
}

/// Which of the limits was met.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitKind {
    /// `requests_per_minute`.
    Requests,
    /// `tokens_per_minute`.
    Tokens,
    /// `max_concurrent_requests`.
    Concurrency,
}

impl LimitKind {
    /// Its name in the key file.
    pub fn name(self) -> &'static str {
        match self {
            Self::Requests => "requests_per_minute",
            Self::Tokens => "tokens_per_minute",
            Self::Concurrency => "max_concurrent_requests",
        }
    }
}

/// Why a request was not let in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OverLimit {
    /// Which limit.
    pub kind: LimitKind,
    /// Its value.
    pub limit: u64,
    /// When there is room again. None: when one of so many requests has ended.
    pub wait: Result<Duration, u32>,
}

/// What is left of a rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// A minute's worth.
    pub limit: u64,
    /// What may be taken now.
    pub remaining: u64,
    /// When all of it may be taken again.
    pub full_in: Duration,
}

/// What is left of a tenant's rates, for the headers of its answers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Rates {
    /// Of requests.
    pub requests: Option<Rate>,
    /// Of tokens.
    pub tokens: Option<Rate>,
}

/// One tenant's limits and what is used of them. It outlives the file in which the limits stand.
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

/// Places of a tenant's open requests; dropping it gives them back.
#[derive(Debug)]
pub struct OpenPlaces {
    limiter: Arc<Limiter>,
    num: u32,
}

impl Limiter {
    /// Nothing used yet.
    pub fn new(limits: TenantLimits, now: Instant) -> Self {
        let limiter = Self { begin: now, used: Mutex::default() };
        limiter.set_limits(limits, now);
        limiter
    }

    /// Other limits from now on; what is used stays used.
    pub fn set_limits(&self, limits: TenantLimits, now: Instant) {
        let (mut used, now) = (self.used(), self.since(now));
        set_rate(&mut used.requests, limits.requests_per_minute, now);
        set_rate(&mut used.tokens, limits.tokens_per_minute, now);
        used.max_open = limits.max_concurrent_requests;
    }

    /// Whether a request of one output would be let in now. Takes nothing.
    pub fn check(&self, now: Instant) -> Result<(), OverLimit> {
        let now = self.since(now);
        self.used().check(1, now)
    }

    /// Lets a request in, and gives its place; or takes nothing.
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

    /// Takes a prompt's tokens, if there are so many, or as many as ever can be.
    pub fn take_prompt(&self, num_tokens: u64, now: Instant) -> Result<(), OverLimit> {
        let now = self.since(now);
        let Some(tokens) = &mut self.used().tokens else { return Ok(()) };
        over(LimitKind::Tokens, tokens, num_tokens, now)?;
        tokens.take(num_tokens, now);
        Ok(())
    }

    /// Takes an output's tokens, whether there are so many or not.
    pub fn take_output(&self, num_tokens: u64, now: Instant) {
        let now = self.since(now);
        if let Some(tokens) = &mut self.used().tokens {
            tokens.take(num_tokens, now);
        }
    }

    /// Gives back what a request took that the server then had no room for.
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

    /// What is left.
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
        // Every change below is whole before anything can panic.
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OpenPlaces {
    /// Takes the places of so many further outputs, or none.
    pub fn take_more(&mut self, num: u32) -> Result<(), OverLimit> {
        let mut used = self.limiter.used();
        used.check_open(num)?;
        used.num_open += num;
        self.num += num;
        Ok(())
    }

    /// One of its places as a guard of its own, if it has more than one.
    pub fn split(&mut self) -> Option<Self> {
        if self.num < 2 {
            return None;
        }
        self.num -= 1;
        Some(Self { limiter: self.limiter.clone(), num: 1 })
    }

    /// Whose places they are.
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
            // A prompt's length is not known yet; in debt none is let in.
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
