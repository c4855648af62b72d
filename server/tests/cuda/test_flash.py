"""flash-attn beside the backend's own kernels, which need a GPU as its own do.

Its results are those of the reference attention that the package contains for its own tests. `make test-all` installs
the package's Python files; without them, the tests of what surrounds it take those results from this project's oracle.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from tests.cuda.kv_oracle import make_scene, softmax_attention
from tests.cuda.test_runner import CapturingDevice
from tests.models.tiny import VOCAB_SIZE, TinyModels
from tests.plans import new_chunk, new_start
from tests.tiers import full
from trunkline_server._proto.shard_pb2 import SequenceResult
from trunkline_server.backends.cuda import flash
from trunkline_server.backends.cuda.backend import CudaBackend
from trunkline_server.backends.cuda.build import build
from trunkline_server.backends.cuda.device import CudaDevice
from trunkline_server.backends.cuda.flash import FlashAttention, LongChunk, find_flash
from trunkline_server.backends.cuda.kv_pool import KvFormat, KvLayout
from trunkline_server.backends.cuda.runner import StepRunner
from trunkline_server.backends.cuda.step_input import Entry, StepShape
from trunkline_server.backends.interface import sampling_params
from trunkline_server.weights.checkpoint import open_checkpoint

LAYOUT = KvLayout(block_size=16, num_kv_heads=1, head_size=32, format=KvFormat.BF16)


def flash_attn_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    **_: object,
) -> torch.Tensor:
    """Computes the documented attention: [1, rows, heads, D]; the mask aligns the last query and key."""
    left, right = window_size
    assert causal and right <= 0 and softmax_scale is not None
    window, soft_cap = None if left < 0 else left + 1, softcap or None
    out = softmax_attention(q[0], k[0], v[0], scale=softmax_scale, window=window, soft_cap=soft_cap)
    return out[None].to(q.dtype)


# Where `make test-all` installs the package without its kernels.
INSTALLED = Path(__file__).resolve().parents[3] / "target/flash-attn"
MODULES = ("flash_attn", "flash_attn.bert_padding", "flash_attn.utils", "flash_attn.utils.testing")


@pytest.fixture
def attention_ref(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
    """Returns the package's reference, imported without the package itself, which loads its kernels."""
    folder, spec = INSTALLED / "flash_attn", find_spec("flash_attn")
    if not folder.exists() and spec is not None and spec.submodule_search_locations:
        folder = Path(spec.submodule_search_locations[0])
    if not (folder / "utils/testing.py").exists():
        pytest.skip("flash-attn's reference is not installed; hint: make target/flash-attn/.stamp")
    package = ModuleType("flash_attn")
    package.__path__ = [str(folder)]
    for name in MODULES:
        # Deleted afterwards, because other tests look for the package.
        monkeypatch.setitem(sys.modules, name, package)
        if name != "flash_attn":
            monkeypatch.delitem(sys.modules, name)
    reference: Callable[..., tuple[torch.Tensor, torch.Tensor]]
    reference = importlib.import_module("flash_attn.utils.testing").attention_ref
    return reference


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[int, int]]]:
    """Installs the module; yields the numbers of rows and keys of each call."""
    seen: list[tuple[int, int]] = []

    def recorded(q: Any, k: Any, v: Any, softmax_scale: Any, causal: Any, window_size: Any, softcap: Any) -> Any:
        seen.append((q.shape[1], k.shape[1]))
        out = flash_attn_func(
            q, k, v, softmax_scale=softmax_scale, causal=causal, window_size=window_size, softcap=softcap
        )
        # One version returns more than the other.
        return (out, None) if len(seen) % 2 else out

    module = ModuleType("flash_attn")
    module.__version__ = "2.8.3"  # type: ignore[attr-defined]
    module.flash_attn_func = recorded  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "flash_attn", module)
    monkeypatch.setitem(sys.modules, "flash_attn_interface", None)
    yield seen


CHUNKS = pytest.mark.parametrize(
    ("entries", "options"),
    [
        ([(33, 1), (90, 37)], {"scale": 0.3}),
        full([(70, 70)], {}),
        full([(100, 40)], {"window": 21}),
        ([(100, 40)], {"window": 21, "soft_cap": 2.0, "scale": 3.0}),
        full([(100, 40)], {"window": 100, "soft_cap": 2.0, "scale": 3.0}),
    ],
)


@pytest.mark.parametrize("heads", [(4, 2, 32), full((3, 1, 80))])
@CHUNKS
def test_a_chunk_has_the_attention_of_the_stored_elements(
    device: str, entries: list[tuple[int, int]], options: dict[str, Any], heads: tuple[int, int, int]
) -> None:
    """Chunks of prompts with shared KV heads, a window and a soft cap."""
    check_chunk(flash_attn_func, device, entries, options, heads)


@CHUNKS
def test_a_chunk_has_the_attention_of_the_packages_reference(
    device: str, entries: list[tuple[int, int]], options: dict[str, Any], attention_ref: Callable[..., Any]
) -> None:
    def by_reference(
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        softmax_scale: float,
        window_size: tuple[int, int],
        **more: Any,
    ) -> torch.Tensor:
        # The reference has the default scale, and no window is None.
        scaled = q.float() * softmax_scale * q.shape[-1] ** 0.5
        window = tuple(None if size < 0 else size for size in window_size)
        out: torch.Tensor = attention_ref(scaled, k, v, window_size=window, **more)[0]
        return out.to(q.dtype)

    check_chunk(by_reference, device, entries, options, (4, 2, 32))


def check_chunk(
    function: Callable[..., object],
    device: str,
    entries: list[tuple[int, int]],
    options: dict[str, Any],
    heads: tuple[int, int, int],
) -> None:
    num_heads, num_kv_heads, head_size = heads
    scene = make_scene(
        entries, device=device, num_heads=num_heads, num_kv_heads=num_kv_heads, head_size=head_size, format="bf16"
    )
    index = len(entries) - 1
    rows = scene.rows(index)
    chunk = LongChunk(index, rows.start, rows.stop, entries[index][0])
    out = torch.full_like(scene.queries, 7.0).to(device)
    FlashAttention("test", function).attend(
        scene.queries.to(device), scene.pool, 1, chunk, scene.tables[index].to(device), out=out,
        **{"window": None, "soft_cap": None, "scale": 0.125, **options},
    )  # fmt: skip
    expected = scene.expected(**options)
    torch.testing.assert_close(out[rows].float().cpu(), expected[rows], rtol=2e-2, atol=2e-2)
    assert (out[: rows.start] == 7.0).all(), "rows of others are left alone"


def backend_of(path: Path, device: str, numerics: str, *, captures: bool = False) -> CudaBackend:
    return build(
        open_checkpoint(path), max_batch_total_tokens=512, max_step_tokens=64, max_step_sequences=4,
        numerics=numerics, dtype=torch.bfloat16, block_size=16,
        device=CudaDevice() if device == "cuda" else CapturingDevice(), captures=captures,
    )  # fmt: skip


def two_sequences(backend: CudaBackend) -> list[SequenceResult]:
    """One sequence decodes while a long and a short chunk of the other are computed."""
    tokens = np.random.default_rng(3).integers(0, VOCAB_SIZE, 60).tolist()
    params = sampling_params(logprobs=True)
    backend.start(new_start(1, tokens[:8], 8, params))
    backend.start(new_start(2, tokens, 60, params))
    plans = [
        [new_chunk(1, 0, 8, [0], True)],
        [new_chunk(1, 8, 1, [], True), new_chunk(2, 0, 40, [1, 2, 3], False)],
        [new_chunk(1, 9, 1, [], True), new_chunk(2, 40, 20, [4], True)],
        [new_chunk(2, 60, 1, [], True)],
    ]
    outcomes = [outcome for plan in plans for outcome in backend.step(plan).sequences]
    assert all(outcome.HasField("token") for outcome in outcomes)
    return outcomes


def test_steps_with_long_chunks_use_it_and_agree(
    tiny_model: TinyModels,
    device: str,
    calls: list[tuple[int, int]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(flash, "MIN_CHUNK_ROWS", 16)
    captured: list[StepShape] = []
    if device == "cpu":
        monkeypatch.setattr(StepRunner, "capture", lambda _runner, shapes: captured.extend(shapes))
    path = tiny_model("qwen2_shallow").folder
    expected = two_sequences(backend_of(path, device, "exact"))
    assert calls == []
    caplog.set_level("INFO")
    found = two_sequences(backend_of(path, device, "fast", captures=True))
    assert device == "cuda" or max(shape.num_rows for shape in captured if not shape.is_decode) == 16
    num_layers = open_checkpoint(path).config.num_layers
    assert calls == [(40, 40)] * num_layers + [(20, 60)] * num_layers
    (record,) = [record for record in caplog.records if record.message == "attention of long chunks"]
    assert record.fields == {"by": "flash_attn 2.8.3", "because": "it is installed"}  # type: ignore[attr-defined]
    assert [one.sequence_id for one in found] == [one.sequence_id for one in expected]
    np.testing.assert_allclose([one.token.logprob for one in found], [one.token.logprob for one in expected], atol=0.05)


def test_fast_numerics_have_the_version_in_the_fingerprint(
    tiny_model: TinyModels, device: str, calls: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The version's bits are in K and V of the layers behind the first. Exact numerics never look for it."""
    path = tiny_model("qwen2_shallow").folder

    def fingerprints() -> list[str]:
        return [backend_of(path, device, numerics).info.numeric_fingerprint for numerics in ("exact", "fast")]

    first_exact, first_fast = fingerprints()
    monkeypatch.setattr(sys.modules["flash_attn"], "__version__", "2.8.4")
    other_exact, other_fast = fingerprints()
    monkeypatch.setitem(sys.modules, "flash_attn", None)
    without_exact, without_fast = fingerprints()
    assert len({first_exact, first_fast, other_fast, without_fast}) == 4
    assert first_exact == other_exact == without_exact


def test_the_reason_for_not_using_it_is_logged(calls: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_flash(LAYOUT, torch.bfloat16, is_fast=False) == (None, "`--numerics exact`")
    found, why = find_flash(LAYOUT, torch.float16, is_fast=True)
    assert found is None
    assert why == "K and V are bf16, activations torch.float16"
    int8 = KvLayout(block_size=16, num_kv_heads=1, head_size=32, format=KvFormat.INT8)
    assert find_flash(int8, torch.bfloat16, is_fast=True)[0] is None
    assert "attention sinks" in find_flash(LAYOUT, torch.bfloat16, is_fast=True, has_sinks=True)[1]
    assert find_flash(LAYOUT, torch.bfloat16, is_fast=True)[0] is not None
    old = ModuleType("flash_attn")
    old.flash_attn_func = lambda q, k, v, causal: None  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "flash_attn", old)
    assert "flash_attn: no `flash_attn_func` with" in find_flash(LAYOUT, torch.bfloat16, is_fast=True)[1]
    monkeypatch.setitem(sys.modules, "flash_attn", None)
    assert find_flash(LAYOUT, torch.bfloat16, is_fast=True)[0] is None


def test_long_contexts_are_left_to_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [Entry([1], 9, [0], [0]), Entry([1] * 512, 0, [1], []), Entry([1] * 512, 100, [2], [])]
    one = FlashAttention("test", flash_attn_func)
    assert one.long_chunks(entries, LAYOUT) == [LongChunk(1, 1, 513, 512), LongChunk(2, 513, 1025, 612)]
    monkeypatch.setattr(flash, "MAX_GATHERED_BYTES", 128 * 600)
    assert one.long_chunks(entries, LAYOUT) == [LongChunk(1, 1, 513, 512)]
