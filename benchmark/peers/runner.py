"""Visits the peers in turn: round by round and group by group, so that a drift of the machine meets them all."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from client import HttpError

from .child import Died
from .environment import InstallError
from .measure import Measurer
from .metrics import Slo
from .peer import Endpoint, HttpEndpoint, Peer, Setting, started
from .store import Store
from .workload import Overhead, Start, Vocabulary, Workload

FAILURES = (Died, HttpError, OSError)
WARM_UP_TOKENS = 16
# A peer that does not start takes minutes to say so; after this many times it is left alone.
MAX_FAILED_STARTS = 2


@dataclass
class Runner:
    peers: list[Peer]
    groups: list[list[Workload]]
    setting: Setting
    store: Store
    words: list[tuple[int, str]]
    slo: Slo
    seed: int
    say: Callable[[str], None]
    written: Callable[[], None]
    """Called after each visit, so that the report grows with the run."""
    failed_starts: Counter[str] = field(default_factory=Counter)

    def install(self) -> None:
        """Installs every peer; one that fails keeps its reason and is not visited."""
        for peer in self.peers:
            begin = time.monotonic()
            try:
                peer.install(self.setting)
            except (InstallError, OSError) as failure:
                self.say(f"{peer.name}: not installed: {failure}")
                self.store.add(peer.name, "install", 0, {"error": str(failure)})
            else:
                took = time.monotonic() - begin
                self.store.add(peer.name, "install", 0, {"install_s": took})
                self.say(f"{peer.name}: installed" + (f" in {took:.0f} s" if took > 1 else ""))

    def run(self) -> None:
        for group in self.groups:
            for number in range(max((w.repeats for w in group), default=0)):
                for peer in self.peers:
                    wanted = [w for w in group if self.wants(peer, w, number)]
                    if wanted:
                        self.visit(peer, wanted, number)
                        self.written()

    def wants(self, peer: Peer, workload: Workload, number: int) -> bool:
        if number >= workload.repeats or self.store.error(peer.name, "install"):
            return False
        if self.failed_starts[peer.name] >= MAX_FAILED_STARTS:
            return False
        if not asks(peer, workload):
            return False
        # What was cut off once would be again.
        return not self.store.has(peer.name, workload.name, number) and not self.store.cut_off(peer.name, workload.name)

    def visit(self, peer: Peer, workloads: list[Workload], number: int) -> None:
        """Starts a peer once and measures; one that ended or was cut off is started again for the next workload.

        A server may go on with what its client has given up, and the next measurement would pay for it.
        """
        left = list(workloads)
        while left:
            first = Vocabulary(self.words, self.seed - 1).prompt(WARM_UP_TOKENS)
            try:
                with started(peer, self.setting, first) as endpoint:
                    self.say(f"{peer.name}: round {number + 1}, first token after {endpoint.start_s:.1f} s")
                    warm_up(endpoint, self.words, self.setting.start_limit_s)
                    cut_off = False
                    while left and not cut_off and endpoint.child.process.poll() is None:
                        cut_off = self.measure(peer, endpoint, left.pop(0), number)
            except (*FAILURES, TimeoutError) as failure:
                reason = str(failure) or "no answer to the warm-up within the time for starting"
                self.say(f"{peer.name}: {reason}")
                self.failed_starts[peer.name] += 1
                for workload in left:
                    self.store.add(peer.name, workload.name, number, {"error": reason})
                return

    def measure(self, peer: Peer, endpoint: Endpoint, workload: Workload, number: int) -> bool:
        """One measurement; whether it was cut off."""
        begin = time.monotonic()
        measurer = Measurer(self.words, self.slo, self.seed + number)
        try:
            metrics = measurer.measure(endpoint, workload)
        except FAILURES as failure:
            metrics = {"error": str(failure)[:500]}
        if isinstance(endpoint, HttpEndpoint):
            metrics["peak_memory_mb"] = endpoint.child.memory_bytes() / 1e6
        self.store.add(peer.name, workload.name, number, metrics)
        plain = {k: v for k, v in metrics.items() if not isinstance(v, list)}
        shown = ", ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in list(plain.items())[:4])
        self.say(f"{peer.name}: {workload.name} in {time.monotonic() - begin:.1f} s: {shown}")
        return "over_s" in metrics


def asks(peer: Peer, workload: Workload) -> bool:
    """Whether a workload says anything about a peer."""
    if isinstance(workload, Overhead):
        return peer.project == "trunkline"
    return workload.raw or isinstance(workload, Start) or not peer.raw


def warm_up(endpoint: Endpoint, words: list[tuple[int, str]], limit_s: float) -> None:
    """A few short streams at once, so that what is made at first use is made. Their prompts are used nowhere else."""
    vocabulary = Vocabulary(words, seed=-1)
    endpoint.batch([vocabulary.prompt(WARM_UP_TOKENS) for _ in range(4)], 8, limit_s)
    endpoint.batch([vocabulary.prompt(256)], 2, limit_s)
