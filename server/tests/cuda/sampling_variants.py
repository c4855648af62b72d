"""Variants of the sampler's kernels that are compiled for Hopper; see `compiled`."""

from __future__ import annotations

from typing import Any

from tests.cuda.compiled import Variant
from trunkline_server.backends.cuda.kernels import choose, logit_edits, logprobs, tokens, watermark

# The variants that `make test` compiles: one of each kind.
FIRST = {"weigh", "logprobs", "biases", "watermark"}
_TYPES = {
    "logits": "*fp32", "largest": "*fp32", "tokens": "*i32", "values": "*fp32", "ids": "*i32", "draws": "*i64",
    "masses": "*i64", "band_masses": "*i64", "band_counts": "*i32", "out": "*i32", "scaled": "*fp32", "ranks": "*i32",
    "chosen": "*i32", "num_top": "*i32", "out_logprobs": "*fp32", "out_ranks": "*i32", "out_top_tokens": "*i32",
    "out_top_logprobs": "*fp32",
}  # fmt: skip
_EDIT_TYPES = {
    "logits": "*fp32", "begin": "*i32", "tokens": "*i32", "counts": "*i32", "flags": "*i32", "repetition": "*fp32",
    "presence": "*fp32", "frequency": "*fp32", "pending": "*i32", "previous": "*i32", "num_rounds": "*i32",
    "rounds": "*i32", "values": "*fp32",
}  # fmt: skip
_MARK_TYPES = {
    "logits": "*fp32", "green_below": "*i32", "deltas": "*fp32", "keys": "*i64", "contexts": "*i32", "pending": "*i32",
    "previous": "*i32",
}  # fmt: skip
_SHAPE: dict[str, Any] = {"ROWS": 1, "TILE": 2048}
_SUMS: dict[str, Any] = {**_SHAPE, "SCALE": 44, "TILES": 64}
_LISTS: dict[str, Any] = {"ROWS": 1, "TILES": 64, "TILE": 2048}
_FILTERS: dict[str, Any] = {**_SUMS, "TILE": 1024, "FILTERS": True}


def variants() -> list[Variant]:
    masks = {"logits": "*fp32", "mask_rows": "*i32", "masks": "*i32", "out": "*fp32"}
    return [
        Variant("peaks", choose._peaks_kernel, _TYPES, _SHAPE),
        Variant("weigh", choose._weigh_kernel, _TYPES, _SUMS, num_warps=8),
        Variant("narrow", choose._narrow_kernel, _TYPES, _SUMS, num_warps=8),
        Variant("list", choose._list_kernel, _TYPES, _LISTS, num_warps=8),
        Variant("filters", choose._choose_kernel, _TYPES, {**_FILTERS, "RARE": False}),
        Variant("all filters", choose._choose_kernel, _TYPES, {**_FILTERS, "RARE": True}),
        Variant("sum", logprobs._sum_kernel, _TYPES, _SUMS),
        Variant("logprobs", logprobs._logprobs_kernel, _TYPES, _SUMS, num_warps=8),
        Variant("allowed", logit_edits._allowed_kernel, masks, {"TILE": 4096}),
        Variant("watermark", watermark._watermark_kernel, _MARK_TYPES, {"TILE": 1024}),
        Variant("biases", logit_edits._bias_kernel, _EDIT_TYPES, {"ENTRIES": 256}),
        Variant("penalties", logit_edits._token_kernel, _EDIT_TYPES, {"ENTRIES": 256}),
        Variant(
            "sigmas", logit_edits._sigma_kernel, {"logits": "*fp32", "widths": "*fp32"}, {"TILE": 1024}, num_warps=8
        ),
        Variant("fill", tokens._fill_kernel, {"token_ids": "*i32", "previous": "*i32"}, {"BLOCK": 256}),
    ]
