"""The same request gives the same bits, whatever else the server does. Texts and logprobs are compared unrounded."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from harness import Trunkline, cached_tokens, serving

VOCABULARY = range(100, 40_000)


def random_prompt(seed: int, length: int) -> list[int]:
    return random.Random(seed).choices(VOCABULARY, k=length)


def bits(server: Trunkline, prompt: list[int], max_tokens: int = 24, **fields: Any) -> Any:
    """Returns everything in an answer that must not differ: text, tokens, logprobs and finish reason."""
    answer = server.complete(prompt, max_tokens=max_tokens, logprobs=3, ignore_eos=True, **fields)
    choice = answer["choices"][0]
    return choice["text"], choice["logprobs"], choice["finish_reason"]


def full(*values: int) -> list[Any]:
    """Marks parameters that only `make test-all` runs."""
    return [pytest.param(value, marks=pytest.mark.full) for value in values]


@pytest.mark.parametrize("others", [7, *full(1, 31)])
def test_concurrent_requests_change_no_bit(server: Trunkline, chunking: Trunkline, others: int) -> None:
    prompts = [random_prompt(1000 * others + n, 20 + 7 * n) for n in range(3)]
    fields = [{}, {"temperature": 0.8, "seed": 3}, {"temperature": 1.2, "top_p": 0.9, "seed": 2**63}]
    alone = [bits(chunking, prompt, **field) for prompt, field in zip(prompts, fields, strict=True)]

    def crowd(number: int) -> None:
        noise = random.Random(number)
        for _ in range(3):
            server.complete(
                random_prompt(noise.getrandbits(32), noise.randint(1, 200)), max_tokens=noise.randint(4, 40)
            )

    with ThreadPoolExecutor(others) as pool:
        crowding = [pool.submit(crowd, 31 * others + n) for n in range(others)]
        beside = [bits(server, prompt, **field) for prompt, field in zip(prompts, fields, strict=True)]
        for done in crowding:
            done.result()
    assert beside == alone


@pytest.mark.parametrize("length", [1, 37, 38, 150, *full(2, 31, 36, 64, 75, 600)])
def test_chunked_prefill_equals_whole_prefill(server: Trunkline, chunking: Trunkline, length: int) -> None:
    prompt = random_prompt(length, length)
    assert bits(chunking, prompt) == bits(server, prompt)


@pytest.mark.parametrize("hit", [1, 17, 64, 199, *full(15, 16, 31, 32, 33, 47, 100)])
def test_cold_equals_prefix_hit(server: Trunkline, chunking: Trunkline, hit: int) -> None:
    prompt = random_prompt(5000 + hit, 200)
    cold = bits(server, prompt)
    again = server.complete(prompt, max_tokens=1)
    assert cached_tokens(again) == 199, "every token except the last must be a prefix hit"
    assert bits(server, prompt) == cold

    other_end = random_prompt(6000 + hit, 50)
    chunking.complete(prompt[:hit] + other_end, max_tokens=4)
    warm = chunking.complete(prompt, max_tokens=24, logprobs=3, ignore_eos=True)
    assert cached_tokens(warm) == hit
    choice = warm["choices"][0]
    assert (choice["text"], choice["logprobs"], choice["finish_reason"]) == cold


def test_preempted_equals_undisturbed(server: Trunkline) -> None:
    prompts = [random_prompt(900 + n, 60) for n in range(8)]
    fields = [{"temperature": 0.5 * (n % 3), "seed": n, "presence_penalty": 0.3 * (n % 2)} for n in range(8)]

    def ask_all(which: Trunkline) -> list[Any]:
        with ThreadPoolExecutor(len(prompts)) as pool:
            each = [pool.submit(bits, which, p, max_tokens=70, **f) for p, f in zip(prompts, fields, strict=True)]
            return [done.result() for done in each]

    expected = ask_all(server)
    # The eight sequences grow to three blocks each, but there are only ten.
    with serving("--max-batch-total-tokens", "640") as small:
        received = ask_all(small)
        assert small.metrics()["trunkline_preemptions_total"] > 0, "the pool is too large for a preemption"
    assert received == expected


# The servers differ in both settings, so that two starts compare three thread counts and three instruction sets.
@pytest.mark.parametrize(("isa", "threads"), [("avx2", 2), pytest.param("scalar", 3, marks=pytest.mark.full)])
def test_instruction_sets_and_thread_counts_agree(server: Trunkline, isa: str, threads: int) -> None:
    prompts = [random_prompt(40 + n, 9 * n + 1) for n in range(3)]
    expected = [bits(server, prompt, max_tokens=8) for prompt in prompts]
    with serving("--threads", str(threads), env={"TRUNKLINE_ISA": isa}) as other:
        assert [bits(other, prompt, max_tokens=8) for prompt in prompts] == expected


@pytest.mark.parametrize("dtype", ["int4", *(pytest.param(each, marks=pytest.mark.full) for each in ("f16", "bf16"))])
def test_chunks_concurrency_and_prefix_hits_change_no_bit_with_any_kv_dtype(dtype: str) -> None:
    """The other tests use the default dtype, int8."""
    prompts = [random_prompt(70 + length, length) for length in (1, 64, 150, 600)]
    arguments = ("--kv-cache-dtype", dtype)
    with serving(*arguments, "--max-batch-prefill-tokens", "37") as cut:
        expected = [bits(cut, prompt, max_tokens=12) for prompt in prompts]
    with serving(*arguments, "--threads", "2") as whole:
        with ThreadPoolExecutor(len(prompts)) as pool:
            assert list(pool.map(lambda prompt: bits(whole, prompt, max_tokens=12), prompts)) == expected
        for hit in (17, 64, 149):
            other_end = random_prompt(80 + hit, 30)
            whole.complete(prompts[2][:hit] + other_end, max_tokens=2)
        warm = whole.complete(prompts[2], max_tokens=12, logprobs=3, ignore_eos=True)
        assert cached_tokens(warm) == 149
        choice = warm["choices"][0]
        assert (choice["text"], choice["logprobs"], choice["finish_reason"]) == expected[2]
