"""Tells how much of a Hub repository has been downloaded, by the size of the files that huggingface_hub writes.

The library's own progress bars are for terminals, and differ between its ways to download.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

# Receives the bytes that are there, and the bytes of all files.
Progress = Callable[[int, int], None]

_INTERVAL_S = 0.5


@contextlib.contextmanager
def told(repo: str, missing_bytes: int, progress: Progress | None) -> Iterator[None]:
    """Calls `progress` twice a second while the body runs, and once at its end if it succeeds.

    missing_bytes: what is to be downloaded; without any, nothing is told.
    """
    if progress is None or missing_bytes == 0:
        yield
        return
    folder, ended = _blobs(repo), threading.Event()
    size_before = _size(folder)

    def tell() -> None:
        while not ended.wait(_INTERVAL_S):
            progress(min(_size(folder) - size_before, missing_bytes), missing_bytes)

    thread = threading.Thread(target=tell, daemon=True)
    progress(0, missing_bytes)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    progress(missing_bytes, missing_bytes)


def _blobs(repo: str) -> Path:
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name

    return Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=repo, repo_type="model") / "blobs"


def _size(folder: Path) -> int:
    """Returns the bytes of a folder's files, whole or not."""
    total = 0
    for path in folder.glob("*"):
        # A complete file gets another name, at any time.
        with contextlib.suppress(FileNotFoundError):
            total += path.stat().st_size
    return total
