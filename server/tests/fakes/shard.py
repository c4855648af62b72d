"""A whole shard in this process over a fake backend, and a client that uses its socket."""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Iterator
from pathlib import Path

import grpc
from tests.fakes.adapters import FakeLoader
from tests.fakes.backend import VOCAB_SIZE, FakeBackend
from trunkline_server._proto import shard_pb2
from trunkline_server.engine import Engine
from trunkline_server.loop import EngineLoop
from trunkline_server.models.config import Mlp, ModelConfig, Norms, Positions
from trunkline_server.service import SERVICE_NAME, ShardServer, ShardService

MODEL = ModelConfig(
    architecture="fake", vocab_size=VOCAB_SIZE, hidden_size=16, num_layers=1, num_heads=2,
    num_kv_heads=1, head_size=8, max_position_embeddings=64, norms=Norms(eps=1e-6), mlp=Mlp(size=16),
    positions=Positions(theta=1e4, rotated_layers=(True,)),
)  # fmt: skip
# Longest wait for anything that must happen; only a failure reaches it.
DEADLINE_S = 20.0


class Shard:
    """The parts of a served shard, for tests to inspect. bugs: exceptions that would have ended the process."""

    def __init__(self, backend: FakeBackend, socket_path: Path) -> None:
        self.backend = backend
        self.socket_path = socket_path
        self.bugs: queue.SimpleQueue[BaseException] = queue.SimpleQueue()
        engine = Engine(backend, vocab_size=VOCAB_SIZE)
        loader = FakeLoader() if backend.info.num_adapter_slots else None
        if loader is not None:
            engine.load_adapters_with(loader)
        self.loop = EngineLoop(engine, self.bugs.put)
        self.server = ShardServer(
            ShardService(MODEL, backend.info, backend.store, loader, self.loop, self.bugs.put), socket_path
        )


@contextlib.contextmanager
def serve(backend: FakeBackend, socket_path: Path) -> Iterator[Shard]:
    shard = Shard(backend, socket_path)
    shard.loop.start()
    shard.server.start()
    try:
        yield shard
    finally:
        shard.loop.stop()
        shard.server.stop(grace_s=1.0)


class Client:
    """A router, as far as the contract is concerned."""

    def __init__(self, socket_path: Path) -> None:
        # With its own channel pool, because gRPC would share a connection between channels to one address.
        self._channel = grpc.insecure_channel(f"unix:{socket_path}", options=[("grpc.use_local_subchannel_pool", 1)])
        self._describe, self._health, self._open_adapter = (
            self._channel.unary_unary(f"/{SERVICE_NAME}/{name}", request.SerializeToString, response.FromString)
            for name, request, response in (
                ("Describe", shard_pb2.DescribeRequest, shard_pb2.DescribeResponse),
                ("Health", shard_pb2.HealthRequest, shard_pb2.HealthResponse),
                ("OpenAdapter", shard_pb2.OpenAdapterRequest, shard_pb2.OpenAdapterResponse),
            )
        )
        self._store_contents = self._channel.unary_stream(
            f"/{SERVICE_NAME}/StoreContents",
            shard_pb2.StoreContentsRequest.SerializeToString,
            shard_pb2.StoreContentsResponse.FromString,
        )
        self._step = self._channel.stream_stream(
            f"/{SERVICE_NAME}/Step", shard_pb2.StepRequest.SerializeToString, shard_pb2.StepResponse.FromString
        )

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()

    def describe(self) -> shard_pb2.DescribeResponse:
        """Waits until the shard listens."""
        return self._describe(shard_pb2.DescribeRequest(), timeout=DEADLINE_S, wait_for_ready=True)

    def store_contents(self) -> list[shard_pb2.StoreContentsResponse]:
        return list(self._store_contents(shard_pb2.StoreContentsRequest(), timeout=DEADLINE_S))

    def health(self) -> shard_pb2.HealthResponse:
        return self._health(shard_pb2.HealthRequest(), timeout=DEADLINE_S)

    def open_adapter(self, source: str) -> shard_pb2.OpenAdapterResponse:
        return self._open_adapter(shard_pb2.OpenAdapterRequest(source=source), timeout=DEADLINE_S)

    def open(self) -> Stream:
        return Stream(self._step)


class Stream:
    """One Step call. Plans are sent in the order of `send`."""

    def __init__(self, step: grpc.StreamStreamMultiCallable) -> None:
        self._plans: queue.SimpleQueue[shard_pb2.StepRequest | None] = queue.SimpleQueue()
        self.call = step(iter(self._plans.get, None), timeout=DEADLINE_S)

    def send(self, plan: shard_pb2.StepPlan) -> None:
        self._plans.put(shard_pb2.StepRequest(plan=plan))

    def tell(self, *late_masks: shard_pb2.LateMask) -> None:
        self._plans.put(shard_pb2.StepRequest(late_masks=late_masks))

    def send_raw(self, request: shard_pb2.StepRequest) -> None:
        self._plans.put(request)

    def receive(self) -> shard_pb2.StepResult:
        """Returns the result of the next response, which must have one."""
        response = self.response()
        assert response.HasField("result")
        return response.result

    def response(self) -> shard_pb2.StepResponse:
        return next(self.call)

    def step(self, plan: shard_pb2.StepPlan) -> shard_pb2.StepResult:
        self.send(plan)
        return self.receive()

    def close(self) -> None:
        """Closes the router's side; results still arrive."""
        self._plans.put(None)

    def error(self) -> grpc.RpcError:
        """Reads to the end of the stream, which must be an error, and returns the error."""
        try:
            results = list(self.call)
        except grpc.RpcError as error:
            return error
        raise AssertionError(f"the stream ended without an error, after {len(results)} more results")
