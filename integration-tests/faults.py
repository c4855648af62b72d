"""Faults of a running server. Each waits until it has happened, and until the server has recovered from it."""

from __future__ import annotations

import os
import random
import shutil
import signal
import ssl
import subprocess
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import httpx
from disk import Disk
from harness import ROOT, START_DEADLINE_S, TRUNKLINE, Trunkline, descendants, http, wait_for
from tenants import TABLES, headers, write_keys

CERTIFICATES = ROOT / "router/tests/router/certificates"
# The launcher gives up after five restarts of a child in a minute.
LEAST_ROUND_S = 20.0
Answer = TypeVar("Answer")


class Refused(Exception):
    """An answer with another status than 200."""


class Files:
    """The key file, and a certificate with its key."""

    def __init__(self, folder: Path) -> None:
        self.keys, self.certificate, self.key = folder / "keys.toml", folder / "cert.pem", folder / "key.pem"
        self.flags = ("--api-keys", str(self.keys), "--tls-cert", str(self.certificate), "--tls-key", str(self.key))
        write_keys(self.keys)
        self.write_pair("first", "first")

    def write_pair(self, certificate: str, key: str) -> None:
        """Replaces the certificate and its key by recorded ones."""
        shutil.copy(CERTIFICATES / f"{certificate}.cert.pem", self.certificate)
        shutil.copy(CERTIFICATES / f"{key}.key.pem", self.key)


class Faults:
    """Harms a server, its processes and files beside its disk."""

    def __init__(self, server: Trunkline, files: Files, disk: Disk) -> None:
        self.server, self.files, self.disk = server, files, disk
        self.over = threading.Event()
        # Fault → its begin, and the time when the server had recovered, for each time that it happened.
        self.times: dict[str, list[tuple[float, float]]] = defaultdict(list)
        # What routers that were killed had counted.
        self.totals = Counter[str]()
        self._num_router_kills = 0
        self._is_router_away = False
        self._certificates = ["first", "second"]

    def attempt(self, send: Callable[[], Answer]) -> Answer | None:
        """Sends a request, and returns `None` if it failed because the router was killed. Any other failure is one."""
        was_away, num_kills = self._is_router_away, self._num_router_kills
        try:
            return send()
        except (httpx.TransportError, OSError, Refused):
            if was_away or num_kills != self._num_router_kills:
                return None
            raise

    def harm_processes(self, draw: random.Random, seconds: float) -> None:
        faults = [self.kill_shard, self.stop_shard, self.kill_router]
        faults += [self.reload, self.expire_certificate, self.break_keys]
        self._run(faults, draw, seconds)

    def harm_disk(self, draw: random.Random, seconds: float) -> None:
        self._run([self.slow_disk, self.fill_disk], draw, seconds)

    def _run(self, faults: list[Callable[[random.Random], None]], draw: random.Random, seconds: float) -> None:
        """Runs whole rounds, each with every fault once, until `seconds` have passed."""
        begin = time.monotonic()
        while time.monotonic() - begin < seconds and not self.over.is_set():
            round_begin = time.monotonic()
            draw.shuffle(faults)
            for fault in faults:
                self.over.wait(draw.uniform(0, 1))
                fault_begin = time.monotonic()
                fault(draw)
                self.times[fault.__name__].append((fault_begin, time.monotonic()))
            if time.monotonic() - begin < seconds:
                self.over.wait(max(0.0, LEAST_ROUND_S - (time.monotonic() - round_begin)))

    def kill_shard(self, _: random.Random) -> None:
        shard = self.server.shard_pid()
        os.kill(shard, signal.SIGKILL)
        wait_for(lambda: self.server.pids("trunkline_server") not in ([shard], []), "another shard", START_DEADLINE_S)
        wait_for(self.server.is_ready, "readiness after the shard was killed", START_DEADLINE_S)

    def reload(self, _: random.Random) -> None:
        """Replaces router and shard by new ones, which no request may notice."""
        self.count()
        old = {self.server.router_pid(), self.server.shard_pid()}
        command = [TRUNKLINE, "reload", str(self.server.process.pid)]
        done = subprocess.run(command, env=self.server.environment, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        wait_for(lambda: not old & set(descendants(self.server.process.pid)), "the old pair to leave", 120)
        wait_for(self.server.is_ready, "readiness after the reload", START_DEADLINE_S)

    def stop_shard(self, draw: random.Random) -> None:
        shard = self.server.shard_pid()
        os.kill(shard, signal.SIGSTOP)
        try:
            wait_for(lambda: state(shard) == "T", "the shard to stop")
            self.over.wait(draw.uniform(0.1, 2))
        finally:
            os.kill(shard, signal.SIGCONT)
        wait_for(self.server.is_ready, "readiness after the shard went on", START_DEADLINE_S)

    def kill_router(self, _: random.Random) -> None:
        self.count()
        router, shard = self.server.router_pid(), self.server.shard_pid()
        wait_for(lambda: self.server.metrics()["trunkline_store_blocks"] > 0, "a stored block", START_DEADLINE_S)
        self._is_router_away = True
        self._num_router_kills += 1
        os.kill(router, signal.SIGKILL)
        wait_for(lambda: self.server.pids("trunkline-router") not in ([router], []), "another router", START_DEADLINE_S)
        wait_for(self.server.is_ready, "readiness after the router was killed", START_DEADLINE_S)
        self._is_router_away = False
        assert self.server.shard_pid() == shard, "the shard had to load the weights again"
        assert self.server.metrics()["trunkline_store_blocks"] > 0, "the new router does not know the disk's blocks"

    def slow_disk(self, draw: random.Random) -> None:
        before = self.disk.num_delayed
        self.disk.slow(draw.uniform(0.02, 0.5))
        try:
            wait_for(lambda: self.disk.num_delayed > before + 2, "transfers of a slow disk", START_DEADLINE_S)
        finally:
            self.disk.slow(0)

    def fill_disk(self, _: random.Random) -> None:
        before = self.disk.num_refused
        self.disk.fill(True)
        try:
            wait_for(lambda: self.disk.num_refused > before, "writes to a full disk", START_DEADLINE_S)
        finally:
            self.disk.fill(False)
        before = self.disk.num_written
        wait_for(lambda: self.disk.num_written > before, "writes once there is room", START_DEADLINE_S)

    def expire_certificate(self, _: random.Random) -> None:
        old, new = self._certificates
        before = self.server.metrics()
        self.files.write_pair("expired", "first")
        self._wait_above("trunkline_tls_reload_failures_total", before["trunkline_tls_reload_failures_total"])
        assert self._served_certificate() == certificate_bytes(old)
        self.files.write_pair(new, new)
        self._wait_above("trunkline_tls_reloads_total", before["trunkline_tls_reloads_total"])
        assert self._served_certificate() == certificate_bytes(new)
        self._certificates = [new, old]

    def break_keys(self, _: random.Random) -> None:
        line = "cannot reload the API keys"
        before = self.server.log().count(line)
        self.files.keys.write_text("[tenants.calm\n")
        os.kill(self.server.router_pid(), signal.SIGHUP)
        wait_for(lambda: self.server.log().count(line) > before, "a line in the log")
        assert self._status("late") == 401
        write_keys(self.files.keys, TABLES | {"late": 'keys = "sk-late-0123456789abcdef"\n'})
        os.kill(self.server.router_pid(), signal.SIGHUP)
        wait_for(lambda: self._status("late") == 200, "the new key to be accepted")
        write_keys(self.files.keys)
        os.kill(self.server.router_pid(), signal.SIGHUP)
        wait_for(lambda: self._status("late") == 401, "the removed key to be refused")

    def count(self) -> None:
        """Adds the counters of the router, which end with it, to the totals."""
        counted = self.server.metrics().items()
        self.totals.update({name: int(value) for name, value in counted if name.endswith("_total")})

    def _wait_above(self, metric: str, value: float) -> None:
        wait_for(lambda: self.server.metrics()[metric] > value, f"{metric} to grow", START_DEADLINE_S)

    def _status(self, tenant: str) -> int:
        return http.get(f"{self.server.base_url}/v1/models", headers=headers(tenant)).status_code

    def _served_certificate(self) -> bytes:
        return ssl.PEM_cert_to_DER_cert(ssl.get_server_certificate(("127.0.0.1", self.server.port), timeout=60))


def certificate_bytes(name: str) -> bytes:
    return ssl.PEM_cert_to_DER_cert((CERTIFICATES / f"{name}.cert.pem").read_text())


def state(pid: int) -> str:
    """Returns the letter of a process's state, such as `T` for stopped and `Z` for a zombie."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
