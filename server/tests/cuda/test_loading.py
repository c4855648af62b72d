"""Weights of checkpoints on the device: equal to the reference's, and stacked if multiplied with the same x."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from safetensors.numpy import save_file
from safetensors.torch import load_file
from safetensors.torch import save_file as save_torch_file
from tests.models.tiny import TinyModels
from tests.tiers import first
from tests.weights.gguf_files import write_model
from tests.weights.quantized_files import CASES, write_dequantized, write_quantized
from trunkline_server.backends.cuda import loading
from trunkline_server.backends.cuda.kernels.card import Card
from trunkline_server.backends.cuda.kernels.grouped import dequantized_rows
from trunkline_server.backends.cuda.kernels.linear import linear
from trunkline_server.backends.cuda.loading import default_dtype, load_weights
from trunkline_server.backends.cuda.quantized.grouped import GroupedWeight
from trunkline_server.backends.cuda.quantized.scaled import ScaledWeight
from trunkline_server.backends.cuda.staging import STAGING_BYTES, Staging
from trunkline_server.backends.cuda.weights import DenseWeight, DeviceWeights
from trunkline_server.errors import DamagedFile
from trunkline_server.weights.checkpoint import Checkpoint, open_checkpoint
from trunkline_server.weights.dequantize import dequantize
from trunkline_server.weights.quantize import QuantizedCheckpoint

LAYER = "model.layers.0"


def rows_of(weights: DeviceWeights, name: str) -> torch.Tensor:
    """Returns a weight in f32 on the host, with its columns in the model's order."""
    matrix, begin, end = weights.matrix(name)
    if isinstance(matrix, GroupedWeight):
        rows = torch.arange(begin, end, device=matrix.quants.device)
        found = dequantized_rows(matrix, rows, torch.empty(len(rows), matrix.num_inputs, device=rows.device)).cpu()
        return found if matrix.order is None else found[:, matrix.order.long().argsort().cpu()]
    assert isinstance(matrix, DenseWeight | ScaledWeight)
    values = matrix.values[begin:end].float()
    return (values * matrix.scales[begin:end, None] if isinstance(matrix, ScaledWeight) else values).cpu()


def check(checkpoint: Checkpoint, weights: DeviceWeights, dtype: torch.dtype) -> None:
    for name in checkpoint.names():
        expected = torch.from_numpy(dequantize(checkpoint.tensor(name)))
        if expected.dim() == 1:
            assert torch.equal(weights.vector(name).cpu(), expected), name
        else:
            found = rows_of(weights, name)
            exact = isinstance(weights.matrix(name)[0], GroupedWeight)
            assert torch.equal(found, expected if exact else expected.to(dtype).float()), name


@pytest.mark.parametrize(
    "case", first(["llama_biases", "gemma3", "gemma3_shallow", "smollm2"], "llama_biases", "gemma3_shallow", "smollm2")
)
def test_safetensors_are_read_and_stacked(device: str, tiny_model: TinyModels, case: str) -> None:
    checkpoint = open_checkpoint(tiny_model(case).folder)
    parts = list[float]()
    weights = load_weights(checkpoint, torch.device(device), torch.bfloat16, on_progress=parts.append)
    assert parts == sorted(parts) and 0 < parts[0] < 0.9 < parts[-1] <= 1
    check(checkpoint, weights, torch.bfloat16)
    query, begin, _ = weights.matrix("model.layers.1.self_attn.q_proj.weight")
    assert begin == 0
    value, first_value, end = weights.matrix("model.layers.1.self_attn.v_proj.weight")
    assert value is query
    assert end == query.num_outputs
    assert first_value == end - checkpoint.tensor("model.layers.1.self_attn.v_proj.weight").shape[0]
    head, embedding = weights.matrix("lm_head.weight")[0], weights.matrix("model.embed_tokens.weight")[0]
    assert (head is embedding) == checkpoint.config.tie_word_embeddings
    if case == "llama_biases":
        assert query.bias is not None
        assert torch.equal(query.bias[first_value:end], weights.vector("model.layers.1.self_attn.v_proj.bias"))
    else:
        assert query.bias is None


@pytest.mark.parametrize("quantization", first(["F16", "Q8_0", "Q4_1"], "F16", "Q4_1"))
def test_gguf_is_read_with_rows_in_the_models_order(
    device: str, tiny_model: TinyModels, tmp_path: Path, quantization: str
) -> None:
    path = write_model(tiny_model("llama2"), tmp_path / "m.gguf", quantization)
    checkpoint = open_checkpoint(path)
    weights = load_weights(checkpoint, torch.device(device), torch.float16)
    check(checkpoint, weights, torch.float16)
    assert (default_dtype(checkpoint) == torch.float16) == (quantization == "F16")
    # Rows of 64 and 96 elements are padded to 128, and nothing is stored twice.
    stored = {tensor.name: tensor.num_bytes for tensor in map(checkpoint.encoded, checkpoint.names())}
    assert weights.num_bytes < (2 if quantization != "F16" else 1.1) * sum(stored.values())


@pytest.mark.parametrize("bits", ["int8", "int4"])
def test_floats_are_quantised_as_on_other_backends(device: str, tiny_model: TinyModels, bits: str) -> None:
    checkpoint = QuantizedCheckpoint(open_checkpoint(tiny_model("qwen2_moe").folder), bits)
    weights = load_weights(checkpoint, torch.device(device), torch.bfloat16)
    check(checkpoint, weights, torch.bfloat16)
    query, value = (weights.matrix(f"model.layers.1.self_attn.{one}_proj.weight")[0] for one in "qv")
    assert query is value
    for projection in ("self_attn.q_proj", "mlp.shared_expert.up_proj", "mlp.experts.1.up_proj"):
        assert isinstance(weights.matrix(f"model.layers.1.{projection}.weight")[0], GroupedWeight)


def test_floats_are_rounded_to_fp8(device: str, tiny_model: TinyModels) -> None:
    checkpoint = open_checkpoint(tiny_model("qwen2_moe").folder)
    weights = load_weights(checkpoint, torch.device(device), torch.bfloat16, rounds_to="fp8")
    assert isinstance(weights.matrix("lm_head.weight")[0], DenseWeight)
    for projection in ("self_attn.k_proj", "mlp.shared_expert.down_proj", "mlp.experts.1.up_proj"):
        name = f"model.layers.1.{projection}.weight"
        # Experts are grouped weights.
        assert isinstance(weights.matrix(name)[0], GroupedWeight if ".experts." in name else ScaledWeight)
        found = rows_of(weights, name)
        expected = torch.from_numpy(dequantize(checkpoint.tensor(name))).to(torch.bfloat16).float()
        largest = expected.abs().amax(dim=1, keepdim=True)
        # Half a unit of the last of four significant bits, or of the smallest numbers.
        assert ((found - expected).abs() <= expected.abs() / 16 + largest / 448 / 1024).all()
        torch.testing.assert_close(found.abs().amax(dim=1, keepdim=True), largest)


def test_bytes_are_staged_in_pieces(device: str) -> None:
    source = bytes(range(251)) * (2 * STAGING_BYTES // 251 + 3)
    staging = Staging(torch.device(device))
    destination = torch.empty(len(source), dtype=torch.uint8, device=device)
    staging.copy(memoryview(source), destination)
    staging.wait()
    assert bytes(destination.cpu().numpy()) == source


@pytest.mark.parametrize(
    ("case", "part", "value"),
    [
        ("llama_biases", "layers.1.self_attn.k_proj.weight", float("nan")),
        ("llama_biases", "layers.0.input_layernorm.weight", float("inf")),
        ("llama_biases", "layers.1.self_attn.v_proj.bias", float("nan")),
        ("llama_biases", "embed_tokens.weight", -float("inf")),
        # Not infinite before it is rounded.
        ("llama_biases", "layers.1.mlp.down_proj.weight", 7e4),
        ("mixtral", "layers.1.block_sparse_moe.experts.2.w3.weight", float("inf")),
    ],
)
def test_numbers_that_are_not_finite_are_refused_by_name(
    case: str, part: str, value: float, device: str, tiny_model: TinyModels, tmp_path: Path
) -> None:
    model = tiny_model(case)
    tensors = {name: weight.copy() for name, weight in model.stored_weights.items()}
    tensors[f"model.{part}"].flat[-1] = value
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(model.config))
    named = part.replace("block_sparse_moe.experts.2.w3", "mlp.experts.2.up_proj")
    with pytest.raises(
        DamagedFile, match=f"{re.escape(str(tmp_path))}.*`model.{named}` has a number that is not finite"
    ):
        load_weights(open_checkpoint(tmp_path), torch.device(device), torch.float16)


@pytest.mark.parametrize("rounded_to", ["gguf", "fp8_blocks", "fp8_dynamic"])
def test_codes_and_scales_that_are_not_finite_are_refused_by_name(
    rounded_to: str, device: str, tiny_model: TinyModels, tmp_path: Path
) -> None:
    model, name = tiny_model("llama2"), "model.layers.1.mlp.up_proj"
    if rounded_to == "gguf":
        path = write_model(model, tmp_path / "m.gguf", "Q8_0")
        tensor = open_checkpoint(path).tensor(f"{name}.weight")
        data = path.read_bytes()
        begin = data.index(bytes(tensor.data))
        # A scale of infinity in f16.
        path.write_bytes(data[:begin] + b"\x00\x7c" + data[begin + 2 :])
    else:
        path = tmp_path
        write_quantized(model.folder, tmp_path, rounded_to)
        tensors = load_file(tmp_path / "model.safetensors")
        tensors[f"{name}.weight"].view(torch.uint8)[-1, -1] = 0xFF
        save_torch_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(DamagedFile, match=f"`{name}.weight` has a number that is not finite"):
        load_weights(open_checkpoint(path), torch.device(device), torch.float16)


@pytest.mark.parametrize(
    ("model", "case"), [*(("llama2", case) for case in CASES), ("phi3", "fp8_blocks"), ("glm4", "awq")]
)
def test_weights_equal_what_the_file_encodes(
    device: str, model: str, case: str, tiny_model: TinyModels, tmp_path: Path
) -> None:
    """The files of Phi-3 and GLM-4 join matrices."""
    folder = tiny_model(model).folder
    meant = write_quantized(folder, tmp_path / "quantized", case)
    expected = open_checkpoint(write_dequantized(folder, tmp_path / "dequantized", meant))
    weights = load_weights(open_checkpoint(tmp_path / "quantized"), torch.device(device), torch.float16)
    for part in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.up_proj", "mlp.down_proj"):
        name = f"{LAYER}.{part}.weight"
        assert not isinstance(weights.matrix(name)[0], DenseWeight)
        values = torch.from_numpy(dequantize(expected.tensor(name)))
        torch.testing.assert_close(rows_of(weights, name), values, rtol=1e-6, atol=1e-8, msg=name)
    assert isinstance(weights.matrix("lm_head.weight")[0], DenseWeight)
    query, value = (weights.matrix(f"{LAYER}.self_attn.{one}_proj.weight")[0] for one in "qv")
    # Projections that each reorder columns in their own way cannot be stacked.
    assert (query is value) == (case != "gptq_act_order")


@pytest.mark.parametrize("case", ["fp8_dynamic", "fp8_static", "fbgemm_fp8"])
def test_fp8_is_supported_on_cards_without_fp8_products(
    device: str, tiny_model: TinyModels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    monkeypatch.setattr(loading, "card_of", lambda device: Card((8, 0), 108))
    meant = write_quantized(tiny_model("llama2").folder, tmp_path, case)
    weights = load_weights(open_checkpoint(tmp_path), torch.device(device), torch.bfloat16)
    name = f"{LAYER}.mlp.up_proj.weight"
    matrix, begin, end = weights.matrix(name)
    torch.testing.assert_close(rows_of(weights, name), meant[name], rtol=1e-6, atol=1e-8)
    # Each element is rounded once, and activations are not quantised.
    x = torch.randn(3, 64, generator=torch.Generator().manual_seed(1)).to(torch.bfloat16)
    found = linear(x.to(device), matrix, out_dtype=torch.float32)[:, begin:end].cpu().double()
    expected = x.double() @ meant[name].bfloat16().double().T
    assert ((found - expected).norm() / expected.norm()).item() < 1e-5


def test_activations_have_the_dtype_of_scales(tiny_model: TinyModels, tmp_path: Path) -> None:
    model = tiny_model("llama2").folder
    for case, dtype in {"awq": torch.float16, "packed_4": torch.bfloat16}.items():
        write_quantized(model, tmp_path / case, case)
        assert default_dtype(open_checkpoint(tmp_path / case)) == dtype
