//! One sequence and where it stands.
//!
//! ```text
//! tokens        [ prompt ............ | output ... ]  + pending_samples that steps in flight will append
//! acknowledged  ───────────────▶                      K and V are there for certain
//! planned       ───────────────────────────▶          ... once the steps in flight are done
//! ```

use std::collections::BTreeMap;
use std::ops::{Index, IndexMut};

use trunkline_contract::BlockId;
use trunkline_kv::{BlockTable, RestoredBlock, Salt};

use crate::event::{Allowed, Millis, Pinned, Priority, Retention, SequenceId, SequenceRequest, Usage};
use crate::fairness::TenantKey;
use crate::plan::{SamplingParams, TokenMask};
use crate::queue::Rank;

/// Where a sequence lies in a [`SequenceMap`]. Used again after the sequence is removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct SequenceKey(u32);

/// One sequence from `Submit` until nothing in flight names it any more.
#[derive(Debug)]
pub struct Sequence {
    pub id: SequenceId,
    /// Prompt, then output.
    pub tokens: Vec<u32>,
    pub num_prompt_tokens: u32,
    pub max_new_tokens: u32,
    pub sampling: SamplingParams,
    pub ignore_eos: bool,
    pub priority: Priority,
    pub deadline: Option<Millis>,
    pub salt: Salt,
    pub tenant: TenantKey,
    /// Leading tokens of the prompt that its tenant has paid for, or that were cached when it was admitted.
    pub num_paid: u32,
    pub retention: Retention,
    /// What came of its wish to be pinned, once its prompt was computed.
    pub pinned: Option<Pinned>,
    /// Leading positions of its prompt whose next tokens' logprobs were reported.
    pub num_scored: u32,
    pub constrained: bool,
    /// Under a grammar: what the next sample may choose. None while that is not known.
    pub allowed: Option<TokenMask>,
    /// What may follow the prompt, if tokens are forced: taken when the first chunk is planned, as tokens come after
    /// `Update::Started`.
    pub early: Option<Allowed>,
    /// `Update::Awaits` was told, and not answered.
    pub awaits: bool,
    /// The last answer took long: it sits out the run-ahead, and nobody waits for it.
    pub is_slow: bool,
    pub submitted_at: Millis,
    /// Since when it waits in its class; while it runs, when it last began to.
    pub waiting_since: Millis,
    /// Counts submissions: a lower one is older.
    pub arrival: u64,
    /// When the first chunk was planned, and how many prompt tokens a hit spared then.
    pub first_start: Option<FirstStart>,
    pub wait: Wait,
    /// None while it waits.
    pub run: Option<Run>,
}

/// The moment a sequence first ran.
#[derive(Clone, Copy, Debug)]
pub struct FirstStart {
    pub at: Millis,
    pub cached_tokens: u32,
}

/// What a waiting sequence waits for. Meaningless while it runs.
#[derive(Debug, Default)]
pub struct Wait {
    /// Its place in the queue; none while it is parked.
    pub rank: Option<Rank>,
    /// Tokens to compute, as of the last look at the KV index.
    pub num_uncached_tokens: u32,
    /// Blocks that have to be available before another try makes sense; 0 if not known.
    pub needed_blocks: u32,
    /// Parked: this one is computing a prefix that both share.
    pub parked_on: Option<SequenceKey>,
}

/// What a sequence is about while it has blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Gets chunks.
    Running,
    /// Gets no more chunks; waits again when its steps in flight are acknowledged.
    Preempting,
    /// Its final update is out; goes when its steps in flight are acknowledged.
    Ending,
}

/// What a sequence has while it is not waiting.
#[derive(Debug)]
pub struct Run {
    pub phase: Phase,
    /// Its name on the wire.
    pub wire_id: u64,
    /// The shard knows `wire_id`.
    pub is_on_shard: bool,
    pub table: BlockTable,
    /// Blocks of the table that the shard was told.
    pub num_sent_blocks: usize,
    /// Positions computed when all steps in flight are done, a prefix hit included.
    pub planned: u32,
    /// Positions whose steps are acknowledged, the whole blocks of a prefix hit included.
    pub acknowledged: u32,
    /// Tokens that steps in flight will sample.
    pub pending_samples: u32,
    /// The step in flight whose chunk was not told what it may sample.
    pub late_step_id: Option<u64>,
    /// The last tokens that the shard was not told: they were not sampled, and go with the next chunk.
    pub num_unsent_tokens: u32,
    pub steps_in_flight: u32,
    /// The last step that it has a chunk in; a step has one chunk of it at most.
    pub last_step_id: u64,
    /// To be planned with the first chunk.
    pub copy: Option<PartialCopy>,
    /// Tokens known when it was admitted: until they are computed others may wait for them.
    pub prefill_end: u32,
    /// Preempting: for another tenant, which may have the place at once.
    pub gave_way: bool,
    /// A step failed: nothing after it was computed.
    pub has_failed: bool,
    /// Sequences parked on this one, and how many indexed blocks wake them.
    pub waiters: Vec<Waiter>,
    /// Blocks on their way from the store: the last positions planned. No chunk is planned before they are there.
    pub restore: Option<RunRestore>,
}

/// A restore that is under way.
#[derive(Debug)]
pub struct RunRestore {
    pub restore_id: u64,
    pub blocks: Vec<RestoredBlock>,
}

/// The first tokens of another sequence's block, to be copied.
#[derive(Clone, Copy, Debug)]
pub struct PartialCopy {
    pub source: BlockId,
    pub num_tokens: u32,
}

/// A sequence parked on another.
#[derive(Clone, Copy, Debug)]
pub struct Waiter {
    pub key: SequenceKey,
    pub num_blocks: usize,
}

impl Sequence {
    pub fn new(request: SequenceRequest, tenant: TenantKey, submitted_at: Millis, arrival: u64) -> Self {
        let sampling = SamplingParams { end_token_ids: request.end_token_ids, ..request.sampling };
        Self {
            id: request.id,
            num_prompt_tokens: request.token_ids.len() as u32,
            tokens: request.token_ids,
            max_new_tokens: request.max_new_tokens,
            sampling,
            ignore_eos: request.ignore_eos,
            priority: request.priority,
            deadline: request.deadline,
            salt: request.salt,
            tenant,
            num_paid: 0,
            retention: request.retention,
            pinned: None,
            num_scored: 0,
            constrained: request.constrained,
            allowed: None,
            early: None,
            awaits: false,
            is_slow: false,
            submitted_at,
            waiting_since: submitted_at,
            arrival,
            first_start: None,
            wait: Wait::default(),
            run: None,
        }
    }

    pub fn num_tokens(&self) -> u32 {
        self.tokens.len() as u32
    }

    pub fn num_output_tokens(&self) -> u32 {
        self.num_tokens() - self.num_prompt_tokens
    }

    /// Tokens of the prompt that its tenant has to pay for when they are computed.
    pub fn num_unpaid(&self) -> u32 {
        self.num_prompt_tokens - self.num_paid
    }

    /// Leading tokens of the prompt that are to be pinned, if any are.
    pub fn num_pin_tokens(&self) -> u32 {
        self.retention.num_tokens.unwrap_or(u32::MAX).min(self.num_prompt_tokens)
    }

    pub fn usage(&self) -> Usage {
        Usage {
            prompt_tokens: self.num_prompt_tokens,
            output_tokens: self.num_output_tokens(),
            cached_tokens: self.first_start.map_or(0, |start| start.cached_tokens),
        }
    }

    /// Tokens that may still be planned: 0 when all that is missing is in flight.
    pub fn num_unplanned(&self) -> u32 {
        match &self.run {
            Some(run) if run.phase == Phase::Running && !self.is_finishing(run) => {
                if self.max_new_tokens == 0 {
                    self.num_to_score() - run.planned
                } else if self.constrained {
                    let is_known = self.allowed.is_some() || self.early.is_some();
                    // Its last token's chunk samples, and waits for what may be sampled; the one after it may be on its
                    // way then.
                    let num_ready = if is_known {
                        self.num_tokens()
                    } else if self.may_run_ahead(run) {
                        self.num_tokens() + 1
                    } else {
                        self.num_tokens() - 1
                    };
                    num_ready.saturating_sub(run.planned)
                } else {
                    self.num_tokens() + run.pending_samples - run.planned
                }
            }
            _ => 0,
        }
    }

    /// Tokens that may be planned in the step that is being made: 0 also when it has its chunk already,
    /// or waits for the store.
    pub fn num_wanted(&self, step_id: u64) -> u32 {
        let is_off =
            self.run.as_ref().is_some_and(|run| run.last_step_id == step_id || run.restore.is_some());
        if is_off { 0 } else { self.num_unplanned() }
    }

    /// Under a grammar: a step in flight samples a token and knows what it may sample, so that the next chunk may begin
    /// before that is known for it.
    pub fn may_run_ahead(&self, run: &Run) -> bool {
        run.pending_samples == 1 && run.late_step_id.is_none() && !self.is_slow
    }

    /// True if the steps in flight sample its last token, or score the last one of its prompt if there is no output.
    pub fn is_finishing(&self, run: &Run) -> bool {
        if self.max_new_tokens == 0 {
            return run.planned >= self.num_to_score();
        }
        self.num_output_tokens() + run.pending_samples >= self.max_new_tokens
    }

    /// Runs, and is still computing tokens that were known when it was admitted.
    pub fn is_prefilling(&self) -> bool {
        self.run.as_ref().is_some_and(|run| run.phase == Phase::Running && run.acknowledged < run.prefill_end)
    }

    /// Order of running sequences: the last is preempted first.
    pub fn order(&self) -> (Priority, u64) {
        (self.priority, self.arrival)
    }

    pub fn is_end_token(&self, token_id: u32) -> bool {
        !self.ignore_eos && self.sampling.end_token_ids.contains(&token_id)
    }

    /// The run of a sequence that is known not to wait.
    pub fn run(&self) -> &Run {
        self.run.as_ref().expect("the sequence does not wait")
    }

    pub fn run_mut(&mut self) -> &mut Run {
        self.run.as_mut().expect("the sequence does not wait")
    }
}

/// All sequences. Access by key costs O(1), by id O(log n).
#[derive(Debug, Default)]
pub struct SequenceMap {
    slots: Vec<Option<Sequence>>,
    free: Vec<SequenceKey>,
    by_id: BTreeMap<SequenceId, SequenceKey>,
}

impl SequenceMap {
    pub fn insert(&mut self, sequence: Sequence) -> SequenceKey {
        let id = sequence.id;
        let key = match self.free.pop() {
            Some(key) => {
                self.slots[key.0 as usize] = Some(sequence);
                key
            }
            None => {
                self.slots.push(Some(sequence));
                SequenceKey((self.slots.len() - 1) as u32)
            }
        };
        let known = self.by_id.insert(id, key);
        assert!(known.is_none(), "a sequence id is used once: {}", id.0);
        key
    }

    pub fn remove(&mut self, key: SequenceKey) -> Sequence {
        let sequence = self.slots[key.0 as usize].take().expect("the key names a sequence");
        self.by_id.remove(&sequence.id);
        self.free.push(key);
        sequence
    }

    pub fn get(&self, key: SequenceKey) -> Option<&Sequence> {
        self.slots[key.0 as usize].as_ref()
    }

    pub fn key(&self, id: SequenceId) -> Option<SequenceKey> {
        self.by_id.get(&id).copied()
    }

    pub fn iter(&self) -> impl Iterator<Item = (SequenceKey, &Sequence)> {
        self.slots
            .iter()
            .enumerate()
            .filter_map(|(index, slot)| slot.as_ref().map(|sequence| (SequenceKey(index as u32), sequence)))
    }

    #[allow(clippy::len_without_is_empty, reason = "public for tests only")]
    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Keys in the order of submission.
    pub fn keys_by_arrival(&self) -> Vec<SequenceKey> {
        let mut keys: Vec<_> = self.iter().map(|(key, sequence)| (sequence.arrival, key)).collect();
        keys.sort_unstable();
        keys.into_iter().map(|(_, key)| key).collect()
    }
}

impl Index<SequenceKey> for SequenceMap {
    type Output = Sequence;

    fn index(&self, key: SequenceKey) -> &Sequence {
        self.slots[key.0 as usize].as_ref().expect("the key names a sequence")
    }
}

impl IndexMut<SequenceKey> for SequenceMap {
    fn index_mut(&mut self, key: SequenceKey) -> &mut Sequence {
        self.slots[key.0 as usize].as_mut().expect("the key names a sequence")
    }
}
