"""Every format against the `gguf` package, over random bits that cover all scales, minima and quants."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from tests.weights.random_groups import random_groups
from trunkline_server.weights.dequantize import dequantize
from trunkline_server.weights.tensor import FORMATS, Tensor, stored_bytes


@pytest.mark.parametrize("format_name", FORMATS)
def test_dequantize_agrees_with_the_gguf_package_to_the_bit(format_name: str) -> None:
    stored_as = FORMATS[format_name]
    rows, columns = 6, 512
    num_groups = rows * columns // stored_as.group_elements
    raw = random_groups(format_name, num_groups, seed=7).reshape(rows, -1)
    expected = gguf.dequantize(raw, gguf.GGMLQuantizationType[format_name])
    tensor = Tensor(name="w", format=format_name, shape=(rows, columns), data=raw.reshape(-1))
    values = dequantize(tensor)
    assert values.dtype == np.float32
    assert values.shape == (rows, columns)
    np.testing.assert_array_equal(values.view(np.uint32), np.asarray(expected, dtype=np.float32).view(np.uint32))


@pytest.mark.parametrize("format_name", FORMATS)
def test_dequantize_reads_tensors_at_odd_addresses(format_name: str) -> None:
    raw = random_groups(format_name, 512 // FORMATS[format_name].group_elements, seed=3).reshape(-1)
    shifted = np.concatenate([np.zeros(1, dtype=np.uint8), raw])[1:]
    aligned = dequantize(Tensor(name="w", format=format_name, shape=(512,), data=raw))
    odd = dequantize(Tensor(name="w", format=format_name, shape=(512,), data=shifted))
    np.testing.assert_array_equal(aligned, odd)


def test_dequantize_spans_several_chunks() -> None:
    raw = random_groups("Q8_0", (1 << 20) // 32 + 3, seed=5)
    tensor = Tensor(name="w", format="Q8_0", shape=(raw.shape[0] * 32,), data=raw.reshape(-1))
    expected = gguf.dequantize(raw, gguf.GGMLQuantizationType.Q8_0).reshape(-1)
    np.testing.assert_array_equal(dequantize(tensor), expected)


def test_stored_bytes_refuses_partial_groups() -> None:
    assert stored_bytes("Q4_1", (3, 64)) == 3 * 2 * 20
    with pytest.raises(ValueError, match="multiple of 32"):
        stored_bytes("Q4_1", (3, 48))
