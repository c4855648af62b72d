//! Pins, which keep prompts in the KV index for some time, and users' requests to pin or remove its nodes.

use trunkline_contract::BlockKey;
use trunkline_kv::{NodeId, PinOutcome, Salt};

use crate::event::Pinned;
use crate::sequence::Sequence;
use crate::shard::Shard;

impl Shard {
    /// Pins the computed prompt of a sequence if its request asks for that and it was not done before. Returns the
    /// outcome in that case.
    pub(crate) fn pin_prompt(&mut self, sequence: &mut Sequence) -> Option<Pinned> {
        let pinned_ms = sequence.request.retention.pinned_ms.filter(|_| sequence.pinned.is_none())?;
        let acknowledged = sequence.run.as_ref().map_or(0, |run| run.acknowledged);
        let prefix = &sequence.tokens[..sequence.num_pin_tokens().min(acknowledged) as usize];
        sequence.pinned = Some(self.pin(&sequence.request.salt, prefix, pinned_ms));
        sequence.pinned
    }

    /// Lets the time of a sequence's pin begin now, at the sequence's end. A granted pin may have expired meanwhile.
    pub(crate) fn renew_pin(&mut self, sequence: &Sequence) {
        let Some((pinned_ms, pinned)) = sequence.request.retention.pinned_ms.zip(sequence.pinned) else {
            return;
        };
        let prefix = &sequence.tokens[..sequence.num_pin_tokens() as usize];
        if pinned.num_tokens > 0 && !self.kv.renew_pin(&sequence.request.salt, prefix, pinned_ms) {
            self.kv.pin(&sequence.request.salt, prefix, pinned_ms);
        }
        self.kv.pin_stored(&sequence.request.salt, prefix, pinned_ms);
    }

    /// Pins the whole blocks of a prefix for `ttl_ms`, in the pool and in the store.
    pub(crate) fn pin(&mut self, salt: &Salt, prefix: &[u32], ttl_ms: u64) -> Pinned {
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

/// The nodes of a shard's KV index, as users may change them. Without a shard there are none.
#[derive(Debug)]
pub struct Nodes<'a> {
    shard: Option<&'a mut Shard>,
}

impl<'a> Nodes<'a> {
    pub(crate) fn new(shard: Option<&'a mut Shard>) -> Self {
        Self { shard }
    }

    /// Removes a node and its descendants, as [`trunkline_kv::KvCache::remove`] does. None if there is no such node.
    pub fn remove(&mut self, node: NodeId, key: BlockKey) -> Option<u32> {
        self.shard.as_mut()?.kv.remove(node, key)
    }

    /// Pins the path that ends in a node for `ttl_ms` from now on. None if there is no such node.
    pub fn pin(&mut self, node: NodeId, key: BlockKey, ttl_ms: u64) -> Option<Pinned> {
        let shard = self.shard.as_mut()?;
        let tokens = shard.kv.path_tokens(node, key)?;
        let salt = shard.kv.view(node)?.salt;
        Some(shard.pin(&salt, &tokens, ttl_ms))
    }

    /// Removes the pins that end in a node or a descendant, as [`trunkline_kv::KvCache::unpin_node`] does. None if
    /// there is no such node.
    pub fn unpin(&mut self, node: NodeId, key: BlockKey) -> Option<u32> {
        self.shard.as_mut()?.kv.unpin_node(node, key)
    }
}
