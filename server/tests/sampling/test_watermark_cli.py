"""`python -m trunkline_server watermark`: input, output and errors."""

from __future__ import annotations

import io
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from trunkline_server import cli
from trunkline_server.sampling.watermark import DEFAULT_KEY, is_green


def green_text(key: int, num_tokens: int = 60) -> list[int]:
    """Returns tokens each of which is green after the one before it."""
    rng = np.random.default_rng(key % 1000)
    tokens = [1]
    for _ in range(num_tokens):
        green = np.flatnonzero(is_green(np.array(tokens[-1]), np.arange(1000), 0.5, key))
        tokens.append(int(rng.choice(green)))
    return tokens


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Returns a function that runs the command on an input and returns its report, or its error line."""
    monkeypatch.delenv("TRUNKLINE_WATERMARK_KEY", raising=False)

    def run_once(text: object, *arguments: str) -> Any:
        sent = text if isinstance(text, bytes) else json.dumps(text).encode()
        monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(sent)))
        code = cli.main(["watermark", *arguments])
        out, err = capsys.readouterr()
        assert (code == 0) == (err == "") and len(err.splitlines()) <= 1
        return json.loads(out) if code == 0 else (code, err.removeprefix("error: ").strip())

    return run_once


def test_every_input_form_is_accepted(run: Any) -> None:
    tokens = green_text(DEFAULT_KEY)
    report = run(tokens)
    assert report["num_tokens"] == 61
    assert report["num_green"] == report["num_scored"] >= 55
    assert report["green_fraction"] == 1.0 and report["z_score"] > 7 and report["p_value"] < 1e-10
    objects = [{"id": token, "text": "x", "start": 0, "stop": 1} for token in tokens]
    assert run(objects) == run({"tokens": tokens}) == report
    assert run({"generated_text": "x", "details": {"seed": 1, "tokens": objects}}) == report
    assert run(tokens, "--gamma", "0.25")["z_score"] != report["z_score"]


def test_the_key_comes_from_a_file_or_the_environment(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, path = 0xFEDC_BA98_7654_3210, tmp_path / "watermark.key"
    tokens = green_text(key)
    assert run(tokens)["z_score"] < 4
    path.write_text(f"{key:#x}\n")
    found = run(tokens, "--key-file", str(path))
    assert found["green_fraction"] == 1.0
    monkeypatch.setenv("TRUNKLINE_WATERMARK_KEY", str(key))
    assert run(tokens) == found
    code, error = run(tokens, "--key-file", str(path))
    assert (code, error) == (
        2, "both `TRUNKLINE_WATERMARK_KEY` and `--key-file` are set; hint: set only one of them"
    )  # fmt: skip
    for bad in ("secret", "-1", "0x", str(2**64), "1" * 65, "\u0663"):
        monkeypatch.setenv("TRUNKLINE_WATERMARK_KEY", bad)
        assert run(tokens)[1].startswith("`TRUNKLINE_WATERMARK_KEY` is not a key; hint: a whole number below 2^64")
    monkeypatch.delenv("TRUNKLINE_WATERMARK_KEY")
    path.write_bytes(b"\xff secret")
    assert run(tokens, "--key-file", str(path))[1].startswith(f"`--key-file`: `{path}` holds no key; hint: ")
    assert "cannot read" in run(tokens, "--key-file", str(tmp_path / "none"))[1]


@pytest.mark.parametrize(
    "text", [b"", b"[" * 100_000, b"\xff", {}, "text", [1, "2"], [True], [{"text": "a"}], [-1], [2**32]]
)
def test_input_without_tokens_is_refused(run: Any, text: object) -> None:
    code, error = run(text)
    assert code == 2 and error.startswith("standard input holds no tokens; hint: pipe the answer of `/tokenize`")


def test_a_short_text_is_refused(run: Any) -> None:
    assert run([1, 2, 3]) == (2, "the text is too short: 3 tokens with 2 different pairs, at least 16 are needed")


def test_gamma_has_bounds(run: Any) -> None:
    for gamma in ("0", "1", "nan", "x"):
        assert f"`{gamma}` is not a number from 0.01 to 0.99" in run([1] * 20, "--gamma", gamma)[1]
