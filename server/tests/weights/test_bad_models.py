"""Formats and their damages: a bad model is refused by an error that names the fault, and needs little memory."""

from __future__ import annotations

import json
import random
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.models.tiny import CASES as MODELS
from tests.models.tiny import TinyModels
from tests.tiers import IS_FULL
from tests.weights.gguf_files import write_model
from tests.weights.mxfp4_files import mxfp4_tensors, write_mxfp4
from tests.weights.quantized_files import CASES, write_quantized
from tests.weights.test_damage import ABSURD, flip, read_all
from trunkline_server.errors import DamagedFile, UserError
from trunkline_server.models.config_json import config_from_json
from trunkline_server.models.rope import rope
from trunkline_server.weights.checkpoint import open_checkpoint
from trunkline_server.weights.dequantize import dequantize

MODULE = "model.layers.0.mlp.up_proj"
MAX_ALLOCATED_BYTES = 16 << 20
# Parts that a file may lack, or that nobody reads.
OPTIONAL = ("g_idx", "weight_shape")
FLOATS = (torch.float16, torch.bfloat16, torch.float32)
HYBRIDS = ("granitehybrid", "granitemoehybrid", "lfm2", "lfm2_moe", "qwen3_next")
STATE = "weight.quant_state.bitsandbytes__nf4"


@pytest.fixture
def bounded_memory() -> Iterator[None]:
    tracemalloc.start()
    yield
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < MAX_ALLOCATED_BYTES


def refusal(folder: Path, case: str = "the model") -> str:
    """Returns the message of the error of opening a model or of decoding the weight of `MODULE`."""
    try:
        dequantize(open_checkpoint(folder).tensor(f"{MODULE}.weight"))
    except UserError as error:
        assert "\n" not in str(error)
        return str(error)
    pytest.fail(f"{case} was read")


def damages(part: torch.Tensor) -> Iterator[tuple[str, torch.Tensor | None]]:
    """Returns damaged forms of a part, with their names; None if it is missing."""
    yield "missing", None
    yield "of another shape", part[None, None]
    if part.ndim:
        yield "too short", part[:-1]
    if part.dtype in FLOATS:
        for value in (float("nan"), float("inf"), -float("inf")):
            damaged = part.clone()
            damaged.view(-1)[-1] = value
            yield str(value), damaged


@pytest.mark.parametrize("case", CASES)
def test_each_damaged_part_of_a_quantised_module_is_named(case: str, tiny_model: TinyModels, tmp_path: Path) -> None:
    write_quantized(tiny_model("llama2").folder, tmp_path, case)
    intact = load_file(tmp_path / "model.safetensors")
    for name in [name for name in intact if name.startswith(f"{MODULE}.")]:
        if name.endswith(OPTIONAL[1]):
            continue
        for what, damaged in damages(intact[name]):
            if what == "missing" and name.endswith(OPTIONAL):
                continue
            tensors = {other: tensor for other, tensor in intact.items() if other != name}
            if damaged is not None:
                tensors[name] = damaged.contiguous()
            save_file(tensors, tmp_path / "model.safetensors")
            if what in ("missing", "too short"):
                # Refused at the start, before any weight is decoded.
                with pytest.raises(DamagedFile):
                    open_checkpoint(tmp_path)
            message = refusal(tmp_path, f"{name} {what}")
            assert MODULE in message, (name, what)
            assert str(tmp_path) in message, (name, what)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"nested_blocksize": 1 << 60}, None),
        ({"nested_blocksize": 1 << 20}, None),
        ({"nested_blocksize": True}, "nested blocks"),
        ({"nested_offset": "much"}, "nested_offset"),
        ({"nested_offset": float("inf")}, "nested_offset"),
        ({"nested_offset": 10**400}, "nested_offset"),
        ({"blocksize": 1 << 60}, "absmax"),
        ({"shape": [1, 3]}, "expected"),
        ({"shape": [1 << 61, 1 << 61]}, "expected"),
        ({"more": "nested"}, "is not a JSON object"),
    ],
)
def test_states_of_bitsandbytes_are_checked(
    change: dict[str, Any], expected: str | None, tiny_model: TinyModels, tmp_path: Path, bounded_memory: None
) -> None:
    write_quantized(tiny_model("llama2").folder, tmp_path, "bitsandbytes_4_nested")
    tensors = load_file(tmp_path / "model.safetensors")
    state = json.loads(bytes(tensors[f"{MODULE}.{STATE}"].tolist())) | change
    text = "[" * 60_000 if "more" in change else json.dumps(state)
    tensors[f"{MODULE}.{STATE}"] = torch.tensor(list(text.encode()), dtype=torch.uint8)
    save_file(tensors, tmp_path / "model.safetensors")
    if expected is None:
        dequantize(open_checkpoint(tmp_path).tensor(f"{MODULE}.weight"))
    else:
        assert expected in refusal(tmp_path)


def test_blocks_far_larger_than_a_weight_need_little_memory(
    tiny_model: TinyModels, tmp_path: Path, bounded_memory: None
) -> None:
    write_quantized(tiny_model("llama2").folder, tmp_path, "fp8_blocks")
    tensors = load_file(tmp_path / "model.safetensors")
    tensors = {name: part[:1, :1] if name.endswith("_inv") else part for name, part in tensors.items()}
    save_file({name: part.contiguous() for name, part in tensors.items()}, tmp_path / "model.safetensors")
    config = json.loads((tmp_path / "config.json").read_text())
    config["quantization_config"]["weight_block_size"] = [1 << 20, 1 << 20]
    (tmp_path / "config.json").write_text(json.dumps(config))
    dequantize(open_checkpoint(tmp_path).tensor(f"{MODULE}.weight"))


@pytest.mark.parametrize(("bits", "num_outputs"), [(4, 12), (8, 6)])
def test_gptq_with_outputs_that_fill_no_words_is_refused(
    bits: int, num_outputs: int, tiny_model: TinyModels, tmp_path: Path
) -> None:
    write_quantized(tiny_model("llama2").folder, tmp_path, "gptq" if bits == 4 else "gptq_8")
    tensors = load_file(tmp_path / "model.safetensors")
    name = "model.layers.0.self_attn.k_proj"
    for suffix, columns in (("qweight", num_outputs), ("scales", num_outputs), ("qzeros", num_outputs * bits // 32)):
        tensors[f"{name}.{suffix}"] = tensors[f"{name}.{suffix}"][:, :columns].contiguous()
    save_file(tensors, tmp_path / "model.safetensors")
    assert f"`{name}` has {num_outputs} outputs" in refusal(tmp_path)


def test_experts_in_mxfp4_have_finite_scales(tiny_model: TinyModels, tmp_path: Path) -> None:
    model = tiny_model("gpt_oss")
    tensors = mxfp4_tensors(model)
    name = next(name for name in tensors if name.endswith("down_proj_scales"))
    tensors[name][-1, -1, -1] = 255
    checkpoint = open_checkpoint(write_mxfp4(model, tmp_path, tensors))
    with pytest.raises(DamagedFile, match=name.removesuffix("_scales")):
        for weight in checkpoint.names():
            checkpoint.tensor(weight)


def paths_of(values: dict[str, Any], before: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Returns the paths of all keys, those of nested objects too."""
    for key, value in values.items():
        yield (*before, key)
        if isinstance(value, dict):
            yield from paths_of(value, (*before, key))


def replaced(values: dict[str, Any], path: tuple[str, ...], value: object) -> dict[str, Any]:
    key, *rest = path
    return {**values, key: replaced(values.get(key) or {}, tuple(rest), value) if rest else value}


MORE_ABSURD = [*ABSURD, 1e299, -1e299, [10**400] * 8, ["conv", {}], {"mscale_all_dim": 1e299, "rope_type": "yarn"}]
MORE_KEYS = [
    ("block_ffn_dim_multiplier",), ("block_multiple_of",), ("full_attn_idxs",), ("layer_types",), ("mamba_d_conv",),
    ("time_step_limit",), ("rope_parameters", "mscale_all_dim"), ("full_attention_interval",),
]  # fmt: skip


@pytest.mark.parametrize("case", [*HYBRIDS, "deepseek_v3", "gpt_oss", "phi3_longrope"])
def test_absurd_values_in_a_config_are_refused(case: str, bounded_memory: None) -> None:
    check = [(path, value) for path in [*paths_of(MODELS[case]), *MORE_KEYS] for value in MORE_ABSURD]
    # `make test` gives each key other ones of the values.
    check = check[:: 1 if IS_FULL else 6]
    if "longrope" in case:
        factors = ("rope_parameters", "long_factor")
        check.append((factors, [10**400] * len(MODELS[case]["rope_parameters"]["long_factor"])))
    if "deepseek" in case:
        yarn = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 16, "mscale_all_dim": 1e299}
        check.append((("rope_parameters",), yarn | {"rope_theta": 1e4}))
    for path, value in check:
        try:
            config = config_from_json(Path("config.json"), replaced(MODELS[case], path, value))
        except UserError as error:
            assert "\n" not in str(error)
        else:
            rope(config)


def test_a_config_that_claims_far_more_than_the_files_hold_needs_little_memory(
    tiny_model: TinyModels, tmp_path: Path, bounded_memory: None
) -> None:
    folder = tiny_model("qwen3_moe").folder
    (tmp_path / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    config = json.loads((folder / "config.json").read_text()) | {"num_hidden_layers": 1024, "num_experts": 1024}
    config.pop("layer_types", None)
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(DamagedFile, match="1024 layers"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("case", "stored_as"),
    [("lfm2", "Q8_0"), ("lfm2_moe", "Q4_0"), ("granitehybrid", "Q5_1"), ("granitemoehybrid", "F16"),
     ("gpt_oss", "MXFP4"), ("mixtral", "BF16")],
)  # fmt: skip
def test_flipped_bits_and_cuts_of_gguf_files_never_crash(
    case: str, stored_as: str, tiny_model: TinyModels, tmp_path: Path, bounded_memory: None
) -> None:
    intact = write_model(tiny_model(case), tmp_path / "m.gguf", stored_as).read_bytes()
    drawn = random.Random(case)
    for number in range(40 if IS_FULL else 12):
        begin = 0 if number % 2 else intact.index(b"block_count")
        (tmp_path / "m.gguf").write_bytes(flip(intact, [8 * begin + drawn.randrange(8 * 1500)]))
        read_all(tmp_path / "m.gguf")
    for part in (0.01, 0.5, 0.999):
        (tmp_path / "m.gguf").write_bytes(intact[: int(part * len(intact))])
        assert isinstance(read_all(tmp_path / "m.gguf"), DamagedFile)
