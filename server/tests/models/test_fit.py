"""`trunkline fit` of models on this machine, on simulated amounts of memory."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from tests.models.tiny import TinyModels
from trunkline_server import fit
from trunkline_server.backends.cpu.memory import BLOCK_SIZE
from trunkline_server.backends.cpu.memory_plan import MemoryOptions, plan_memory
from trunkline_server.backends.host_memory import PROCESS_BYTES
from trunkline_server.backends.states import LEAST_STATES
from trunkline_server.errors import InvalidArgument
from trunkline_server.fit import Question
from trunkline_server.weights.checkpoint import open_checkpoint

PLENTY = 1 << 34


def ask(model: Path, available: int, **asked: object) -> tuple[list[str], bool]:
    """Returns the printed lines."""
    question = replace(Question(available_bytes=available), **asked)  # type: ignore[arg-type]
    text, fits = fit.answer(str(model), None, question, as_json=False)
    return text.splitlines(), fits


def options_of(command: str) -> MemoryOptions:
    words = shlex.split(command)
    flags = dict(zip(words[3::2], words[4::2], strict=True))
    numbers = {"--max-batch-total-tokens", "--max-step-sequences", "--max-batch-prefill-tokens"}
    names = {"--max-batch-prefill-tokens": "max_step_tokens"}
    given = {
        names.get(flag, flag.removeprefix("--").replace("-", "_")): int(value) if flag in numbers else value
        for flag, value in flags.items()
        if flag != "--max-total-tokens"
    }
    return MemoryOptions(window_parts="auto", **given)


def needed_bytes(model: Path, **asked: object) -> int:
    question = replace(Question(), **asked)  # type: ignore[arg-type]
    return fit.need_of(None, open_checkpoint(model), question.options, question, PLENTY).needed_bytes


@pytest.mark.parametrize("case", ["llama3", "gemma3", "qwen3_next", "deepseek_v2"])
@pytest.mark.parametrize("streams", [1, 7, 300])
def test_the_printed_flags_have_room_for_the_streams(tiny_model: TinyModels, case: str, streams: int) -> None:
    model = tiny_model(case).folder
    exact = needed_bytes(model, context=200, streams=streams)
    lines, fits = ask(model, exact, context=200, streams=streams)
    assert fits, lines
    plan = plan_memory(open_checkpoint(model), options_of(lines[-1]), available_bytes=exact - PROCESS_BYTES)
    assert plan.sizes.num_blocks >= streams * -(-200 // BLOCK_SIZE)
    assert plan.step["max_step_tokens"] >= plan.step["max_step_sequences"] >= streams
    if case == "gemma3" and plan.sizes.num_window_parts is not None:
        # Each has at least a block that it writes and one before it.
        assert plan.sizes.num_window_parts >= 2 * streams
    if case == "qwen3_next":
        assert (plan.sizes.num_window_parts or 0) >= LEAST_STATES * streams


def test_layers_with_a_window_need_less(tiny_model: TinyModels) -> None:
    checkpoint = open_checkpoint(tiny_model("gemma3").folder)
    checkpoint.config = replace(checkpoint.config, max_position_embeddings=8192)
    question = Question(context=8192, streams=4)
    need = fit.need_of(None, checkpoint, question.options, question, PLENTY)
    whole = fit.need_of(None, checkpoint, replace(question.options, window_parts=None), question, PLENTY)
    assert need.plan.pool_bytes < 0.8 * whole.plan.pool_bytes
    assert need.plan.sizes.num_blocks >= 4 * 8192 // BLOCK_SIZE


def test_a_model_is_quantised_only_if_it_does_not_fit_as_it_is(tiny_model: TinyModels) -> None:
    model = tiny_model("llama3").folder
    sizes = {kind: needed_bytes(model, context=64, quantize=kind) for kind in ("none", "int8", "int4")}
    for (kind, available), flags in zip(sizes.items(), ("", " --quantize int8", " --quantize int4"), strict=True):
        lines, fits = ask(model, available, context=64)
        assert fits
        assert lines[-1] == f"  trunkline serve {model}{flags} --max-total-tokens 64 --max-batch-total-tokens 512", kind
    lines, fits = ask(model, 1 << 20, context=64)
    assert not fits
    assert "it does not fit; hint: choose a smaller model, since this one takes " in lines[-1]


def test_the_hint_is_the_longest_context_that_fits(tiny_model: TinyModels) -> None:
    model = tiny_model("llama3").folder
    longest = open_checkpoint(model).config.max_position_embeddings
    streams = 64
    asked = {"streams": streams, "kv_cache_dtype": "int4", "quantize": "int4"}
    available = needed_bytes(model, context=longest * 3 // 4, **asked)
    lines, fits = ask(model, available, context=longest, **asked)
    assert not fits
    (context,) = map(int, re.findall(r"with `--context (\d+)` it fits", lines[-1]))
    assert ask(model, available, context=context, **asked)[1]
    assert not ask(model, available, context=context + BLOCK_SIZE, **asked)[1]
    with pytest.raises(InvalidArgument, match=f"but the model's context is {longest} tokens"):
        ask(model, PLENTY, context=longest + 1)
