//! Says what the prompts of a step need, and how much room the step has for them.

use crate::budget::{PrefillGoal, PrefillNeed, TimeRoom, step_time_for};
use crate::event::Priority;
use crate::fairness::TenantKey;
use crate::in_flight::{PlannedChunk, work_of};
use crate::lifecycle::Lifecycle;
use crate::roles::Roles;
use crate::scores::cap_scored;
use crate::sequence::{CellId, SequenceKey};
use crate::step_cost::StepWork;

/// The least tokens of prefill that a step has room for, however long they take. A backend reaches its full speed with
/// 16 to 64 rows.
pub const MIN_PREFILL_TOKENS: u32 = 16;
/// The longest predicted time of a step on a lane that leaves long prompts to others, in times of its decodes alone.
const DECODE_LANE_STRETCH: f64 = 1.25;
/// The most tokens of prefill in a step that is longer than its target because smaller ones would be inefficient.
const MAX_EFFICIENT_TOKENS: u32 = 64;

/// The most tokens of prefill in a step that has room for `num_tokens` more. `only`: the tenant that it is limited to.
pub(crate) fn max_tokens(
    parts: &Lifecycle<'_>,
    num_tokens: u32,
    planned: &[PlannedChunk],
    only: Option<TenantKey>,
) -> u32 {
    let config = parts.config;
    let mut most = num_tokens;
    if !planned.is_empty() {
        most = most.min(config.max_prefill_tokens_beside_decodes.max(1));
    }
    if only.is_none() && parts.sequences.expects_other_tenants(parts.now) {
        most = most.min(config.max_shared_prefill_tokens.max(1));
    }
    most
}

/// The time that the step has beside what is `planned` already, `num_planned` tokens of prefill among it. None if there
/// is no target. There is always room for as many tokens as keep prefill efficient, or for one on a lane that leaves
/// long prompts to others.
pub(crate) fn time_room<'a>(
    parts: &'a Lifecycle<'_>,
    planned: &[PlannedChunk],
    num_planned: u32,
    needs: &[PrefillNeed],
) -> Option<TimeRoom<'a>> {
    let cost = &parts.lane.throughput.step_cost;
    if Roles::of(parts).is_for_decodes(parts.lane.id) {
        let (work, mut decodes) = (work_of(planned), StepWork::default());
        planned.iter().filter(|chunk| chunk.num_rows() == 1).for_each(|chunk| decodes.add(chunk.first, 1));
        let target_us = DECODE_LANE_STRETCH * cost.predict_us(decodes)?;
        return Some(TimeRoom { cost, target_us, work, least: u32::from(num_planned == 0) });
    }
    let target_us = parts.config.target_step_us;
    if target_us == 0 {
        return None;
    }
    // If the fixed part of a step is too long by itself, as when weights are read from a disk, then shorter steps do
    // not meet the target either, and cost streams more time in all.
    let is_missed_anyway =
        cost.predict_us(StepWork::default()).is_some_and(|base_us| base_us > f64::from(target_us));
    let most = if is_missed_anyway { u32::MAX } else { MAX_EFFICIENT_TOKENS };
    let efficient = cost.efficient_rows().unwrap_or(0).min(most);
    let least = efficient.max(MIN_PREFILL_TOKENS).saturating_sub(num_planned);
    let work = work_of(planned);
    let decode_us = cost.predict_us(work).unwrap_or(0.0);
    let mut goals: Vec<PrefillGoal> = needs.iter().filter_map(|need| goal(parts, need, work)).collect();
    let target_us = step_time_for(&mut goals, decode_us, f64::from(target_us));
    Some(TimeRoom { cost, target_us, work, least })
}

/// The goal of a prompt in a step that also does `work`. None if its first token was sent, if it is of the lowest
/// class, which takes what the others leave, or if neither the configuration nor its request sets a time.
fn goal(parts: &Lifecycle<'_>, need: &PrefillNeed, work: StepWork) -> Option<PrefillGoal> {
    let sequence = &parts.sequences[need.key];
    if need.priority == Priority::Low || sequence.num_output_tokens() > 0 {
        return None;
    }
    let target_ms = u64::from(parts.config.target_ttft_ms);
    let by_target = (target_ms > 0).then(|| sequence.submitted_at.plus(target_ms));
    let due = by_target.into_iter().chain(sequence.request.deadline).min()?;
    let cost = &parts.lane.throughput.step_cost;
    let mut with_prompt = work;
    with_prompt.add(need.first, need.num_tokens);
    let work_us = cost.predict_us(with_prompt)? - cost.predict_us(work)?;
    Some(PrefillGoal { work_us, left_us: due.since(parts.now) as f64 * 1e3 })
}

/// The running sequences that want tokens in a step, of all tenants and cells or only of one. `num_rows`: the rows of
/// logits that the step may still compute.
pub(crate) fn needs(
    parts: &Lifecycle<'_>,
    step_id: u64,
    num_rows: u32,
    only: Option<TenantKey>,
    cell: Option<CellId>,
) -> Vec<PrefillNeed> {
    let sequences = &*parts.sequences;
    let need = |&key: &SequenceKey| {
        let sequence = &sequences[key];
        let num_tokens = sequence.num_wanted(step_id);
        let is_asked = num_tokens > 0
            && only.is_none_or(|tenant| sequence.tenant == tenant)
            && cell.is_none_or(|cell| sequence.cell == cell);
        is_asked.then(|| PrefillNeed {
            key,
            priority: sequence.request.priority,
            tenant: sequence.tenant,
            served: sequences.tenants().served(sequence.tenant),
            first: sequence.run().planned,
            num_tokens,
        })
    };
    let mut needs: Vec<PrefillNeed> = parts.lane.running.keys().iter().filter_map(need).collect();
    cap_scored(sequences, &mut needs, num_rows);
    needs
}
