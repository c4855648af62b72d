use crate::event::ModelId;

/// A loaded model that may leave.
#[derive(Debug)]
pub(crate) struct Candidate {
    pub(crate) model: ModelId,
    pub(crate) bytes: u64,
    pub(crate) value: Value,
}

/// The value of keeping a model, compared field by field. Those with the least leave first.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Value {
    pub(crate) is_busy: bool,
    /// False if it drains already. It goes on unless idle models are enough.
    pub(crate) is_open: bool,
    pub(crate) priority: i32,
    pub(crate) last_used_ms: u64,
}

/// Returns the candidates that leave for `bytes`: those with the least value, without any that need not leave. If all
/// together are too small, all leave.
pub(crate) fn choose(mut candidates: Vec<Candidate>, bytes: u64) -> Vec<Candidate> {
    candidates.sort_by(|a, b| (&a.value, a.model).cmp(&(&b.value, b.model)));
    let mut victims = Vec::new();
    let mut total = 0_u64;
    for candidate in candidates {
        if total < bytes {
            total = total.saturating_add(candidate.bytes);
            victims.push(candidate);
        }
    }
    // A large model at the end may make smaller ones before it unnecessary.
    for index in (0..victims.len()).rev() {
        let rest = victims.iter().enumerate().filter(|(other, _)| *other != index);
        if rest.fold(0, |total: u64, (_, victim)| total.saturating_add(victim.bytes)) >= bytes {
            victims.remove(index);
        }
    }
    victims
}
