"""Properties of cards, and the refusal of cards that are too old or too small."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from trunkline_server.backends.cuda import build
from trunkline_server.backends.cuda.kernels import overlap
from trunkline_server.backends.cuda.kernels.attention import stages_of
from trunkline_server.backends.cuda.kernels.card import SHARED_KIB, Card
from trunkline_server.errors import BackendUnavailable, InvalidArgument

GEFORCE, HOPPER = Card((8, 6), 82), Card((9, 0), 132)


def test_heads_too_large_for_a_card_are_refused_by_name() -> None:
    assert stages_of(HOPPER, "int4", 256) == stages_of(GEFORCE, "int4", 128) == 3
    assert stages_of(GEFORCE, "bf16", 256) == 1
    with pytest.raises(InvalidArgument, match=r"heads have 256 elements.*compute capability 8\.6") as refusal:
        stages_of(GEFORCE, "int4", 256)
    assert "int8" in str(refusal.value.hint)


@pytest.mark.parametrize(("capability", "is_refused"), [((7, 5), True), ((8, 0), False)])
def test_cards_before_ampere_are_refused(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], is_refused: bool
) -> None:
    monkeypatch.setattr(build, "INTERPRETED", SimpleNamespace(value=False))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(build, "card_of", lambda device: Card(capability, 40))
    monkeypatch.setattr(build, "CudaDevice", lambda: "the card")
    if is_refused:
        with pytest.raises(BackendUnavailable, match=r"compute capability 7\.5, but the cuda backend needs 8\.0"):
            build.find_device()
    else:
        assert build.find_device() == "the card"  # type: ignore[comparison-overlap]


def test_an_unknown_card_counts_as_the_smallest() -> None:
    assert Card((13, 7), 200).shared_bytes == min(SHARED_KIB.values()) << 10
    # Two programs share a multiprocessor, which has 100 KiB on compute capability 8.6.
    assert 2 * (GEFORCE.half_shared_bytes + 1024) == 100 << 10


def test_launches_overlap_from_hopper_on_if_that_is_enabled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overlap, "OVERLAPS_LAUNCHES", True)
    monkeypatch.setattr(overlap.INTERPRETED, "value", False)
    for capability, expected in (((9, 0), {"launch_pdl": True}), ((12, 0), {"launch_pdl": True}), ((8, 9), {})):
        monkeypatch.setattr(overlap, "card_of", lambda _device, capability=capability: Card(capability, 100))
        assert overlap.overlap(torch.device("cpu")) == expected
    monkeypatch.setattr(overlap, "OVERLAPS_LAUNCHES", False)
    assert overlap.overlap(torch.device("cpu")) == {}
