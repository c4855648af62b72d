"""A backend without a model: small, deterministic, and strict about its calls.

Each slot of its pool holds a digest of the tokens up to that position, computed from the digest in the previous slot. A
sampled token depends only on the last digest and the sampling key. A plan that computes a position too early, in the
wrong block or after a wrong copy therefore samples other tokens than a prompt computed at once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from tests.fakes.adapters import ADAPTER_BYTES
from tests.fakes.store import NUM_SLOTS, FakeStore, block_key
from tests.plans import changed
from trunkline_server._proto.shard_pb2 import (
    Chunk,
    PromptTokenLogprob,
    SampledToken,
    SequenceResult,
    SequenceStart,
    StepResult,
    TokenLogprob,
)
from trunkline_server.backends.interface import INVALID_PLAN, NOT_FINITE, AdapterSlots, BackendInfo, Store, failure
from trunkline_server.backends.interface import LateMasks as AnyLateMasks
from trunkline_server.backends.late_masks import LateMasks

VOCAB_SIZE = 64
# A sequence that computes this token fails with NOT_FINITE, as if its logits were NaN.
POISON_TOKEN = 63

_MASK = 2**64 - 1
_ROOT_DIGEST = 0x9E3779B97F4A7C15


def mix(digest: int, number: int) -> int:
    """Advances a digest with the finaliser of SplitMix64."""
    z = (digest ^ number) + 0x9E3779B97F4A7C15 & _MASK
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    z = (z ^ z >> 27) * 0x94D049BB133111EB & _MASK
    return z ^ z >> 31


@dataclass
class _Sequence:
    start: SequenceStart
    token_ids: list[int]
    block_ids: list[int] = field(default_factory=list)


# The tokens that the draft model of the fake always drafts.
OWN_DRAFTS = (33, 7)


class FakeBackend:
    """Implements `Backend`. on_step: called in each step with the chunks before they are computed."""

    def __init__(
        self,
        *,
        block_size: int = 4,
        num_blocks: int = 16,
        max_step_tokens: int = 32,
        max_step_sequences: int = 8,
        has_store: bool = False,
        reads_other_stores: bool = False,
        window_size: int = 0,
        num_window_parts: int = 0,
        max_draft_tokens: int = 3,
        max_own_drafts: int = 2,
        num_adapter_slots: int = 0,
        on_step: Callable[[Sequence[Chunk]], None] | None = None,
    ) -> None:
        self.info = BackendInfo(
            device="fake",
            block_size=block_size,
            bytes_per_block=block_size * 8,
            num_device_blocks=num_blocks,
            max_step_tokens=max_step_tokens,
            max_step_sequences=max_step_sequences,
            kv_dtype="digest",
            weight_bytes=0,
            numeric_fingerprint="fa4e",
            num_store_slots=NUM_SLOTS if has_store else 0,
            store_folder="/store/fa4e" if has_store else "",
            reads_other_stores=reads_other_stores,
            num_window_parts=num_window_parts,
            bytes_per_window_part=block_size * 8 if num_window_parts else 0,
            window_size=window_size,
            max_draft_tokens=max_draft_tokens,
            max_own_drafts=max_own_drafts,
            num_adapter_slots=num_adapter_slots,
            adapter_bytes=num_adapter_slots * ADAPTER_BYTES,
            memory_bytes=num_blocks * block_size * 8,
        )
        self.on_step = on_step
        self.num_resets = 0
        self.draft_time_us = 0
        # What the device says of the time of a step; None: what the host sees.
        self.time_us: int | None = None
        self._sequences: dict[int, _Sequence] = {}
        self._pool: list[list[int | None]] = [[None] * block_size for _ in range(num_blocks)]
        self.window_parts: set[int] = set()
        self.fake_store = FakeStore(self._pool) if has_store else None
        self.store: Store | None = self.fake_store
        self.adapters: AdapterSlots | None = None
        self._caller = 0

    @property
    def num_sequences(self) -> int:
        return len(self._sequences)

    def after_start(self) -> None:
        pass

    def start(self, start: SequenceStart) -> None:
        self._check_thread()
        assert start.sequence_id not in self._sequences
        assert 1 <= start.num_prompt_tokens <= len(start.token_ids)
        self._sequences[start.sequence_id] = _Sequence(start, list(start.token_ids))

    def end(self, sequence_id: int) -> None:
        self._check_thread()
        del self._sequences[sequence_id]

    def drop_window_parts(self, block_ids: Sequence[int]) -> None:
        self._check_thread()
        assert self.info.num_window_parts
        self.window_parts.difference_update(block_ids)

    def copy_block(self, source_block_id: int, destination_block_id: int, num_tokens: int) -> None:
        self._check_thread()
        self._pool[destination_block_id][:num_tokens] = self._pool[source_block_id][:num_tokens]
        if source_block_id in self.window_parts:
            self.window_parts.add(destination_block_id)

    def step(self, chunks: Sequence[Chunk], late_masks: AnyLateMasks | None = None) -> StepResult:
        self._check_thread()
        if self.on_step is not None:
            self.on_step(chunks)
        outcomes = []
        for chunk in chunks:
            outcome = self._compute(chunk, late_masks)
            if outcome is not None and outcome.HasField("error"):
                self._fail_stores(chunk)
            else:
                self._keep(chunk)
            if outcome is not None:
                outcomes.append(outcome)
        return StepResult(sequences=outcomes)

    def step_time_us(self, *, elapsed_us: int) -> int:
        return elapsed_us if self.time_us is None else self.time_us

    def make_late_masks(self) -> LateMasks:
        return LateMasks()

    def reset(self) -> None:
        self._check_thread()
        self.num_resets += 1
        if self.fake_store is not None:
            self.fake_store.forget()
        self.window_parts.clear()
        self._sequences.clear()

    def score(self, token_ids: Sequence[int]) -> NDArray[np.float32]:
        raise NotImplementedError

    def _check_thread(self) -> None:
        """Checks that all calls come from one thread, as the interface promises."""
        caller = threading.get_ident()
        assert self._caller in (0, caller), "the backend is called from two threads"
        self._caller = caller

    def _compute(self, chunk: Chunk, late_masks: AnyLateMasks | None) -> SequenceResult | None:
        sequence = self._sequences[chunk.sequence_id]
        sequence.block_ids.extend(chunk.new_block_ids)
        sequence.token_ids.extend(chunk.appended_token_ids)
        end = chunk.first_position + chunk.num_tokens
        problem = self._problem(sequence, end) or self._window_problem(sequence, chunk.first_position, end)
        if problem is not None:
            return failure(chunk.sequence_id, INVALID_PLAN, problem)
        digest = self._slot(sequence, chunk.first_position - 1) if chunk.first_position else _ROOT_DIGEST
        for position in range(chunk.first_position, end):
            if digest is None:
                return failure(chunk.sequence_id, INVALID_PLAN, f"position {position - 1} is not computed")
            token_id = sequence.token_ids[position]
            if token_id == POISON_TOKEN:
                return failure(chunk.sequence_id, NOT_FINITE, "a logit is NaN")
            digest = mix(digest, token_id)
            block_size = self.info.block_size
            self._pool[sequence.block_ids[position // block_size]][position % block_size] = digest
        scores = self._scores(chunk, sequence) if chunk.score else []
        if chunk.awaits_mask:
            assert late_masks is not None, "a chunk awaits its mask somewhere"
            mask = late_masks.wait(chunk.sequence_id)
            chunk = changed(chunk, allowed_tokens=mask, sample=bool(mask), awaits_mask=False)
        if chunk.sample and sequence.start.HasField("pooled"):
            # Exact in f32 and in JSON.
            assert digest is not None, "a chunk has tokens"
            vector = [digest % 64 / 8, float(sequence.start.pooled.second_text)]
            return SequenceResult(sequence_id=chunk.sequence_id, vector=vector)
        if chunk.sample:
            own = OWN_DRAFTS[: chunk.num_own_drafts]
            chunk = changed(chunk, draft_token_ids=own or chunk.draft_token_ids)
            token = self._sample(chunk, sequence, digest)
            more = self._sample_drafts(chunk, sequence, token)
            return SequenceResult(
                sequence_id=chunk.sequence_id, token=token, scores=scores, more_tokens=more, num_own_drafts=len(own)
            )
        return SequenceResult(sequence_id=chunk.sequence_id, scores=scores) if chunk.score else None

    def _sample_drafts(self, chunk: Chunk, sequence: _Sequence, first: SampledToken) -> list[SampledToken]:
        """Returns the samples behind drafts that are right."""
        sampled, block_size = [first], self.info.block_size
        position = chunk.first_position + chunk.num_tokens
        for index, draft in enumerate(chunk.draft_token_ids):
            digest = self._slot(sequence, position - 1)
            assert digest is not None, "the position before a draft is computed"
            self._pool[sequence.block_ids[position // block_size]][position % block_size] = mix(digest, draft)
            position += 1
            if len(sampled) == position - chunk.first_position - chunk.num_tokens and draft == sampled[-1].token_id:
                mask = chunk.draft_masks[index] if chunk.draft_masks else b""
                masked = changed(chunk, allowed_tokens=mask)
                sampled.append(self._sample(masked, sequence, mix(digest, draft)))
        return sampled[1:]

    def _scores(self, chunk: Chunk, sequence: _Sequence) -> list[PromptTokenLogprob]:
        """Returns scores derived from the tokens, in eighths, which are exact in f32 and in JSON."""
        end = min(chunk.first_position + chunk.num_tokens, sequence.start.num_prompt_tokens - 1)
        count = sequence.start.sampling.num_top_prompt_logprobs
        scores = []
        for token_id in sequence.token_ids[chunk.first_position + 1 : end + 1]:
            logprob = -(1 + token_id % 64) / 8
            scores.append(PromptTokenLogprob(logprob=logprob, rank=1, top_logprobs=_top(token_id, logprob, count)))
        return scores

    def _keep(self, chunk: Chunk) -> None:
        sequence, block_size = self._sequences[chunk.sequence_id], self.info.block_size
        for store in chunk.stores:
            assert self.fake_store is not None
            tokens = sequence.token_ids[: (store.block_index + 1) * block_size]
            key = block_key(sequence.start.root_key, tokens, block_size)
            self.fake_store.store(store.slot, key, sequence.block_ids[store.block_index])

    def _fail_stores(self, chunk: Chunk) -> None:
        for store in chunk.stores:
            assert self.fake_store is not None
            self.fake_store.fail_store(store.slot)

    def _problem(self, sequence: _Sequence, end: int) -> str | None:
        if end > len(sequence.token_ids):
            return f"position {end - 1} is not known, the sequence has {len(sequence.token_ids)} tokens"
        if end > len(sequence.block_ids) * self.info.block_size:
            return f"position {end - 1} lies in no block, the sequence has {len(sequence.block_ids)}"
        if any(block_id >= self.info.num_device_blocks for block_id in sequence.block_ids):
            return "a block id is not in the pool"
        return None

    def _window_problem(self, sequence: _Sequence, first: int, end: int) -> str | None:
        if not self.info.num_window_parts:
            return None
        block_size = self.info.block_size
        seen = range(max(0, first - self.info.window_size + 1) // block_size, -(-first // block_size))
        for block_id in sequence.block_ids[seen.start : seen.stop]:
            if block_id not in self.window_parts:
                return f"block {block_id} has no window part, and position {first} looks at it"
        self.window_parts.update(sequence.block_ids[first // block_size : -(-end // block_size)])
        if len(self.window_parts) > self.info.num_window_parts:
            return f"all {self.info.num_window_parts} window parts are in use"
        return None

    def _slot(self, sequence: _Sequence, position: int) -> int | None:
        block_size = self.info.block_size
        return self._pool[sequence.block_ids[position // block_size]][position % block_size]

    def _sample(self, chunk: Chunk, sequence: _Sequence, digest: int | None) -> SampledToken:
        assert digest is not None
        sampling = sequence.start.sampling
        key = mix(mix(digest, sampling.seed), sampling.choice) if sampling.temperature > 0 else digest
        # Never the poison token, so that a sequence fails only if the test intends it.
        token_id = key % (VOCAB_SIZE - 1)
        masks = [mask for mask in (chunk.allowed_tokens, sampling.allowed_tokens) if mask]
        while not all(mask[token_id // 8] >> token_id % 8 & 1 for mask in masks):
            token_id = (token_id + 1) % VOCAB_SIZE
        # Eighths are exact in f32 and in JSON.
        logprob = -(1 + (key >> 32) % 64) / 8 if sampling.logprobs else 0.0
        top = _top(token_id, logprob, sampling.num_top_logprobs)
        sequence.token_ids.append(token_id)
        return SampledToken(token_id=token_id, logprob=logprob, top_logprobs=top)


def _top(token_id: int, logprob: float, count: int) -> list[TokenLogprob]:
    return [TokenLogprob(token_id=(token_id + i) % VOCAB_SIZE, logprob=logprob - i / 8) for i in range(count)]
