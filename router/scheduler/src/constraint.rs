//! The state of a constrained sequence: which tokens its grammar allows next, and whether that is known yet.

use trunkline_contract::TokenMask;

use crate::event::{Allowed, MaskedDraft};

/// The answers of one sequence's grammar, as far as the scheduler has them and has not used them.
#[derive(Debug, Default)]
pub struct Constraint {
    /// The tokens that the next sample may choose.
    next_mask: Option<TokenMask>,
    /// Drafts behind that sample which the grammar permits.
    drafts: Vec<MaskedDraft>,
    /// An answer that forces tokens before the sequence has started. It is used when the first chunk is planned,
    /// because tokens are reported only after `Update::Started`.
    early: Option<Allowed>,
    /// `Update::Awaits` was sent and not answered.
    awaits_answer: bool,
    /// The last answer took long, so the sequence takes no part in run-ahead and no plan waits for its next answer.
    is_slow: bool,
}

impl Constraint {
    /// Returns true if the next sample's mask is known.
    pub fn has_mask(&self) -> bool {
        self.next_mask.is_some()
    }

    /// Returns true if there is an answer that has not been used.
    pub fn has_answer(&self) -> bool {
        self.next_mask.is_some() || self.early.is_some()
    }

    pub fn set_mask(&mut self, mask: TokenMask) {
        self.next_mask = Some(mask);
    }

    pub fn set_drafts(&mut self, drafts: Vec<MaskedDraft>) {
        self.drafts = drafts;
    }

    /// Returns the permitted drafts behind the next sample, or behind the one that was just planned.
    pub fn drafts(&self) -> &[MaskedDraft] {
        &self.drafts
    }

    pub fn take_mask(&mut self) -> Option<TokenMask> {
        self.next_mask.take()
    }

    pub fn set_early(&mut self, allowed: Allowed) {
        self.early = Some(allowed);
    }

    pub fn take_early(&mut self) -> Option<Allowed> {
        self.early.take()
    }

    /// Notes that `Update::Awaits` was sent.
    pub fn begin_awaiting(&mut self) {
        self.awaits_answer = true;
        self.drafts.clear();
    }

    /// Notes that the answer has arrived.
    pub fn end_awaiting(&mut self, is_slow: bool) {
        (self.awaits_answer, self.is_slow) = (false, is_slow);
    }

    pub fn awaits_answer(&self) -> bool {
        self.awaits_answer
    }

    /// Returns true if a plan should wait for the answer, which will arrive in a moment.
    pub fn is_worth_waiting_for(&self) -> bool {
        self.awaits_answer && !self.is_slow
    }

    pub fn is_slow(&self) -> bool {
        self.is_slow
    }
}
