"""A history that forks, is edited or is shortened reuses the K and V of the unchanged prefix, bit for bit."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from harness import Trunkline, cached_tokens, wait_for

BLOCK = 64


def tokens(seed: int, count: int) -> list[int]:
    return [1 + (seed * 7919 + 31 * position) % 40_000 for position in range(count)]


def ask(server: Trunkline, prompt: list[int], **fields: Any) -> tuple[int, Any]:
    """Returns the number of cached tokens and the choices."""
    answer = server.complete(prompt, **({"max_tokens": 12, "ignore_eos": True, "logprobs": 1} | fields))
    wait_for(server.is_idle, "the end of the request")
    return cached_tokens(answer), answer["choices"]


def cached_blocks(server: Trunkline) -> float:
    metrics = server.metrics()
    return metrics["trunkline_kv_blocks_cached"] + metrics["trunkline_kv_blocks_held"]


def test_forks_share_their_common_prefix(server: Trunkline) -> None:
    history = tokens(1, 500)
    ask(server, history)
    before = cached_blocks(server)
    forks = [history + tokens(100 + number, 40) for number in range(4)]
    for fork in forks:
        cached, _ = ask(server, fork)
        # This includes the partly filled block in which they diverge, which is copied.
        assert cached == len(history)
    # Each fork has a copy of the block in which it diverges, and at most one more block.
    assert cached_blocks(server) - before <= 2 * len(forks)


def test_concurrent_samples_compute_their_prompt_once(server: Trunkline) -> None:
    prompt = tokens(2, 450)
    computed = "trunkline_scheduled_tokens_total"
    before = server.metrics()[computed]
    fields = {"max_tokens": 8, "temperature": 1.0, "ignore_eos": True}
    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(lambda seed: server.complete(prompt, seed=seed, **fields), range(6)))
    wait_for(server.is_idle, "the end of all")
    texts = {answer["choices"][0]["text"] for answer in answers}
    assert len(texts) > 1, "different seeds must give different texts"
    # One of them computes the prompt. Each may compute the last, partly filled block again.
    max_computed = len(prompt) + 6 * (8 + len(prompt) % BLOCK + 1)
    assert server.metrics()[computed] - before <= max_computed
    alone = [ask(server, prompt, seed=seed, temperature=1.0, max_tokens=8)[1][0]["text"] for seed in range(6)]
    assert alone == [answer["choices"][0]["text"] for answer in answers]


def test_shortened_or_summarised_history_reuses_its_system_prompt(server: Trunkline, chunking: Trunkline) -> None:
    system, turns = tokens(4, 150), tokens(5, 350)
    ask(server, system + turns)
    for shorter in (system + turns[200:], system + tokens(6, 45)):
        cached, choices = ask(server, shorter)
        assert cached == len(system)
        assert choices == ask(chunking, shorter)[1]
