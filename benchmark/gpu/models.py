"""The measured models. A name consists of a shape and an optional suffix for the weights' dtype."""

from __future__ import annotations

from gpu.shapes import SHAPES, Shape

FP8 = "-fp8"
NAMES = ("llama-8b", "llama-8b-fp8", "llama-1b")


def is_fp8(name: str) -> bool:
    return name.endswith(FP8)


def shape_of(name: str) -> Shape:
    return SHAPES[name.removesuffix(FP8)]
