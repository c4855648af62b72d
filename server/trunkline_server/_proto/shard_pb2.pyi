from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Pooling(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    POOLING_UNSPECIFIED: _ClassVar[Pooling]
    POOLING_LAST: _ClassVar[Pooling]
    POOLING_MEAN: _ClassVar[Pooling]
    POOLING_FIRST: _ClassVar[Pooling]

class SequenceErrorCode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SEQUENCE_ERROR_CODE_UNSPECIFIED: _ClassVar[SequenceErrorCode]
    SEQUENCE_ERROR_CODE_NOT_FINITE: _ClassVar[SequenceErrorCode]
    SEQUENCE_ERROR_CODE_INVALID_PLAN: _ClassVar[SequenceErrorCode]
    SEQUENCE_ERROR_CODE_UNREAD_WEIGHTS: _ClassVar[SequenceErrorCode]
POOLING_UNSPECIFIED: Pooling
POOLING_LAST: Pooling
POOLING_MEAN: Pooling
POOLING_FIRST: Pooling
SEQUENCE_ERROR_CODE_UNSPECIFIED: SequenceErrorCode
SEQUENCE_ERROR_CODE_NOT_FINITE: SequenceErrorCode
SEQUENCE_ERROR_CODE_INVALID_PLAN: SequenceErrorCode
SEQUENCE_ERROR_CODE_UNREAD_WEIGHTS: SequenceErrorCode

class DescribeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DescribeResponse(_message.Message):
    __slots__ = ("contract_version", "architecture", "vocab_size", "num_layers", "num_heads", "num_kv_heads", "head_size", "max_position_embeddings", "block_size", "bytes_per_block", "num_device_blocks", "max_step_tokens", "max_step_sequences", "numeric_fingerprint", "device", "kv_dtype", "weight_bytes", "num_store_slots", "store_folder", "num_window_parts", "bytes_per_window_part", "window_size", "max_draft_tokens", "max_own_drafts", "pooling", "vector_size", "labels", "whole_prompts", "only_pools", "recurrent", "asks_about_pairs", "reads_other_stores", "num_adapter_slots", "adapter_bytes", "memory_bytes")
    CONTRACT_VERSION_FIELD_NUMBER: _ClassVar[int]
    ARCHITECTURE_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    NUM_LAYERS_FIELD_NUMBER: _ClassVar[int]
    NUM_HEADS_FIELD_NUMBER: _ClassVar[int]
    NUM_KV_HEADS_FIELD_NUMBER: _ClassVar[int]
    HEAD_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_POSITION_EMBEDDINGS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    BYTES_PER_BLOCK_FIELD_NUMBER: _ClassVar[int]
    NUM_DEVICE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    MAX_STEP_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_STEP_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    NUMERIC_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    KV_DTYPE_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_BYTES_FIELD_NUMBER: _ClassVar[int]
    NUM_STORE_SLOTS_FIELD_NUMBER: _ClassVar[int]
    STORE_FOLDER_FIELD_NUMBER: _ClassVar[int]
    NUM_WINDOW_PARTS_FIELD_NUMBER: _ClassVar[int]
    BYTES_PER_WINDOW_PART_FIELD_NUMBER: _ClassVar[int]
    WINDOW_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_OWN_DRAFTS_FIELD_NUMBER: _ClassVar[int]
    POOLING_FIELD_NUMBER: _ClassVar[int]
    VECTOR_SIZE_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    WHOLE_PROMPTS_FIELD_NUMBER: _ClassVar[int]
    ONLY_POOLS_FIELD_NUMBER: _ClassVar[int]
    RECURRENT_FIELD_NUMBER: _ClassVar[int]
    ASKS_ABOUT_PAIRS_FIELD_NUMBER: _ClassVar[int]
    READS_OTHER_STORES_FIELD_NUMBER: _ClassVar[int]
    NUM_ADAPTER_SLOTS_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_BYTES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    contract_version: int
    architecture: str
    vocab_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    max_position_embeddings: int
    block_size: int
    bytes_per_block: int
    num_device_blocks: int
    max_step_tokens: int
    max_step_sequences: int
    numeric_fingerprint: str
    device: str
    kv_dtype: str
    weight_bytes: int
    num_store_slots: int
    store_folder: str
    num_window_parts: int
    bytes_per_window_part: int
    window_size: int
    max_draft_tokens: int
    max_own_drafts: int
    pooling: Pooling
    vector_size: int
    labels: _containers.RepeatedScalarFieldContainer[str]
    whole_prompts: bool
    only_pools: bool
    recurrent: bool
    asks_about_pairs: bool
    reads_other_stores: bool
    num_adapter_slots: int
    adapter_bytes: int
    memory_bytes: int
    def __init__(self, contract_version: _Optional[int] = ..., architecture: _Optional[str] = ..., vocab_size: _Optional[int] = ..., num_layers: _Optional[int] = ..., num_heads: _Optional[int] = ..., num_kv_heads: _Optional[int] = ..., head_size: _Optional[int] = ..., max_position_embeddings: _Optional[int] = ..., block_size: _Optional[int] = ..., bytes_per_block: _Optional[int] = ..., num_device_blocks: _Optional[int] = ..., max_step_tokens: _Optional[int] = ..., max_step_sequences: _Optional[int] = ..., numeric_fingerprint: _Optional[str] = ..., device: _Optional[str] = ..., kv_dtype: _Optional[str] = ..., weight_bytes: _Optional[int] = ..., num_store_slots: _Optional[int] = ..., store_folder: _Optional[str] = ..., num_window_parts: _Optional[int] = ..., bytes_per_window_part: _Optional[int] = ..., window_size: _Optional[int] = ..., max_draft_tokens: _Optional[int] = ..., max_own_drafts: _Optional[int] = ..., pooling: _Optional[_Union[Pooling, str]] = ..., vector_size: _Optional[int] = ..., labels: _Optional[_Iterable[str]] = ..., whole_prompts: _Optional[bool] = ..., only_pools: _Optional[bool] = ..., recurrent: _Optional[bool] = ..., asks_about_pairs: _Optional[bool] = ..., reads_other_stores: _Optional[bool] = ..., num_adapter_slots: _Optional[int] = ..., adapter_bytes: _Optional[int] = ..., memory_bytes: _Optional[int] = ...) -> None: ...

class StoreContentsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StoreContentsResponse(_message.Message):
    __slots__ = ("slots", "keys", "parent_keys", "depths", "sequences")
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    PARENT_KEYS_FIELD_NUMBER: _ClassVar[int]
    DEPTHS_FIELD_NUMBER: _ClassVar[int]
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    slots: _containers.RepeatedScalarFieldContainer[int]
    keys: bytes
    parent_keys: bytes
    depths: _containers.RepeatedScalarFieldContainer[int]
    sequences: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, slots: _Optional[_Iterable[int]] = ..., keys: _Optional[bytes] = ..., parent_keys: _Optional[bytes] = ..., depths: _Optional[_Iterable[int]] = ..., sequences: _Optional[_Iterable[int]] = ...) -> None: ...

class OpenAdapterRequest(_message.Message):
    __slots__ = ("source",)
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    source: str
    def __init__(self, source: _Optional[str] = ...) -> None: ...

class OpenAdapterResponse(_message.Message):
    __slots__ = ("path", "content_hash", "num_bytes", "rank")
    PATH_FIELD_NUMBER: _ClassVar[int]
    CONTENT_HASH_FIELD_NUMBER: _ClassVar[int]
    NUM_BYTES_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    path: str
    content_hash: bytes
    num_bytes: int
    rank: int
    def __init__(self, path: _Optional[str] = ..., content_hash: _Optional[bytes] = ..., num_bytes: _Optional[int] = ..., rank: _Optional[int] = ...) -> None: ...

class StepRequest(_message.Message):
    __slots__ = ("plan", "late_masks")
    PLAN_FIELD_NUMBER: _ClassVar[int]
    LATE_MASKS_FIELD_NUMBER: _ClassVar[int]
    plan: StepPlan
    late_masks: _containers.RepeatedCompositeFieldContainer[LateMask]
    def __init__(self, plan: _Optional[_Union[StepPlan, _Mapping]] = ..., late_masks: _Optional[_Iterable[_Union[LateMask, _Mapping]]] = ...) -> None: ...

class LateMask(_message.Message):
    __slots__ = ("sequence_id", "allowed_tokens", "mask_id")
    SEQUENCE_ID_FIELD_NUMBER: _ClassVar[int]
    ALLOWED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MASK_ID_FIELD_NUMBER: _ClassVar[int]
    sequence_id: int
    allowed_tokens: bytes
    mask_id: int
    def __init__(self, sequence_id: _Optional[int] = ..., allowed_tokens: _Optional[bytes] = ..., mask_id: _Optional[int] = ...) -> None: ...

class StepResponse(_message.Message):
    __slots__ = ("result", "transfers")
    RESULT_FIELD_NUMBER: _ClassVar[int]
    TRANSFERS_FIELD_NUMBER: _ClassVar[int]
    result: StepResult
    transfers: Transfers
    def __init__(self, result: _Optional[_Union[StepResult, _Mapping]] = ..., transfers: _Optional[_Union[Transfers, _Mapping]] = ...) -> None: ...

class StepPlan(_message.Message):
    __slots__ = ("step_id", "ends", "starts", "copies", "chunks", "restores", "discards", "window_drops", "adapter_loads")
    STEP_ID_FIELD_NUMBER: _ClassVar[int]
    ENDS_FIELD_NUMBER: _ClassVar[int]
    STARTS_FIELD_NUMBER: _ClassVar[int]
    COPIES_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    RESTORES_FIELD_NUMBER: _ClassVar[int]
    DISCARDS_FIELD_NUMBER: _ClassVar[int]
    WINDOW_DROPS_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_LOADS_FIELD_NUMBER: _ClassVar[int]
    step_id: int
    ends: _containers.RepeatedScalarFieldContainer[int]
    starts: _containers.RepeatedCompositeFieldContainer[SequenceStart]
    copies: _containers.RepeatedCompositeFieldContainer[BlockCopy]
    chunks: _containers.RepeatedCompositeFieldContainer[Chunk]
    restores: _containers.RepeatedCompositeFieldContainer[Restore]
    discards: _containers.RepeatedScalarFieldContainer[int]
    window_drops: _containers.RepeatedScalarFieldContainer[int]
    adapter_loads: _containers.RepeatedCompositeFieldContainer[AdapterLoad]
    def __init__(self, step_id: _Optional[int] = ..., ends: _Optional[_Iterable[int]] = ..., starts: _Optional[_Iterable[_Union[SequenceStart, _Mapping]]] = ..., copies: _Optional[_Iterable[_Union[BlockCopy, _Mapping]]] = ..., chunks: _Optional[_Iterable[_Union[Chunk, _Mapping]]] = ..., restores: _Optional[_Iterable[_Union[Restore, _Mapping]]] = ..., discards: _Optional[_Iterable[int]] = ..., window_drops: _Optional[_Iterable[int]] = ..., adapter_loads: _Optional[_Iterable[_Union[AdapterLoad, _Mapping]]] = ...) -> None: ...

class AdapterLoad(_message.Message):
    __slots__ = ("slot", "path", "content_hash")
    SLOT_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    CONTENT_HASH_FIELD_NUMBER: _ClassVar[int]
    slot: int
    path: str
    content_hash: bytes
    def __init__(self, slot: _Optional[int] = ..., path: _Optional[str] = ..., content_hash: _Optional[bytes] = ...) -> None: ...

class SequenceStart(_message.Message):
    __slots__ = ("sequence_id", "token_ids", "num_prompt_tokens", "sampling", "root_key", "pooled", "adapter_slot", "adapter_scale")
    SEQUENCE_ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    NUM_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    ROOT_KEY_FIELD_NUMBER: _ClassVar[int]
    POOLED_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_SLOT_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_SCALE_FIELD_NUMBER: _ClassVar[int]
    sequence_id: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    num_prompt_tokens: int
    sampling: SamplingParams
    root_key: bytes
    pooled: PooledPrompt
    adapter_slot: int
    adapter_scale: float
    def __init__(self, sequence_id: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., num_prompt_tokens: _Optional[int] = ..., sampling: _Optional[_Union[SamplingParams, _Mapping]] = ..., root_key: _Optional[bytes] = ..., pooled: _Optional[_Union[PooledPrompt, _Mapping]] = ..., adapter_slot: _Optional[int] = ..., adapter_scale: _Optional[float] = ...) -> None: ...

class PooledPrompt(_message.Message):
    __slots__ = ("second_text",)
    SECOND_TEXT_FIELD_NUMBER: _ClassVar[int]
    second_text: int
    def __init__(self, second_text: _Optional[int] = ...) -> None: ...

class SamplingParams(_message.Message):
    __slots__ = ("temperature", "top_p", "top_k", "min_p", "seed", "choice", "presence_penalty", "frequency_penalty", "repetition_penalty", "min_tokens", "end_token_ids", "num_top_logprobs", "logprobs", "logit_bias", "typical_p", "num_top_prompt_logprobs", "watermark", "top_n_sigma", "xtc_probability", "xtc_threshold", "allowed_tokens", "mask_id")
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    CHOICE_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    MIN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    END_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    NUM_TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    LOGIT_BIAS_FIELD_NUMBER: _ClassVar[int]
    TYPICAL_P_FIELD_NUMBER: _ClassVar[int]
    NUM_TOP_PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    WATERMARK_FIELD_NUMBER: _ClassVar[int]
    TOP_N_SIGMA_FIELD_NUMBER: _ClassVar[int]
    XTC_PROBABILITY_FIELD_NUMBER: _ClassVar[int]
    XTC_THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    ALLOWED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MASK_ID_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    seed: int
    choice: int
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    min_tokens: int
    end_token_ids: _containers.RepeatedScalarFieldContainer[int]
    num_top_logprobs: int
    logprobs: bool
    logit_bias: _containers.RepeatedCompositeFieldContainer[TokenBias]
    typical_p: float
    num_top_prompt_logprobs: int
    watermark: Watermark
    top_n_sigma: float
    xtc_probability: float
    xtc_threshold: float
    allowed_tokens: bytes
    mask_id: int
    def __init__(self, temperature: _Optional[float] = ..., top_p: _Optional[float] = ..., top_k: _Optional[int] = ..., min_p: _Optional[float] = ..., seed: _Optional[int] = ..., choice: _Optional[int] = ..., presence_penalty: _Optional[float] = ..., frequency_penalty: _Optional[float] = ..., repetition_penalty: _Optional[float] = ..., min_tokens: _Optional[int] = ..., end_token_ids: _Optional[_Iterable[int]] = ..., num_top_logprobs: _Optional[int] = ..., logprobs: _Optional[bool] = ..., logit_bias: _Optional[_Iterable[_Union[TokenBias, _Mapping]]] = ..., typical_p: _Optional[float] = ..., num_top_prompt_logprobs: _Optional[int] = ..., watermark: _Optional[_Union[Watermark, _Mapping]] = ..., top_n_sigma: _Optional[float] = ..., xtc_probability: _Optional[float] = ..., xtc_threshold: _Optional[float] = ..., allowed_tokens: _Optional[bytes] = ..., mask_id: _Optional[int] = ...) -> None: ...

class TokenBias(_message.Message):
    __slots__ = ("token_id", "bias")
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    BIAS_FIELD_NUMBER: _ClassVar[int]
    token_id: int
    bias: float
    def __init__(self, token_id: _Optional[int] = ..., bias: _Optional[float] = ...) -> None: ...

class Watermark(_message.Message):
    __slots__ = ("gamma", "delta", "key")
    GAMMA_FIELD_NUMBER: _ClassVar[int]
    DELTA_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    gamma: float
    delta: float
    key: int
    def __init__(self, gamma: _Optional[float] = ..., delta: _Optional[float] = ..., key: _Optional[int] = ...) -> None: ...

class BlockCopy(_message.Message):
    __slots__ = ("source_block_id", "destination_block_id", "num_tokens")
    SOURCE_BLOCK_ID_FIELD_NUMBER: _ClassVar[int]
    DESTINATION_BLOCK_ID_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    source_block_id: int
    destination_block_id: int
    num_tokens: int
    def __init__(self, source_block_id: _Optional[int] = ..., destination_block_id: _Optional[int] = ..., num_tokens: _Optional[int] = ...) -> None: ...

class Chunk(_message.Message):
    __slots__ = ("sequence_id", "first_position", "num_tokens", "new_block_ids", "sample", "stores", "appended_token_ids", "allowed_tokens", "score", "awaits_mask", "draft_token_ids", "draft_masks", "num_own_drafts")
    SEQUENCE_ID_FIELD_NUMBER: _ClassVar[int]
    FIRST_POSITION_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NEW_BLOCK_IDS_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_FIELD_NUMBER: _ClassVar[int]
    STORES_FIELD_NUMBER: _ClassVar[int]
    APPENDED_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    ALLOWED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    AWAITS_MASK_FIELD_NUMBER: _ClassVar[int]
    DRAFT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_MASKS_FIELD_NUMBER: _ClassVar[int]
    NUM_OWN_DRAFTS_FIELD_NUMBER: _ClassVar[int]
    sequence_id: int
    first_position: int
    num_tokens: int
    new_block_ids: _containers.RepeatedScalarFieldContainer[int]
    sample: bool
    stores: _containers.RepeatedCompositeFieldContainer[BlockStore]
    appended_token_ids: _containers.RepeatedScalarFieldContainer[int]
    allowed_tokens: bytes
    score: bool
    awaits_mask: bool
    draft_token_ids: _containers.RepeatedScalarFieldContainer[int]
    draft_masks: _containers.RepeatedScalarFieldContainer[bytes]
    num_own_drafts: int
    def __init__(self, sequence_id: _Optional[int] = ..., first_position: _Optional[int] = ..., num_tokens: _Optional[int] = ..., new_block_ids: _Optional[_Iterable[int]] = ..., sample: _Optional[bool] = ..., stores: _Optional[_Iterable[_Union[BlockStore, _Mapping]]] = ..., appended_token_ids: _Optional[_Iterable[int]] = ..., allowed_tokens: _Optional[bytes] = ..., score: _Optional[bool] = ..., awaits_mask: _Optional[bool] = ..., draft_token_ids: _Optional[_Iterable[int]] = ..., draft_masks: _Optional[_Iterable[bytes]] = ..., num_own_drafts: _Optional[int] = ...) -> None: ...

class BlockStore(_message.Message):
    __slots__ = ("block_index", "slot")
    BLOCK_INDEX_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    block_index: int
    slot: int
    def __init__(self, block_index: _Optional[int] = ..., slot: _Optional[int] = ...) -> None: ...

class Restore(_message.Message):
    __slots__ = ("restore_id", "blocks", "store_folder")
    RESTORE_ID_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    STORE_FOLDER_FIELD_NUMBER: _ClassVar[int]
    restore_id: int
    blocks: _containers.RepeatedCompositeFieldContainer[BlockRestore]
    store_folder: str
    def __init__(self, restore_id: _Optional[int] = ..., blocks: _Optional[_Iterable[_Union[BlockRestore, _Mapping]]] = ..., store_folder: _Optional[str] = ...) -> None: ...

class BlockRestore(_message.Message):
    __slots__ = ("slot", "block_id", "key", "base_only")
    SLOT_FIELD_NUMBER: _ClassVar[int]
    BLOCK_ID_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    BASE_ONLY_FIELD_NUMBER: _ClassVar[int]
    slot: int
    block_id: int
    key: bytes
    base_only: bool
    def __init__(self, slot: _Optional[int] = ..., block_id: _Optional[int] = ..., key: _Optional[bytes] = ..., base_only: _Optional[bool] = ...) -> None: ...

class Transfers(_message.Message):
    __slots__ = ("stores", "restores", "adapters")
    STORES_FIELD_NUMBER: _ClassVar[int]
    RESTORES_FIELD_NUMBER: _ClassVar[int]
    ADAPTERS_FIELD_NUMBER: _ClassVar[int]
    stores: _containers.RepeatedCompositeFieldContainer[StoreOutcome]
    restores: _containers.RepeatedCompositeFieldContainer[RestoreOutcome]
    adapters: _containers.RepeatedCompositeFieldContainer[AdapterOutcome]
    def __init__(self, stores: _Optional[_Iterable[_Union[StoreOutcome, _Mapping]]] = ..., restores: _Optional[_Iterable[_Union[RestoreOutcome, _Mapping]]] = ..., adapters: _Optional[_Iterable[_Union[AdapterOutcome, _Mapping]]] = ...) -> None: ...

class AdapterOutcome(_message.Message):
    __slots__ = ("slot", "problem")
    SLOT_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    slot: int
    problem: str
    def __init__(self, slot: _Optional[int] = ..., problem: _Optional[str] = ...) -> None: ...

class StoreOutcome(_message.Message):
    __slots__ = ("slot", "is_stored")
    SLOT_FIELD_NUMBER: _ClassVar[int]
    IS_STORED_FIELD_NUMBER: _ClassVar[int]
    slot: int
    is_stored: bool
    def __init__(self, slot: _Optional[int] = ..., is_stored: _Optional[bool] = ...) -> None: ...

class RestoreOutcome(_message.Message):
    __slots__ = ("restore_id", "num_blocks", "time_us")
    RESTORE_ID_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    TIME_US_FIELD_NUMBER: _ClassVar[int]
    restore_id: int
    num_blocks: int
    time_us: int
    def __init__(self, restore_id: _Optional[int] = ..., num_blocks: _Optional[int] = ..., time_us: _Optional[int] = ...) -> None: ...

class StepResult(_message.Message):
    __slots__ = ("step_id", "sequences", "device_time_us", "draft_time_us")
    STEP_ID_FIELD_NUMBER: _ClassVar[int]
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    DEVICE_TIME_US_FIELD_NUMBER: _ClassVar[int]
    DRAFT_TIME_US_FIELD_NUMBER: _ClassVar[int]
    step_id: int
    sequences: _containers.RepeatedCompositeFieldContainer[SequenceResult]
    device_time_us: int
    draft_time_us: int
    def __init__(self, step_id: _Optional[int] = ..., sequences: _Optional[_Iterable[_Union[SequenceResult, _Mapping]]] = ..., device_time_us: _Optional[int] = ..., draft_time_us: _Optional[int] = ...) -> None: ...

class SequenceResult(_message.Message):
    __slots__ = ("sequence_id", "token", "error", "scores", "more_tokens", "num_own_drafts", "vector")
    SEQUENCE_ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    SCORES_FIELD_NUMBER: _ClassVar[int]
    MORE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_OWN_DRAFTS_FIELD_NUMBER: _ClassVar[int]
    VECTOR_FIELD_NUMBER: _ClassVar[int]
    sequence_id: int
    token: SampledToken
    error: SequenceError
    scores: _containers.RepeatedCompositeFieldContainer[PromptTokenLogprob]
    more_tokens: _containers.RepeatedCompositeFieldContainer[SampledToken]
    num_own_drafts: int
    vector: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, sequence_id: _Optional[int] = ..., token: _Optional[_Union[SampledToken, _Mapping]] = ..., error: _Optional[_Union[SequenceError, _Mapping]] = ..., scores: _Optional[_Iterable[_Union[PromptTokenLogprob, _Mapping]]] = ..., more_tokens: _Optional[_Iterable[_Union[SampledToken, _Mapping]]] = ..., num_own_drafts: _Optional[int] = ..., vector: _Optional[_Iterable[float]] = ...) -> None: ...

class PromptTokenLogprob(_message.Message):
    __slots__ = ("logprob", "rank", "top_logprobs")
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    logprob: float
    rank: int
    top_logprobs: _containers.RepeatedCompositeFieldContainer[TokenLogprob]
    def __init__(self, logprob: _Optional[float] = ..., rank: _Optional[int] = ..., top_logprobs: _Optional[_Iterable[_Union[TokenLogprob, _Mapping]]] = ...) -> None: ...

class SampledToken(_message.Message):
    __slots__ = ("token_id", "logprob", "top_logprobs")
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    token_id: int
    logprob: float
    top_logprobs: _containers.RepeatedCompositeFieldContainer[TokenLogprob]
    def __init__(self, token_id: _Optional[int] = ..., logprob: _Optional[float] = ..., top_logprobs: _Optional[_Iterable[_Union[TokenLogprob, _Mapping]]] = ...) -> None: ...

class TokenLogprob(_message.Message):
    __slots__ = ("token_id", "logprob")
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    token_id: int
    logprob: float
    def __init__(self, token_id: _Optional[int] = ..., logprob: _Optional[float] = ...) -> None: ...

class SequenceError(_message.Message):
    __slots__ = ("code", "message")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    code: SequenceErrorCode
    message: str
    def __init__(self, code: _Optional[_Union[SequenceErrorCode, str]] = ..., message: _Optional[str] = ...) -> None: ...

class HealthRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class HealthResponse(_message.Message):
    __slots__ = ("last_step_id", "last_step_age_ms", "step_running", "step_running_ms")
    LAST_STEP_ID_FIELD_NUMBER: _ClassVar[int]
    LAST_STEP_AGE_MS_FIELD_NUMBER: _ClassVar[int]
    STEP_RUNNING_FIELD_NUMBER: _ClassVar[int]
    STEP_RUNNING_MS_FIELD_NUMBER: _ClassVar[int]
    last_step_id: int
    last_step_age_ms: int
    step_running: bool
    step_running_ms: int
    def __init__(self, last_step_id: _Optional[int] = ..., last_step_age_ms: _Optional[int] = ..., step_running: _Optional[bool] = ..., step_running_ms: _Optional[int] = ...) -> None: ...
