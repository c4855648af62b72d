//! One download: blocks of one path, several under way at once, put into the store on disk in their order.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::{StreamExt, stream};
use tokio::sync::{oneshot, watch};
use trunkline_object::{Block, RemoteError};
use trunkline_scheduler::{BlockKey, Salt};

use super::ObjectTier;
use crate::engine::shard::LocalStore;

/// Blocks of one flight under way at once.
const WINDOW: usize = 8;

/// How far a flight is.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Progress {
    /// Blocks in the store on disk, from the first on.
    pub(super) num_blocks: usize,
    /// No more will come.
    pub(super) is_over: bool,
}

/// Blocks under way.
#[derive(Debug)]
pub(super) struct Flight {
    /// Whose blocks they are.
    pub(super) salt: Salt,
    /// The key before the first block: the salt's.
    pub(super) root: BlockKey,
    /// The stored block that they continue; none if they begin a path.
    pub(super) before: Option<BlockKey>,
    /// Index of the first in its path.
    pub(super) first_block: usize,
    /// At least one.
    pub(super) keys: Vec<BlockKey>,
    pub(super) progress: watch::Sender<Progress>,
}

/// What was asked for, and what came.
type Got = (BlockKey, Result<Option<Block>, RemoteError>);

/// What a flight has measured.
#[derive(Default)]
struct Measured {
    /// From the beginning to the first answer.
    first: Option<Duration>,
    num_blocks: usize,
}

impl ObjectTier {
    /// Runs until all blocks are there, one is not to be had, or `stopped` is.
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
        let mut measured = Measured::default();
        let get = |key: BlockKey| async move {
            let _permit = self.gets.acquire().await.ok()?;
            Some((key, self.remote.get(&local.shape, key, flight.root).await))
        };
        // The first alone: where it is not there none is, and most prompts are new.
        let (first, rest) = flight.keys.split_at(1);
        let first = tokio::select! {
            biased;
            // The sender is dropped when nobody waits any more.
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

    /// Takes what came, in the order of the path. False: nothing of what follows is to be had.
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
        let num_adopted = self.adopt(flight, local, measured.num_blocks, blocks).await;
        measured.num_blocks += num_adopted;
        flight.progress.send_modify(|progress| progress.num_blocks = measured.num_blocks);
        num_found == num_asked && num_adopted == num_found
    }

    /// Says to who listens which blocks the object store was seen not to have.
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
        let salt = flight.salt.clone();
        let tell = self.driver.ask(move |scheduler, _| {
            missing
                .into_iter()
                .for_each(|key| scheduler.lower_tier().note_object((key, None), Some(&salt), false));
        });
        // Without a driver nobody listens any more.
        drop(tell.await);
    }

    /// The block, if there is one; what else came is counted.
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

    /// Puts the next blocks of a flight into the store on disk; returns how many, from the first on, are kept.
    async fn adopt(
        &self,
        flight: &Flight,
        local: &Arc<LocalStore>,
        done: usize,
        blocks: Vec<Block>,
    ) -> usize {
        let gate = self.gate.enter().await;
        let is_same = gate.as_ref().is_some_and(|now| Arc::ptr_eq(now, local));
        if !is_same || blocks.is_empty() {
            return 0;
        }
        let before = if done == 0 { flight.before } else { Some(flight.keys[done - 1]) };
        let num_blocks = blocks.len();
        let salt = flight.salt.clone();
        let reserve = {
            let salt = salt.clone();
            self.driver
                .ask(move |scheduler, _| scheduler.lower_tier().reserve_adopted(&salt, before, num_blocks))
        };
        let Ok(slots) = reserve.await else { return 0 };
        let keys: Vec<BlockKey> = blocks.iter().map(|block| block.key).collect();
        let places = slots.iter().copied().zip(blocks).enumerate().map(|(index, (slot, block))| {
            // As the path says: what the object says of it is nothing that its key depends on.
            let depth = (flight.first_block + done + index) as u32;
            (slot, Block { depth, ..block })
        });
        let num_written = local.write(places.collect()).await;
        let adopted = self.driver.ask(move |scheduler, _| {
            let mut parent = before;
            let kept = slots.into_iter().zip(keys).enumerate().map(|(index, (slot, key))| {
                let parent = parent.replace(key);
                scheduler.lower_tier().note_object((key, parent), Some(&salt), true);
                scheduler.lower_tier().adopt(slot, key, parent, index < num_written)
            });
            // All of them: each slot goes back.
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
