//! Speculation: which drafts a step computes behind the last known tokens of its sequences.
//!
//! ```text
//! without    step n ──token──▶ step n + 2        step n + 1 was planned before the token was known
//! with       step n ──token──▶ drafts, step n + 1 ──1 to k + 1 tokens──▶ ...
//! ```
//!
//! A draft costs a row of the step, and it gains a token if it and all drafts before it are right. A sequence with
//! drafts in flight has no next position, so the next step is planned when the result has arrived, and the device is
//! idle for a moment. A step has drafts only where that is predicted to give more tokens in the same time.

use trunkline_draft::Draft;

use crate::config::Speculation;
use crate::in_flight::PlannedChunk;
use crate::lifecycle::Lifecycle;
use crate::sequence::{Phase, SequenceKey};
use crate::sequences::Sequences;
use crate::step_cost::{StepCost, StepWork};

/// The time for which the device is idle if the next step is planned after a result, in microseconds.
const GAP_US: f64 = 400.0;
/// The tokens in the same time, as a multiple of those without drafts, that a step with drafts must promise, because
/// predictions err.
const LEAST_GAIN: f64 = 1.03;

/// A draft of a constrained sequence is checked by its grammar, which takes some microseconds, if it is this likely.
const LEAST_CHECKED: f32 = 0.2;

/// The drafts that a chunk could have.
#[derive(Clone, Debug)]
pub struct Candidate {
    pub key: SequenceKey,
    /// The chunk's first position and its number of tokens.
    pub first: u32,
    pub num_tokens: u32,
    /// The most likely drafts, in order. Those of the shard's draft model are not known yet and have no tokens.
    pub drafts: Vec<Draft>,
    /// True if the shard's draft model finds the drafts.
    pub is_own: bool,
}

/// A step without drafts.
#[derive(Clone, Copy, Debug)]
pub struct BareStep {
    /// The tokens that it samples.
    pub num_samples: u32,
    pub work: StepWork,
}

/// Cuts the drafts of all candidates to those with which the step is predicted to give the most tokens in the same
/// time. `draft_us` is the time of a token of the shard's draft model for all sequences together; its first one comes
/// with the step that it makes anyway. Returns false if no draft is left.
pub fn choose(cost: &StepCost, draft_us: f64, bare: BareStep, candidates: &mut [Candidate]) -> bool {
    let Some(bare_us) = cost.predict_us(bare.work).filter(|&us| us > 0.0) else { return false };
    let bare_rate = f64::from(bare.num_samples) / bare_us;
    let (mut tokens, mut work, mut num_own) = (f64::from(bare.num_samples), bare.work, 1);
    let rate = |tokens: f64, work: StepWork, num_own: u32| {
        let beside_us = GAP_US + draft_us * f64::from(num_own.saturating_sub(1));
        cost.predict_us(work).map_or(0.0, |us| tokens / (us + beside_us))
    };
    let mut best = rate(tokens, work, num_own);
    for candidate in &mut *candidates {
        let Candidate { first, num_tokens, drafts, is_own, .. } = candidate;
        let (mut num_kept, mut kept, mut gain) = (0, (tokens, work, num_own), 0.0);
        for (num_drafts, draft) in (1..).zip(&*drafts) {
            gain += f64::from(draft.probability);
            let own = if *is_own { num_own.max(num_drafts) } else { num_own };
            let with = (tokens + gain, work.with_drafts(*first, *num_tokens, num_drafts), own);
            let with_rate = rate(with.0, with.1, with.2);
            if with_rate > best {
                (best, num_kept, kept) = (with_rate, num_drafts as usize, with);
            }
        }
        drafts.truncate(num_kept);
        (tokens, work, num_own) = kept;
    }
    best > bare_rate * LEAST_GAIN
}

/// The most drafts of a chunk; none if there is no speculation.
pub(crate) fn max_drafts(parts: &Lifecycle<'_>) -> Option<u32> {
    let most = match parts.config.speculation {
        Speculation::Off => 0,
        Speculation::Auto => u32::MAX,
        Speculation::Always(most) => most,
    };
    let shard = parts.lane.shard.as_ref()?;
    Some(most.min(shard.limits.max_draft_tokens)).filter(|&most| most > 0)
}

/// Returns true while a step in flight is about to give tokens that are known to be worth drafts, so that a plan
/// without their sequences, or without drafts, would be worse than none.
pub(crate) fn awaits_drafts(parts: &mut Lifecycle<'_>) -> bool {
    let Some(max_drafts) = max_drafts(parts) else { return false };
    let shard = parts.lane.shard();
    if shard.steps.len() == 0 {
        return false;
    }
    let running = parts.lane.running.keys();
    if running.iter().any(|&key| parts.sequences[key].run().has_drafts()) {
        return true;
    }
    let mut bare = BareStep { num_samples: 0, work: StepWork::default() };
    let mut candidates = Vec::new();
    for &key in running {
        let sequence = &parts.sequences[key];
        let run = sequence.run();
        let planned = run.planned;
        if run.phase != Phase::Running || planned + 1 < sequence.num_tokens() || sequence.is_finishing(run) {
            continue;
        }
        bare.num_samples += 1;
        bare.work.add(planned, 1);
        if planned < sequence.num_tokens() || run.pending_samples != 1 {
            continue;
        }
        // The first draft stands for the token in flight.
        let mut drafts = propose(parts.sequences, key, max_drafts + 1);
        if drafts.len() > 1 {
            drafts.remove(0);
            candidates.push(Candidate { key, first: planned, num_tokens: 1, drafts, is_own: false });
        } else {
            candidates.extend(own_candidate(parts, key, planned, 1, max_drafts));
        }
    }
    !candidates.is_empty() && pays(parts, bare, &mut candidates)
}

/// Returns what planned chunks sample, and the drafts that they could have. With run-ahead the last token of a sequence
/// is not known yet, so there are none.
pub(crate) fn candidates(
    parts: &Lifecycle<'_>,
    planned: &[PlannedChunk],
    max_drafts: u32,
) -> (BareStep, Vec<Candidate>) {
    let mut bare = BareStep { num_samples: 0, work: StepWork::default() };
    let mut candidates = Vec::new();
    for &PlannedChunk { key, first, end, rows, .. } in planned.iter().filter(|chunk| chunk.rows.sample) {
        let num_tokens = end - first;
        bare.num_samples += 1;
        bare.work.add(first, num_tokens);
        let sequence = &parts.sequences[key];
        if end == sequence.num_tokens() && rows.num_scored == 0 {
            let mut drafts = propose(parts.sequences, key, max_drafts);
            if let Some(constraint) = &sequence.constraint {
                let permitted = drafts.iter().zip(constraint.drafts());
                let num_permitted = permitted.take_while(|(draft, known)| draft.token_id == known.token_id);
                drafts.truncate(num_permitted.count());
            }
            if drafts.is_empty() {
                candidates.extend(own_candidate(parts, key, first, num_tokens, max_drafts));
            } else {
                candidates.push(Candidate { key, first, num_tokens, drafts, is_own: false });
            }
        }
    }
    (bare, candidates)
}

/// Cuts the drafts of all candidates to those that the step has. Returns false if it has none.
pub(crate) fn pays(parts: &Lifecycle<'_>, bare: BareStep, candidates: &mut [Candidate]) -> bool {
    match parts.config.speculation {
        Speculation::Off => false,
        Speculation::Auto => {
            let throughput = &parts.lane.throughput;
            choose(&throughput.step_cost, throughput.draft_us(), bare, candidates)
        }
        Speculation::Always(_) => true,
    }
}

/// Returns the drafts that the shard's draft model could add to a chunk of a sequence, if it has one. Under a grammar
/// it has none, because the masks after them would not be known.
fn own_candidate(
    parts: &Lifecycle<'_>,
    key: SequenceKey,
    first: u32,
    num_tokens: u32,
    max_drafts: u32,
) -> Option<Candidate> {
    let sequence = &parts.sequences[key];
    let num_left = sequence.request.max_new_tokens.saturating_sub(sequence.num_output_tokens() + 1);
    let most = max_drafts.min(parts.lane.shard().limits.max_own_drafts).min(num_left);
    if most == 0 || sequence.request.drafter.is_none() || sequence.constraint.is_some() {
        return None;
    }
    let share = sequence.own_acceptance.probability();
    let powers = std::iter::successors(Some(share), |power| Some(power * share));
    let drafts = powers.map(|probability| Draft { token_id: 0, probability }).take(most as usize);
    Some(Candidate { key, first, num_tokens, drafts: drafts.collect(), is_own: true })
}

/// Returns the drafts for which a constrained sequence should ask its grammar.
pub(crate) fn drafts_to_check(parts: &Lifecycle<'_>, key: SequenceKey) -> Vec<u32> {
    let Some(max_drafts) = max_drafts(parts) else { return Vec::new() };
    let drafts = propose(parts.sequences, key, max_drafts);
    let likely = drafts.iter().take_while(|draft| draft.probability >= LEAST_CHECKED);
    likely.map(|draft| draft.token_id).collect()
}

/// Returns the drafts behind the known tokens of a sequence, at most as many as it may have beside the next sample.
fn propose(sequences: &Sequences, key: SequenceKey, max_drafts: u32) -> Vec<Draft> {
    let sequence = &sequences[key];
    let num_left = sequence.request.max_new_tokens.saturating_sub(sequence.num_output_tokens() + 1);
    sequences.drafts(key, max_drafts.min(num_left) as usize)
}
