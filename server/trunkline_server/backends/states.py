"""Room for the states of recurrent layers: docs/decisions/0038-recurrent-layers.md."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from trunkline_server.errors import DoesNotFit, InvalidArgument

if TYPE_CHECKING:
    from trunkline_server.backends.store_files import StoreOptions
    from trunkline_server.models.config import ModelConfig
    from trunkline_server.weights.checkpoint import Checkpoint

logger = logging.getLogger(__name__)

STATE_ELEMENT_BYTES = 4
# States that one sequence needs to run.
LEAST_STATES = 3


def refuse_beside_states(
    config: ModelConfig, store: StoreOptions | None, draft: Checkpoint | None = None, host_bytes: int | None = None
) -> None:
    """Raises InvalidArgument for what cannot be used with a model that has recurrent layers."""
    if config.recurrent is None:
        return
    if store is not None:
        raise InvalidArgument(
            "the model has recurrent layers, whose states are not kept on disk",
            hint="leave out `--kv-disk-path`",
        )
    if host_bytes is not None:
        raise InvalidArgument(
            "the model has recurrent layers, whose states are not kept in host memory",
            hint="leave out `--kv-host-size`",
        )
    if draft is not None:
        raise InvalidArgument(
            "the model has recurrent layers, whose states cannot be rewound after a wrong draft",
            hint="leave out `--speculative-model`",
        )


def num_states(left_bytes: int, state_bytes: int, max_step_sequences: int) -> int:
    """Returns and logs how many states of recurrent layers are kept, of `state_bytes` each. Raises DoesNotFit.

    A running sequence needs up to three: that before a step, and two that the step leaves. As many again are kept for
    later prompts, if half of the memory that is left has room for them.
    """
    fitting = max(left_bytes, 0) // 2 // state_bytes
    if fitting < LEAST_STATES:
        raise DoesNotFit(
            f"{LEAST_STATES} states of recurrent layers take {LEAST_STATES * state_bytes >> 20} MiB, but weights, "
            f"activations and KV pool leave {max(left_bytes, 0) >> 20} MiB, of which states get half",
            hint="lower `--max-batch-total-tokens`, or choose a smaller or more quantised model",
        )
    num_kept = min(fitting, 2 * LEAST_STATES * max_step_sequences)
    fields = {"states": num_kept, "state_kib": state_bytes >> 10}
    logger.info("states of recurrent layers are kept", extra={"fields": fields})
    return num_kept
