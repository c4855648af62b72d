//! The updates of a run: the checks of each one, and what clients do then.

use trunkline_scheduler::{EndReason, Event, RejectReason, SequenceId, Update};

use super::super::model::Model;
use super::super::scenario::Client;
use super::{Happening, World};

impl World<'_> {
    pub(super) fn take(&mut self, updates: Vec<Update>) {
        for update in updates {
            self.trace(&update);
            match update {
                Update::Started { id, cached_tokens, queued_ms, restored } => {
                    assert!(restored.num_tokens <= cached_tokens, "restored tokens are cached");
                    self.check_open(id);
                    assert_eq!(queued_ms, self.now.since(self.submitted[&id]));
                    assert!(cached_tokens < self.arrivals[&id].request.token_ids.len() as u32);
                    assert!(self.report.started_at.insert(id, self.now).is_none(), "started once");
                    self.report.cached_tokens.insert(id, cached_tokens);
                }
                Update::Pinned { id, pinned } => {
                    self.check_open(id);
                    let request = &self.arrivals[&id].request;
                    assert!(request.retention.pinned_ms.is_some(), "only requested pins are reported");
                    let num_asked = request.retention.num_tokens.unwrap_or(u32::MAX);
                    assert!(pinned.num_tokens <= num_asked.min(request.token_ids.len() as u32));
                    let has_none = self.report.outputs[&id].is_empty();
                    assert!(has_none || request.constrained, "before the first token that is sampled");
                    assert!(self.pinned.insert(id), "once");
                }
                Update::Scored { id, scores } => {
                    self.check_open(id);
                    assert!(!scores.is_empty(), "an update has scores");
                    self.scores.entry(id).or_default().extend(scores);
                }
                Update::Pooled { id, vector } => {
                    self.check_open(id);
                    let arrival = &self.arrivals[&id];
                    let prompt = arrival.request.token_ids.iter();
                    let hash =
                        prompt.fold(Model::start(arrival.salt), |hash, &token| Model::extend(hash, token));
                    assert!(arrival.request.pooling.is_some() && self.report.started_at.contains_key(&id));
                    assert_eq!(vector, Model::vector(hash), "the vector of sequence {}", id.0);
                    assert!(self.pooled.insert(id), "once");
                }
                Update::Drafted { id, num_drafts, num_accepted } => {
                    self.check_open(id);
                    assert!(num_accepted <= num_drafts && num_drafts > 0);
                }
                Update::Token { id, token } => {
                    self.check_open(id);
                    self.check_scores(id);
                    let request = &self.arrivals[&id].request;
                    // Forced tokens may come before the prompt is computed.
                    let is_told = request.retention.pinned_ms.is_none() || self.pinned.contains(&id);
                    assert!(is_told || request.constrained, "the outcome of the pin is reported first");
                    assert!(self.report.started_at.contains_key(&id), "only started sequences have tokens");
                    let output = self.report.outputs.get_mut(&id).expect("submitted");
                    output.push(token.token_id);
                    self.report.first_token_at.entry(id).or_insert(self.now);
                    if let Some(last) = self.last_token_at.insert(id, self.now) {
                        self.report.longest_pause_ms = self.report.longest_pause_ms.max(self.now.since(last));
                    }
                    self.react(id);
                }
                Update::Awaits { id, token_ids, drafts } => {
                    self.check_open(id);
                    assert!(!token_ids.is_empty() && self.report.outputs[&id].ends_with(&token_ids));
                    self.asked_drafts.insert(id, drafts);
                    self.allow_soon(id);
                }
                Update::Ended { id, reason, usage } => {
                    self.check_open(id);
                    let output = &self.report.outputs[&id];
                    assert_eq!(usage.prompt_tokens as usize, self.arrivals[&id].request.token_ids.len());
                    assert_eq!(usage.output_tokens as usize, output.len());
                    assert_eq!(usage.cached_tokens, self.report.cached_tokens.get(&id).copied().unwrap_or(0));
                    self.check_text(id, &reason);
                    self.check_lost(id, &reason);
                    if matches!(reason, EndReason::EndToken | EndReason::Length) {
                        self.check_scores(id);
                    }
                    self.report.ends.insert(id, reason);
                    self.report.ended_ats.insert(id, self.now);
                }
                Update::Rejected { id, reason, retry_after_ms } => {
                    self.check_open(id);
                    assert!(!self.report.started_at.contains_key(&id), "a started sequence is not rejected");
                    let is_overload = matches!(
                        reason,
                        RejectReason::QueueFull { .. }
                            | RejectReason::QueueShared { .. }
                            | RejectReason::DeadlineUnreachable { .. }
                            | RejectReason::ShardAway
                    );
                    assert_eq!(retry_after_ms.is_some_and(|ms| ms > 0), is_overload);
                    let has_shard = self.lanes.iter().any(|lane| lane.shard.is_some());
                    assert!(reason != RejectReason::ShardAway || !has_shard, "all lanes are away");
                    self.check_adapter_refusal(id, &reason);
                    self.report.rejections.insert(id, reason);
                    self.report.ended_ats.insert(id, self.now);
                }
            }
        }
    }

    /// Lets a client act that waits for this number of tokens.
    fn react(&mut self, id: SequenceId) {
        let num_tokens = self.report.outputs[&id].len() as u32;
        let request = &self.arrivals[&id].request;
        // Forced tokens, and those of right drafts, are reported together.
        let may_be_several = request.constrained || request.drafter.is_some();
        match self.arrivals[&id].client {
            Client::StopsAfterTokens(count) if count == num_tokens && may_be_several => {
                self.at(self.now, Happening::Finish(id));
            }
            Client::StopsAfterTokens(count) if count == num_tokens => {
                // The sequence may have ended with this very token, so the scheduler may not know it any more.
                self.tell(Event::Finish(id));
            }
            Client::AbortsAfterTokens(count) if count == num_tokens => {
                self.at(self.now, Happening::Leave(id));
            }
            _ => {}
        }
    }
}
