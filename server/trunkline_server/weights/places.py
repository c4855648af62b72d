"""The places of weights in checkpoints, and how what is stored there differs from what the model needs.

Weights have the names of Llama's safetensors. Other architectures and GGUF have other names for them, join some
(queries, keys and values, or gate and up), or stack the matrices of all experts.

Rotary embedding pairs the two halves of a head here and in most safetensors ("NeoX"). Other files pair neighbours, so
that element i of the first half and element i of the second are stored side by side, head by head:

    halves      a0 a1 a2 a3 | b0 b1 b2 b3
    neighbours  a0 b0 a1 b1 a2 b2 a3 b3

Tensors of queries and keys then have `Tensor.interleaved_heads` set, and their readers undo this: `dequantize`, and the
kernels when they pack. The order of elements makes no difference to scores, as it is the same in queries and keys.

Some norms multiply by 1 + w. Their safetensors hold w, their GGUF files 1 + w. A checkpoint returns 1 + w for both.
"""

from __future__ import annotations

import re
from collections.abc import Container
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from trunkline_server.models.config import ModelConfig

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# Architectures that pair neighbours, in all files.
NEIGHBOURS = frozenset({"cohere", "cohere2", "ernie4_5", "glm", "glm4"})
# The same in GGUF alone (`LlamaModel.permute` in llama.cpp's converter).
GGUF_NEIGHBOURS = frozenset({"granite", "granitemoe", "granitemoehybrid", "internlm2", "llama", "mixtral", "smollm3"})
# Architectures whose safetensors hold norm weights minus 1.
OFFSET_NORMS = frozenset({"gemma", "gemma2", "gemma3_text", "nemotron", "qwen3_next"})

_LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)")
_EXPERT = re.compile(r"mlp\.experts\.(\d+)\.(gate_proj|up_proj|down_proj)")
_HEAD_PART = re.compile(r"self_attn\.(k|v)_up\.(\d+)")
_GRANITE_SHARED = re.compile(r"mlp\.(?:shared_expert\.)?(gate_proj|up_proj|down_proj)")
_DELTA_PROJECTIONS = ("qkv_proj", "gate_proj", "strength_proj", "step_proj")
_RECURRENT_PARAMETERS = {"mixer.dt.bias": "dt_bias", "mixer.rate.weight": "A_log", "mixer.skip.weight": "D"}
_QUERY_KEY_VALUE = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
_GATE_UP = ("mlp.gate_proj", "mlp.up_proj")


@dataclass(frozen=True, slots=True)
class Place:
    """A tensor of a file, or the part of it that is a weight.

    index: of a matrix in a stack [E, N, K]. rows: the runs of rows [begin, end) that make up the weight; empty: all.
    step: of the rows of a run. is_transposed: the stack is [E, K, N]. transposes_rows: the weight is the transpose of
    the rows. flattens: the weight is all elements in a row. is_exponential: it is the logarithm of the negated
    elements. subtracts_rows: the weight is the first row minus the second. num_rows: of the whole tensor, if the weight
    may be far from its end.
    """

    tensor: str
    index: int | None = None
    rows: tuple[tuple[int, int], ...] = ()
    step: int = 1
    is_transposed: bool = False
    transposes_rows: bool = False
    flattens: bool = False
    is_exponential: bool = False
    subtracts_rows: bool = False
    num_rows: int | None = None

    @property
    def is_copied(self) -> bool:
        """True if the weight is a large copy of the tensor's bytes instead of a view."""
        is_apart = self.step > 1 or len(self.rows) > 1
        return self.transposes_rows or self.is_transposed or (is_apart and not self.subtracts_rows)


def safetensors_place(name: str, config: ModelConfig, tensors: Container[str] = ()) -> Place:
    """Returns the place of a weight in safetensors. tensors: the names in the files."""
    place = _safetensors_place(name, config)
    # Models that were saved without a head lack this prefix.
    bare = place.tensor.removeprefix("model.")
    return replace(place, tensor=bare) if bare in tensors and place.tensor not in tensors else place


def _safetensors_place(name: str, config: ModelConfig) -> Place:
    architecture = config.architecture
    module, _, kind = name.rpartition(".")
    if (dense := dense_place(name, config)) is not None:
        return dense
    if name == "score.weight" and config.pooling is not None and config.pooling.answer_rows:
        head = _safetensors_place(
            "model.embed_tokens.weight" if config.tie_word_embeddings else "lm_head.weight", config
        )
        return answer_place(head.tensor, config.pooling.answer_rows, config.vocab_size)
    match = _LAYER.fullmatch(module)
    if match is None:
        return Place(f"{_SAFETENSORS_WHOLE.get(architecture, {}).get(module, module)}.{kind}")
    layers = f"{_SAFETENSORS_LAYERS.get(architecture, 'model.layers')}.{match[1]}"
    module = match[2]
    if architecture == "gpt_oss" and (expert := _EXPERT.fullmatch(module)):
        return _gpt_oss_expert(f"{layers}.mlp.experts", expert, kind, config)
    if architecture == "gpt_oss" and module == "self_attn.sinks":
        return Place(f"{layers}.self_attn.sinks")
    if architecture in ("granitemoe", "granitemoehybrid") and (expert := _EXPERT.fullmatch(module)):
        size, joined = config.expert_size, expert[2] != "down_proj"
        begin = size if expert[2] == "up_proj" else 0
        stack = f"{layers}.block_sparse_moe.{'input' if joined else 'output'}_linear.{kind}"
        return Place(stack, int(expert[1]), ((begin, begin + size),) if joined else ())
    if architecture == "lfm2_moe" and (expert := _EXPERT.fullmatch(module)):
        return Place(f"{layers}.feed_forward.experts.{expert[1]}.{_MIXTRAL[expert[2]]}.{kind}")
    if architecture == "lfm2_moe" and module == "mlp.gate.choice":
        return Place(f"{layers}.feed_forward.expert_bias")
    if architecture == "mixtral" and (expert := _EXPERT.fullmatch(module)):
        return Place(f"{layers}.block_sparse_moe.experts.{expert[1]}.{_MIXTRAL[expert[2]]}.{kind}")
    if architecture == "phi3" and module in _QUERY_KEY_VALUE:
        return Place(f"{layers}.self_attn.qkv_proj.{kind}", rows=_joined_rows(config, module))
    if architecture == "internlm2" and module in _QUERY_KEY_VALUE:
        return Place(f"{layers}.attention.wqkv.{kind}", rows=_grouped_rows(config, module))
    if (place := hybrid_place(layers, module, kind, config)) is not None:
        return place
    if config.latent is not None:
        if module == "mlp.gate.choice":
            return Place(f"{layers}.mlp.gate.e_score_correction_bias")
        if (place := _latent_place(module, config)) is not None:
            return replace(place, tensor=f"{layers}.self_attn.{_LATENT[place.tensor]}.{kind}")
    if architecture in ("glm", "glm4", "phi3") and module in _GATE_UP:
        return Place(f"{layers}.mlp.gate_up_proj.{kind}", rows=_joined_rows(config, module))
    return Place(f"{layers}.{_SAFETENSORS_MODULES.get(architecture, {}).get(module, module)}.{kind}")


def dense_place(name: str, config: ModelConfig) -> Place | None:
    """Returns the place of a weight of `Pooling.dense`; None for others."""
    match = re.fullmatch(r"vector\.(\d+)\.(weight|bias)", name)
    if match is None or config.pooling is None:
        return None
    return Place(f"{config.pooling.dense[int(match[1])].folder}/linear.{match[2]}")


def answer_place(tensor: str, rows: tuple[int, ...], num_rows: int) -> Place:
    """Returns the place of the weight whose product is the logit of one row, minus that of another if there is one."""
    runs = tuple((row, row + 1) for row in rows)
    return Place(tensor, rows=runs, subtracts_rows=len(rows) == 2, num_rows=num_rows)


def _gpt_oss_expert(experts: str, expert: re.Match[str], kind: str, config: ModelConfig) -> Place:
    """Returns the place of an expert's weight; rows of gate and up take turns."""
    is_matrix, index, projection = kind == "weight", int(expert[1]), expert[2]
    suffix = "" if is_matrix else "_bias"
    if projection == "down_proj":
        return Place(f"{experts}.down_proj{suffix}", index, is_transposed=is_matrix)
    first, end = int(projection == "up_proj"), 2 * config.expert_size
    return Place(f"{experts}.gate_up_proj{suffix}", index, ((first, end),), step=2, is_transposed=is_matrix)


def hybrid_place(layers: str, module: str, kind: str, config: ModelConfig) -> Place | None:
    """Returns the place of a weight that only families with recurrent layers have; None for other weights."""
    architecture, name = config.architecture, f"{module}.{kind}"
    if architecture == "granitemoehybrid" and (shared := _GRANITE_SHARED.fullmatch(module)):
        size = config.shared_expert_size or config.intermediate_size
        begin = size if shared[1] == "up_proj" else 0
        joined = shared[1] != "down_proj"
        tensor = f"{layers}.shared_mlp.{'input' if joined else 'output'}_linear.{kind}"
        return Place(tensor, rows=((begin, begin + size),) if joined else ())
    if config.gated_attention and module in ("self_attn.q_proj", "self_attn.gate_proj"):
        return Place(f"{layers}.self_attn.q_proj.{kind}", rows=_gated_rows(config, module))
    if not module.startswith("mixer."):
        return None
    holder = {"granitemoehybrid": "mamba", "lfm2": "conv", "lfm2_moe": "conv", "qwen3_next": "linear_attn"}[
        architecture
    ]
    if module == "mixer.conv":
        conv = "conv" if holder == "conv" else "conv1d"
        return Place(f"{layers}.{holder}.{conv}.{kind}", flattens=kind == "weight")
    if name in _RECURRENT_PARAMETERS:
        return Place(f"{layers}.{holder}.{_RECURRENT_PARAMETERS[name]}")
    if architecture == "qwen3_next" and module.removeprefix("mixer.") in _DELTA_PROJECTIONS:
        return _delta_place(f"{layers}.{holder}", module.removeprefix("mixer."), kind, config)
    return Place(f"{layers}.{holder}.{module.removeprefix('mixer.')}.{kind}")


def _gated_rows(config: ModelConfig, module: str) -> tuple[tuple[int, int], ...]:
    """Returns the rows of queries or gates, where those of each head follow each other."""
    size, first = config.head_size, int(module == "self_attn.gate_proj")
    return tuple(((2 * head + first) * size, (2 * head + first + 1) * size) for head in range(config.num_heads))


def _delta_place(holder: str, projection: str, kind: str, config: ModelConfig) -> Place:
    """Returns the place of a projection of the gated delta rule.

    For each key head the file has the rows of its query, key, values and gates, and in another tensor those of the
    strengths and steps of its values.
    """
    recurrent = config.recurrent
    assert recurrent is not None
    shared = recurrent.num_heads // recurrent.num_keys
    key, value = recurrent.key_size, shared * recurrent.value_size
    if projection in ("strength_proj", "step_proj"):
        begins, sizes, tensor = [0, shared], [shared, shared], "in_proj_ba"
        parts = [0 if projection == "strength_proj" else 1]
    else:
        begins, sizes, tensor = [0, key, 2 * key, 2 * key + value], [key, key, value, value], "in_proj_qkvz"
        parts = [3] if projection == "gate_proj" else [0, 1, 2]
    group = sum(sizes)
    rows = tuple(
        (head * group + begins[part], head * group + begins[part] + sizes[part])
        for part in parts
        for head in range(recurrent.num_keys)
    )
    return Place(f"{holder}.{tensor}.{kind}", rows=rows)


def gguf_place(name: str, config: ModelConfig, tensors: Container[str]) -> Place:
    """Returns the place of a weight in GGUF. tensors: the names in the file."""
    architecture = config.architecture
    if name == "score.weight" and config.pooling is not None and config.pooling.answer_rows:
        return answer_place("cls.output.weight", config.pooling.answer_rows, len(config.pooling.answer_rows))
    module, _, kind = name.rpartition(".")
    match = _LAYER.fullmatch(module)
    if match is None:
        # llama.cpp's converter took the norm behind LFM2's last layer for one of embeddings.
        is_misnamed = module == "model.norm" and architecture in ("lfm2", "lfm2_moe")
        return Place(f"{'token_embd_norm' if is_misnamed else _GGUF_WHOLE[module]}.{kind}")
    layer, module = f"blk.{match[1]}", match[2]
    if expert := _EXPERT.fullmatch(module):
        return Place(f"{layer}.{_GGUF_EXPERTS[expert[2]]}.{kind}", int(expert[1]))
    if config.gated_attention and module in ("self_attn.q_proj", "self_attn.gate_proj"):
        return Place(f"{layer}.attn_q.{kind}", rows=_gated_rows(config, module))
    if module in _QUERY_KEY_VALUE and (joined := f"{layer}.attn_qkv.{kind}") in tensors:
        return Place(joined, rows=_joined_rows(config, module))
    if module in _GATE_UP and architecture in ("glm4", "phi3"):
        return Place(f"{layer}.ffn_up.{kind}", rows=_joined_rows(config, module))
    if config.latent is not None and (part := _latent_place(module, config)) is not None:
        head = _HEAD_PART.fullmatch(module)
        if head and (divided := f"{layer}.attn_{head[1]}_b.{kind}") in tensors:
            return Place(divided, int(head[2]))
        return replace(part, tensor=f"{layer}.{part.tensor}.{kind}")
    names = _GGUF_MODULES | (_GGUF_POST_NORMS if "post_feedforward_layernorm" in config.layer_norms else {})
    if architecture in ("gpt_oss", "qwen3_next", "seed_oss"):
        names = names | {"post_attention_layernorm": "post_attention_norm"}
    if module.startswith("mixer."):
        if architecture == "qwen3_next" and module.removeprefix("mixer.") in _DELTA_PROJECTIONS:
            return _gguf_delta(layer, module.removeprefix("mixer."), kind, config, tensors)
        return _gguf_mixer(layer, module, kind, is_scan=not architecture.startswith("lfm2"))
    return Place(f"{layer}.{names[module]}.{kind}")


def _gguf_delta(layer: str, projection: str, kind: str, config: ModelConfig, tensors: Container[str]) -> Place:
    """Returns the place of a projection of the gated delta rule. Older files have the order of safetensors."""
    divided = {"qkv_proj": f"{layer}.attn_qkv.{kind}", "gate_proj": f"{layer}.attn_gate.{kind}"}.get(projection)
    if divided is not None and divided in tensors:
        return Place(divided)
    joined = f"{layer}.ssm_{'ba' if divided is None else 'in'}.{kind}"
    return replace(_delta_place("", projection, kind, config), tensor=joined)


def _gguf_mixer(layer: str, module: str, kind: str, *, is_scan: bool) -> Place:
    """Returns the place of a weight of a recurrent layer in GGUF, which has some vectors as matrices."""
    part = module.removeprefix("mixer.")
    if not is_scan:
        return Place(f"{layer}.shortconv.{part}.{kind}", flattens=part == "conv")
    tensor = f"{layer}.ssm_{_GGUF_SCAN[part]}"
    is_bare = part in ("rate", "skip")
    return Place(
        tensor if is_bare else f"{tensor}.{kind}",
        flattens=is_bare or part == "norm" or (part == "conv" and kind == "weight"),
        is_exponential=part == "rate",
    )


def interleaved_heads(name: str, config: ModelConfig, *, is_gguf: bool) -> tuple[int, int] | None:
    """Returns `Tensor.interleaved_heads` of a weight."""
    if config.latent is not None:
        is_rotated = ".self_attn.q_rope." in name or ".self_attn.k_rope." in name
        return (config.rotary_size, config.rotary_size) if config.latent.pairs_neighbours and is_rotated else None
    pairs_neighbours = config.architecture in NEIGHBOURS or (is_gguf and config.architecture in GGUF_NEIGHBOURS)
    is_rotated = ".self_attn.q_proj." in name or ".self_attn.k_proj." in name
    return (config.head_size, config.rotary_size) if pairs_neighbours and is_rotated else None


def rows_in_order(rows: NDArray[np.int64], head_size: int, rotary_size: int) -> NDArray[np.int64]:
    """Returns stored rows of whole heads in the model's order; see `Tensor.interleaved_heads`."""
    heads = rows.reshape(-1, head_size).copy()
    pairs = heads[:, :rotary_size].reshape(len(heads), rotary_size // 2, 2)
    heads[:, :rotary_size] = pairs.swapaxes(1, 2).reshape(len(heads), -1)
    return heads.reshape(-1)


def has_offset(name: str, config: ModelConfig) -> bool:
    """Returns True if safetensors hold the weight minus 1."""
    return config.architecture in OFFSET_NORMS and name.endswith("norm.weight") and ".mixer." not in name


def expert_stack(name: str, num_experts: int) -> list[str] | None:
    """Returns the weights of all experts of a layer that are multiplied with the same inputs as this one's.

    Gate and up of an expert follow each other. None if the weight is not that of an expert.
    """
    match = re.fullmatch(rf"(.+\.){_EXPERT.pattern}\.weight", name)
    if match is None:
        return None
    projections = ("down_proj",) if match[3] == "down_proj" else ("gate_proj", "up_proj")
    return [f"{match[1]}mlp.experts.{expert}.{part}.weight" for expert in range(num_experts) for part in projections]


def is_expert(name: str) -> bool:
    """Returns True if a weight is a matrix of an expert."""
    return re.fullmatch(rf".+\.{_EXPERT.pattern}\.weight", name) is not None


def is_head(name: str) -> bool:
    """Returns True if a weight is a matrix of a single head."""
    return re.fullmatch(rf".+\.{_HEAD_PART.pattern}\.weight", name) is not None


def head_stack(name: str, num_heads: int) -> list[str] | None:
    """Returns the weights of all heads that one product multiplies; None if the weight is not that of a head."""
    match = re.fullmatch(rf"(.+\.){_HEAD_PART.pattern}\.weight", name)
    if match is None:
        return None
    return [f"{match[1]}self_attn.{match[2]}_up.{head}.weight" for head in range(num_heads)]


def _joined_rows(config: ModelConfig, module: str) -> tuple[tuple[int, int]]:
    """Returns the rows of one projection among those of queries, keys and values, or of gate and up."""
    if module in _GATE_UP:
        modules: tuple[str, ...] = _GATE_UP
        sizes = [config.intermediate_size] * 2
    else:
        modules = _QUERY_KEY_VALUE
        sizes = [count * config.head_size for count in (config.num_heads, config.num_kv_heads, config.num_kv_heads)]
    index = modules.index(module)
    begin = sum(sizes[:index])
    return ((begin, begin + sizes[index]),)


def _grouped_rows(config: ModelConfig, module: str) -> tuple[tuple[int, int], ...]:
    """Returns the rows of one projection where the query heads of each key/value head precede its key and value."""
    num_queries, size = config.num_heads // config.num_kv_heads, config.head_size
    first = {"self_attn.q_proj": 0, "self_attn.k_proj": num_queries, "self_attn.v_proj": num_queries + 1}[module]
    count = num_queries if first == 0 else 1
    groups = range(0, config.num_kv_heads * (num_queries + 2), num_queries + 2)
    return tuple(((group + first) * size, (group + first + count) * size) for group in groups)


def _latent_place(module: str, config: ModelConfig) -> Place | None:
    """Returns the place of a part of latent attention's projections, in the tensor with GGUF's name.

    Rows of queries are those of one head after the other, plain before rotated ones. Below the latent of a token are
    its rotated rows. Each head has rows that make keys of the latent, then rows that make values of it.
    """
    latent, rotated = config.latent, config.rotary_size
    assert latent is not None
    if module in ("self_attn.q_nope", "self_attn.q_rope"):
        size = latent.key_size + rotated
        begin, end = (0, latent.key_size) if module == "self_attn.q_nope" else (latent.key_size, size)
        rows = tuple((head * size + begin, head * size + end) for head in range(config.num_heads))
        return Place("attn_q_b" if latent.query_size else "attn_q", rows=rows)
    if module in ("self_attn.kv_a", "self_attn.k_rope"):
        rows = ((0, latent.size),) if module == "self_attn.kv_a" else ((latent.size, latent.size + rotated),)
        return Place("attn_kv_a_mqa", rows=rows)
    if (part := _HEAD_PART.fullmatch(module)) is None:
        return None
    begin = int(part[2]) * (latent.key_size + latent.value_size)
    middle = begin + latent.key_size
    if part[1] == "k":
        return Place("attn_kv_b", rows=((begin, middle),), transposes_rows=True)
    return Place("attn_kv_b", rows=((middle, middle + latent.value_size),))


# Safetensors' names for the tensors of `_latent_place`.
_LATENT = {
    "attn_q": "q_proj",
    "attn_q_b": "q_b_proj",
    "attn_kv_a_mqa": "kv_a_proj_with_mqa",
    "attn_kv_b": "kv_b_proj",
}
_SHARED_EXPERTS = {
    f"mlp.shared_expert.{part}_proj": f"mlp.shared_experts.{part}_proj" for part in ("gate", "up", "down")
}
_SAFETENSORS_LAYERS = {"exaone": "transformer.h"}
_SAFETENSORS_WHOLE = {
    "exaone": {"model.embed_tokens": "transformer.wte", "model.norm": "transformer.ln_f"},
    "internlm2": {"model.embed_tokens": "model.tok_embeddings", "lm_head": "output"},
    "lfm2": {"model.norm": "model.embedding_norm"},
    "lfm2_moe": {"model.norm": "model.embedding_norm"},
}
_LFM2 = {
    "input_layernorm": "operator_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.o_proj": "self_attn.out_proj",
    "self_attn.q_norm": "self_attn.q_layernorm",
    "self_attn.k_norm": "self_attn.k_layernorm",
    "mlp.gate_proj": "feed_forward.w1",
    "mlp.up_proj": "feed_forward.w3",
    "mlp.down_proj": "feed_forward.w2",
}
_SAFETENSORS_MODULES = {
    "deepseek_v2": _SHARED_EXPERTS,
    "deepseek_v3": _SHARED_EXPERTS,
    "exaone": {
        "input_layernorm": "ln_1",
        "post_attention_layernorm": "ln_2",
        "self_attn.q_proj": "attn.attention.q_proj",
        "self_attn.k_proj": "attn.attention.k_proj",
        "self_attn.v_proj": "attn.attention.v_proj",
        "self_attn.o_proj": "attn.attention.out_proj",
        "mlp.gate_proj": "mlp.c_fc_0",
        "mlp.up_proj": "mlp.c_fc_1",
        "mlp.down_proj": "mlp.c_proj",
    },
    "glm4": {
        "post_attention_layernorm": "post_self_attn_layernorm",
        "pre_feedforward_layernorm": "post_attention_layernorm",
        "post_feedforward_layernorm": "post_mlp_layernorm",
    },
    "gpt_oss": {"mlp.gate": "mlp.router"},
    "granitemoe": {"mlp.gate": "block_sparse_moe.router.layer"},
    "granitemoehybrid": {"mlp.gate": "block_sparse_moe.router.layer"},
    "lfm2": _LFM2,
    "lfm2_moe": {**_LFM2, "mlp.gate": "feed_forward.gate"},
    "internlm2": {
        "input_layernorm": "attention_norm",
        "post_attention_layernorm": "ffn_norm",
        "self_attn.o_proj": "attention.wo",
        "mlp.gate_proj": "feed_forward.w1",
        "mlp.up_proj": "feed_forward.w3",
        "mlp.down_proj": "feed_forward.w2",
    },
    "mixtral": {"mlp.gate": "block_sparse_moe.gate"},
    "starcoder2": {"mlp.up_proj": "mlp.c_fc", "mlp.down_proj": "mlp.c_proj"},
}
_MIXTRAL = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}

_GGUF_WHOLE = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
_GGUF_MODULES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_a_proj": "attn_q_a",
    "self_attn.q_a_layernorm": "attn_q_a_norm",
    "self_attn.kv_a_layernorm": "attn_kv_a_norm",
    "self_attn.sinks": "attn_sinks",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
    "mlp.gate.choice": "exp_probs_b",
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
    "mlp.shared_expert.up_proj": "ffn_up_shexp",
    "mlp.shared_expert.down_proj": "ffn_down_shexp",
}
# These replace the names above where the outputs of attention and MLP are normalised.
_GGUF_POST_NORMS = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
_GGUF_SCAN = {
    "in_proj": "in", "conv": "conv1d", "dt": "dt", "rate": "a", "skip": "d", "norm": "norm", "out_proj": "out",
}  # fmt: skip
_GGUF_EXPERTS = {"gate_proj": "ffn_gate_exps", "up_proj": "ffn_up_exps", "down_proj": "ffn_down_exps"}
