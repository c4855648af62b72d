"""Headers of models on the Hub, without their weights.

A header is read by range requests into a sparse file of the model's size, so the readers of whole models open it; only
the contents of weights are missing. Files of one repository mostly have the same tokenizer, which is read once.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from trunkline_server import _kernels, hub
from trunkline_server.errors import DamagedFile, UserError
from trunkline_server.weights import gguf
from trunkline_server.weights.safetensors import MAX_HEADER_BYTES, MAX_JSON_BYTES, SafetensorsFile

# A request reads at least the first, and half of what was read of the file before, up to the second.
_FIRST_BYTES = 256 << 10
_MOST_BYTES = 8 << 20
# The header of the largest published vocabulary takes an eighth of it.
MAX_GGUF_HEADER_BYTES = 256 << 20
# Files beside safetensors that say how a model is made.
_CONFIGS = ("config.json", "modules.json", ".index.json")
# Small tensors whose contents belong to the config, or decide the format of others.
_CONTENTS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight", "g_idx")
_CONTENTS_PART = ".quant_state."
_MAX_CONTENTS_BYTES = 1 << 20

# The bytes that an array of strings takes, by key, and the file that has it.
_Known = dict[tuple[str, int], tuple[int, "_Sparse", int]]


class Repository:
    """The headers of a repository's files. folder: receives the sparse files."""

    def __init__(self, repo: str, revision: str, folder: Path) -> None:
        self.repo, self.revision, self.folder = repo, revision, folder
        self._known: _Known = {}

    def fetch(self, files: Sequence[str]) -> Path:
        """Reads the headers of a model's files, and returns the path by which it is opened. Raises UserError."""
        with hub.translated(self.repo, self.revision):
            for name in files:
                if name.endswith(".gguf"):
                    self._fetch_gguf(name)
                elif name.endswith(".safetensors"):
                    self._fetch_safetensors(name)
                elif name.endswith(_CONFIGS):
                    self._sparse(name).fetch_to(MAX_JSON_BYTES)
        first = self.folder / files[0]
        return first if files[0].endswith(".gguf") else self.folder

    @contextmanager
    def named(self) -> Iterator[None]:
        """Makes errors name the repository instead of the folder."""
        try:
            yield
        except UserError as error:
            error.message = error.message.replace(str(self.folder), self.repo)
            raise

    def _sparse(self, name: str) -> _Sparse:
        from huggingface_hub import hf_hub_url

        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return _Sparse(hf_hub_url(self.repo, name, revision=self.revision), path)

    def _fetch_gguf(self, name: str) -> None:
        file = self._sparse(name)
        try:
            _read_gguf(file, self._known)
            gguf.GgufFile(file.path)
        except DamagedFile:
            # A file with the same number of strings may have others.
            if not self._known:
                raise
            file = self._sparse(name)
            _read_gguf(file, {})
        opened = gguf.GgufFile(file.path)
        _fetch_contents(file, {name: (info.offset, info.num_bytes) for name, info in opened.tensors.items()})

    def _fetch_safetensors(self, name: str) -> None:
        file = self._sparse(name)
        file.fetch_to(8)
        num_bytes = int.from_bytes(file.read(0, 8), "little")
        if num_bytes > MAX_HEADER_BYTES:
            raise DamagedFile(file.path, f"the header claims {num_bytes} bytes, but the limit is {MAX_HEADER_BYTES}")
        file.fetch_to(8 + num_bytes)
        opened = SafetensorsFile(file.path)
        _fetch_contents(file, {name: (info.offset, info.num_bytes) for name, info in opened.tensors.items()})


class _Sparse:
    """A file on the Hub and its copy, of which the beginning is there."""

    def __init__(self, url: str, path: Path) -> None:
        self.path, self._url = path, url
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        # The bytes that are there, and those of the whole file; unknown before the first request.
        self.end, self.num_bytes = 0, 1
        self._fetched_bytes = 0

    def __del__(self) -> None:
        os.close(self._file)

    def read(self, begin: int, end: int) -> bytes:
        """Returns bytes that are there."""
        return os.pread(self._file, end - begin, begin)

    def fetch_to(self, end: int) -> None:
        """Makes the first `end` bytes be there, or all if there are fewer."""
        while self.end < min(end, self.num_bytes):
            wanted = max(end - self.end, self._fetched_bytes // 2, _FIRST_BYTES)
            self.end += self.fetch(self.end, min(wanted, _MOST_BYTES))

    def fetch(self, begin: int, num_bytes: int) -> int:
        """Fetches bytes from `begin` and returns their number, which is smaller only at the end of the file."""
        from huggingface_hub import get_session, hf_raise_for_status
        from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

        asked = {"Range": f"bytes={begin}-{begin + num_bytes - 1}", "Accept-Encoding": "identity"}
        headers = build_hf_headers() | asked
        with get_session().stream("GET", self._url, headers=headers, timeout=hub.HUB_TIMEOUT_S) as response:
            if response.is_error:
                response.read()
            hf_raise_for_status(response)
            # A server that knows no ranges sends the whole file, of which no more is read than is needed.
            skipped = begin if response.status_code == 200 else 0
            range_of = response.headers.get("Content-Range", "").rpartition("/")[2]
            self.num_bytes = int(range_of or response.headers.get("Content-Length") or 0)
            os.ftruncate(self._file, self.num_bytes)
            body = bytearray()
            for piece in response.iter_bytes():
                body += piece[skipped:]
                skipped = max(0, skipped - len(piece))
                if len(body) >= num_bytes:
                    break
        self.put(begin, bytes(body[:num_bytes]))
        if len(body) < min(num_bytes, self.num_bytes - begin):
            raise ConnectionError(f"the Hub sent {len(body)} bytes of {num_bytes}")
        self._fetched_bytes += num_bytes
        return min(len(body), num_bytes)

    def put(self, begin: int, content: bytes) -> None:
        os.pwrite(self._file, content, begin)

    def take(self, begin: int, num_bytes: int) -> bytes:
        """Fetches bytes of the header and returns them. Raises DamagedFile if the file ends before."""
        if begin + num_bytes > MAX_GGUF_HEADER_BYTES:
            raise DamagedFile(self.path, f"the header takes more than {MAX_GGUF_HEADER_BYTES} bytes")
        self.fetch_to(begin + num_bytes)
        if begin + num_bytes > self.end:
            raise DamagedFile(self.path, f"the header ends after {self.num_bytes} bytes")
        return self.read(begin, begin + num_bytes)


def _fetch_contents(file: _Sparse, places: Mapping[str, tuple[int, int]]) -> None:
    for name, (offset, num_bytes) in places.items():
        if (name.endswith(_CONTENTS) or _CONTENTS_PART in name) and num_bytes <= _MAX_CONTENTS_BYTES:
            file.fetch(offset, num_bytes)


def _read_gguf(file: _Sparse, known: _Known) -> None:
    """Fetches the header of a GGUF file. known: arrays of strings that other files have; receives those of this one."""
    walk = _Walk(file)
    walk.skip(8)
    num_tensors, num_metadata = walk.u64(), walk.u64()
    for _ in range(min(num_metadata, gguf.MAX_METADATA)):
        key = walk.string()
        value_type = walk.u32()
        if value_type == gguf.ARRAY:
            _skip_array(walk, key, known, depth=1)
        else:
            _skip_value(walk, value_type)
    for _ in range(min(num_tensors, gguf.MAX_TENSORS)):
        walk.string()
        walk.skip(8 * min(walk.u32(), gguf.MAX_ARRAY_DEPTH) + 12)


class _Walk:
    """Goes forward through a header."""

    def __init__(self, file: _Sparse) -> None:
        self.file, self.at = file, 0

    def skip(self, num_bytes: int) -> bytes:
        content = self.file.take(self.at, num_bytes)
        self.at += num_bytes
        return content

    def u32(self) -> int:
        return int.from_bytes(self.skip(4), "little")

    def u64(self) -> int:
        return int.from_bytes(self.skip(8), "little")

    def string(self) -> str:
        return self.skip(min(self.u64(), gguf.MAX_STRING_BYTES)).decode("utf-8", "replace")


def _skip_value(walk: _Walk, value_type: int) -> None:
    if value_type == gguf.STRING:
        walk.string()
    elif value_type == gguf.BOOL:
        walk.skip(1)
    elif (scalar := gguf.SCALARS.get(value_type)) is not None:
        walk.skip(scalar.size)
    else:
        raise DamagedFile(walk.file.path, f"a value of the metadata has the unknown type {value_type}")


def _skip_array(walk: _Walk, key: str, known: _Known, *, depth: int) -> None:
    element_type, length = walk.u32(), walk.u64()
    if element_type == gguf.STRING:
        _skip_strings(walk, key, min(length, gguf.MAX_ARRAY_LENGTH), known)
    elif element_type == gguf.ARRAY and depth < gguf.MAX_ARRAY_DEPTH:
        for _ in range(min(length, gguf.MAX_ARRAY_LENGTH)):
            _skip_array(walk, key, {}, depth=depth + 1)
    else:
        scalar = gguf.SCALARS.get(element_type)
        walk.skip(min(length, gguf.MAX_ARRAY_LENGTH) * (1 if scalar is None else scalar.size))


def _skip_strings(walk: _Walk, key: str, length: int, known: _Known) -> None:
    begin, file = walk.at, walk.file
    if (other := known.get((key, length))) is not None:
        num_bytes, holder, place = other
        walk.at += num_bytes
        if walk.at > file.end:
            file.put(file.end, holder.read(place + file.end - begin, place + num_bytes))
            file.end = walk.at
        return
    left = length
    while left:
        file.take(walk.at, 8)
        offset, skipped = _kernels.skip_strings(file.read(walk.at, file.end), 0, left, gguf.MAX_STRING_BYTES)
        walk.at, left = walk.at + offset, left - skipped
        if left:
            # The next one reaches beyond what is there.
            file.take(walk.at, file.end - walk.at + 1)
    known[key, length] = walk.at - begin, file, begin
