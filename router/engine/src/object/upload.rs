//! Write-behind: uploads blocks of the store on disk in the background, a few at a time.

use std::sync::Arc;

use futures::future::join_all;
use tokio::sync::watch;
use trunkline_object::remote::IfThere;
use trunkline_object::{Block, BlockShape, RemoteError};
use trunkline_scheduler::{LaneId, Stats};

use super::ObjectTier;

/// The most concurrent uploads.
const MAX_PUTS: usize = 4;

/// A block to upload.
struct Upload {
    lane: LaneId,
    shape: BlockShape,
    block: Block,
    /// True if the block was stored just now, so that the object store is unlikely to have it.
    is_new: bool,
}

impl ObjectTier {
    /// Uploads the blocks that the scheduler offers, until the driver is gone.
    pub async fn upload(self: Arc<Self>, mut stats: watch::Receiver<Stats>) {
        // Each round begins with another lane, so that none waits for ever.
        let num_lanes = self.gates.len() as u32;
        let mut first = 0;
        while stats.wait_for(|stats| stats.offered_blocks > 0).await.is_ok() {
            if let Some(until) = self.paused_until() {
                // Offered blocks wait in the scheduler, which bounds their number.
                tokio::time::sleep_until(until.into()).await;
            }
            let removals = self.removals.read().await;
            let mut uploads = Vec::new();
            for lane in (first..first + num_lanes).map(|lane| LaneId(lane % num_lanes)) {
                let Some(read) = self.read_offers(lane, MAX_PUTS - uploads.len()).await else { return };
                uploads.extend(read);
            }
            first = (first + 1) % num_lanes;
            let has_offers = !uploads.is_empty();
            join_all(uploads.into_iter().map(|upload| self.put(upload))).await;
            drop(removals);
            // Without offers there is no shard, or the statistics were out of date.
            if !has_offers && stats.changed().await.is_err() {
                return;
            }
        }
    }

    /// Reads the next offered blocks from a lane's store on disk; `None` if the driver is gone.
    async fn read_offers(&self, lane: LaneId, max_offers: usize) -> Option<Vec<Upload>> {
        let gate = self.gate(lane).enter().await;
        let Some(local) = gate.as_ref() else { return Some(Vec::new()) };
        let offers = self
            .driver
            .ask(move |scheduler, _| scheduler.lower_tier(lane).take_offers(max_offers))
            .await
            .ok()?;
        if offers.is_empty() {
            return Some(Vec::new());
        }
        let read = local.read(offers).await;
        let ends: Vec<_> = read.iter().map(|(offer, block)| (*offer, block.is_err())).collect();
        let end = self.driver.ask(move |scheduler, _| {
            ends.iter()
                .for_each(|(offer, is_broken)| scheduler.lower_tier(lane).end_offer(offer, *is_broken));
        });
        end.await.ok()?;
        let upload = |(offer, block): (trunkline_scheduler::Offer, Result<Block, _>)| {
            // The store itself reports damaged slots when it reads them.
            Some(Upload { lane, shape: local.shape.clone(), block: block.ok()?, is_new: offer.is_new })
        };
        Some(read.into_iter().filter_map(upload).collect())
    }

    async fn put(&self, upload: Upload) {
        let (lane, key) = (upload.lane, upload.block.key);
        match self.try_put(&upload).await {
            Ok(is_uploaded) => {
                self.state().breaker.worked();
                let block = (key, (upload.block.depth > 0).then_some(upload.block.parent));
                // It fails only if the driver is gone, and then there are no listeners.
                drop(
                    self.driver
                        .ask(move |scheduler, _| scheduler.lower_tier(lane).note_object(block, None, true))
                        .await,
                );
                self.count(|counts| {
                    counts.uploaded_blocks += u64::from(is_uploaded);
                    counts.uploaded_bytes += if is_uploaded { upload.shape.object_bytes() } else { 0 };
                    counts.known_blocks += u64::from(!is_uploaded);
                });
            }
            Err(failure) => {
                self.note_failure(&failure);
                // It fails only if the driver is gone, and then nothing is offered.
                drop(self.driver.ask(move |scheduler, _| scheduler.lower_tier(lane).refuse_offer(key)).await);
            }
        }
    }

    async fn try_put(&self, Upload { shape, block, is_new, .. }: &Upload) -> Result<bool, RemoteError> {
        let is_broken = self.state().broken.forget(block.key, std::time::Instant::now());
        if is_broken {
            return self.remote.put(shape, block, IfThere::Replace).await;
        }
        // If the store may have the block, asking is cheaper than sending it.
        if !is_new && self.remote.has(shape, block.key).await? {
            return Ok(false);
        }
        self.remote.put(shape, block, IfThere::Keep).await
    }
}
