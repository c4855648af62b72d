//! What people ask of the KV index: who has what, and prompts and nodes to be kept or removed.

use trunkline_contract::BlockKey;
use trunkline_kv::{NodeId, PinOutcome, Salt, TenantUsage};

use crate::event::{Pinned, Update};
use crate::scheduler::{Scheduler, Shard};
use crate::sequence::{Sequence, SequenceKey};

impl Scheduler {
    /// What each tenant has of the pool, in the order in which they came; nothing while there is no shard.
    pub fn tenants(&self) -> impl Iterator<Item = &TenantUsage> {
        self.shard.iter().flat_map(|shard| shard.kv.tenants())
    }

    /// Removes a node of the KV index and what continues it, as [`trunkline_kv::KvCache::remove`] does. None if it is
    /// not there.
    pub fn remove_cached(&mut self, node: NodeId, key: BlockKey) -> Option<u32> {
        let shard = self.shard.as_mut()?;
        let num_removed = shard.kv.remove(node, key);
        shard.discards.extend(shard.kv.take_discards());
        num_removed
    }

    /// Pins a prompt that is computed, if its request asks for it and this was not done before: what came of it goes
    /// before the first token that is sampled, so that the answer can say it. Tokens that a grammar forces at the
    /// beginning come before.
    pub(crate) fn pin_prompt(&mut self, key: SequenceKey, updates: &mut Vec<Update>) {
        let sequence = &mut self.sequences[key];
        let Some(pinned_ms) = sequence.retention.pinned_ms.filter(|_| sequence.pinned.is_none()) else {
            return;
        };
        let Some(shard) = &mut self.shard else { return };
        let acknowledged = sequence.run.as_ref().map_or(0, |run| run.acknowledged);
        let prefix = &sequence.tokens[..sequence.num_pin_tokens().min(acknowledged) as usize];
        let pinned = shard.pin(&sequence.salt, prefix, pinned_ms);
        sequence.pinned = Some(pinned);
        updates.push(Update::Pinned { id: sequence.id, pinned });
    }

    /// Pins what a node of the KV index ends, for `ttl_ms` from now on. None if it is not there.
    pub fn pin_node(&mut self, node: NodeId, key: BlockKey, ttl_ms: u64) -> Option<Pinned> {
        let shard = self.shard.as_mut()?;
        let tokens = shard.kv.path_tokens(node, key)?;
        let salt = shard.kv.view(node)?.salt;
        Some(shard.pin(&salt, &tokens, ttl_ms))
    }

    /// Ends the pins that end in a node or in what continues it, as [`trunkline_kv::KvCache::unpin_node`] does.
    pub fn unpin_node(&mut self, node: NodeId, key: BlockKey) -> Option<u32> {
        self.shard.as_mut()?.kv.unpin_node(node, key)
    }
}

impl Shard {
    /// The time of a sequence's pin begins now, at its end: one that it was granted may be over by now.
    pub(crate) fn renew_pin(&mut self, sequence: &Sequence) {
        let Some((pinned_ms, pinned)) = sequence.retention.pinned_ms.zip(sequence.pinned) else { return };
        let prefix = &sequence.tokens[..sequence.num_pin_tokens() as usize];
        if pinned.num_tokens > 0 && !self.kv.renew_pin(&sequence.salt, prefix, pinned_ms) {
            self.kv.pin(&sequence.salt, prefix, pinned_ms);
        }
        self.kv.pin_stored(&sequence.salt, prefix, pinned_ms);
    }

    /// Keeps the whole blocks of a prefix for so long.
    fn pin(&mut self, salt: &Salt, prefix: &[u32], ttl_ms: u64) -> Pinned {
        let num_blocks = match self.kv.pin(salt, prefix, ttl_ms) {
            PinOutcome::Granted { num_blocks, .. } => num_blocks,
            PinOutcome::Refused => 0,
        };
        let num_stored_blocks = self.kv.pin_stored(salt, prefix, ttl_ms);
        Pinned {
            num_tokens: num_blocks * self.limits.block_size,
            num_stored_tokens: num_stored_blocks.map(|num_blocks| num_blocks * self.limits.block_size),
        }
    }
}
