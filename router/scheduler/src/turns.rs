//! Decides whose step is next on a lane that clears a suspect.

use crate::lifecycle::Lifecycle;
use crate::loss::in_flight;

/// The sequences that share a step on a lane with a suspect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    Suspect,
    Others,
}

/// Returns whose step may be next, in the order in which they should be tried. The suspect has its steps to itself,
/// with nothing else in flight, and the others have every second step, so that their streams go on.
pub(crate) fn turns(parts: &Lifecycle<'_>) -> &'static [Turn] {
    let (lane, shard) = (&*parts.lane, parts.lane.shard());
    let Some(suspect) = lane.suspect else { return &[Turn::Others] };
    let mut in_flight = in_flight(shard);
    let sequence = &parts.sequences[suspect];
    let run = sequence.run();
    if run.awaits_adapter && run.restore.is_none() && !sequence.is_load_suspected {
        // The others go on during its load, which may take long.
        in_flight.remove(&suspect);
    }
    if in_flight.contains(&suspect) {
        // A restore that was not sent yet goes with a plan of the suspect alone.
        if shard.steps.len() == 0 {
            return &[Turn::Suspect];
        }
        let step_id = shard.steps.next_step_id();
        let others_want = lane.running.keys().iter().any(|&key| parts.sequences[key].num_wanted(step_id) > 0);
        return if lane.others_are_next && others_want { &[] } else { &[Turn::Suspect] };
    }
    if !in_flight.is_empty() {
        // The suspect waits for the restores of others, too.
        return if shard.steps.len() > 0 { &[] } else { &[Turn::Others] };
    }
    if lane.others_are_next { &[Turn::Others, Turn::Suspect] } else { &[Turn::Suspect, Turn::Others] }
}
