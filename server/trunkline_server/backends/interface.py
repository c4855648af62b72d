"""The interface between the engine and a backend, which speak in the messages of shard.proto."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from trunkline_server._kernels import MAX_ERROR_MESSAGE_BYTES, neutral_sampling
from trunkline_server._proto.shard_pb2 import (
    SEQUENCE_ERROR_CODE_INVALID_PLAN,
    SEQUENCE_ERROR_CODE_NOT_FINITE,
    AdapterLoad,
    AdapterOutcome,
    Chunk,
    OpenAdapterResponse,
    Restore,
    SamplingParams,
    SequenceError,
    SequenceErrorCode,
    SequenceResult,
    SequenceStart,
    StepResult,
    StoreContentsResponse,
    Transfers,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from trunkline_server.adapters.adapter import Adapter, Factors

INVALID_PLAN = SEQUENCE_ERROR_CODE_INVALID_PLAN
NOT_FINITE = SEQUENCE_ERROR_CODE_NOT_FINITE


def sampling_params(**fields: Any) -> SamplingParams:
    """Returns parameters with these fields. The others choose the likeliest token and change no logit."""
    neutral = SamplingParams.FromString(neutral_sampling())
    return SamplingParams(**{field.name: value for field, value in neutral.ListFields()} | fields)


class LateMasks(Protocol):
    """Passes masks to the step that waits for them. All methods may be called from any thread."""

    def tell(self, sequence_id: int, mask: bytes) -> None:
        """Sets the tokens that the next sample of a sequence may choose; an empty mask skips the sample."""

    def close(self) -> None:
        """Ends the masks; samples that wait for one are skipped."""

    def wait(self, sequence_id: int) -> bytes:
        """Waits for the mask of a sequence and takes it; empty if nothing is to be sampled."""


def num_rows(chunk: Chunk) -> int:
    """Returns the number of positions that a chunk computes, drafts included."""
    return chunk.num_tokens + len(chunk.draft_token_ids) + chunk.num_own_drafts


def failure(sequence_id: int, code: SequenceErrorCode, message: str) -> SequenceResult:
    """Returns the failure of one sequence, which leaves the others untouched. A long message is cut."""
    return SequenceResult(sequence_id=sequence_id, error=SequenceError(code=code, message=short_message(message)))


def short_message(message: str) -> str:
    """Cuts a message to the length that the contract allows."""
    return message.encode(errors="replace")[:MAX_ERROR_MESSAGE_BYTES].decode(errors="ignore")


def step_result(chunks: Iterable[Chunk], outcomes: Mapping[int, SequenceResult]) -> StepResult:
    """Returns the outcomes in the order of the chunks, some of which have none. outcomes: by sequence id."""
    return StepResult(sequences=[outcomes[one.sequence_id] for one in chunks if one.sequence_id in outcomes])


# Time before the first report of a load's progress and between two of them, so that a quick load makes none.
PROGRESS_INTERVAL_S = 0.5
# The most drafts of a chunk. More than these hardly ever follow each other without a mistake.
MAX_DRAFT_TOKENS = 16


@dataclass(frozen=True, kw_only=True)
class BackendInfo:
    """The backend's part of the answer to `Describe`."""

    device: str
    block_size: int
    bytes_per_block: int
    num_device_blocks: int
    max_step_tokens: int
    max_step_sequences: int
    kv_dtype: str
    weight_bytes: int
    numeric_fingerprint: str
    # 0 and empty if there is no store.
    num_store_slots: int = 0
    store_folder: str = ""
    reads_other_stores: bool = False
    # 0 if blocks are not split into two parts.
    num_window_parts: int = 0
    bytes_per_window_part: int = 0
    window_size: int = 0
    # True if window parts hold the states of recurrent layers (`DescribeResponse.recurrent` in shard.proto).
    recurrent: bool = False
    # The most drafts of a chunk, and the most that the backend adds by itself; 0 if chunks may have none.
    max_draft_tokens: int = 0
    max_own_drafts: int = 0
    # Adapters that can be loaded at once; 0 if the backend takes none.
    num_adapter_slots: int = 0
    # The bytes that they may take together, as `AdapterSlots.num_bytes` counts them.
    adapter_bytes: int = 0
    # What all buffers take of this machine's memory once they are in use, to which the shard adds its process; 0 if it
    # is unknown.
    memory_bytes: int = 0

    @property
    def pool_bytes(self) -> int:
        """Bytes of K and V of all blocks, window parts included."""
        return self.num_device_blocks * self.bytes_per_block + self.num_window_parts * self.bytes_per_window_part


class Store(Protocol):
    """A store of KV blocks outside the device pool. Transfers run beside the steps; their outcomes are collected
    later.
    """

    def contents(self) -> Iterator[StoreContentsResponse]:
        """Yields the blocks that outlive the process, some at a time. May be called from any thread. Raises OSError."""
        ...

    def restore(self, restore: Restore) -> None:
        """Begins to read blocks. Raises PlanError if the plan may not read them."""

    def discard(self, slots: Sequence[int]) -> None:
        """Empties slots. Raises PlanError if one is in a transfer."""

    def take_outcomes(self) -> Transfers | None:
        """Returns the outcomes of transfers that ended since the last call; None if there are none."""

    def wait_outcomes(self, timeout_s: float) -> None:
        """Waits for outcomes, for the time limit, or for `wake`. May be called from any thread."""

    def wake(self) -> None:
        """Makes `wait_outcomes` return. May be called from any thread."""

    def give_up(self) -> None:
        """Leaves the blocks that outlive the process to another one. Transfers of these fail from now on. May be called
        from any thread.
        """

    def take_back(self) -> None:
        """Takes the blocks back that were left to another process, which has ended. Logs it if they cannot be used. May
        be called from any thread.
        """

    def sync(self) -> None:
        """Ends all transfers and makes written blocks durable; a failure is logged."""


class PackedAdapter(Protocol):
    """An adapter as the backend that packed it needs it."""


class AdapterSlots(Protocol):
    """The part of a backend that holds loaded adapters, in slots that are numbered from 1."""

    def num_bytes(self, adapter: Adapter) -> int:
        """Returns the bytes that an adapter takes in a slot, at most. May be called from any thread."""
        ...

    def pack(self, factors: Mapping[str, Factors]) -> PackedAdapter:
        """Prepares an adapter beside the steps, by the names of weights. May be called from any thread."""
        ...

    def put(self, slot: int, packed: PackedAdapter | None) -> None:
        """Puts an adapter into a slot, or empties the slot. No started sequence may name it."""


class Adapters(Protocol):
    """Opens adapters, and loads them into the slots of a backend beside the steps."""

    def open(self, source: str) -> OpenAdapterResponse:
        """Answers `OpenAdapter`. May be called from any thread, and may take long. Raises UserError."""
        ...

    def begin(self, load: AdapterLoad) -> None:
        """Empties a slot and begins to load an adapter into it, if there is a path.

        Raises ValueError if a sequence uses the slot.
        """

    def take_outcomes(self) -> list[AdapterOutcome]:
        """Puts the adapters that are loaded into their slots. Called only between steps."""
        ...

    def reset(self) -> None:
        """Forgets the loads in progress, for a new Step stream."""


@runtime_checkable
class RunAheadBackend(Protocol):
    """The methods of a `Backend` that can begin a step while another is running on the device.

    `step` is `begin` and `finish`. Between them `start`, `end`, `copy_block` and the like may be called. They take
    effect after the step that has begun, because the device works in order.
    """

    def begin(self, chunks: Sequence[Chunk], late_masks: LateMasks | None = None) -> None:
        """Begins a step as `Backend.step` does. At most one other step may have begun and not be finished."""

    def is_ready(self) -> bool:
        """Returns True if `finish` would not wait for the oldest step that has begun. Never waits.

        Begins that step's samples once all late masks have come for which they wait.
        """

    def finish(self) -> StepResult:
        """Waits for the oldest step that has begun and returns its result, as `Backend.step` does."""


@runtime_checkable
class DraftingBackend(Protocol):
    """The part of a `Backend` with a draft model. draft_time_us: of the last step, in microseconds."""

    draft_time_us: int


class Backend(Protocol):
    """Holds weights, KV pool, and the token list and block table of each started sequence.

    Not thread-safe: only the engine loop calls it. A bad chunk fails its sequence and is never an exception.
    """

    info: BackendInfo
    # Absent (None) if blocks are kept only in the device pool.
    store: Store | None
    # Absent (None) if `info.num_adapter_slots` is 0.
    adapters: AdapterSlots | None

    def after_start(self) -> None:
        """Does work that can wait until the shard is ready. Called once, from a thread of its own."""

    def start(self, start: SequenceStart) -> None:
        """Begins a sequence. A mask in its parameters is there as a whole, not only by its name.

        An exception fails only this sequence, which the backend then does not know.
        """

    def end(self, sequence_id: int) -> None:
        """Forgets a sequence; its blocks keep their contents."""

    def drop_window_parts(self, block_ids: Sequence[int]) -> None:
        """Drops K and V of layers with a window from these blocks. No chunk reads them before it writes them again.

        Only called if `info.num_window_parts` is not 0. A block without such a part stays as it is.
        """

    def copy_block(self, source_block_id: int, destination_block_id: int, num_tokens: int) -> None:
        """Copies the first `num_tokens` positions of a block, K and V of all layers."""

    def step(self, chunks: Sequence[Chunk], late_masks: LateMasks | None = None) -> StepResult:
        """Runs one forward pass over `chunks`, samples and scores as requested, and appends sampled tokens to their
        sequences.

        Returns one outcome for each chunk that samples, scores or failed, in the order of the chunks. The other fields
        of the result are left to the caller.

        A chunk's `appended_token_ids` are appended first. If `allowed_tokens` is not empty, only these can be sampled.
        Chunks with `draft_token_ids` come only if `info.max_draft_tokens` is not 0.
        A chunk with `awaits_mask` waits at `late_masks` for its mask, and samples nothing if it is empty.

        Begins the stores of chunks that did not fail. Raises PlanError, before anything is done, if a store is invalid.
        """

    def step_time_us(self, *, elapsed_us: int) -> int:
        """Returns how long the device worked on the step that ended last, in microseconds; 0 if it is unknown.

        elapsed_us: the time that the host saw. Waits for late masks are no work.
        """

    def make_late_masks(self) -> LateMasks: ...

    def reset(self) -> None:
        """Forgets all sequences, for a new Step stream. Ends transfers first and drops their outcomes."""

    def score(self, token_ids: Sequence[int]) -> NDArray[np.float32]:
        """Returns logits [len(token_ids), V] of every position of one text, for tests and perplexity.

        Uses the pool's first blocks; no sequence may be started.
        """
