"""Keys about experts that several families have in GGUF."""

from __future__ import annotations

from trunkline_server.errors import UnsupportedArchitecture
from trunkline_server.models.architecture import Fields, NumRows
from trunkline_server.models.config import layer_range
from trunkline_server.models.keys import Keys

# The values of GGUF's `expert_gating_func`.
_SOFTMAX, _SIGMOID = 1, 2


def experts_from_gguf(values: Keys, num_layers: int, num_rows: NumRows) -> Fields:
    """Returns the fields of experts."""
    scoring = values.integer("expert_gating_func", _SOFTMAX)
    if scoring not in (_SOFTMAX, _SIGMOID):
        raise UnsupportedArchitecture(
            f"`expert_gating_func` {scoring} in `{values.path}`", supported=("1 (softmax)", "2 (sigmoid)")
        )
    first = values.integer("leading_dense_block_count", 0)
    size = values.integer("expert_feed_forward_length")
    return {
        "experts.num_experts": values.integer("expert_count"),
        "experts.num_used": values.integer("expert_used_count"),
        "experts.size": size,
        "experts.shared_size": size * values.integer("expert_shared_count", 0),
        "experts.has_shared_gate": False,
        # Old files state 0 for 1.
        "experts.multiplier": values.number("expert_weights_scale", 1.0) or 1.0,
        "experts.renormalise": values.boolean("expert_weights_norm", False),
        "experts.sigmoid": scoring == _SIGMOID,
        "experts.has_choice_bias": num_rows(f"blk.{first}.exp_probs_b.bias") is not None,
        "experts.num_groups": values.integer("expert_group_count", 1),
        "experts.num_used_groups": values.integer("expert_group_used_count", 1),
        "experts.layers": tuple(layer >= first for layer in layer_range(num_layers)),
    }
