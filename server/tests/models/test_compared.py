"""docs/models.md lists what is supported and compared."""

from __future__ import annotations

from pathlib import Path

from tests.models.compared import CUDA_CASES, LIKE_LLAMA, PAGE, with_tables
from tests.models.tiny import CASES
from trunkline_server.models import registry
from trunkline_server.models.registry import ENCODERS, FAMILIES, SUPPORTED


def test_the_page_says_what_is_compared() -> None:
    page = PAGE.read_text()
    assert with_tables(page) == page, "run `python -m tests.models.compared`"


def test_every_architecture_is_compared_with_something() -> None:
    assert {config["model_type"] for config in CASES.values()} | set(LIKE_LLAMA) == set(SUPPORTED) - set(ENCODERS)
    assert set(CUDA_CASES) <= CASES.keys()


def test_every_folder_is_a_registered_family() -> None:
    folder = Path(registry.__file__).parent
    assert sorted(path.parent.name for path in folder.glob("*/config.py")) == sorted(FAMILIES)
