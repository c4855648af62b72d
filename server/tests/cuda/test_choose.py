"""Sampling on the device takes the same token as sampling/sampler.py from the same logits."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
import torch
from tests.plans import new_biases
from tests.tiers import matrix
from trunkline_server._proto.shard_pb2 import SamplingParams, Watermark
from trunkline_server.backends.cuda.device import CudaDevice, Device
from trunkline_server.backends.cuda.kernels import choose
from trunkline_server.backends.cuda.kernels.watermark import WatermarkEdits, lift_green
from trunkline_server.backends.cuda.packed_rows import send_arrays
from trunkline_server.backends.cuda.sampling import DeviceSampler, RowRequest
from trunkline_server.backends.cuda.sampling_rules import SamplingRules, mask_from_bytes
from trunkline_server.backends.interface import sampling_params
from trunkline_server.sampling import processors
from trunkline_server.sampling.masks import penalties_of
from trunkline_server.sampling.sampler import choose_token, log_softmax, top_logprobs
from trunkline_server.sampling.watermark import green_below

VOCAB = 150
ROWS = 256
MAX_TOP = 6
XTC = ("xtc_threshold", "xtc_probability", "top_n_sigma")


def sampler(device: str, vocab_size: int = VOCAB, num_rows: int = ROWS) -> DeviceSampler:
    where = CudaDevice() if device == "cuda" else Device()
    return DeviceSampler(where, vocab_size, num_rows, MAX_TOP, rows_per_program=1 if device == "cuda" else num_rows)


def random_logits(rng: np.random.Generator, num_rows: int = ROWS, vocab_size: int = VOCAB) -> np.ndarray:
    """Returns flat and sharp rows, some with ties, some with impossible tokens."""
    logits = (rng.standard_normal((num_rows, vocab_size)) * rng.choice([0.5, 2, 6], (num_rows, 1))).astype(np.float32)
    logits[::3] = np.round(logits[::3])
    logits[1::7, ::5] = -np.inf
    return logits


def random_params(rng: np.random.Generator, kinds: tuple[str, ...]) -> SamplingParams:
    """Returns random parameters. kinds: filters that may be set."""
    given: dict[str, Any] = {
        "top_k": lambda: int(rng.integers(1, 60)),
        "top_p": lambda: float(rng.random()),
        "min_p": lambda: float(rng.random() * 0.3),
        "typical_p": lambda: float(rng.random()),
        "top_n_sigma": lambda: float(rng.random() * 3),
        "xtc_threshold": lambda: float(np.float32(rng.choice([1e-6, 0.01, 0.1, 0.3]))),
        "xtc_probability": lambda: float(np.float32(rng.choice([0.5, 1.0]))),
    }
    fields: dict[str, Any] = {
        "temperature": 0.0 if rng.random() < 0.1 else float(np.float32(rng.choice([0.3, 0.7, 1.0, 1.5, 5.0]))),
        "seed": int(rng.integers(0, 2**63)) * 2 + 1,
        "choice": int(rng.integers(0, 5)),
        # A threshold of 0 leaves the least likely token, which the reference finds among weights that the device
        # rounds to 0.
        "xtc_threshold": 0.1,
    }
    return sampling_params(**fields | {kind: given[kind]() for kind in kinds if rng.random() < 0.7})


def run(device: str, logits: np.ndarray, requests: list[RowRequest], one: DeviceSampler | None = None) -> list[Any]:
    one = sampler(device, logits.shape[1]) if one is None else one
    with torch.inference_mode():
        pending = one.launch(torch.tensor(logits, device=device), requests)
    if device == "cuda":
        torch.cuda.synchronize()
    return pending.read()


@pytest.mark.parametrize(
    ("kinds", "max_listed"),
    matrix([(), ("top_k", "top_p"), ("min_p", "typical_p", *XTC), ("top_k", "top_p", "min_p", *XTC)], [8192, 16]),
)
def test_draws_match_the_reference(
    kinds: tuple[str, ...], max_listed: int, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Ranges of more than 16 tokens are narrowed, and those of more than `max_listed` are not listed.
    monkeypatch.setattr(choose, "MAX_LISTED", max_listed)
    monkeypatch.setattr(choose, "TILE", 64)
    monkeypatch.setattr(choose, "LIST_TILE", 16)
    rng = np.random.default_rng(len(kinds) + max_listed)
    logits = random_logits(rng)
    params = [random_params(rng, kinds) for _ in range(ROWS)]
    positions = rng.integers(1, 1000, ROWS).tolist()
    requests = [
        RowRequest(rules=SamplingRules(one, [], 0, VOCAB), position=position)
        for one, position in zip(params, positions, strict=True)
    ]
    rows = run(device, logits, requests)
    for row, given, one, position in zip(rows, logits, params, positions, strict=True):
        assert row.token_id == choose_token(given, [0] * position, 1, one), one


@pytest.mark.full
@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 1.0},
        {"temperature": 1.5},
        {"temperature": 0.7, "top_p": 0.95},
        {"temperature": 1.0, "top_k": 50},
    ],
)
def test_draws_among_many_tokens_are_found_in_lists(params: dict[str, Any], device: str) -> None:
    vocab_size, num_rows = 128_256, 16
    logits = (np.random.default_rng(1).standard_normal((num_rows, vocab_size)) * 2.3).astype(np.float32)
    all_params = [sampling_params(seed=7919 * row + 1, **params) for row in range(num_rows)]
    one = sampler(device, vocab_size, num_rows)
    one._scratch.ids.fill_(-1)
    rows = run(
        device,
        logits,
        [RowRequest(rules=SamplingRules(each, [], 0, vocab_size), position=5) for each in all_params],
        one,
    )
    for row, given, each in zip(rows, logits, all_params, strict=True):
        assert row.token_id == choose_token(given, [0] * 5, 1, each), each
    num_listed = (one._scratch.ids[:num_rows] >= 0).sum(1).tolist()
    print(f"listed {sorted(num_listed)}")
    assert all(0 < number <= choose.MAX_LISTED for number in num_listed), "no draw looks at the whole row"


def test_edited_logits_match_the_reference(device: str) -> None:
    rng = np.random.default_rng(4)
    logits = random_logits(rng)
    requests, expected, mask_bytes = [], [], -(-VOCAB // 8)
    every_third = sum(1 << token for token in range(0, VOCAB, 3)).to_bytes(mask_bytes, "little")
    previous = rng.integers(0, VOCAB, ROWS).astype(np.int32)
    for number in range(ROWS):
        tokens = rng.integers(0, VOCAB, 30).tolist()
        params = sampling_params(
            temperature=float(number % 2), seed=number,
            repetition_penalty=1.5 if number % 3 == 0 else 1.0,
            presence_penalty=0.7 if number % 4 == 0 else 0.0, frequency_penalty=0.3 if number % 5 == 0 else 0.0,
            min_tokens=25 if number % 2 else 5, end_token_ids=(1, 7, int(np.argmax(logits[number]))),
            logit_bias=new_biases((3, 2.5), (9, -4.0), (3, 1.25)) if number % 3 == 1 else (),
            allowed_tokens=every_third if number % 7 == 0 else b"",
            watermark=Watermark(gamma=0.25 + number / 512, delta=1.5, key=int(rng.integers(0, 2**63)) * 2)
            if number % 4 < 2 else None,
        )  # fmt: skip
        mask = rng.bytes(mask_bytes) if number % 6 == 0 else b""
        if number % 12 == 0:
            mask += struct.pack("<IfIfIf", 3, -1.5, int(np.argmax(logits[number])), -3.0, VOCAB, 9.0)
        is_pending = number % 2 == 1
        known = [*tokens, int(previous[number])] if is_pending else tokens
        rules = SamplingRules(params, tokens, 10, VOCAB)
        words = mask_from_bytes(mask, VOCAB) if mask else None
        if rules.allowed is not None:
            words = rules.allowed if words is None else words & rules.allowed
        requests.append(
            RowRequest(
                rules=rules,
                position=len(known),
                num_output=len(known) - 10,
                last_token=tokens[-1],
                pending_row=number if is_pending else -1,
                mask=words,
                penalties=penalties_of(mask, VOCAB),
            )
        )
        expected.append(choose_token(logits[number], known, 10, params, mask))
    one = sampler(device)
    one.sampled.copy_(torch.tensor(previous))
    assert [row.token_id for row in run(device, logits, requests, one)] == expected


@pytest.mark.parametrize("vocab_size", [3, VOCAB, 9001])
def test_lifted_logits_match_the_reference_bit_for_bit(vocab_size: int, device: str) -> None:
    rng = np.random.default_rng(vocab_size)
    logits = random_logits(rng, 6, vocab_size)
    previous = rng.integers(0, vocab_size, 6).astype(np.int32)
    contexts = rng.integers(0, vocab_size, 6).astype(np.int32)
    marks = [
        None if row == 3 else Watermark(gamma=0.05 + row / 6, delta=1.7 * row + 0.1, key=2**64 - 1 - row)
        for row in range(6)
    ]
    pending = np.array([-1, 1, -1, 3, 0, 5], dtype=np.int32)
    arrays = {
        "green_below": np.array([0 if mark is None else green_below(mark.gamma) for mark in marks], dtype=np.uint32),
        "deltas": np.array([0 if mark is None else mark.delta for mark in marks], dtype=np.float32),
        "keys": np.array([0 if mark is None else mark.key for mark in marks], dtype=np.uint64),
        "contexts": contexts,
        "pending": pending,
    }
    expected = logits.copy()
    for row, mark in enumerate(marks):
        if mark is not None:
            context = int(contexts[row] if pending[row] < 0 else previous[pending[row]])
            processors.lift_green(expected[row], context, mark)
    where = CudaDevice() if device == "cuda" else Device()
    edited = torch.tensor(logits, device=device)
    lift_green(edited, WatermarkEdits(**send_arrays(where, arrays)), torch.tensor(previous, device=device))
    assert edited.cpu().numpy().tobytes() == expected.tobytes()
    assert logits.tobytes() != expected.tobytes()


def test_logprobs_ranks_and_likeliest_tokens_match(device: str) -> None:
    rng = np.random.default_rng(5)
    logits = random_logits(rng)
    targets = rng.integers(0, VOCAB, ROWS).tolist()
    tops = rng.integers(0, MAX_TOP + 1, ROWS).tolist()
    greedy = SamplingRules(sampling_params(), [], 0, VOCAB)
    requests = [
        RowRequest(target=target, num_top=top)
        if number % 2
        else RowRequest(rules=greedy, num_top=top, wants_logprob=True)
        for number, (target, top) in enumerate(zip(targets, tops, strict=True))
    ]
    for number, row in enumerate(run(device, logits, requests)):
        logprobs = log_softmax(logits[number])
        token = targets[number] if number % 2 else int(np.argmax(logits[number]))
        assert row.logprob == pytest.approx(float(logprobs[token]), abs=1e-6)
        assert row.rank == np.count_nonzero(logits[number] >= logits[number][token])
        expected = top_logprobs(logprobs, tops[number])
        assert [top.token_id for top in row.top] == [top.token_id for top in expected]
        np.testing.assert_allclose([top.logprob for top in row.top], [top.logprob for top in expected], atol=1e-6)


def test_rows_without_a_distribution_are_reported(device: str) -> None:
    logits = np.zeros((5, VOCAB), dtype=np.float32)
    logits[1, 70] = np.nan
    logits[2, 71] = np.inf
    logits[3] = -np.inf
    mask = np.zeros(-(-VOCAB // 32), dtype=np.uint32)
    rules = SamplingRules(sampling_params(temperature=1.0), [], 0, VOCAB)
    plain = RowRequest(rules=rules)
    rows = run(device, logits, [plain, plain, plain, plain, RowRequest(rules=rules, mask=mask)])
    tokens = [row.token_id for row in rows]
    assert tokens[0] >= 0
    assert tokens[1:] == [choose.NOT_A_NUMBER, choose.NOT_FINITE, choose.NOT_FINITE, choose.NOT_FINITE]
    # Also refused where a mask hides the non-finite logit.
    only_zero = mask.copy()
    only_zero[0] = 1
    hidden = [RowRequest(rules=rules, mask=only_zero)] * 3
    assert [row.token_id for row in run(device, logits[:3], hidden)] == [0, choose.NOT_A_NUMBER, choose.NOT_FINITE]


def test_warming_up_leaves_nothing_behind(device: str) -> None:
    rng = np.random.default_rng(7)
    one, logits = sampler(device), random_logits(rng, 3)
    with torch.inference_mode():
        one.warm_up(torch.zeros(1, VOCAB, device=device))
    rows = run(device, logits, [RowRequest(rules=SamplingRules(sampling_params(), [], 0, VOCAB))] * 3, one)
    assert [row.token_id for row in rows] == logits.argmax(1).tolist()


def test_two_launches_have_results_of_their_own(device: str) -> None:
    rng = np.random.default_rng(6)
    one, rules = sampler(device), SamplingRules(sampling_params(), [], 0, VOCAB)
    first, second = random_logits(rng, 4), random_logits(rng, 4)
    with torch.inference_mode():
        pending = [one.launch(torch.tensor(x, device=device), [RowRequest(rules=rules)] * 4) for x in (first, second)]
    if device == "cuda":
        torch.cuda.synchronize()
    for x, rows in zip((first, second), pending, strict=True):
        assert [row.token_id for row in rows.read()] == x.argmax(1).tolist()


def test_tables_of_likeliest_tokens_are_copied_only_if_wanted() -> None:
    copies: list[int] = []

    class Counting(Device):
        def copy(self, source: torch.Tensor, destination: torch.Tensor) -> None:
            copies.append(source.numel())
            super().copy(source, destination)

    one = DeviceSampler(Counting(), VOCAB, ROWS, MAX_TOP, rows_per_program=ROWS)
    logits, rules = random_logits(np.random.default_rng(8), 3), SamplingRules(sampling_params(), [], 0, VOCAB)
    plain = RowRequest(rules=rules)
    for request, expected in (
        (plain, 3),
        (RowRequest(rules=rules, wants_logprob=True), 3 * ROWS),
        (RowRequest(rules=rules, num_top=2), (3 + 2 * MAX_TOP) * ROWS),
    ):
        rows = run("cpu", logits, [plain, request, plain], one)
        assert copies[-1] == expected
        assert [row.token_id for row in rows] == logits.argmax(1).tolist()
        assert len(rows[1].top) == request.num_top
