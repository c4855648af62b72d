"""What the engine asks of a backend. The engine knows nothing else of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Watermark:
    """As `Watermark` in shard.proto."""

    gamma: float
    delta: float
    # No log shows it.
    key: int = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """As `SamplingParams` in shard.proto, field by field."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int = 0
    choice: int = 0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    min_tokens: int = 0
    end_token_ids: tuple[int, ...] = ()
    num_top_logprobs: int = 0
    logprobs: bool = False
    logit_bias: tuple[tuple[int, float], ...] = ()
    allowed_token_ids: tuple[int, ...] = ()
    typical_p: float = 1.0
    num_top_prompt_logprobs: int = 0
    watermark: Watermark | None = None


@dataclass(frozen=True, slots=True)
class BlockStore:
    """As `BlockStore` in shard.proto."""

    block_index: int
    slot: int


@dataclass(frozen=True, slots=True)
class BlockRestore:
    """As `BlockRestore` in shard.proto."""

    slot: int
    block_id: int
    key: bytes
    base_only: bool = False


@dataclass(frozen=True, slots=True)
class Restore:
    """As `Restore` in shard.proto."""

    restore_id: int
    blocks: Sequence[BlockRestore]


@dataclass(frozen=True, slots=True)
class StoreOutcome:
    """As `StoreOutcome` in shard.proto."""

    slot: int
    is_stored: bool


@dataclass(frozen=True, slots=True)
class RestoreOutcome:
    """As `RestoreOutcome` in shard.proto."""

    restore_id: int
    num_blocks: int
    time_us: int


@dataclass(frozen=True, slots=True)
class Transfers:
    """As `Transfers` in shard.proto."""

    stores: Sequence[StoreOutcome] = ()
    restores: Sequence[RestoreOutcome] = ()


class LateMasks(Protocol):
    """Where masks are left for the step that waits for them. All methods may be called from any thread."""

    def tell(self, sequence_id: int, mask: bytes) -> None:
        """What the next sample of a sequence may choose; empty: it chooses nothing."""
        ...

    def close(self) -> None:
        """No mask follows: who waits for one samples nothing."""
        ...

    def wait(self, sequence_id: int) -> bytes:
        """Waits for the mask of a sequence and takes it; empty if nothing is to be sampled."""
        ...


@dataclass(frozen=True, slots=True)
class Chunk:
    """As `Chunk` in shard.proto."""

    sequence_id: int
    first_position: int
    num_tokens: int
    new_block_ids: Sequence[int]
    sample: bool
    stores: Sequence[BlockStore] = ()
    appended_token_ids: Sequence[int] = ()
    # Empty: any token.
    allowed_tokens: bytes = b""
    score: bool = False
    # If not None, the mask comes there while the step runs.
    late_masks: LateMasks | None = None


@dataclass(frozen=True, slots=True)
class TokenScore:
    """As `PromptTokenLogprob` in shard.proto."""

    logprob: float
    rank: int
    top_logprobs: Sequence[tuple[int, float]] = field(default=())


@dataclass(frozen=True, slots=True)
class Sampled:
    """What came of a chunk that samples or scores.

    token_id: None if it does not sample. `logprob` is 0.0 unless asked for; `top_logprobs` are (token id, logprob),
    likeliest first. scores: of the prompt's tokens that follow the chunk's positions.
    """

    sequence_id: int
    token_id: int | None
    logprob: float = 0.0
    top_logprobs: Sequence[tuple[int, float]] = field(default=())
    scores: Sequence[TokenScore] = field(default=())


@dataclass(frozen=True, slots=True)
class SequenceFailure:
    """One sequence failed, the others did not. `code`: "not_finite" or "invalid_plan"."""

    sequence_id: int
    code: str
    message: str


@dataclass(frozen=True, kw_only=True)
class BackendInfo:
    """What `Describe` says of the device side."""

    device: str
    block_size: int
    bytes_per_block: int
    num_device_blocks: int
    max_step_tokens: int
    max_step_sequences: int
    kv_dtype: str
    weight_bytes: int
    numeric_fingerprint: str
    # 0 and empty: there is no store.
    num_store_slots: int = 0
    store_folder: str = ""
    # 0: blocks are in one piece.
    num_window_parts: int = 0
    bytes_per_window_part: int = 0
    window_size: int = 0

    @property
    def pool_bytes(self) -> int:
        """What K and V of all blocks take, window parts included."""
        return self.num_device_blocks * self.bytes_per_block + self.num_window_parts * self.bytes_per_window_part


class Store(Protocol):
    """Blocks on disk. Transfers run beside the steps; what became of them is taken later."""

    def restore(self, restore: Restore) -> None:
        """Begins to read blocks. Raises PlanError if that cannot be."""
        ...

    def discard(self, slots: Sequence[int]) -> None:
        """Empties slots. Raises PlanError if one is in a transfer."""
        ...

    def take_outcomes(self) -> Transfers | None:
        """Transfers that ended since the last call; None if there are none."""
        ...

    def wait_outcomes(self, timeout_s: float) -> None:
        """Returns when there are outcomes, the time is over, or `wake` was called. From any thread."""
        ...

    def wake(self) -> None:
        """Lets `wait_outcomes` return. From any thread."""
        ...

    def sync(self) -> None:
        """Ends all transfers and makes what was written durable; a failure is logged."""
        ...


@runtime_checkable
class RunAheadBackend(Protocol):
    """What a `Backend` has whose steps take their time elsewhere: the next is begun while one is under way.

    `step` is `begin` and `finish`. Between them `start`, `end`, `copy_block` and the like may be called: what they do
    comes after the step that was begun before, as on a device that does one thing after the other.
    """

    def begin(self, chunks: Sequence[Chunk]) -> None:
        """The first half of `step`; at most one other step may be begun and not finished."""
        ...

    def is_ready(self) -> bool:
        """Whether `finish` would wait no more, of the oldest step that was begun. Never waits."""
        ...

    def finish(self) -> list[Sampled | SequenceFailure]:
        """The second half, of the oldest step that was begun: waits for it."""
        ...


class Backend(Protocol):
    """Holds weights, KV pool and the token list and block table of each started sequence.

    Not thread-safe: the engine's step loop is its only caller. A bad chunk is a `SequenceFailure`, never an exception.
    """

    info: BackendInfo
    # None if blocks are kept in memory alone.
    store: Store | None

    def after_start(self) -> None:
        """Work that may wait until the shard is ready; called once, from another thread than all other calls."""
        ...

    def start(
        self,
        sequence_id: int,
        token_ids: Sequence[int],
        num_prompt_tokens: int,
        sampling: SamplingParams,
        root_key: bytes = b"",
    ) -> None:
        """Begins a sequence whose known tokens are `token_ids`. root_key: 16 bytes, or none if there is no store."""
        ...

    def end(self, sequence_id: int) -> None:
        """Forgets a sequence; its blocks keep what they hold."""
        ...

    def drop_window_parts(self, block_ids: Sequence[int]) -> None:
        """Takes K and V of layers with a window from these blocks: no chunk reads them before it writes them anew.

        Only called where `info.num_window_parts` is not 0. A block that has no such part stays as it is.
        """
        ...

    def copy_block(self, source_block_id: int, destination_block_id: int, num_tokens: int) -> None:
        """Copies the first `num_tokens` positions, all layers, K and V."""
        ...

    def step(self, chunks: Sequence[Chunk]) -> list[Sampled | SequenceFailure]:
        """One forward pass over `chunks`; samples and scores where asked and appends the token to its sequence.

        One outcome for each chunk that samples, scores or failed, in the order of the chunks.

        A chunk's `appended_token_ids` are appended first; `allowed_tokens` are the only ones that it may sample. With
        `late_masks` the step waits there for them, and samples nothing if none are left.

        Begins the stores of chunks that did not fail. Raises PlanError, before anything is done, if one cannot be.
        """
        ...

    def make_late_masks(self) -> LateMasks:
        """For the late masks of one Step stream."""
        ...

    def reset(self) -> None:
        """Forgets all sequences (a new Step stream began). Ends transfers first, and forgets what became of them."""
        ...

    def score(self, token_ids: Sequence[int]) -> NDArray[np.float32]:
        """Logits [len(token_ids), V] of every position of one text: for tests and perplexity, not for serving.

        Uses the pool's first blocks; may only be called while no sequence is started.
        """
        ...
