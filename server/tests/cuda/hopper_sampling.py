"""Compiles the sampler's kernels for Hopper; else as `hopper.py`.

python tests/cuda/hopper_sampling.py
"""

from __future__ import annotations

import json
from typing import Any

from hopper import Case, compiled
from trunkline_server.backends.cuda.kernels import choose, logit_edits, logprobs, tokens

_TYPES = {
    "logits": "*fp32", "largest": "*fp32", "tokens": "*i32", "values": "*fp32", "ids": "*i32", "counts": "*i32",
    "masses": "*i64", "temperature": "*fp32", "top_ks": "*i32", "top_ps": "*fp64", "min_ps": "*fp64",
    "typical_ps": "*fp64", "seeds": "*i64", "choices": "*i32", "positions": "*i32", "out": "*i32", "scaled": "*fp32",
    "peak_tokens": "*i32", "chosen": "*i32", "num_top": "*i32", "out_logprobs": "*fp32", "out_ranks": "*i32",
    "out_top_tokens": "*i32", "out_top_logprobs": "*fp32",
}  # fmt: skip
_EDIT_TYPES = {
    "logits": "*fp32", "begin": "*i32", "tokens": "*i32", "counts": "*i32", "flags": "*i32", "repetition": "*fp32",
    "presence": "*fp32", "frequency": "*fp32", "pending": "*i32", "previous": "*i32", "num_rounds": "*i32",
    "rounds": "*i32", "values": "*fp32",
}  # fmt: skip
_SHAPE: dict[str, Any] = {"ROWS": 1, "TILE": 2048}
_SUMS: dict[str, Any] = {**_SHAPE, "SCALE": 44, "TILES": 64}
_ALL = {"TOP_K": True, "TOP_P": True, "MIN_P": True, "TYPICAL": True}
_WARPS = {"num_warps": 8}
CASES: list[Case] = [
    ("peaks", choose._peaks_kernel, _TYPES, _SHAPE, {}),
    ("weigh", choose._weigh_kernel, _TYPES, _SUMS, {}),
    ("list", choose._list_kernel, _TYPES, _SHAPE, _WARPS),
    ("all filters", choose._choose_kernel, _TYPES, {**_SUMS, **_ALL}, _WARPS),
    ("sum", logprobs._sum_kernel, _TYPES, _SUMS, {}),
    ("logprobs", logprobs._logprobs_kernel, _TYPES, _SUMS, _WARPS),
    ("allowed", logit_edits._allowed_kernel,
     {"logits": "*fp32", "mask_rows": "*i32", "masks": "*i32", "out": "*fp32"}, {"TILE": 4096}, {}),
    ("biases", logit_edits._bias_kernel, _EDIT_TYPES, {"ENTRIES": 256}, {}),
    ("penalties", logit_edits._token_kernel, _EDIT_TYPES, {"ENTRIES": 256}, {}),
    ("fill", tokens._fill_kernel, {"token_ids": "*i32", "previous": "*i32"}, {"BLOCK": 256}, {}),
]  # fmt: skip

if __name__ == "__main__":
    for case in CASES:
        print(json.dumps(compiled(case)))
