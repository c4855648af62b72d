"""The gRPC service: serves shard.proto over a Unix socket and hands plans to the engine loop."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import stat
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import quote

import grpc

from trunkline_server._kernels import MAX_PLAN_MESSAGE_BYTES, MAX_RESULT_MESSAGE_BYTES
from trunkline_server._proto import shard_pb2
from trunkline_server.backends.interface import Adapters, BackendInfo, Store
from trunkline_server.errors import InvalidArgument, PlanError, UserError
from trunkline_server.loop import EngineLoop
from trunkline_server.models.config import ModelShape
from trunkline_server.named_masks import NamedMasks
from trunkline_server.plan_checks import read_request
from trunkline_server.stream import StepStream, StreamEnd

logger = logging.getLogger(__name__)

CONTRACT_VERSION = 13
_POOLING = {
    "first": shard_pb2.POOLING_FIRST,
    "last": shard_pb2.POOLING_LAST,
    "mean": shard_pb2.POOLING_MEAN,
}
SERVICE_NAME = "trunkline.shard.v1.ShardService"
# One for the open Step stream, one for the stream that replaces it, the others for Describe and Health.
MAX_HANDLER_THREADS = 8
# A call beyond this number of open calls is refused with RESOURCE_EXHAUSTED instead of being queued.
MAX_OPEN_CALLS = 32
# Size of `sun_path` in `sockaddr_un` on Linux, without its final zero.
MAX_SOCKET_PATH_BYTES = 107

_STATUS = {
    StreamEnd.SUPERSEDED: (grpc.StatusCode.ABORTED, "a newer Step stream took over"),
    StreamEnd.STOPPED: (grpc.StatusCode.UNAVAILABLE, "the shard is stopping"),
    StreamEnd.DISCONNECTED: (grpc.StatusCode.CANCELLED, "the router closed the stream"),
}


class ShardService:
    """Answers Describe, StoreContents and Health itself and hands plans to the engine loop.

    on_bug: called with an exception that no client can cause; it must end the process.
    """

    def __init__(
        self,
        model: ModelShape,
        backend: BackendInfo,
        store: Store | None,
        adapters: Adapters | None,
        loop: EngineLoop,
        on_bug: Callable[[BaseException], None],
    ) -> None:
        self._store = store
        self._adapters = adapters
        self._loop = loop
        self._limits = backend
        self._on_bug = on_bug
        self._description = describe(model, backend)

    def handlers(self) -> dict[str, grpc.RpcMethodHandler]:
        """Returns the handler of each method of the service."""
        return {
            "Describe": grpc.unary_unary_rpc_method_handler(
                self.Describe, shard_pb2.DescribeRequest.FromString, shard_pb2.DescribeResponse.SerializeToString
            ),
            "OpenAdapter": grpc.unary_unary_rpc_method_handler(
                self.OpenAdapter,
                shard_pb2.OpenAdapterRequest.FromString,
                shard_pb2.OpenAdapterResponse.SerializeToString,
            ),
            "Health": grpc.unary_unary_rpc_method_handler(
                self.Health, shard_pb2.HealthRequest.FromString, shard_pb2.HealthResponse.SerializeToString
            ),
            "StoreContents": grpc.unary_stream_rpc_method_handler(
                self.StoreContents,
                shard_pb2.StoreContentsRequest.FromString,
                shard_pb2.StoreContentsResponse.SerializeToString,
            ),
            "Step": grpc.stream_stream_rpc_method_handler(
                self.Step, shard_pb2.StepRequest.FromString, shard_pb2.StepResponse.SerializeToString
            ),
        }

    def Describe(self, request: shard_pb2.DescribeRequest, context: grpc.ServicerContext) -> shard_pb2.DescribeResponse:
        return self._description

    def StoreContents(
        self, request: shard_pb2.StoreContentsRequest, context: grpc.ServicerContext
    ) -> Iterator[shard_pb2.StoreContentsResponse]:
        """Reads the records beside the steps and sends them in pieces."""
        if self._store is None:
            return
        try:
            yield from self._store.contents()
        except OSError as error:
            logger.error("cannot read the KV block store: %s", error)
            context.abort(grpc.StatusCode.DATA_LOSS, str(error))

    def OpenAdapter(
        self, request: shard_pb2.OpenAdapterRequest, context: grpc.ServicerContext
    ) -> shard_pb2.OpenAdapterResponse:
        """Looks at an adapter beside the steps."""
        try:
            if self._adapters is None:
                raise InvalidArgument("this shard takes no adapters", hint="start the server with `--lora`")
            return self._adapters.open(request.source)
        except UserError as error:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
            raise AssertionError("`abort` raises") from error

    def Health(self, request: shard_pb2.HealthRequest, context: grpc.ServicerContext) -> shard_pb2.HealthResponse:
        """Answers at once, even while a step runs."""
        activity = self._loop.activity()
        return shard_pb2.HealthResponse(
            last_step_id=activity.last_step_id,
            last_step_age_ms=activity.last_step_age_ms,
            step_running=activity.step_running,
            step_running_ms=activity.step_running_ms,
        )

    def Step(
        self, request_iterator: Iterator[shard_pb2.StepRequest], context: grpc.ServicerContext
    ) -> Iterator[shard_pb2.StepResponse]:
        """Serves one stream of plans; `StepStream` describes how its threads work together."""
        stream = self._loop.make_stream()
        # False means that the call has already ended.
        if not context.add_callback(lambda: stream.cancel(StreamEnd.DISCONNECTED)):
            return
        reader = threading.Thread(
            target=self._read_plans, args=(request_iterator, stream), name="plan-reader", daemon=True
        )
        logger.debug("step stream opened")
        self._loop.open(stream)
        reader.start()
        yield from stream.responses()
        if stream.plan_error is not None:
            logger.error("step stream ended: %s", stream.plan_error)
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(stream.plan_error))
        status = _STATUS.get(stream.end) if stream.end is not None else None
        logger.debug("step stream ended: %s", status[1] if status else "finished")
        if status is not None:
            context.abort(*status)

    def _read_plans(self, requests: Iterator[shard_pb2.StepRequest], stream: StepStream) -> None:
        named_masks = NamedMasks()
        try:
            for request in requests:
                try:
                    plan = read_request(request, self._limits, stream.late_masks, named_masks)
                except PlanError as error:
                    # No further message is read, so the running step would wait for its masks forever.
                    stream.late_masks.close()
                    stream.put_plan(error)
                    return
                if plan is not None and not stream.put_plan(plan):
                    return
            stream.end_plans()
        except grpc.RpcError:
            # Raised by gRPC's iterator when the call is cancelled.
            stream.cancel(StreamEnd.DISCONNECTED)
        except BaseException as bug:
            logger.critical("reading plans failed", exc_info=bug)
            self._on_bug(bug)


class ShardServer:
    """The listening gRPC server. `stop` ends it and removes its socket."""

    def __init__(self, service: ShardService, socket_path: Path) -> None:
        self._socket_path = socket_path.absolute()
        self._server = grpc.server(
            ThreadPoolExecutor(MAX_HANDLER_THREADS, thread_name_prefix="grpc"),
            handlers=[grpc.method_handlers_generic_handler(SERVICE_NAME, service.handlers())],
            maximum_concurrent_rpcs=MAX_OPEN_CALLS,
            options=[
                ("grpc.max_receive_message_length", MAX_PLAN_MESSAGE_BYTES),
                ("grpc.max_send_message_length", MAX_RESULT_MESSAGE_BYTES),
            ],
        )

    def start(self) -> None:
        """Starts listening on the socket, which only this user can open. Raises InvalidArgument."""
        path = self._socket_path
        _make_room(path)
        # The umask sets the mode when the socket is created, so there is no moment in which others could connect.
        previous_mask = os.umask(0o177)
        try:
            # gRPC decodes percent signs in the address.
            self._server.add_insecure_port(f"unix:{quote(str(path))}")
        except RuntimeError as error:
            raise InvalidArgument(f"cannot listen on `{path}`: {error}") from error
        finally:
            os.umask(previous_mask)
        path.chmod(0o600)
        self._server.start()

    def stop(self, grace_s: float) -> None:
        """Stops listening, gives open calls `grace_s` seconds to send what is queued, and removes the socket."""
        self._server.stop(grace_s).wait()
        with contextlib.suppress(FileNotFoundError):
            self._socket_path.unlink()


def describe(model: ModelShape, backend: BackendInfo) -> shard_pb2.DescribeResponse:
    """Builds the answer to `Describe`."""
    pooling = model.pooling
    return shard_pb2.DescribeResponse(
        contract_version=CONTRACT_VERSION,
        architecture=model.architecture,
        vocab_size=model.vocab_size,
        num_layers=model.num_layers,
        num_heads=model.num_heads,
        num_kv_heads=model.num_kv_heads,
        head_size=model.head_size,
        max_position_embeddings=model.max_position_embeddings,
        block_size=backend.block_size,
        bytes_per_block=backend.bytes_per_block,
        num_device_blocks=backend.num_device_blocks,
        max_step_tokens=backend.max_step_tokens,
        max_step_sequences=backend.max_step_sequences,
        numeric_fingerprint=backend.numeric_fingerprint,
        device=backend.device,
        kv_dtype=backend.kv_dtype,
        weight_bytes=backend.weight_bytes,
        num_store_slots=backend.num_store_slots,
        store_folder=backend.store_folder,
        reads_other_stores=backend.reads_other_stores,
        num_adapter_slots=backend.num_adapter_slots,
        adapter_bytes=backend.adapter_bytes,
        num_window_parts=backend.num_window_parts,
        bytes_per_window_part=backend.bytes_per_window_part,
        window_size=backend.window_size,
        max_draft_tokens=backend.max_draft_tokens,
        max_own_drafts=backend.max_own_drafts,
        pooling=shard_pb2.POOLING_UNSPECIFIED if pooling is None else _POOLING[pooling.kind],
        vector_size=model.vector_size,
        labels=() if pooling is None else pooling.labels,
        whole_prompts=pooling is not None and pooling.whole,
        only_pools=not model.has_output_head,
        recurrent=backend.recurrent,
        asks_about_pairs=pooling is not None and bool(pooling.answer_rows),
        memory_bytes=backend.memory_bytes,
    )


def _make_room(path: Path) -> None:
    """Removes a socket that a dead process left behind and refuses to touch anything else. Raises InvalidArgument."""
    if len(os.fsencode(path)) > MAX_SOCKET_PATH_BYTES:
        raise InvalidArgument(
            f"`--socket` has {len(os.fsencode(path))} bytes, but the system allows {MAX_SOCKET_PATH_BYTES}: `{path}`",
            hint="choose a folder with a shorter path",
        )
    if not path.parent.is_dir():
        raise InvalidArgument(f"`--socket` is `{path}`, but folder `{path.parent}` does not exist")
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise InvalidArgument(f"`--socket` is `{path}`, which exists and is not a socket", hint="choose another path")
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
    raise InvalidArgument(f"`--socket` is `{path}`, but another process listens on it", hint="choose another path")
