"""Draws the plots of a comparison as SVG.

python plots.py PEERS.json FOLDER
"""

import json
import statistics
import sys
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

# One colour per project, with a paler one for its raw row.
COLOURS = {
    "trunkline": "#c2410c",
    "llamacpp": "#2563eb",
    "openvino": "#7c3aed",
    "vllm": "#0d9488",
    "transformers": "#a3a3a3",
}
RAW_ALPHA = 0.45


class Run:
    def __init__(self, data):
        self.workloads = data["workloads"]
        made = {peer for w in self.workloads.values() for peer in w["rounds"]}
        order = [name for base in COLOURS for name in (base, f"{base}-raw")]
        self.peers = [p for p in order if p in made] + sorted(made - set(order))

    def values(self, peer, workload, metric):
        rounds = self.workloads.get(workload, {"rounds": {}})["rounds"].get(peer, [])
        return [m[metric] for m in rounds if metric in m]

    def median(self, peer, workload, metric):
        values = self.values(peer, workload, metric)
        return statistics.median(values) if values else None

    def named(self, prefix):
        """Returns the workloads whose names begin with `prefix` and that have figures of some peer."""
        return [
            n for n, w in self.workloads.items() if n.startswith(prefix) and any(map(measured, w["rounds"].values()))
        ]


def measured(rounds):
    return any(not {"error", "over_s"} & m.keys() or "ttft_p50_ms" in m for m in rounds)


def style(peer):
    base = peer.removesuffix("-raw")
    raw = peer.endswith("-raw")
    return {"color": COLOURS.get(base, "black"), "alpha": RAW_ALPHA if raw else 1.0, "label": peer}


def bars(run, axis, workloads, metric, labels):
    """Draws grouped bars, with the range over the rounds as whiskers and gaps for missing figures."""
    peers = [p for p in run.peers if any(run.values(p, w, metric) for w in workloads)]
    width = 0.84 / max(len(peers), 1)
    for i, peer in enumerate(peers):
        xs, middles, below, above = [], [], [], []
        for x, workload in enumerate(workloads):
            values = run.values(peer, workload, metric)
            if values:
                middle = statistics.median(values)
                xs.append(x + (i - (len(peers) - 1) / 2) * width)
                middles.append(middle)
                below.append(middle - min(values))
                above.append(max(values) - middle)
        axis.bar(xs, middles, width, yerr=[below, above], error_kw={"lw": 0.8}, **style(peer))
    axis.set_xticks(range(len(workloads)), labels)
    axis.set_ylim(bottom=0)


def decode(run):
    names = run.named("decode-")
    figure, axis = plt.subplots(figsize=(8, 4))
    bars(run, axis, names, "tokens_per_s", [n.removeprefix("decode-") for n in names])
    axis.set(title="Decode: output tokens per second, more is better", xlabel="streams", ylabel="tok/s")
    return figure, axis


def prefill(run):
    names = run.named("prefill-")
    lengths = [int(n.removeprefix("prefill-")) for n in names]
    figure, axis = plt.subplots(figsize=(8, 4))
    for peer in run.peers:
        points = [(n, m) for n, w in zip(lengths, names, strict=True) if (m := run.median(peer, w, "tokens_per_s"))]
        if points:
            axis.plot(
                *zip(*points, strict=True), marker="o", ms=4, ls="--" if peer.endswith("-raw") else "-", **style(peer)
            )
    axis.set_xscale("log", base=2)
    axis.set_xticks(lengths, [f"{n:,}" for n in lengths])
    axis.set_ylim(bottom=0)
    axis.set(title="Prefill: prompt tokens per second, more is better", xlabel="prompt tokens", ylabel="tok/s")
    return figure, axis


def history(run):
    figure, axes = plt.subplots(1, 2, figsize=(9, 4))
    for axis, metric, title in zip(axes, ("cold_ttft_ms", "warm_ttft_ms"), ("cold", "then + 32 tokens"), strict=True):
        bars(run, axis, ["history"], metric, [title])
        axis.set_ylabel("TTFT, ms")
    figure.suptitle("A 6,000-token history, less is better")
    return figure, axes[1]


def loads(run):
    names = run.named("poisson-") + run.named("closed-")
    figure, axes = plt.subplots(2, 2, figsize=(10, 7))
    shown = (
        ("goodput_per_s", "goodput, requests/s within the SLO, more is better"),
        ("tokens_per_s", "output tok/s, more is better"),
        ("ttft_p90_ms", "TTFT p90, ms, less is better"),
        ("itl_p99_ms", "ITL p99, ms, less is better"),
    )
    for axis, (metric, title) in zip(axes.flat, shown, strict=True):
        bars(run, axis, names, metric, names)
        axis.set_title(title, fontsize=9)
    return figure, axes[0][0]


def interruption(run):
    figure, axes = plt.subplots(1, 2, figsize=(9, 4))
    shown = (("worst_gap_ms", "worst gap of the 8 streams, ms"), ("long_ttft_ms", "TTFT of the long prompt, ms"))
    for axis, (metric, title) in zip(axes, shown, strict=True):
        bars(run, axis, ["interruption"], metric, [title])
    figure.suptitle("A long prompt arrives among 8 streams, less is better")
    return figure, axes[0]


def chat(run, name):
    figure, axes = plt.subplots(1, 2, figsize=(11, 4.2))
    for axis, metric, title in zip(axes, ("ttft", "itl"), ("TTFT", "ITL"), strict=True):
        for peer in run.peers:
            rounds = run.values(peer, name, "turns")
            for p, ls in ((50, "-"), (99, ":")):
                points = by_turn(rounds, f"{metric}_p{p}_ms")
                if points:
                    looks = style(peer) | ({"label": None} if p == 99 else {})
                    axis.plot(*zip(*points, strict=True), ls=ls, marker="." if p == 50 else None, **looks)
        axis.set_yscale("log")
        axis.set(title=f"{title} by turn: p50, dotted p99", xlabel="turn", ylabel="ms")
    figure.suptitle(run.workloads[name]["title"] + ", less is better")
    return figure, axes[0]


def by_turn(rounds, metric):
    points = []
    for turn in range(max((len(turns) for turns in rounds), default=0)):
        values = [turns[turn][metric] for turns in rounds if turn < len(turns) and metric in turns[turn]]
        if values:
            points.append((turn + 1, statistics.median(values)))
    return points


def main():
    run, folder = Run(json.loads(Path(sys.argv[1]).read_text())), Path(sys.argv[2])
    plt.rcParams |= {"svg.hashsalt": "trunkline", "axes.spines.top": False, "axes.spines.right": False}
    drawn = {}
    for prefix, draw in (
        ("decode", decode),
        ("prefill", prefill),
        ("history", history),
        ("interruption", interruption),
    ):
        if run.named(prefix):
            drawn[prefix] = draw(run)
    if run.named("poisson-") + run.named("closed-"):
        drawn["loads"] = loads(run)
    for name in run.named("chat-"):
        drawn[name] = chat(run, name)
    for name, (figure, legend) in drawn.items():
        handles, labels = legend.get_legend_handles_labels()
        if handles:
            figure.legend(handles, labels, loc="lower center", ncol=5, frameon=False, fontsize=8)
        figure.tight_layout(rect=(0, 0.1, 1, 1))
        figure.savefig(folder / f"{name}.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
