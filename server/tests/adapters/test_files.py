"""Scales, content hashes, and files that are refused."""

from __future__ import annotations

import math
import re
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.adapters.adapter_files import Pairs, config_of, magnitudes_of, modules_of, random_pair, save_gguf, save_peft
from tests.adapters.test_merged import no_base
from tests.models.tiny import TinyModel, TinyModels
from tests.weights.gguf_files import write_model
from trunkline_server.adapters.adapter import Adapter, content_hash, load
from trunkline_server.adapters.open import open_adapter
from trunkline_server.errors import (
    DamagedFile,
    InvalidArgument,
    ModelNotFound,
    TrunklineError,
    UnsupportedArchitecture,
    UnsupportedFormat,
)
from trunkline_server.models.config import ModelConfig
from trunkline_server.models.config_json import config_from_json
from trunkline_server.weights.checkpoint import open_checkpoint

LLAMA = config_of(TinyModel("llama3"))
SHAPES = modules_of(TinyModel("llama3"))
QUERY = "model.layers.0.self_attn.q_proj"
DOWN = "model.layers.1.mlp.down_proj"
PAIRS = {name: random_pair(name, SHAPES[name], 4) for name in (QUERY, DOWN)}
ENCODER = {
    "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32, "vocab_size": 60,
    "max_position_embeddings": 40, "type_vocab_size": 2, "hidden_act": "gelu", "pad_token_id": 0,
}  # fmt: skip


def opened(path: Path, config: ModelConfig = LLAMA) -> Adapter:
    return open_adapter(path, config, max_rank=8)


@settings(max_examples=40)
@given(data=st.data())
def test_patterns_decide_rank_and_alpha_of_each_module(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The first pattern that matches a module's name, or the end of it behind a dot, decides."""
    ranks, alphas = st.integers(1, 4), st.integers(1, 64)
    default = data.draw(st.tuples(ranks, alphas))
    projections = data.draw(st.dictionaries(st.sampled_from(["q_proj", "mlp.down_proj", "v_proj"]), ranks))
    layers = data.draw(st.dictionaries(st.sampled_from(["0", "[12]"]), alphas))
    exact = data.draw(st.dictionaries(st.sampled_from(sorted(SHAPES)), st.tuples(ranks, alphas)))
    is_stabilised = data.draw(st.booleans())

    def expected(name: str) -> tuple[int, int]:
        by_end = [rank for end, rank in projections.items() if name.endswith(f".{end}")]
        layer = int(name.split(".")[2])
        by_layer = [alpha for text, alpha in layers.items() if (layer == 0) == (text == "0")]
        return exact.get(name, ((by_end or [default[0]])[0], (by_layer or [default[1]])[0]))

    pairs: Pairs = {name: random_pair(name, shape, expected(name)[0]) for name, shape in SHAPES.items()}
    adapter = opened(
        save_peft(
            tmp_path_factory.mktemp("adapter"),
            pairs,
            r=default[0],
            lora_alpha=default[1],
            use_rslora=is_stabilised,
            # A pattern that matches only a part between dots decides nothing.
            rank_pattern={"proj": 7, "self_attn": 7}
            | {f"^{name}": rank for name, (rank, _) in exact.items()}
            | projections,
            alpha_pattern={name: alpha for name, (_, alpha) in exact.items()}
            | {rf"model\.layers\.{layer}\..*": alpha for layer, alpha in layers.items()},
        )
    )
    for name in SHAPES:
        rank, alpha = expected(name)
        weight = adapter.weights[f"{name}.weight"]
        assert weight.a.shape[0] == rank
        assert weight.scale == pytest.approx(alpha / (math.sqrt(rank) if is_stabilised else rank))
    assert adapter.rank == max(expected(name)[0] for name in SHAPES)


@pytest.mark.parametrize("tensor", ["blk.0.attn_v.weight", "blk.1.ffn_down.weight"])
@pytest.mark.parametrize(("alpha", "scale"), [(8.0, 2.0), (0.0, 1.0)])
def test_a_gguf_adapter_has_one_alpha(tensor: str, alpha: float, scale: float, tmp_path: Path) -> None:
    shape = SHAPES["model.layers.0.self_attn.v_proj" if "attn_v" in tensor else DOWN]
    path = save_gguf(tmp_path / "a.gguf", "llama", {tensor: random_pair("", shape, 4)}, alpha)
    assert [weight.scale for weight in opened(path).weights.values()] == [scale]


@pytest.mark.parametrize(
    ("architecture", "module", "shape", "weights"),
    [
        ("bert", "bert.encoder.layer.1.attention.self.query", (16, 16), ["encoder.layer.1.attention.self.query"]),
        ("bert", "encoder.layer.0.output.dense", (16, 32), ["encoder.layer.0.output.dense"]),
        ("roberta", "roberta.encoder.layer.0.intermediate.dense", (32, 16), ["encoder.layer.0.intermediate.dense"]),
        (
            "modernbert",
            "model.layers.1.attn.Wqkv",
            (48, 16),
            [f"layers.1.attn.{it}" for it in ("query", "key", "value")],
        ),
        ("modernbert", "layers.0.mlp.Wi", (64, 16), ["layers.0.mlp.gate", "layers.0.mlp.up"]),
    ],
)
def test_encoders_take_adapters(
    architecture: str, module: str, shape: tuple[int, int], weights: list[str], tmp_path: Path
) -> None:
    """The training had the encoder itself, or a model that contains it."""
    config = config_from_json(Path("config.json"), ENCODER | {"model_type": architecture})
    adapter = opened(save_peft(tmp_path, {module: random_pair(module, shape, 4)}), config)
    assert list(adapter.weights) == [f"{name}.weight" for name in weights]


def test_the_training_may_have_had_the_model_without_its_head(tmp_path: Path) -> None:
    bare = {name.removeprefix("model."): pair for name, pair in PAIRS.items()}
    adapter = opened(save_peft(tmp_path, bare, alpha_pattern={"layers.0.self_attn.q_proj": 4}))
    assert {name: weight.scale for name, weight in adapter.weights.items()} == {
        f"{QUERY}.weight": 1,
        f"{DOWN}.weight": 2,
    }


def test_the_hash_depends_on_the_arithmetic_alone(tmp_path: Path) -> None:
    expected = content_hash(opened(save_peft(tmp_path / "first", PAIRS)))
    same = save_peft(
        tmp_path / "other name", dict(reversed(PAIRS.items())), lora_dropout=0.1, target_modules=["q_proj"]
    )
    assert content_hash(opened(same)) == expected
    other = {name: (a, b + np.float32(2**-20)) for name, (a, b) in PAIRS.items()}
    half = {name: (a.astype(np.float16), b.astype(np.float16)) for name, (a, b) in PAIRS.items()}
    different = [
        save_peft(tmp_path / "other alpha", PAIRS, lora_alpha=9),
        save_peft(tmp_path / "rsLoRA", PAIRS, use_rslora=True),
        save_peft(tmp_path / "fewer", {QUERY: PAIRS[QUERY]}),
        save_peft(tmp_path / "other values", other),
        save_peft(tmp_path / "half", half),
        save_peft(tmp_path / "other weight", {QUERY.replace("0", "1"): PAIRS[QUERY], DOWN: PAIRS[DOWN]}),
    ]
    tiny = TinyModel("llama3")
    pairs, magnitudes = {name: random_pair(name, shape, 4) for name, shape in SHAPES.items()}, magnitudes_of(tiny)
    longer = {name: 2 * lengths for name, lengths in magnitudes.items()}
    different += [
        save_peft(tmp_path / "all", pairs),
        save_peft(tmp_path / "DoRA", pairs, magnitudes, use_dora=True),
        save_peft(tmp_path / "other lengths", pairs, longer, use_dora=True),
    ]
    hashes = {content_hash(opened(folder)) for folder in different}
    assert len(hashes) == len(different)
    assert expected not in hashes


def test_an_adapter_that_changes_or_disappears_is_not_loaded(tmp_path: Path) -> None:
    adapter = opened(save_peft(tmp_path, PAIRS))
    path = adapter.path
    assert load(adapter, no_base).keys() == adapter.weights.keys()
    stored = path.read_bytes()
    for changed in (stored[:-1], stored[:-1] + b"\1", b""):
        path.write_bytes(changed)
        for read in (content_hash, partial(load, open_base=no_base)):
            with pytest.raises(ModelNotFound, match="has changed; hint: register it again"):
                read(adapter)
    path.unlink()
    with pytest.raises(ModelNotFound, match="No such file"):
        load(adapter, no_base)
    # The same bytes in a new file are another opening.
    path.write_bytes(stored)
    assert load(opened(tmp_path), no_base).keys() == adapter.weights.keys()


def test_open_adapters_hold_no_files(tmp_path: Path) -> None:
    adapters = [opened(save_peft(tmp_path, PAIRS)) for _ in range(3)]
    assert adapters and not [path for path in Path("/proc/self/fd").iterdir() if "adapter_model" in str(path.resolve())]
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_elements_that_are_not_finite_are_found(value: float, dtype: type, tmp_path: Path) -> None:
    pairs = {name: (a.astype(dtype), b.astype(dtype)) for name, (a, b) in PAIRS.items()}
    pairs[DOWN][1][3, 2] = value
    adapter = opened(save_peft(tmp_path, pairs))
    with pytest.raises(DamagedFile, match=rf"{re.escape(DOWN)}.lora_B.weight` has elements that are not finite"):
        content_hash(adapter)


def test_magnitudes_make_finite_gains_or_are_refused(tmp_path: Path) -> None:
    model = TinyModel("llama3")
    model.weights = model.weights | {f"{QUERY}.weight": np.zeros(SHAPES[QUERY], np.float32)}
    base = open_checkpoint(model.save(tmp_path / "base"))
    a, b = PAIRS[QUERY][0], np.float32(1e-3) * PAIRS[QUERY][1]
    b[0] = 0
    name = f"base_model.model.{QUERY}.lora_magnitude_vector.weight"
    for length in (1.0, 3e38):
        lengths = {name: np.full(len(b), length, np.float32)}
        adapter = opened(save_peft(tmp_path / str(length), {QUERY: (a, b)}, lengths, use_dora=True))
        if length > 1:
            with pytest.raises(DamagedFile, match=f"{QUERY}.lora_magnitude_vector.weight` is too large for the model"):
                load(adapter, lambda: base)
            continue
        gain = load(adapter, lambda: base)[f"{QUERY}.weight"].gain
        assert gain is not None and gain[0] == 1, "the row is 0"
        np.testing.assert_allclose(gain[1:], 1 / np.linalg.norm(2 * (b @ a)[1:], axis=1), rtol=1e-5)


def with_tensor(name: str, shape: tuple[int, ...] = (4, 4)) -> dict[str, Any]:
    return {"others": {f"base_model.model.{name}": np.zeros(shape, np.float32)}}


A, B = PAIRS[QUERY]
BAD_FOLDERS: list[tuple[dict[str, Any], type[TrunklineError], str]] = [
    ({"pairs": {}}, DamagedFile, "the adapter has no tensors"),
    ({"pairs": {QUERY: (A[:, 1:], B)}}, DamagedFile, r"q_proj.lora_A.weight` has shape \[4, \d+\], expected \[4, 64\]"),
    ({"pairs": {QUERY: (A, B[1:])}}, DamagedFile, r"q_proj.lora_B.weight` has shape \[63, 4\], expected \[64, 4\]"),
    ({"pairs": {QUERY: (A, B[:, 1:])}}, DamagedFile, r"q_proj.lora_B.weight` has shape \[64, 3\], expected \[64, 4\]"),
    ({"pairs": {QUERY: (A[:0], B[:, :0])}}, DamagedFile, r"has shape \[0, 64\], expected \[1, 64\]"),
    ({"pairs": {QUERY: (A[0], B)}}, DamagedFile, r"has shape \[64\]"),
    ({"r": 3}, DamagedFile, r"module `model.layers.\d.*` has rank 3 here, but its tensors have 4"),
    ({"rank_pattern": {"q_proj": 5}}, DamagedFile, f"`{QUERY}` has rank 5 here, but its tensors have 4"),
    ({"r": "4"}, DamagedFile, "key `r` is `4`, expected an integer"),
    ({"alpha_pattern": {"q_proj": None}}, DamagedFile, "key `alpha_pattern.q_proj` is missing"),
    ({"alpha_pattern": {"q_proj[": 5}}, DamagedFile, r"`q_proj\[` in `alpha_pattern` is not a regular expression"),
    ({"alpha_pattern": {"(.*)+x": 5}}, UnsupportedFormat, "is too complicated; hint: use at most two repetitions"),
    ({"rank_pattern": {".*.*.*x": 5}}, UnsupportedFormat, "is too complicated"),
    ({"rank_pattern": {"(a|a)(a|a)": 5}}, UnsupportedFormat, "is too complicated"),
    (
        {"peft_type": "LOHA"},
        UnsupportedFormat,
        "`peft_type` of .* is `LOHA`, which is not supported; hint: supported: LORA;",
    ),
    ({"use_dora": True}, DamagedFile, r"lora_A.weight` has no magnitude, but `use_dora` is true"),
    ({"bias": "lora_only"}, UnsupportedFormat, "`bias` of .* is `lora_only`, which is not .* hint: supported: none;"),
    ({"lora_bias": True}, UnsupportedFormat, "key `lora_bias` of .* is `True`"),
    ({"modules_to_save": ["lm_head"]}, UnsupportedFormat, r"key `modules_to_save` of .* is `\['lm_head'\]`"),
    ({"fan_in_fan_out": True}, UnsupportedFormat, "key `fan_in_fan_out` of .* is `True`"),
    (
        {"init_lora_weights": "pissa_niter_4"},
        UnsupportedFormat,
        "is `pissa_niter_4`, .*: True, gaussian, eva, orthogonal",
    ),
    ({"a_new_option": 2}, UnsupportedFormat, "key `a_new_option` of .* is `2`, which is not supported"),
    (with_tensor(f"{QUERY}.lora_magnitude_vector", (64,)), DamagedFile, "has a magnitude, but `use_dora` is false"),
    (
        {"pairs": {}, **with_tensor(f"{QUERY}.lora_magnitude_vector.weight", (64,)), "use_dora": True},
        DamagedFile,
        "lora_magnitude_vector.weight` has no counterpart",
    ),
    (
        {**with_tensor(f"{QUERY}.lora_magnitude_vector", (64, 1)), "pairs": {QUERY: (A, B)}, "use_dora": True},
        DamagedFile,
        r"lora_magnitude_vector` has shape \[64, 1\], expected \[64\]",
    ),
    (with_tensor(f"{QUERY}.bias"), UnsupportedFormat, "q_proj.bias` of .* is neither A nor B of a weight"),
    (with_tensor("model.embed_tokens.lora_embedding_A"), UnsupportedFormat, "neither A nor B"),
    (with_tensor("lm_head.weight"), UnsupportedFormat, "neither A nor B of a weight"),
    (with_tensor("model.layers.1.self_attn.q_proj.lora_A.weight"), DamagedFile, "has no counterpart"),
    ({"pairs": {QUERY: (A, B), QUERY[6:]: (A, B)}}, DamagedFile, f"`{QUERY}.weight` is changed twice"),
    (with_tensor("lm_head.lora_A.weight"), UnsupportedFormat, "`lm_head.weight`, an embedding, a head or a classifier"),
    (with_tensor("model.norm.lora_A.weight"), UnsupportedFormat, "an embedding, a head or a classifier"),
    (with_tensor("model.layers.0.input_layernorm.lora_A.weight"), UnsupportedFormat, "not linear"),
    (with_tensor("model.layers.3.mlp.up_proj.lora_A.weight"), DamagedFile, r"not in the model \(llama, 3 layers\)"),
    (with_tensor("model.layers.0.mlp.experts.7.w1.lora_A.weight"), UnsupportedFormat, "an expert, which is not"),
    (
        {**with_tensor("transformer.h.0.attn.c_attn.lora_A.weight"), "base_model_name_or_path": "gpt2"},
        DamagedFile,
        "c_attn.weight` is not in the model .*; hint: the adapter's base model is `gpt2`",
    ),
]


@pytest.mark.parametrize(("differences", "kind", "message"), BAD_FOLDERS)
def test_a_bad_folder_is_refused_by_name(
    differences: dict[str, Any], kind: type[TrunklineError], message: str, tmp_path: Path
) -> None:
    with pytest.raises(kind, match=message) as caught:
        opened(save_peft(tmp_path, **({"pairs": PAIRS} | differences)))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("tied", [False, True])
def test_the_head_is_refused_by_name(tied: bool, tmp_path: Path) -> None:
    model = TinyModel("llama3")
    model.config = model.config | {"tie_word_embeddings": tied}
    pairs = {"lm_head": random_pair("lm_head", (160, 64), 4)}
    with pytest.raises(UnsupportedFormat, match=r"changes `lm_head.weight`, an embedding, a head or a classifier"):
        opened(save_peft(tmp_path, pairs), config_of(model))


@pytest.mark.parametrize(
    ("case", "module", "what"),
    [
        ("mixtral", "model.layers.0.block_sparse_moe.experts.0.w1", "an expert"),
        ("deepseek_v2", "model.layers.0.self_attn.kv_b_proj", "a matrix of single heads of latent attention"),
        ("lfm2", "model.layers.0.conv.conv", "not linear"),
    ],
)
def test_weights_that_no_adapter_changes_are_refused_by_name(case: str, module: str, what: str, tmp_path: Path) -> None:
    folder = save_peft(tmp_path, {module: random_pair("", (8, 8), 4)})
    with pytest.raises(UnsupportedFormat, match=f"`{module}.weight`, {what}, which is not supported"):
        opened(folder, config_of(TinyModel(case)))


def test_a_rank_above_the_limit_is_refused(tmp_path: Path) -> None:
    folder = save_peft(tmp_path, PAIRS)
    assert open_adapter(folder, LLAMA, max_rank=4).rank == 4
    with pytest.raises(InvalidArgument, match="has rank 4, but `--max-lora-rank` is 3; hint: raise"):
        open_adapter(folder, LLAMA, max_rank=3)


def test_missing_and_damaged_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="does not exist"):
        opened(tmp_path / "nowhere")
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        folder = save_peft(tmp_path / name, PAIRS)
        (folder / name).write_bytes(b"{")
        with pytest.raises(DamagedFile, match=name):
            opened(folder)
        (folder / name).unlink()
        with pytest.raises(ModelNotFound, match=f"has no `{name}`; hint: .* pickle files are never read"):
            opened(folder)


def test_a_gguf_file_is_an_adapter_for_this_model(tiny_model: TinyModels, tmp_path: Path) -> None:
    pairs = {"blk.0.attn_q.weight": PAIRS[QUERY]}
    with pytest.raises(UnsupportedFormat, match="is not a LoRA adapter"):
        opened(write_model(tiny_model("llama3"), tmp_path / "model.gguf"))
    with pytest.raises(UnsupportedArchitecture, match=r"base architecture `qwen2` of adapter .* supported: llama"):
        opened(save_gguf(tmp_path / "qwen2.gguf", "qwen2", pairs))
    with pytest.raises(UnsupportedFormat, match="aLoRA"):
        opened(save_gguf(tmp_path / "tokens.gguf", "llama", pairs, invocation=[1, 2]))
    with pytest.raises(UnsupportedArchitecture, match="supported: PEFT's format"):
        opened(save_gguf(tmp_path / "glm.gguf", "chatglm", pairs), config_of(TinyModel("glm")))
    with pytest.raises(DamagedFile, match=r"`blk.9.attn_q.weight` is not in the model \(llama, 3 layers\)"):
        opened(save_gguf(tmp_path / "layer.gguf", "llama", {"blk.9.attn_q.weight": PAIRS[QUERY]}))
    experts = {"blk.0.ffn_up_exps.weight": PAIRS[QUERY]}
    for config in (LLAMA, config_of(TinyModel("mixtral"))):
        with pytest.raises(UnsupportedFormat, match=r"changes `blk.0.ffn_up_exps.weight`, an expert"):
            opened(save_gguf(tmp_path / "experts.gguf", "llama", experts), config)
