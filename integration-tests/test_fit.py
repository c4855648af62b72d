"""`trunkline fit`: what it says of a model is what its server takes, and what a start allows."""

from __future__ import annotations

import json
import random
import re
import shlex
import subprocess
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from harness import EMBEDDED, TRUNKLINE, descendants, resident_bytes, serving
from test_models import proportional_bytes

VOCABULARY = 40_000


def fit(model: str, *arguments: str) -> tuple[int, dict[str, Any]]:
    model_arguments = [model] if model else []
    command = [str(TRUNKLINE), "fit", *model_arguments, "--json", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def flags_of(command: str) -> list[str]:
    """Returns the flags of the command line that `fit` prints."""
    words = shlex.split(command)
    return words[next(at for at, word in enumerate(words) if word.startswith("--")) :]


@pytest.mark.parametrize(("streams", "context"), [(1, 512), (4, 512)])
def test_a_server_in_full_use_takes_about_what_was_said(streams: int, context: int) -> None:
    code, said = fit(EMBEDDED, "--streams", str(streams), "--context", str(context))
    assert (code, said["fits"]) == (0, True)
    with serving(*flags_of(said["command"]), model=EMBEDDED) as server:
        tokens = random.Random(58)

        def fill(_: int) -> None:
            prompt = [tokens.randrange(VOCABULARY) for _ in range(context - 8)]
            assert len(server.complete(prompt, max_tokens=8, ignore_eos=True)["choices"]) == 1

        with ThreadPoolExecutor(streams) as pool:
            list(pool.map(fill, range(streams)))
        processes = [server.process.pid, *descendants(server.process.pid)]
        needed = said["recommended"]["needed_bytes"]
        assert sum(map(proportional_bytes, processes)) < needed
        # Servers of other tests may share weights and libraries, which are counted as a whole here.
        assert 0.7 * needed < sum(map(resident_bytes, processes)) < 1.3 * needed


def test_what_cannot_fit_is_neither_recommended_nor_started() -> None:
    code, said = fit(EMBEDDED, "--streams", "4096", "--available", "1GiB")
    assert (code, said["fits"], said["recommended"]) == (1, False, None)
    tokens = str(1 << 30)
    command = [str(TRUNKLINE), "serve", "--port", "0", "--max-batch-total-tokens", tokens]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    refusal = rf"a KV pool of {tokens} tokens takes \d+ MiB, but .*; hint: it fits with `--max-batch-total-tokens \d+`"
    assert re.search(refusal, done.stderr), done.stderr
