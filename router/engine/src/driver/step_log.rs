//! The last steps of each lane, for `/v1/steps`.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, PoisonError};

use trunkline_base::clock::unix_seconds;
use trunkline_scheduler::{LaneId, SequenceId, SequenceInStep, StepResult};

use super::handle::Client;

/// The number of steps that are kept of each lane.
pub const STEPS_KEPT: usize = 256;

/// A step whose result has arrived.
#[derive(Clone, Debug, Default)]
pub struct LoggedStep {
    /// Counts the steps of all lanes, from 1.
    pub number: u64,
    pub lane: u32,
    /// The time at which the result arrived, in seconds since 1970.
    pub ended_unix_seconds: f64,
    pub device_time_us: u64,
    pub sequences: Vec<LoggedSequence>,
}

/// What a step computed for one sequence.
#[derive(Clone, Debug)]
pub struct LoggedSequence {
    /// Names the sequence and tells nothing about it, not even how many there were before.
    pub pseudonym: u32,
    pub tenant: Option<Arc<str>>,
    /// Absent if the client was gone already.
    pub request_id: Option<Arc<str>>,
    pub num_prefill_tokens: u32,
    pub num_decode_tokens: u32,
    pub num_drafts: u32,
    pub num_accepted: u32,
}

/// A ring of steps for each lane. The driver writes it and handlers read it, each behind a short lock.
#[derive(Debug)]
pub struct StepLog {
    rings: Mutex<Rings>,
    pseudonyms: RandomState,
}

#[derive(Debug)]
struct Rings {
    last_number: u64,
    lanes: Vec<VecDeque<Arc<LoggedStep>>>,
}

impl StepLog {
    pub(super) fn new(num_lanes: usize) -> Self {
        let lanes = (0..num_lanes).map(|_| VecDeque::with_capacity(STEPS_KEPT)).collect();
        Self { rings: Mutex::new(Rings { last_number: 0, lanes }), pseudonyms: RandomState::new() }
    }

    /// Adds a step of these sequences. It takes over the memory of the step that leaves the ring, unless that is being
    /// read.
    pub(super) fn add<'a>(
        &self,
        lane: LaneId,
        result: &StepResult,
        sequences: impl ExactSizeIterator<Item = SequenceInStep<'a>>,
        clients: &HashMap<SequenceId, Client>,
    ) {
        // Such a step only moves blocks.
        if sequences.len() == 0 {
            return;
        }
        // Results come in the order of the chunks, and a chunk that samples nothing may have none.
        let mut results = result.sequences.iter().peekable();
        let logged = sequences.map(|sequence| {
            let result = results.next_if(|result| result.sequence_id == sequence.wire_id);
            LoggedSequence {
                pseudonym: self.pseudonyms.hash_one(sequence.id.0) as u32,
                tenant: sequence.salt.tenant.clone(),
                request_id: clients.get(&sequence.id).map(|client| client.request_id.clone()),
                num_prefill_tokens: sequence.num_prefill_tokens,
                num_decode_tokens: sequence.num_decode_tokens,
                num_drafts: sequence.num_drafts + result.map_or(0, |result| result.num_own_drafts),
                num_accepted: result.map_or(0, |result| result.more_tokens.len() as u32),
            }
        });
        let mut rings = self.rings.lock().unwrap_or_else(PoisonError::into_inner);
        let number = rings.last_number + 1;
        let ring = &mut rings.lanes[lane.0 as usize];
        let oldest = if ring.len() == STEPS_KEPT { ring.pop_front() } else { None };
        let mut step = oldest.filter(|step| Arc::strong_count(step) == 1).unwrap_or_default();
        // Readers take clones only behind the lock, so this one is the only one.
        let step_mut = Arc::make_mut(&mut step);
        step_mut.sequences.clear();
        step_mut.sequences.extend(logged);
        step_mut.number = number;
        step_mut.lane = lane.0;
        step_mut.ended_unix_seconds = unix_seconds();
        step_mut.device_time_us = result.device_time_us;
        ring.push_back(step);
        rings.last_number = number;
    }

    /// Returns the kept steps with numbers above `after`, oldest first, of a lane or of all, and the number of the last
    /// step, which is 0 before the first. If `after` is above that, it is from before a restart, and all are returned.
    pub fn steps_after(&self, after: u64, lane: Option<LaneId>) -> (Vec<Arc<LoggedStep>>, u64) {
        let rings = self.rings.lock().unwrap_or_else(PoisonError::into_inner);
        let after = if after > rings.last_number { 0 } else { after };
        let asked = match lane {
            Some(LaneId(lane)) => std::slice::from_ref(&rings.lanes[lane as usize]),
            None => &rings.lanes[..],
        };
        let mut steps = Vec::new();
        for ring in asked {
            let first = ring.partition_point(|step| step.number <= after);
            steps.extend(ring.range(first..).cloned());
        }
        let last_number = rings.last_number;
        drop(rings);
        steps.sort_unstable_by_key(|step| step.number);
        (steps, last_number)
    }
}
