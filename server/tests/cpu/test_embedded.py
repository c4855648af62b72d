"""The embedded model through the whole process: command line, socket, kernels."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
from tests.fakes.settings import write_settings
from tests.fakes.shard import DEADLINE_S, Client
from trunkline_server._proto import shard_pb2 as pb
from trunkline_server.backends.cpu.build import build
from trunkline_server.weights.checkpoint import open_checkpoint

SERVER = Path(__file__).resolve().parents[2]
NUM_OUTPUT = 12
POOL_TOKENS = 1024


def test_run_ahead_through_the_socket_gives_the_tokens_of_the_whole_text(embedded_gguf: Path, tmp_path: Path) -> None:
    # "The capital of France is" in the model's own tokens, three times so that there is a second chunk.
    prompt = [504, 3575, 282, 4649, 314] * 3
    socket_path = tmp_path / "s"
    settings = write_settings(tmp_path, embedded_gguf, max_batch_total_tokens=POOL_TOKENS, threads=1)
    child = subprocess.Popen(
        [
            *(sys.executable, "-m", "trunkline_server", "serve"),
            *("--settings", str(settings), "--socket", str(socket_path)),
        ],
        env={**os.environ, "PYTHONPATH": str(SERVER)},
        stderr=subprocess.DEVNULL,
    )
    try:
        with Client(socket_path) as client:
            described = client.describe()
            tokens = _generate(client, prompt, described.block_size)
            child.send_signal(signal.SIGTERM)
            assert child.wait(DEADLINE_S) == 0
    finally:
        child.kill()
        child.wait()
    assert (described.architecture, described.vocab_size, described.num_layers) == ("llama", 49152, 30)
    assert described.num_device_blocks * described.block_size == POOL_TOKENS
    backend = build(open_checkpoint(embedded_gguf), threads=1, max_batch_total_tokens=POOL_TOKENS)
    assert backend.info.numeric_fingerprint == described.numeric_fingerprint
    logits = backend.score([*prompt, *tokens[:-1]])
    assert np.argmax(logits, axis=1)[len(prompt) - 1 :].tolist() == tokens


def _generate(client: Client, prompt: list[int], block_size: int) -> list[int]:
    """Generates greedy tokens with two plans in flight and the prompt in two chunks."""
    sampling = pb.SamplingParams(top_p=1.0, repetition_penalty=1.0, typical_p=1.0)
    start = pb.SequenceStart(sequence_id=1, token_ids=prompt, num_prompt_tokens=len(prompt), sampling=sampling)
    blocks = range(5, 5 + -(-(len(prompt) + NUM_OUTPUT) // block_size))
    plans = [
        pb.StepPlan(step_id=1, starts=[start], chunks=[pb.Chunk(sequence_id=1, num_tokens=7, new_block_ids=blocks)]),
        pb.StepPlan(
            step_id=2, chunks=[pb.Chunk(sequence_id=1, first_position=7, num_tokens=len(prompt) - 7, sample=True)]
        ),
    ]
    for i in range(NUM_OUTPUT - 1):
        chunk = pb.Chunk(sequence_id=1, first_position=len(prompt) + i, num_tokens=1, sample=True)
        plans.append(pb.StepPlan(step_id=3 + i, chunks=[chunk]))
    stream = client.open()
    stream.send(plans[0])
    results = []
    for plan in plans[1:]:
        stream.send(plan)
        results.append(stream.receive())
    results.append(stream.receive())
    stream.close()
    assert list(stream.call) == []
    assert all(result.device_time_us > 0 for result in results)
    return [sequence.token.token_id for result in results for sequence in result.sequences]


def test_a_pool_larger_than_the_machine_is_refused(embedded_gguf: Path, tmp_path: Path) -> None:
    settings = write_settings(tmp_path, embedded_gguf, max_batch_total_tokens=2_000_000_000, log_level="error")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "trunkline_server", "serve"),
            *("--settings", str(settings), "--socket", str(tmp_path / "s")),
        ],
        env={**os.environ, "PYTHONPATH": str(SERVER)},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: a KV pool of 2000000000 tokens takes ")
    assert re.search(r"hint: it fits with `--max-batch-total-tokens \d+`; `--overcommit` starts anyway$", line), line
