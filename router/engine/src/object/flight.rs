//! A download of consecutive blocks of one path. Several blocks are in transit at once, and they are written to the
//! store on disk in order.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::{StreamExt, stream};
use tokio::sync::{oneshot, watch};
use trunkline_object::{Block, RemoteError};
use trunkline_scheduler::{BlockKey, LaneId, Salt};

use super::ObjectTier;
use crate::shard::LocalStore;

/// The most concurrent downloads of one flight.
const WINDOW: usize = 8;

/// The progress of a flight.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Progress {
    /// The number of blocks that are in the store on disk; they are the first of the flight.
    pub(super) num_blocks: usize,
    /// True if no further block will arrive.
    pub(super) is_over: bool,
}

/// A download in progress.
#[derive(Debug)]
pub(super) struct Flight {
    /// The lane whose store gets the blocks.
    pub(super) lane: LaneId,
    /// The namespace of the blocks.
    pub(super) salt: Salt,
    /// The root key of the namespace.
    pub(super) root: BlockKey,
    /// The stored block that precedes the flight; `None` if the flight begins a path.
    pub(super) before: Option<BlockKey>,
    /// The index of the first block in its path.
    pub(super) first_block: usize,
    /// The keys of the blocks, at least one.
    pub(super) keys: Vec<BlockKey>,
    pub(super) progress: watch::Sender<Progress>,
}

/// A requested key and the result of its download.
type Got = (BlockKey, Result<Option<Block>, RemoteError>);

/// The measurements of a flight.
#[derive(Default)]
struct Measured {
    /// The time until the first response.
    first: Option<Duration>,
    num_blocks: usize,
    /// The number of removals when the flight began. After another one, its blocks are not adopted.
    removals: u64,
}

impl ObjectTier {
    /// Runs until all blocks have arrived, one is unavailable, or the sender of `stopped` is dropped.
    pub(super) async fn fly(
        self: Arc<Self>,
        flight: Arc<Flight>,
        local: Arc<LocalStore>,
        stopped: oneshot::Receiver<()>,
    ) {
        let began = Instant::now();
        let measured = self.run(&flight, &local, stopped, began).await;
        let mut state = self.state();
        match measured.first {
            Some(first) => state.rates.add(measured.num_blocks, first, began.elapsed()),
            None => state.rates.add_silence(began.elapsed()),
        }
        state.flights.retain(|_, (other, _)| !Arc::ptr_eq(other, &flight));
        drop(state);
        flight.progress.send_modify(|progress| progress.is_over = true);
    }

    async fn run(
        &self,
        flight: &Flight,
        local: &Arc<LocalStore>,
        mut stopped: oneshot::Receiver<()>,
        began: Instant,
    ) -> Measured {
        let mut measured = Measured { removals: *self.removals.read().await, ..Measured::default() };
        let get = |key: BlockKey| async move {
            let _permit = self.gets.acquire().await.ok()?;
            Some((key, self.remote.get(&local.shape, key, flight.root).await))
        };
        // The first block is requested separately. If it is missing, so are the others, and most prompts are new.
        let (first, rest) = flight.keys.split_at(1);
        let first = tokio::select! {
            biased;
            // The sender is dropped when no request waits any more.
            _ = &mut stopped => return measured,
            first = get(first[0]) => first,
        };
        measured.first = Some(began.elapsed());
        if !self.land(flight, local, &mut measured, vec![first]).await {
            return measured;
        }
        let gets = stream::iter(rest.iter().copied()).map(get).buffered(WINDOW);
        let mut waves = std::pin::pin!(gets.ready_chunks(WINDOW));
        loop {
            let wave = tokio::select! {
                biased;
                _ = &mut stopped => return measured,
                wave = waves.next() => wave,
            };
            let Some(wave) = wave else { return measured };
            if !self.land(flight, local, &mut measured, wave).await {
                return measured;
            }
        }
    }

    /// Adopts the downloaded blocks in the order of the path. Returns false if no following block can be used.
    async fn land(
        &self,
        flight: &Flight,
        local: &Arc<LocalStore>,
        measured: &mut Measured,
        wave: Vec<Option<Got>>,
    ) -> bool {
        let num_asked = wave.len();
        self.tell_missing(flight, &wave).await;
        let blocks: Vec<Block> = wave.into_iter().map_while(|got| self.take(got?)).collect();
        let num_found = blocks.len();
        let num_adopted = self.adopt(flight, local, measured, blocks).await;
        measured.num_blocks += num_adopted;
        flight.progress.send_modify(|progress| progress.num_blocks = measured.num_blocks);
        num_found == num_asked && num_adopted == num_found
    }

    /// Reports blocks that the object store does not have to the listeners of KV events.
    async fn tell_missing(&self, flight: &Flight, wave: &[Option<Got>]) {
        let is_missing = |got: &Result<Option<Block>, RemoteError>| match got {
            Ok(block) => block.is_none(),
            Err(error) => !error.is_of_store(),
        };
        let missing = wave.iter().flatten().filter(|(_, got)| is_missing(got)).map(|(key, _)| *key);
        let missing: Vec<BlockKey> = missing.collect();
        if missing.is_empty() {
            return;
        }
        let (lane, salt) = (flight.lane, flight.salt.clone());
        let tell = self.driver.ask(move |scheduler, _| {
            missing
                .into_iter()
                .for_each(|key| scheduler.lower_tier(lane).note_object((key, None), Some(&salt), false));
        });
        // It fails only if the driver is gone, and then there are no listeners.
        drop(tell.await);
    }

    /// Returns the block if the download succeeded, and counts misses and failures.
    fn take(&self, (key, got): Got) -> Option<Block> {
        match got {
            Ok(Some(block)) => {
                self.state().breaker.worked();
                Some(block)
            }
            Ok(None) => {
                let mut state = self.state();
                state.breaker.worked();
                state.misses.note(key, Instant::now());
                drop(state);
                self.count(|counts| counts.misses += 1);
                None
            }
            Err(failure) => {
                self.note_failure(&failure);
                None
            }
        }
    }

    /// Writes the next blocks of a flight to the store on disk. Returns how many were adopted before the first that was
    /// not.
    async fn adopt(
        &self,
        flight: &Flight,
        local: &Arc<LocalStore>,
        measured: &Measured,
        blocks: Vec<Block>,
    ) -> usize {
        let lane = flight.lane;
        let gate = self.gate(lane).enter().await;
        let removals = self.removals.read().await;
        let is_same = gate.as_ref().is_some_and(|now| Arc::ptr_eq(now, local));
        if !is_same || *removals != measured.removals || blocks.is_empty() {
            return 0;
        }
        let done = measured.num_blocks;
        let before = if done == 0 { flight.before } else { Some(flight.keys[done - 1]) };
        let num_blocks = blocks.len();
        let salt = flight.salt.clone();
        let reserve = {
            let salt = salt.clone();
            self.driver.ask(move |scheduler, _| {
                scheduler.lower_tier(lane).reserve_adopted(&salt, before, num_blocks)
            })
        };
        let Ok(slots) = reserve.await else { return 0 };
        let keys: Vec<BlockKey> = blocks.iter().map(|block| block.key).collect();
        let places = slots.iter().copied().zip(blocks).enumerate().map(|(index, (slot, block))| {
            // The depth comes from the path. The object's own depth is not part of its key, so it cannot be trusted.
            let depth = (flight.first_block + done + index) as u32;
            (slot, Block { depth, ..block })
        });
        let num_written = local.write(places.collect()).await;
        let adopted = self.driver.ask(move |scheduler, _| {
            let mut parent = before;
            let kept = slots.into_iter().zip(keys).enumerate().map(|(index, (slot, key))| {
                let parent = parent.replace(key);
                scheduler.lower_tier(lane).note_object((key, parent), Some(&salt), true);
                scheduler.lower_tier(lane).adopt(slot, key, parent, index < num_written)
            });
            // Collecting first gives every slot back to the scheduler, even after a block that was not adopted.
            let kept: Vec<bool> = kept.collect();
            kept.into_iter().take_while(|is_kept| *is_kept).count()
        });
        let num_adopted = adopted.await.unwrap_or(0);
        self.count(|counts| {
            counts.downloaded_blocks += num_adopted as u64;
            counts.downloaded_bytes += num_adopted as u64 * local.shape.object_bytes();
        });
        num_adopted
    }
}
