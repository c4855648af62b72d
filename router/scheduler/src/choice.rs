//! Chooses the lane on which a waiting sequence runs.
//!
//! No sequence belongs to a lane while it waits. A lane with room takes the next one from the queue, but passes over a
//! sequence that another lane will probably answer sooner, because it has more of its prefix or less to do. So a
//! conversation stays where its prefix is, until the wait there costs more than computing the prefix again. In the same
//! way, requests for an adapter stay where it is loaded.

use crate::adapters::SlotQueue;
use crate::drain::leaves_all;
use crate::event::LaneId;
use crate::lane::Lane;
use crate::lifecycle::Lifecycle;
use crate::roles::Roles;
use crate::sequence::{Sequence, SequenceKey};
use crate::sequences::Sequences;

/// The most waiting sequences that a lane passes over for one plan. It bounds the time of a plan. With 128 lanes, one
/// sees its own sequences too late if it is 32.
const MAX_PASSED: usize = 256;
/// A running sequence delays a new one, and is delayed by it, as much as the prefill of so many tokens. So streams are
/// spread over the lanes although all of them begin with the same short prompt.
const TOKENS_PER_STREAM: u64 = 128;
/// A token that the sequence has to compute counts as much as so many that are ahead of it, because it delays the
/// sequences behind it, too. With 8, `make sim-fleet` finds 97 % of the hits of one large cache
/// (`benchmark/notes/fleet.md`).
const COST_OF_COMPUTING: f64 = 8.0;
/// The assumed milliseconds of an adapter's load. It decides between lanes that are otherwise about equal.
const LOAD_MS: f64 = 20.0;
/// The assumed milliseconds of prefill for a token before any was measured on any lane.
const UNMEASURED_TOKEN_MS: f64 = 1.0;
/// A lane's own speed counts as much as that of all lanes once it was learned from so many steps. A lane that computed
/// few prompts knows its speed badly, and would get far too much or too little to do.
const STEPS_OF_OWN_SPEED: f64 = 64.0;

/// A connected lane as a waiting sequence sees it.
#[derive(Clone, Copy, Debug)]
struct Outlook {
    lane: LaneId,
    /// True if a sequence that has its blocks could begin now.
    has_place: bool,
    /// Predicted milliseconds until a sequence that is fully cached has its first token.
    wait_ms: f64,
    /// Milliseconds of prefill for a token.
    token_ms: f64,
}

/// The choice of one plan.
#[derive(Debug, Default)]
pub(crate) struct Choice {
    /// The sequences that the lane left to others.
    passed: Vec<SequenceKey>,
    /// The other lanes that serve and are not late, which do not change while the plan is made; none before they were
    /// looked at.
    others: Option<Vec<Outlook>>,
    /// The division of work, which does not change either; none before it was looked at.
    roles: Option<Roles>,
    /// Milliseconds of prefill for a token on all lanes together; none before they were looked at.
    mean_token_ms: Option<f64>,
}

impl Choice {
    /// Returns the next sequence in the queue that the lane should take. Those that are better off elsewhere are passed
    /// over.
    pub(crate) fn next_waiting(&mut self, parts: &mut Lifecycle<'_>) -> Option<SequenceKey> {
        if leaves_all(parts) {
            return None;
        }
        parts.sequences.sort_waiting();
        let mut here = None;
        while self.passed.len() < MAX_PASSED {
            let (shard, roles) = (parts.lane.shard(), *self.roles.get_or_insert_with(|| Roles::of(parts)));
            // Those that were passed over are in front, in this order, unless the queue has changed.
            let mut passed = self.passed.iter().peekable();
            let mut slots = SlotQueue::new(&shard.adapters, parts.now);
            let may_run = |key: &SequenceKey| {
                if passed.next_if_eq(&key).is_some() || self.passed.contains(key) {
                    return false;
                }
                let sequence = &parts.sequences[*key];
                !sequence.awaits_late_step()
                    && roles.let_take(parts, parts.lane.id, sequence)
                    && shard.takes(sequence)
                    && slots.let_take(*key, sequence)
            };
            let found = parts.sequences.waiting().find(may_run);
            for key in slots.passed {
                parts.sequences[key].wait.slot_since = Some(parts.now);
                parts.counters.adapter_waits += 1;
            }
            let key = found?;
            if self.others(parts).is_empty() {
                return Some(key);
            }
            let mean_ms = self.mean_ms(parts);
            let here = *here.get_or_insert_with(|| outlook(parts, parts.lane, mean_ms));
            if !self.passes(parts, here, key) {
                return Some(key);
            }
            self.passed.push(key);
        }
        None
    }

    /// Returns the next suspect that the lane should take.
    pub(crate) fn next_suspect(parts: &mut Lifecycle<'_>) -> Option<SequenceKey> {
        if leaves_all(parts) {
            return None;
        }
        let shard = parts.lane.shard();
        let takes = |key: &SequenceKey| {
            let sequence = &parts.sequences[*key];
            shard.takes(sequence) && shard.adapters.have_room_for(sequence)
        };
        let suspects: Vec<SequenceKey> = parts.sequences.suspects().filter(takes).take(MAX_PASSED).collect();
        let &first = suspects.first()?;
        let mut choice = Self::default();
        if choice.others(parts).is_empty() {
            return Some(first);
        }
        let here = outlook(parts, parts.lane, choice.mean_ms(parts));
        suspects.into_iter().find(|&key| !choice.passes(parts, here, key))
    }

    /// Returns the other lanes that serve and are not late.
    fn others(&mut self, parts: &Lifecycle<'_>) -> &[Outlook] {
        let mean_ms = self.mean_ms(parts);
        self.others.get_or_insert_with(|| {
            let others = parts.others.iter().filter(|lane| lane.serves() && lane.is_well(parts.now));
            others.map(|lane| outlook(parts, lane, mean_ms)).collect()
        })
    }

    fn mean_ms(&mut self, parts: &Lifecycle<'_>) -> f64 {
        *self.mean_token_ms.get_or_insert_with(|| mean_token_ms(parts))
    }

    /// Returns true if the lane should leave a waiting sequence to another lane.
    fn passes(&mut self, parts: &mut Lifecycle<'_>, here: Outlook, key: SequenceKey) -> bool {
        let sequence = &parts.sequences[key];
        let window_ms = parts.config.cached_first_window_ms;
        let passed_at = sequence.wait.passed_at.unwrap_or(parts.now);
        if parts.now.since(passed_at) >= window_ms || sequence.moves_to == Some(here.lane) {
            return false;
        }
        let here_ms = cost_ms(parts, here, sequence);
        let has_room = has_room(parts, here, sequence);
        // An idle lane waits for no full one.
        let waits_for_place = has_room && parts.lane.running.len() > 0;
        let roles = *self.roles.get_or_insert_with(|| Roles::of(parts));
        let is_better = |other: &Outlook| {
            let lane = parts.others.get(other.lane);
            lane.shard().takes(sequence)
                && lane.shard().adapters.have_room_for(sequence)
                && (sequence.suspected.is_some() || roles.let_take(parts, other.lane, sequence))
                && (sequence.moves_to == Some(other.lane) || cost_ms(parts, *other, sequence) < here_ms)
                && (waits_for_place || self::has_room(parts, *other, sequence))
        };
        let others = self.others(parts);
        // Mostly it is the same lane as before.
        let known =
            sequence.wait.left_to.and_then(|left_to| others.iter().find(|other| other.lane == left_to));
        let better =
            known.filter(|other| is_better(other)).or_else(|| others.iter().find(|other| is_better(other)));
        let left_to = better.map(|other| other.lane);
        parts.sequences[key].wait.left_to = left_to;
        let passes = left_to.is_some();
        if passes && has_room {
            parts.sequences[key].wait.passed_at = Some(passed_at);
            let until = passed_at.plus(window_ms);
            parts.lane.passes_until = Some(parts.lane.passes_until.map_or(until, |known| known.min(until)));
        }
        passes
    }
}

fn lane_of<'a>(parts: &'a Lifecycle<'_>, outlook: Outlook) -> &'a Lane {
    if outlook.lane == parts.lane.id { parts.lane } else { parts.others.get(outlook.lane) }
}

fn outlook(parts: &Lifecycle<'_>, lane: &Lane, mean_ms: f64) -> Outlook {
    let num_running = lane.running.len();
    let has_place = num_running < lane.max_running(parts.config);
    let num_ahead = prefill_ahead(parts.sequences, lane) + TOKENS_PER_STREAM * num_running as u64;
    let token_ms = token_ms(lane, mean_ms);
    let mut wait_ms = num_ahead as f64 * token_ms;
    if !has_place {
        let run_ms = lane.throughput.mean_run_ms();
        // Nobody waits for a place for a time that was never measured.
        wait_ms =
            if run_ms == 0 { f64::INFINITY } else { wait_ms + run_ms as f64 / num_running.max(1) as f64 };
    }
    Outlook { lane: lane.id, has_place: has_place && lane.suspect.is_none(), wait_ms, token_ms }
}

/// Tokens of a waiting sequence that it has to compute on a lane.
fn num_uncached(outlook: Outlook, sequence: &Sequence) -> u32 {
    let num_cached = sequence.wait.cached_tokens.get(outlook.lane.0 as usize).copied().unwrap_or(0);
    sequence.num_tokens().saturating_sub(num_cached)
}

/// The cost of a waiting sequence on a lane, in milliseconds: its wait there, and what it computes, which delays others
/// as well.
fn cost_ms(parts: &Lifecycle<'_>, outlook: Outlook, sequence: &Sequence) -> f64 {
    let loads = !lane_of(parts, outlook).shard().adapters.have(sequence);
    let wait_ms = outlook.wait_ms + if loads { LOAD_MS } else { 0.0 };
    wait_ms + COST_OF_COMPUTING * f64::from(num_uncached(outlook, sequence)) * outlook.token_ms
}

/// Returns true if a lane would probably take a waiting sequence now.
fn has_room(parts: &Lifecycle<'_>, outlook: Outlook, sequence: &Sequence) -> bool {
    let shard = lane_of(parts, outlook).shard();
    outlook.has_place
        && shard.blocks_for(num_uncached(outlook, sequence))
            <= shard.kv.device().available_to(&sequence.request.salt)
}

/// Tokens that the lane's sequences still compute before their next token.
fn prefill_ahead(sequences: &Sequences, lane: &Lane) -> u64 {
    let prefilling =
        lane.running.keys().iter().map(|&key| &sequences[key]).filter(|sequence| sequence.is_prefilling());
    prefilling.map(|sequence| u64::from(sequence.run().prefill_end - sequence.run().acknowledged)).sum()
}

/// Milliseconds of prefill for a token on all lanes together.
pub(crate) fn mean_token_ms(parts: &Lifecycle<'_>) -> f64 {
    let (mut sum_us, mut num_steps) = (0.0, 0.0);
    for lane in parts.lanes() {
        let cost = &lane.throughput.step_cost;
        if let Some(row_us) = cost.row_us() {
            let weight = f64::from(cost.num_row_steps().max(1));
            (sum_us, num_steps) = (sum_us + weight * row_us, num_steps + weight);
        }
    }
    if num_steps == 0.0 { UNMEASURED_TOKEN_MS } else { sum_us / num_steps / 1e3 }
}

/// Milliseconds of prefill for a token on a lane.
pub(crate) fn token_ms(lane: &Lane, mean_ms: f64) -> f64 {
    let cost = &lane.throughput.step_cost;
    let num_steps = f64::from(cost.num_row_steps());
    let own_ms = cost.row_us().map_or(mean_ms, |us| us / 1e3);
    (num_steps * own_ms + STEPS_OF_OWN_SPEED * mean_ms) / (num_steps + STEPS_OF_OWN_SPEED)
}
