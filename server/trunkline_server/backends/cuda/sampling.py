"""Samples and scores the rows of a step: logits in, pinned results out.

Nothing here is captured, because the sampling parameters decide which kernels run. They are launched while the device
still computes the step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from trunkline_server._proto.shard_pb2 import TokenBias, TokenLogprob, Watermark
from trunkline_server.backends.cuda.device import Device
from trunkline_server.backends.cuda.kernels.choose import (
    ChoiceScratch,
    Peaks,
    choose_largest,
    choose_tokens,
    find_peaks,
)
from trunkline_server.backends.cuda.kernels.logit_edits import (
    BiasEdits,
    TokenEdits,
    add_biases,
    allowed_logits,
    apply_token_edits,
    keep_within_sigmas,
)
from trunkline_server.backends.cuda.kernels.logprobs import Logprobs, find_logprobs
from trunkline_server.backends.cuda.kernels.watermark import WatermarkEdits, lift_green
from trunkline_server.backends.cuda.packed_rows import send_arrays
from trunkline_server.backends.cuda.sampling_rules import SamplingRules, mask_words
from trunkline_server.backends.interface import sampling_params
from trunkline_server.sampling.masks import NO_PENALTIES, num_mask_bytes
from trunkline_server.sampling.watermark import green_below

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Words = NDArray[np.uint32]
    Penalties = tuple[NDArray[np.int32], NDArray[np.float32]]

_GREEDY = SamplingRules(sampling_params(), (), 0, 0)
_SCORED = -2
_UNWANTED = -1
_BIAS_NAMES = ("bias_begin", "bias_rounds", "bias_tokens", "bias_values", "bias_numbers")
_EDIT_NAMES = (
    "edit_begin", "edit_tokens", "edit_counts", "edit_flags", "repetition", "presence", "frequency", "pending",
)  # fmt: skip
_MARK_NAMES = ("mark_below", "mark_deltas", "mark_keys", "mark_contexts", "mark_pending")


@dataclass(slots=True)
class RowRequest:
    """A request for one row of logits.

    rules: None if the row only scores `target`. position: of the sampled token; num_output: output tokens before it.
    last_token: the newest token that the host knows. pending_row: the row of the step before that sampled a newer one,
    or -1. mask: tokens that may be sampled, None for all. drafts: tokens before the row that were not sampled yet.
    penalties: tokens and what to add to their logits.
    """

    rules: SamplingRules | None = None
    target: int = -1
    num_top: int = 0
    wants_logprob: bool = False
    position: int = 0
    num_output: int = 0
    last_token: int = 0
    pending_row: int = -1
    mask: Words | None = None
    drafts: Sequence[int] = ()
    penalties: Penalties = NO_PENALTIES

    @property
    def has_biases(self) -> bool:
        return len(self.penalties[0]) > 0 or (self.rules is not None and self.rules.num_bias_rounds > 0)

    @property
    def wants_numbers(self) -> bool:
        return self.rules is None or self.wants_logprob or self.num_top > 0


@dataclass(slots=True)
class RowResult:
    """The result of one row.

    token_id: for a row without a distribution, also one that scores, `NOT_A_NUMBER` or `NOT_FINITE`. rank, top: if
    requested.
    """

    token_id: int
    logprob: float
    rank: int
    top: Sequence[TokenLogprob]


class PendingRows:
    """Results on their way into pinned memory. Call `read` after the event of their copy."""

    def __init__(self, requests: Sequence[RowRequest], results: torch.Tensor, max_rows: int, max_top: int) -> None:
        self._requests = requests
        self._results = results
        self._max_rows = max_rows
        self._max_top = max_top

    def read(self) -> list[RowResult]:
        """Returns one result for each request."""
        words = self._results.numpy()
        size, tops = self._max_rows, self._max_top
        tokens, ranks = words[:size].tolist(), words[2 * size : 3 * size].tolist()
        logprobs = words[size : 2 * size].view(np.float32).tolist()
        top_tokens = words[3 * size : (3 + tops) * size].reshape(size, tops)
        top_logprobs = words[(3 + tops) * size :].view(np.float32).reshape(size, tops)
        rows = []
        for number, request in enumerate(self._requests):
            top: list[TokenLogprob] = []
            if request.num_top:
                ids, values = (table[number, : request.num_top].tolist() for table in (top_tokens, top_logprobs))
                top = [TokenLogprob(token_id=id, logprob=value) for id, value in zip(ids, values, strict=True)]
            rows.append(RowResult(tokens[number], logprobs[number], ranks[number], top))
        return rows


class DeviceSampler:
    """Samples up to `max_rows` rows per step, with up to `max_top` of the likeliest tokens each.

    sampled: [max_rows] i32 on the device, tokens of the last step that sampled, which `fill_tokens` reads. Two steps
    may be in flight, so results alternate between two pinned buffers.
    """

    def __init__(self, device: Device, vocab_size: int, max_rows: int, max_top: int, rows_per_program: int = 1) -> None:
        self._device = device
        self._vocab_size = vocab_size
        self._max_rows, self._max_top = max_rows, max_top
        on_device = device.torch_device
        self._scratch = ChoiceScratch(max_rows, vocab_size, on_device, rows_per_program)
        self._raw_peaks, self._edited_peaks = self._scratch.peaks(), self._scratch.peaks()
        num_words = (3 + 2 * max_top) * max_rows
        self._results = torch.zeros(num_words, dtype=torch.int32, device=on_device)
        self._raw_tokens = torch.zeros(max_rows, dtype=torch.int32, device=on_device)
        self._host_results = [device.pinned(num_words) for _ in range(2)]
        self._turn = 0

    @property
    def sampled(self) -> torch.Tensor:
        return self._results[: self._max_rows]

    @property
    def max_rows(self) -> int:
        return self._max_rows

    def warm_up(self, logits: torch.Tensor) -> None:
        """Launches every kernel once, so that none is compiled while a request waits. logits: [1, V], finite."""
        everything = sampling_params(
            temperature=1.0, typical_p=0.9, top_n_sigma=1.0, logit_bias=[TokenBias(bias=1.0)], repetition_penalty=1.1,
            logprobs=True, num_top_logprobs=1, allowed_tokens=b"\xff" * num_mask_bytes(self._vocab_size),
            watermark=Watermark(gamma=0.5, delta=2.0, key=1),
        )  # fmt: skip
        for params in (sampling_params(temperature=1.0), sampling_params(temperature=1.0, top_p=0.9), everything):
            rules = SamplingRules(params, [0], 1, self._vocab_size)
            self.launch(logits, [RowRequest(rules=rules, num_top=params.num_top_logprobs, mask=rules.allowed)])
            self._device.wait()

    def launch(self, logits: torch.Tensor, requests: Sequence[RowRequest]) -> PendingRows:
        """Begins to sample and score. The results are complete at the device's next `mark`.

        logits: [R, V] f32, rows contiguous, not modified; the first `len(requests)` rows are used.
        """
        assert 0 < len(requests) <= self._max_rows
        self._turn = 1 - self._turn
        num_rows = len(requests)
        logits = logits[:num_rows]
        parts = self._upload(requests)
        sampled = self.sampled[:num_rows]
        peaks = find_peaks(logits, self._scratch, self._raw_peaks)
        edited, edited_peaks = self._edit(logits, peaks, requests, parts)
        is_raw = edited is logits
        rules = _rules_of(requests)
        if any(rule.temperature != 0.0 for rule in rules):
            # Three combinations of filters, so that few kernels are compiled.
            filters, rare = any(rule.has_filters for rule in rules), any(rule.has_rare for rule in rules)
            choose_tokens(edited, edited_peaks, parts["draws"], self._scratch, sampled, filters=filters, rare=rare)
        else:
            choose_largest(num_rows, edited_peaks, self._scratch, sampled)
        if not is_raw:
            # The model's own logits must be finite too, even where a mask hides them.
            raw = choose_largest(num_rows, peaks, self._scratch, self._raw_tokens)[:num_rows]
            torch.where(raw < 0, raw, sampled, out=sampled)
        # Tables of the likeliest tokens are most of the results, and few requests want them.
        num_words = num_rows
        if any(request.wants_numbers for request in requests):
            self._find_logprobs(logits, peaks, parts)
            has_top = any(request.num_top for request in requests)
            num_words = self._results.numel() if has_top else 3 * self._max_rows
        host = self._host_results[self._turn]
        self._device.copy(self._results[:num_words], host[:num_words])
        return PendingRows(requests, host, self._max_rows, self._max_top)

    def _find_logprobs(self, logits: torch.Tensor, peaks: Peaks, parts: dict[str, torch.Tensor]) -> None:
        num_rows, size, tops = logits.shape[0], self._max_rows, self._max_top
        targets = parts["targets"]
        chosen = torch.where(targets == _SCORED, parts["scored"], self.sampled[:num_rows])
        chosen = torch.where(targets == _UNWANTED, targets, chosen)
        out = Logprobs(
            self._results[size : 2 * size].view(torch.float32),
            self._results[2 * size : 3 * size],
            self._results[3 * size : (3 + tops) * size].view(size, tops),
            self._results[(3 + tops) * size :].view(torch.float32).view(size, tops),
        )
        find_logprobs(logits, peaks, chosen, parts["num_top"], self._scratch, out)

    def _edit(
        self,
        logits: torch.Tensor,
        peaks: Peaks,
        requests: Sequence[RowRequest],
        parts: dict[str, torch.Tensor],
    ) -> tuple[torch.Tensor, Peaks]:
        """Returns edited logits and their peaks, in scratch memory; the originals if no row has edits."""
        masks = [request.mask for request in requests if request.mask is not None]
        if not masks and not {"mark_keys", "bias_tokens", "edit_tokens", "top_n_sigma"} & parts.keys():
            return logits, peaks
        edited = self._scratch.scaled[: logits.shape[0], : self._vocab_size]
        if masks:
            words = np.concatenate(masks).view(np.int32)
            table = send_arrays(self._device, {"masks": words})["masks"].view(len(masks), mask_words(self._vocab_size))
            allowed_logits(logits, parts["mask_rows"], table, edited)
        else:
            edited.copy_(logits)
        if "mark_keys" in parts:
            lift_green(edited, WatermarkEdits(*(parts[name] for name in _MARK_NAMES)), self.sampled)
        if "bias_tokens" in parts:
            add_biases(edited, BiasEdits(*(parts[name] for name in _BIAS_NAMES)))
        if "edit_tokens" in parts:
            apply_token_edits(edited, TokenEdits(*(parts[name] for name in _EDIT_NAMES)), self.sampled)
        if "top_n_sigma" in parts:
            keep_within_sigmas(edited, parts["top_n_sigma"])
        return edited, find_peaks(edited, self._scratch, self._edited_peaks)

    def _upload(self, requests: Sequence[RowRequest]) -> dict[str, torch.Tensor]:
        """Copies the requests' numbers to the device as tensors, by name."""
        rules = _rules_of(requests)
        mask_rows = np.cumsum([request.mask is not None for request in requests]) - 1
        arrays: dict[str, NDArray[np.generic]] = {
            "draws": _draw_table(rules, requests),
            "targets": np.array([_target(request) for request in requests], dtype=np.int32),
            "scored": np.array([request.target for request in requests], dtype=np.int32),
            "num_top": np.array([request.num_top for request in requests], dtype=np.int32),
            "mask_rows": np.where([request.mask is not None for request in requests], mask_rows, -1).astype(np.int32),
        }
        if any(request.has_biases for request in requests):
            arrays |= _bias_arrays(requests)
        if edits := _edit_arrays(requests, rules):
            arrays |= edits
        if any(rule.top_n_sigma > 0.0 for rule in rules):
            arrays["top_n_sigma"] = np.array([rule.top_n_sigma for rule in rules], dtype=np.float32)
        if any(rule.watermark is not None for rule in rules):
            arrays |= _mark_arrays(requests, [rule.watermark for rule in rules])
        return send_arrays(self._device, arrays)


def _target(request: RowRequest) -> int:
    if request.rules is None:
        return _SCORED
    return 0 if request.wants_numbers else _UNWANTED


def _rules_of(requests: Sequence[RowRequest]) -> list[SamplingRules]:
    return [request.rules or _GREEDY for request in requests]


def _draw_table(rules: Sequence[SamplingRules], requests: Sequence[RowRequest]) -> NDArray[np.int64]:
    """Returns the parameters of draws in the columns of draw_range.py."""
    reals = np.array([rule.reals for rule in rules], dtype=np.float64)
    seeds = np.array([rule.seed for rule in rules], dtype=np.uint64).view(np.int64)
    top_ks, choices = [rule.top_k for rule in rules], [rule.choice for rule in rules]
    positions = [request.position for request in requests]
    return np.column_stack([reals.view(np.int64), top_ks, seeds, choices, positions])


def _begins(sizes: Sequence[int]) -> NDArray[np.int32]:
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)


def _bias_arrays(requests: Sequence[RowRequest]) -> dict[str, NDArray[np.generic]]:
    """Returns the biases of the rows' parameters and, in a last round, their penalties."""
    tokens, values, numbers, rounds = [], [], [], []
    for request in requests:
        rules, (ids, addends) = request.rules, request.penalties
        num_rounds = 0 if rules is None else rules.num_bias_rounds
        tokens.append(ids if rules is None else np.concatenate([rules.bias_tokens, ids]))
        values.append(addends if rules is None else np.concatenate([rules.bias_values, addends]))
        last = np.full(len(ids), num_rounds, dtype=np.int32)
        numbers.append(last if rules is None else np.concatenate([rules.bias_rounds, last]))
        rounds.append(num_rounds + (len(ids) > 0))
    return {
        "bias_begin": _begins([len(each) for each in tokens]),
        "bias_rounds": np.array(rounds, dtype=np.int32),
        "bias_tokens": np.concatenate(tokens),
        "bias_values": np.concatenate(values),
        "bias_numbers": np.concatenate(numbers),
    }


def _mark_arrays(
    requests: Sequence[RowRequest], watermarks: Sequence[Watermark | None]
) -> dict[str, NDArray[np.generic]]:
    below = [0 if mark is None else green_below(mark.gamma) for mark in watermarks]
    return {
        "mark_below": np.array(below, dtype=np.uint32),
        "mark_deltas": np.array([0.0 if mark is None else mark.delta for mark in watermarks], dtype=np.float32),
        "mark_keys": np.array([0 if mark is None else mark.key for mark in watermarks], dtype=np.uint64),
        "mark_contexts": np.array([request.last_token for request in requests], dtype=np.int32),
        "mark_pending": np.array([request.pending_row for request in requests], dtype=np.int32),
    }


def _edit_arrays(requests: Sequence[RowRequest], rules: Sequence[SamplingRules]) -> dict[str, NDArray[np.generic]]:
    """Returns the arrays of token edits; empty if no row has any."""
    none = np.zeros(0, dtype=np.int32)
    edits = [
        (none, none, none) if request.rules is None else request.rules.edits(request.num_output, request.drafts)
        for request in requests
    ]
    pending = [
        request.pending_row if request.rules is not None and request.rules.has_penalties else -1 for request in requests
    ]
    sizes = [len(tokens) for tokens, _, _ in edits]
    if not any(sizes) and max(pending) < 0:
        return {}
    return {
        "edit_begin": _begins(sizes),
        "edit_tokens": np.concatenate([tokens for tokens, _, _ in edits]),
        "edit_counts": np.concatenate([counts for _, counts, _ in edits]),
        "edit_flags": np.concatenate([flags for _, _, flags in edits]),
        "repetition": np.array([rule.repetition for rule in rules], dtype=np.float32),
        "presence": np.array([rule.presence for rule in rules], dtype=np.float32),
        "frequency": np.array([rule.frequency for rule in rules], dtype=np.float32),
        "pending": np.array(pending, dtype=np.int32),
    }
