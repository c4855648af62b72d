//! The checks of a run: of every update as it arrives, and of everything at the end.

use std::collections::BTreeSet;

use trunkline_scheduler::{
    Consumption, EndReason, Salt, SamplingParams, SequenceErrorCode, SequenceId, SequenceRequest,
    ShardLimits, Stats,
};

use super::super::Blow;
use super::super::model::Model;
use super::super::scenario::{Client, Poison};
use super::World;
use super::adapters::takes_adapter;

/// Returns true if a shard's pool has room for a request.
pub(super) fn fits(request: &SequenceRequest, limits: &ShardLimits) -> bool {
    let num_tokens = request.token_ids.len() as u32 + request.max_new_tokens.max(1);
    takes_adapter(request, limits) && num_tokens <= limits.num_blocks * limits.block_size + 1
}

impl World<'_> {
    pub(super) fn check_open(&self, id: SequenceId) {
        let is_open = !self.report.ends.contains_key(&id) && !self.report.rejections.contains_key(&id);
        assert!(is_open && self.submitted.contains_key(&id), "sequence {} hears nothing after its end", id.0);
    }

    /// Checks that each prompt token but the first was scored once, if that was requested.
    pub(super) fn check_scores(&self, id: SequenceId) {
        let arrival = self.arrivals[&id];
        let request = &arrival.request;
        let mut expected = Vec::new();
        let mut prefix = Model::start(arrival.salt);
        for pair in request.token_ids.windows(2) {
            prefix = Model::extend(prefix, pair[0]);
            expected.push(Model::score(prefix, pair[1]));
        }
        if request.sampling.prompt_logprobs.is_none() {
            expected.clear();
        }
        let scores = self.scores.get(&id).map_or(&[][..], |scores| scores);
        assert!(scores == expected, "sequence {}: {scores:?}, not {expected:?}", id.0);
    }

    pub(super) fn check_text(&self, id: SequenceId, reason: &EndReason) {
        let arrival = self.arrivals[&id];
        let request = &arrival.request;
        let output = &self.report.outputs[&id];
        if request.pooling.is_some() {
            assert!(output.is_empty() && *reason != EndReason::EndToken);
            assert_eq!(
                *reason == EndReason::Length,
                self.pooled.contains(&id),
                "the vector comes before the end"
            );
            return;
        }
        if output.is_empty() {
            let has_none =
                request.max_new_tokens == 0 || !matches!(reason, EndReason::EndToken | EndReason::Length);
            assert!(has_none, "sequence {} ends with {reason:?} but without a token", id.0);
            return;
        }
        let ends: &[u32] = if request.ignore_eos { &[] } else { &request.sampling.end_token_ids };
        let model = Model { vocab_size: self.scenario.limits.vocab_size };
        let seed = request.sampling.seed;
        let (alone, is_complete) = model.generate(&self.known[&seed], seed, request.max_new_tokens, ends);
        assert!(
            alone.starts_with(output),
            "sequence {}: {output:?} is not its output without other requests: {alone:?}",
            id.0
        );
        let is_whole = output.len() == alone.len();
        let has_end_token = output.last().is_some_and(|token| ends.contains(token));
        match reason {
            EndReason::EndToken => assert!(is_whole && (has_end_token || is_complete)),
            EndReason::Length => {
                assert!(
                    is_whole
                        && !has_end_token
                        && !is_complete
                        && output.len() == request.max_new_tokens as usize
                )
            }
            _ => {}
        }
    }

    pub(super) fn check_end(&mut self) {
        for id in self.submitted.keys() {
            let is_final = self.report.ends.contains_key(id) || self.report.rejections.contains_key(id);
            assert!(is_final, "sequence {} has its final update: {:?}", id.0, self.scheduler.stats());
        }
        self.check_reasons();
        let stats = self.scheduler.stats();
        assert_eq!((stats.num_waiting, stats.num_running, stats.steps_in_flight), (0, 0, 0), "all is quiet");
        assert_eq!(stats.blocks_held, stats.blocks_pinned, "all blocks return");
        assert_eq!(stats.blocks_free + stats.blocks_cached + stats.blocks_pinned, stats.blocks_total);
        let shards = || self.lanes.iter().filter_map(|lane| lane.shard.as_ref());
        assert_eq!(stats.blocks_total, shards().map(|shard| u64::from(shard.limits.num_blocks)).sum::<u64>());
        assert!(shards().all(|shard| shard.num_sequences() == 0), "shards were told of every end");
        self.check_slots_are_free();
        if self.scenario.twice == 0 {
            assert_eq!(stats.unexpected_results, 0);
        }
        if self.scenario.store.is_some_and(|plan| plan.broken_block == 0 && plan.lost_at.is_none()) {
            // An outdated read does not count if nobody waits for it any more.
            let num_outdated = self.report.num_outdated_reads;
            assert!(stats.restore_failures <= num_outdated, "the index has no block that the store lacks");
        }
        let rejected = stats.rejected_queue_full
            + stats.rejected_too_long
            + stats.rejected_deadline
            + stats.rejected_no_adapters
            + stats.rejected_shard_away
            + stats.rejected_poison
            + stats.rejected_invalid;
        assert_eq!(rejected, self.report.rejections.len() as u64, "every rejection is counted");
        let is_undisturbed = self.scenario.outages.is_empty()
            && self.options.blow.is_none_or(|(_, blow)| !matches!(blow, Blow::LoseShard(_)));
        if is_undisturbed {
            // Two requests that crashed the shard together may have ended before they met again.
            let num_counted = self.report.num_losses - stats.excused_losses;
            assert!(
                num_counted <= 1,
                "the launcher counts {num_counted} of {} losses",
                self.report.num_losses
            );
        }
        assert_eq!(self.scheduler.next_wakeup(), None);
        if matches!(self.scenario.poison, Some(Poison::Position { .. })) {
            assert!(self.report.crashed_lanes.len() <= 2, "a poison visits {:?}", self.report.crashed_lanes);
        }
        self.report.lane_stats =
            self.scheduler.lane_ids().map(|lane| self.scheduler.lane_stats(lane)).collect();
        self.check_consumption(&stats);
        self.report.stats = stats;
    }

    /// Checks that the consumption of all tenants adds up to the counters and to the device's time.
    fn check_consumption(&mut self, stats: &Stats) {
        self.take_consumption();
        let tenants: BTreeSet<_> =
            self.scenario.arrivals.iter().map(|arrival| arrival.request.salt.tenant()).collect();
        assert!(
            self.consumption.keys().all(|tenant| tenants.contains(&tenant.as_deref())),
            "each has a name"
        );
        let mut sum = Consumption::default();
        self.consumption.values().for_each(|&consumption| sum += consumption);
        let expected = Consumption {
            sequences: self.report.started_at.len() as u64,
            prompt_tokens: stats.prompt_tokens,
            cached_tokens: stats.prefix_hit_tokens,
            output_tokens: stats.output_tokens,
            device_time_us: self.device_time_us,
        };
        assert_eq!(sum, expected, "what tenants consumed is what was done");
    }

    /// Returns true if two requests ask for the same computation, but for the seed.
    pub(super) fn is_same_request(&self, one: u64, other: SequenceId) -> bool {
        let of = |id: SequenceId| {
            let request = self.arrivals[&id].request.clone();
            let sampling =
                SamplingParams { seed: 0, choice: 0, end_token_ids: Vec::new(), ..request.sampling };
            let Salt { tenant, adapter, .. } = request.salt;
            (tenant, adapter, request.token_ids, sampling, request.constrained, request.pooling)
        };
        of(SequenceId(one)) == of(other)
    }

    /// Checks that a sequence ends for want of a shard only if no connected one can go on with it.
    pub(super) fn check_lost(&self, id: SequenceId, reason: &EndReason) {
        let request = &self.arrivals[&id].request;
        let is_other = |limits: &ShardLimits| limits.numerics != 0;
        let is_same = !self.scenario.outages.iter().any(|outage| is_other(&outage.limits));
        if *reason == EndReason::ShardLost && is_same {
            let mut shards = self.lanes.iter().filter_map(|lane| lane.shard.as_ref());
            assert!(shards.all(|shard| !fits(request, &shard.limits)), "sequence {} could go on", id.0);
        }
    }

    /// Checks that each sequence ended for a reason that the scenario has.
    pub(super) fn check_reasons(&self) {
        let faults = &self.scenario.faults;
        let blow = self.options.blow.map(|(_, blow)| blow);
        for (id, reason) in &self.report.ends {
            let arrival = self.arrivals[id];
            let may = match reason {
                EndReason::EndToken | EndReason::Length => true,
                EndReason::Finished => {
                    matches!(arrival.client, Client::StopsAfterTokens(_)) || blow == Some(Blow::Finish(*id))
                }
                EndReason::Aborted => {
                    matches!(arrival.client, Client::AbortsAfterMs(_) | Client::AbortsAfterTokens(_))
                        || blow == Some(Blow::Abort(*id))
                }
                EndReason::DeadlineExceeded => arrival.request.deadline.is_some(),
                EndReason::Failed(error) if error.code == SequenceErrorCode::CrashedShard => {
                    let is_poison = matches!(
                        self.scenario.poison,
                        Some(Poison::Position { request, .. }) if self.is_same_request(request, *id)
                    );
                    let may_be_unlucky =
                        !self.scenario.outages.is_empty() || matches!(blow, Some(Blow::LoseShard(_)));
                    self.report.num_losses >= 2 && (is_poison || may_be_unlucky)
                }
                EndReason::Failed(error) if error.code == SequenceErrorCode::AdapterFailed => {
                    self.may_fail(arrival, &error.message)
                }
                EndReason::Failed(_) => {
                    faults.sequence_error + faults.missing_token + faults.foreign_token > 0
                }
                EndReason::ShardLost => {
                    let mut later = self.scenario.outages.iter().map(|outage| &outage.limits);
                    let mut all = later.clone().chain(&self.scenario.more_lanes);
                    self.longest_outage_ms >= self.scenario.config.shard_patience_ms
                        || later.any(|limits| limits.numerics != 0)
                        || all.any(|limits| !fits(&arrival.request, limits))
                }
            };
            assert!(may, "sequence {} has no cause to end with {reason:?}", id.0);
        }
    }
}
