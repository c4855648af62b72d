"""Measures the peers in turn, by group and round, so that a drift of the machine affects all of them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from load import LoadError

from .child import Died
from .environment import InstallError
from .measure import Measurer
from .metrics import Slo
from .peer import HttpEndpoint, Peer, Setting, started
from .store import Store
from .workload import Arrivals, Chat, Interruption, Overhead, Vocabulary, Workload

FAILURES = (Died, LoadError, OSError)
WARM_UP_TOKENS = 16
# A peer is skipped after this many failed starts, each of which takes minutes.
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
    """Called after each visit to update the report."""
    failed_starts: Counter[str] = field(default_factory=Counter)

    def install(self) -> None:
        """Installs every peer. A peer that fails is skipped, and the report has the reason."""
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
        if not suits(peer, workload):
            return False
        # A workload that was cut off would be cut off again.
        return not self.store.has(peer.name, workload.name, number) and not self.store.cut_off(peer.name, workload.name)

    def visit(self, peer: Peer, workloads: list[Workload], number: int) -> None:
        """Starts a peer and measures the workloads, with a restart after an exit or a measurement that was cut off.

        Without the restart, a server might continue the aborted requests during the next measurement.
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

    def measure(self, peer: Peer, endpoint: HttpEndpoint, workload: Workload, number: int) -> bool:
        """Measures one workload and returns whether it was cut off."""
        begin = time.monotonic()
        measurer = Measurer(self.words, self.slo, self.seed + number)
        try:
            metrics = measurer.measure(endpoint, workload)
        except FAILURES as failure:
            metrics = {"error": str(failure)[:500]}
        metrics["peak_memory_mb"] = endpoint.child.memory_bytes() / 1e6
        self.store.add(peer.name, workload.name, number, metrics)
        plain = {k: v for k, v in metrics.items() if not isinstance(v, list)}
        shown = ", ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in list(plain.items())[:4])
        self.say(f"{peer.name}: {workload.name} in {time.monotonic() - begin:.1f} s: {shown}")
        return "over_s" in metrics


def suits(peer: Peer, workload: Workload) -> bool:
    """Returns True if a workload applies to a peer."""
    if peer.only_loads:
        return isinstance(workload, Interruption | Arrivals | Chat)
    return peer.project == "trunkline" or not isinstance(workload, Overhead)


def warm_up(endpoint: HttpEndpoint, words: list[tuple[int, str]], limit_s: float) -> None:
    """Sends a few short requests, with prompts that no workload uses, to trigger lazy initialisation."""
    vocabulary = Vocabulary(words, seed=-1)
    endpoint.batch([vocabulary.prompt(WARM_UP_TOKENS) for _ in range(4)], 8, limit_s)
    endpoint.batch([vocabulary.prompt(256)], 2, limit_s)
