"""Looks for races in one launch of `decode_kernel`, whose programs hand results to each other, by compute-sanitizer.

PYTHONPATH=benchmark:server python -m gpu.races

compute-sanitizer is part of the CUDA toolkit; without it the results say that nothing was looked for. Its racecheck
sees accesses of shared memory.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys

import torch
from tests.cuda.kv_oracle import make_rope, make_scene
from trunkline_server.backends.cuda.kernels.attention_decode import decode_attention
from trunkline_server.backends.cuda.kernels.attention_plan import SPLIT
from trunkline_server.backends.cuda.kernels.rope_kv import rope_tables

from gpu.lines import Lines
from gpu.process import phase_lines

TOOL = "compute-sanitizer"
# The folders in which the toolkit is installed, which are seldom in PATH.
FOLDERS = ("/usr/local/cuda/bin", "/opt/cuda/bin")
ONE_LAUNCH = ("--tool", "racecheck", "--kernel-name", "kns=decode_kernel", "--launch-count", "1")
LAUNCHED = "the launch ended with finite numbers"
_SUMMARY = re.compile(r"RACECHECK SUMMARY: (\d+) hazards?")


def launch(device: str) -> None:
    """Launches the kernel once, over contexts of one and of several splits."""
    scene = make_scene([(SPLIT + 3, 1), (40, 1)], device=device, num_heads=8, num_kv_heads=2, head_size=64)
    q, k, v = (torch.ones(2, heads * 64, dtype=torch.bfloat16, device=device) for heads in (8, 2, 2))
    tables = rope_tables(make_rope(64), 512, device)
    out = decode_attention(q, k, v, tables, scene.pool, 1, *scene.prepared(), 0.125)
    assert bool(out.isfinite().all())
    print(LAUNCHED)


def check(lines: Lines) -> None:
    tool = shutil.which(TOOL, path=os.pathsep.join([os.environ.get("PATH", ""), *FOLDERS]))
    if tool is None:
        lines.note(races=f"not looked for: {TOOL} is missing (CUDA toolkit, PATH or {' '.join(FOLDERS)})")
        return
    command = [tool, *ONE_LAUNCH, sys.executable, "-m", "gpu.races", "launch"]
    said = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False).stdout
    print(said)
    lines.check("races: decode_kernel", holds=is_clean(said), detail=" ".join(said[-400:].split()))


def is_clean(said: str) -> bool:
    """Returns True if the launch ended and the tool has seen no hazard. It also counts none if the program dies."""
    return LAUNCHED in said and _SUMMARY.findall(said) == ["0"]


if __name__ == "__main__":
    if sys.argv[1:] == ["launch"]:
        launch("cuda")
    else:
        check(phase_lines())
