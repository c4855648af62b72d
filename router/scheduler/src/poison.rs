//! Remembers the requests that crashed shards, so that a client that sends one again crashes no further shard.

use std::collections::BTreeMap;

use trunkline_contract::{BlockKey, SamplingParams};
use trunkline_kv::Salt;

use crate::event::{Millis, Pooling, SequenceRequest};
use crate::sequence::Sequence;

/// The time for which a convicted request is refused, and for which losses are held against a sequence.
pub const POISON_MS: u64 = 600_000;
/// The most requests of each kind that are remembered. The oldest are forgotten first.
pub const MAX_POISONS: usize = 1024;
/// A request is convicted, too, if this many of its sequences left as suspects.
const MAX_LEFT: u8 = 2;

/// Identifies the computation that a request asks for.
///
/// It covers the tenant, the adapter, the prompt and the sampling parameters. It leaves out what a client may change
/// from one try to the next without changing the computation of any position: the seed and the number of the choice,
/// the cache salt, the length of the output, the tokens that end it, priority, deadline and retention. Another tenant's
/// equal request has another digest, because its answer would tell what this tenant sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RequestDigest(BlockKey);

impl RequestDigest {
    /// Costs about 0.4 µs for 64 tokens of the prompt.
    fn new(request: &SequenceRequest, prompt: &[u32]) -> Self {
        let root = Salt { cache_salt: None, ..request.salt.clone() }.root_key();
        Self(root.extend(prompt).extend(&parameters(request)))
    }

    pub(crate) fn of_request(request: &SequenceRequest) -> Self {
        Self::new(request, &request.token_ids)
    }

    pub(crate) fn of_sequence(sequence: &Sequence) -> Self {
        Self::new(&sequence.request, &sequence.tokens[..sequence.num_prompt_tokens as usize])
    }
}

/// The parameters of a computation as words: all, except those that a client may change without changing it.
fn parameters(request: &SequenceRequest) -> Vec<u32> {
    let sampling =
        SamplingParams { seed: 0, choice: 0, end_token_ids: Vec::new(), ..request.sampling.clone() };
    // No valid number of logprobs is this large.
    let mut words = vec![u32::from(request.constrained), sampling.prompt_logprobs.unwrap_or(u32::MAX)];
    words.push(request.adapter.as_ref().map_or(0, |adapter| adapter.scale.to_bits()));
    words.extend(request.pooling.map_or([0; 2], |pooled| {
        let kind = match pooled.pooling {
            Pooling::Last => 1,
            Pooling::All => 2,
            Pooling::Whole => 3,
        };
        [kind, pooled.second_text]
    }));
    words.extend(sampling.into_bytes().into_iter().map(u32::from));
    words
}

/// The history of a request that was in flight when shards were lost.
#[derive(Clone, Copy, Debug, Default)]
struct Watch {
    /// How often a sequence of it left as a suspect.
    num_left: u8,
    is_apart: bool,
}

/// The requests of the last minutes that crashed shards, or that may have.
#[derive(Debug, Default)]
pub(crate) struct Poisons {
    convicted: Remembered<()>,
    watched: Remembered<Watch>,
}

impl Poisons {
    /// Returns the milliseconds for which a request is still refused, if it is.
    pub(crate) fn refused_ms(&self, request: &SequenceRequest, now: Millis) -> Option<u64> {
        let (at, ()) = self.convicted.get(|| RequestDigest::of_request(request), now)?;
        Some(POISON_MS - now.since(at))
    }

    /// Returns true if a request shares no step with others, because its sequences were separated from them.
    pub(crate) fn is_apart(&self, request: &SequenceRequest, now: Millis) -> bool {
        let watch = self.watched.get(|| RequestDigest::of_request(request), now);
        watch.is_some_and(|(_, watch)| watch.is_apart)
    }

    /// Refuses a request from now on.
    pub(crate) fn convict(&mut self, digest: RequestDigest, now: Millis) {
        self.convicted.insert(digest, now, ());
    }

    /// Keeps the sequences of a request apart from now on.
    pub(crate) fn separate(&mut self, sequence: &Sequence, now: Millis) {
        self.change(RequestDigest::of_sequence(sequence), now, |watch| watch.is_apart = true);
    }

    /// Notes that a suspect left before it was cleared or convicted. The second time its request counts as convicted:
    /// its client might go on like this for ever.
    pub(crate) fn leave(&mut self, sequence: &Sequence, now: Millis) {
        let digest = RequestDigest::of_sequence(sequence);
        let watch = self.change(digest, now, |watch| watch.num_left += 1);
        if watch.num_left >= MAX_LEFT {
            self.watched.remove(digest);
            self.convict(digest, now);
        }
    }

    fn change(&mut self, digest: RequestDigest, now: Millis, change: impl FnOnce(&mut Watch)) -> Watch {
        let mut watch = self.watched.get(|| digest, now).map(|(_, watch)| watch).unwrap_or_default();
        change(&mut watch);
        self.watched.insert(digest, now, watch);
        watch
    }
}

/// Facts about requests, each for [`POISON_MS`].
#[derive(Debug)]
struct Remembered<T> {
    facts: BTreeMap<RequestDigest, (Millis, T)>,
    /// When the last fact was noted.
    noted_at: Millis,
}

impl<T> Default for Remembered<T> {
    fn default() -> Self {
        Self { facts: BTreeMap::new(), noted_at: Millis(0) }
    }
}

impl<T: Copy> Remembered<T> {
    /// Returns a fact and when it was noted. While there is no fact that holds, no digest is computed.
    fn get(&self, digest: impl FnOnce() -> RequestDigest, now: Millis) -> Option<(Millis, T)> {
        if self.facts.is_empty() || now.since(self.noted_at) >= POISON_MS {
            return None;
        }
        self.facts.get(&digest()).copied().filter(|&(at, _)| now.since(at) < POISON_MS)
    }

    fn remove(&mut self, digest: RequestDigest) {
        self.facts.remove(&digest);
    }

    /// Adds or replaces a fact. O(n), which is rare: it follows a loss.
    fn insert(&mut self, digest: RequestDigest, now: Millis, fact: T) {
        self.facts.retain(|_, (at, _)| now.since(*at) < POISON_MS);
        self.facts.insert(digest, (now, fact));
        self.noted_at = now;
        if self.facts.len() > MAX_POISONS {
            let oldest = self.facts.iter().min_by_key(|&(_, (at, _))| *at).map(|(&digest, _)| digest);
            oldest.map(|digest| self.facts.remove(&digest));
        }
    }
}
