//! Downloads the blocks of a prompt that neither device nor disk has, and that another server may have computed. This
//! happens before the request is submitted.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, timeout_at};
use trunkline_scheduler::{BlockKey, Coverage, LaneId, Salt};

use super::ObjectTier;
use super::flight::{Flight, Progress};
use crate::shard::LocalStore;

/// Fewer missing blocks are computed instead of downloaded.
const MIN_BLOCKS: usize = 4;
/// The longest wait of a request if computing its blocks has no predicted time yet.
pub const UNMEASURED_BUDGET: Duration = Duration::from_secs(1);
/// The longest wait of any request. Usually a request waits at most as long as computing is predicted to take.
pub const MAX_BUDGET: Duration = Duration::from_secs(10);
/// The most flights that a request joins or begins in succession before it continues with the blocks that arrived.
const MAX_ROUNDS: usize = 4;

/// The flight that a request waits for.
enum Plan {
    /// The request does not wait, because nothing can or should be downloaded.
    GoOn,
    /// A new flight, which ends when this sender is dropped.
    Lead(watch::Receiver<Progress>, oneshot::Sender<()>),
    /// Another request's flight, until this many of its blocks are on disk.
    Follow(watch::Receiver<Progress>, usize),
}

impl ObjectTier {
    /// Downloads the prompt's missing blocks to the store of a lane if that is predicted to be quicker than computing
    /// them. Returns when they have arrived, are unavailable, or would take too long, at the latest at `latest`.
    ///
    /// The result is the number of leading tokens that needed no download; `None` if it waited for none.
    pub async fn fetch(
        self: &Arc<Self>,
        salt: &Salt,
        token_ids: &[u32],
        latest: Option<Instant>,
    ) -> Option<u32> {
        let stores = || self.lanes().filter_map(|lane| Some((lane, self.gate(lane).store()?)));
        let (_, first) = stores().next()?;
        let block_size = first.shape.block_size as usize;
        // The last token must be computed so that the next one can be sampled.
        let num_blocks = token_ids.len().saturating_sub(1) / block_size;
        if num_blocks < MIN_BLOCKS || self.paused_until().is_some() {
            return None;
        }
        let mut key = salt.root_key();
        let keys: Arc<[BlockKey]> = token_ids
            .chunks_exact(block_size)
            .take(num_blocks)
            .map(|tokens| {
                key = key.extend(tokens);
                key
            })
            .collect();
        let (mut deadline, mut num_local) = (None, None);
        for _ in 0..MAX_ROUNDS {
            let Some((lane, coverage)) = self.coverage(salt, token_ids, &keys).await else { break };
            let Some(local) = self.gate(lane).store() else { break };
            let deadline = *deadline.get_or_insert_with(|| {
                let end = Instant::now() + budget(&coverage);
                latest.map_or(end, |latest| end.min(latest))
            });
            match self.plan((lane, &local), salt, &keys, &coverage, deadline) {
                Plan::GoOn => break,
                Plan::Follow(mut progress, num_blocks) => {
                    num_local.get_or_insert(coverage.num_blocks);
                    let is_enough = |now: &Progress| now.is_over || now.num_blocks >= num_blocks;
                    let waited = timeout_at(deadline, progress.wait_for(is_enough)).await;
                    if waited.is_err() {
                        self.count(|counts| counts.timeouts += 1);
                        break;
                    }
                }
                Plan::Lead(mut progress, lead) => {
                    num_local.get_or_insert(coverage.num_blocks);
                    let waited = timeout_at(deadline, progress.wait_for(|now| now.is_over)).await;
                    if waited.is_err() {
                        self.count(|counts| counts.timeouts += 1);
                    }
                    drop(lead);
                    break;
                }
            }
        }
        num_local.map(|num_blocks| (num_blocks * block_size) as u32)
    }

    /// Returns the lane whose store has most of a prompt, and what it has; among equal ones, the least busy.
    async fn coverage(
        &self,
        salt: &Salt,
        token_ids: &[u32],
        keys: &Arc<[BlockKey]>,
    ) -> Option<(LaneId, Coverage)> {
        let (salt, token_ids, keys) = (salt.clone(), token_ids.to_vec(), keys.clone());
        let lanes: Vec<LaneId> = self.lanes().filter(|lane| self.gate(*lane).store().is_some()).collect();
        let ask = self.driver.ask(move |scheduler, _| {
            // Only the chosen lane is looked up, because a lookup takes longer the longer the prompt is.
            let serving: Vec<LaneId> =
                lanes.into_iter().filter(|lane| !scheduler.lane_stats(*lane).is_draining).collect();
            let lane = serving.into_iter().min_by_key(|lane| {
                let num_stored = scheduler.lower_tier(*lane).num_stored(&keys);
                (Reverse(num_stored), scheduler.lane_stats(*lane).num_running)
            })?;
            Some((lane, scheduler.lower_tier(lane).coverage(&salt, &token_ids, &keys)?))
        });
        ask.await.ok()?
    }

    /// Joins the flight that downloads the next block, or begins one.
    fn plan(
        self: &Arc<Self>,
        (lane, local): (LaneId, &Arc<LocalStore>),
        salt: &Salt,
        keys: &[BlockKey],
        coverage: &Coverage,
        deadline: Instant,
    ) -> Plan {
        let first_block = coverage.num_blocks;
        let missing = &keys[first_block.min(keys.len())..];
        if missing.len() < MIN_BLOCKS || !coverage.is_extensible || Instant::now() >= deadline {
            return Plan::GoOn;
        }
        let mut state = self.state();
        let now = std::time::Instant::now();
        if state.breaker.paused_until(now).is_some() || state.misses.has(missing[0], now) {
            return Plan::GoOn;
        }
        if let Some((flight, place)) = state.flights.get(&missing[0]) {
            let shared = missing.iter().zip(&flight.keys[*place..]).take_while(|(ours, its)| ours == its);
            return Plan::Follow(flight.progress.subscribe(), place + shared.count());
        }
        let compute = coverage.compute_ms.and_then(|ms| Duration::try_from_secs_f64(ms / 1e3).ok());
        if !state.rates.is_worth_asking(missing.len(), compute) {
            drop(state);
            self.count(|counts| counts.declined += 1);
            return Plan::GoOn;
        }
        let (progress, receiver) = watch::channel(Progress::default());
        let flight = Arc::new(Flight {
            lane,
            salt: salt.clone(),
            root: salt.root_key(),
            before: first_block.checked_sub(1).map(|last| keys[last]),
            first_block,
            keys: missing.to_vec(),
            progress,
        });
        for (place, key) in missing.iter().enumerate() {
            state.flights.entry(*key).or_insert_with(|| (flight.clone(), place));
        }
        let (lead, stopped) = oneshot::channel();
        tokio::spawn(self.clone().fly(flight, local.clone(), stopped));
        Plan::Lead(receiver, lead)
    }
}

/// Returns the longest wait of a request.
pub fn budget(coverage: &Coverage) -> Duration {
    let compute = coverage.compute_ms.map(|ms| Duration::try_from_secs_f64(ms / 1e3).unwrap_or(MAX_BUDGET));
    compute.unwrap_or(UNMEASURED_BUDGET).min(MAX_BUDGET)
}
