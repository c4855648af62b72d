//! Write-behind: blocks that the store on disk has go up, some at a time, beside everything else.

use std::sync::Arc;

use futures::future::join_all;
use tokio::sync::watch;
use trunkline_object::remote::IfThere;
use trunkline_object::{Block, BlockShape, RemoteError};
use trunkline_scheduler::Stats;

use super::ObjectTier;

/// Blocks under way at once.
const MAX_PUTS: usize = 4;

/// A block on its way up.
struct Upload {
    shape: BlockShape,
    block: Block,
    /// It was stored just now, so that nobody else is likely to have it.
    is_new: bool,
}

impl ObjectTier {
    /// Uploads what the scheduler offers, until the driver is gone.
    pub async fn upload(self: Arc<Self>, mut stats: watch::Receiver<Stats>) {
        while stats.wait_for(|stats| stats.offered_blocks > 0).await.is_ok() {
            if let Some(until) = self.paused_until() {
                // Meanwhile what is offered waits, and is bounded there.
                tokio::time::sleep_until(until.into()).await;
            }
            let Some(uploads) = self.read_offers().await else { return };
            // Nothing: there is no shard, or the numbers were not those of now.
            if uploads.is_empty() && stats.changed().await.is_err() {
                return;
            }
            join_all(uploads.into_iter().map(|upload| self.put(upload))).await;
        }
    }

    /// Reads the next blocks from the store on disk. None: the driver is gone.
    async fn read_offers(&self) -> Option<Vec<Upload>> {
        let gate = self.gate.enter().await;
        let Some(local) = gate.as_ref() else { return Some(Vec::new()) };
        let offers =
            self.driver.ask(|scheduler, _| scheduler.lower_tier().take_offers(MAX_PUTS)).await.ok()?;
        if offers.is_empty() {
            return Some(Vec::new());
        }
        let read = local.read(offers).await;
        let ends: Vec<_> = read.iter().map(|(offer, block)| (*offer, block.is_err())).collect();
        let end = self.driver.ask(move |scheduler, _| {
            ends.iter().for_each(|(offer, is_broken)| scheduler.lower_tier().end_offer(offer, *is_broken));
        });
        end.await.ok()?;
        let upload = |(offer, block): (trunkline_scheduler::Offer, Result<Block, _>)| {
            // The store's own reader tells of broken slots as it meets them.
            Some(Upload { shape: local.shape.clone(), block: block.ok()?, is_new: offer.is_new })
        };
        Some(read.into_iter().filter_map(upload).collect())
    }

    async fn put(&self, upload: Upload) {
        let key = upload.block.key;
        match self.try_put(&upload).await {
            Ok(is_uploaded) => {
                self.state().breaker.worked();
                let block = (key, (upload.block.depth > 0).then_some(upload.block.parent));
                // Without a driver nobody listens any more.
                drop(
                    self.driver
                        .ask(move |scheduler, _| scheduler.lower_tier().note_object(block, None, true))
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
                // Without a driver nothing is offered any more.
                drop(self.driver.ask(move |scheduler, _| scheduler.lower_tier().refuse_offer(key)).await);
            }
        }
    }

    async fn try_put(&self, Upload { shape, block, is_new }: &Upload) -> Result<bool, RemoteError> {
        let is_broken = self.state().broken.forget(block.key, std::time::Instant::now());
        if is_broken {
            return self.remote.put(shape, block, IfThere::Replace).await;
        }
        // Where it may be there, a question is less work than the block.
        if !is_new && self.remote.has(shape, block.key).await? {
            return Ok(false);
        }
        self.remote.put(shape, block, IfThere::Keep).await
    }
}
