"""Measures the time that Python and gRPC add to a step, with a shard whose backend computes nothing.

    PYTHONPATH=server python benchmark/shard_overhead.py [--backend cuda] [--steps N] [--sequences N ...]

With `--backend cuda`, the host does all its work for a step of that backend, but kernels and graphs do nothing and
copies stay in host memory. No GPU is needed; with a real one, the host would also spend time on launches.

Prints for each batch size:

- the time of a step with one plan in flight, which is the whole round trip;
- the time of a step with two plans in flight, as the router has them. A working device would hide this time;
- the CPU time of the shard's process per step.

The client is a separate Python process; the router needs less time.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

SERVER = Path(__file__).resolve().parents[1] / "server"
sys.path.insert(0, str(SERVER))

from tests.fakes.backend import VOCAB_SIZE, FakeBackend  # noqa: E402
from tests.fakes.shard import Client, Stream, serve  # noqa: E402
from trunkline_server._proto import shard_pb2 as pb  # noqa: E402
from trunkline_server.backends.interface import Backend, Chunk, Sampled  # noqa: E402

MAX_SEQUENCES = 256
WARM_UP_STEPS = 200
BLOCK_SIZE = 64
MAX_STEP_TOKENS = 2048


class IdleBackend(FakeBackend):
    """Samples token 1 for every chunk without computing anything."""

    def start(self, sequence_id: int, *start: object) -> None:
        pass

    def end(self, sequence_id: int) -> None:
        pass

    def step(self, chunks: object) -> list[Sampled]:  # type: ignore[override]
        assert isinstance(chunks, list)
        return [Sampled(chunk.sequence_id, 1) for chunk in chunks if isinstance(chunk, Chunk)]


def idle_cuda() -> Backend:
    """Returns a cuda backend without its kernels, which samples only token 0."""
    import torch
    from gpu.idle_device import IdleDevice
    from trunkline_server.backends.cuda import sampling
    from trunkline_server.backends.cuda.backend import CudaBackend
    from trunkline_server.backends.cuda.runner import StepRunner, chunk_shapes, decode_shapes
    from trunkline_server.backends.cuda.step_input import StepShape

    torch.set_num_threads(1)
    for kernel in ("find_peaks", "choose_largest", "choose_tokens", "find_logprobs"):
        setattr(sampling, kernel, lambda *args, **options: None)
    device, logits = IdleDevice(), torch.zeros(MAX_SEQUENCES, VOCAB_SIZE)
    largest = StepShape(MAX_STEP_TOKENS, MAX_SEQUENCES, MAX_SEQUENCES)
    runner = StepRunner(device, lambda tensors: logits, max_shape=largest, max_blocks=128, block_size=BLOCK_SIZE)
    runner.capture(decode_shapes(MAX_SEQUENCES) + chunk_shapes(MAX_STEP_TOKENS, MAX_SEQUENCES, MAX_SEQUENCES))
    fake = FakeBackend(
        num_blocks=MAX_SEQUENCES * 128, max_step_tokens=MAX_STEP_TOKENS, max_step_sequences=MAX_SEQUENCES
    )
    return CudaBackend(
        replace(fake.info, block_size=BLOCK_SIZE),
        device=device,
        runner=runner,
        sampler=sampling.DeviceSampler(device, VOCAB_SIZE, MAX_SEQUENCES, 20),
        pool=None,  # type: ignore[arg-type]
        vocab_size=VOCAB_SIZE,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=["none", "cuda"], default="none")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--sequences", type=int, nargs="+", default=[1, 8, 32, 64, 256])
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        return run_shard(Path(options.serve), options.backend)
    with tempfile.TemporaryDirectory(prefix="tl-") as folder:
        socket_path = Path(folder) / "shard.sock"
        child = subprocess.Popen(
            [sys.executable, __file__, "--serve", str(socket_path), "--backend", options.backend],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdout.readline()
        print(f"{'sequences':>9} {'one in flight':>14} {'two in flight':>14} {'shard CPU/step':>15}")
        with Client(socket_path) as client:
            for num_sequences in options.sequences:
                one = drive(client, num_sequences, options.steps, in_flight=1, pid=child.pid)
                two = drive(client, num_sequences, options.steps, in_flight=2, pid=child.pid)
                print(f"{num_sequences:>9} {one[0]:>11.3f} ms {two[0]:>11.3f} ms {two[1]:>12.3f} ms")
        child.stdin.close()
        child.wait()
    return 0


def run_shard(socket_path: Path, backend: str) -> int:
    idle = IdleBackend(num_blocks=4096, max_step_tokens=MAX_STEP_TOKENS, max_step_sequences=MAX_SEQUENCES)
    with serve(idle if backend == "none" else idle_cuda(), socket_path):
        print("ready", flush=True)
        sys.stdin.read()
    return 0


def drive(client: Client, num_sequences: int, num_steps: int, *, in_flight: int, pid: int) -> tuple[float, float]:
    """Returns the wall time and the shard's CPU time per step, in ms."""
    stream = client.open()
    sampling = pb.SamplingParams(top_p=1.0, repetition_penalty=1.0, typical_p=1.0)
    ids = range(1, num_sequences + 1)
    starts = [pb.SequenceStart(sequence_id=i, token_ids=[1], num_prompt_tokens=1, sampling=sampling) for i in ids]
    requests = [pb.StepPlan(step_id=1, starts=starts)]
    for step_id in range(2, WARM_UP_STEPS + num_steps + 2):
        position = step_id - 2
        is_new = position % BLOCK_SIZE == 0
        chunks = [
            pb.Chunk(
                sequence_id=i,
                first_position=position,
                num_tokens=1,
                sample=True,
                new_block_ids=[i * 128 - 1 - position // BLOCK_SIZE] if is_new else [],
            )
            for i in ids
        ]
        requests.append(pb.StepPlan(step_id=step_id, chunks=chunks))
    step_through(stream, requests[: WARM_UP_STEPS + 1], in_flight)
    cpu, wall = cpu_seconds(pid), time.perf_counter()
    step_through(stream, requests[WARM_UP_STEPS + 1 :], in_flight)
    spent = time.perf_counter() - wall, cpu_seconds(pid) - cpu
    stream.close()
    list(stream.call)
    return spent[0] / num_steps * 1e3, spent[1] / num_steps * 1e3


def step_through(stream: Stream, plans: list[pb.StepPlan], in_flight: int) -> None:
    for i, plan in enumerate(plans):
        stream.send(plan)
        if i >= in_flight - 1:
            stream.receive()
    for _ in range(min(in_flight - 1, len(plans))):
        stream.receive()


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    sys.exit(main())
